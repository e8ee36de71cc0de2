/* transaction: the commands that a client has queued since MULTI. */
#ifndef REPLAY_SERVER_TRANSACTION_H
#define REPLAY_SERVER_TRANSACTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/core/client.h"
#include "server/core/upcalls.h"

/* How many are queued, -1 outside of a transaction: for CLIENT LIST. */
int64_t transaction_count(const struct client *client);
/* Ends the transaction, if there is one, and all watches: nothing of it runs. */
void transaction_discard(struct client *client);

#endif
