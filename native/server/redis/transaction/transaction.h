/* transaction: the commands that a client has queued since MULTI. */
#ifndef REPLAY_SERVER_TRANSACTION_H
#define REPLAY_SERVER_TRANSACTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/core/client.h"

struct command_entry;

/* Puts the request off until EXEC where the client is in a transaction and the command is one that waits for it; the
 * reply is made. False: it is to be run now. */
bool transaction_queue(struct client *client, struct command_entry *entry);
/* A request was refused: EXEC will refuse them all. */
void transaction_refused(struct client *client);
/* A request for EXEC that is refused ends the transaction, and says so: what precedes the reason. NULL: another one. */
const char *transaction_refusal_prefix(struct client *client, const struct command *command);
/* What the client's request may do: the command's flags, or those that its arguments tell (of a script); and with EXEC
 * those of all requests queued. */
uint32_t transaction_flags(const struct client *client, const struct command *command);
/* How many are queued, -1 outside of a transaction, and what they hold: for CLIENT LIST. */
int64_t transaction_count(const struct client *client);
size_t transaction_bytes(const struct client *client);
/* Ends the transaction, if there is one, and all watches: nothing of it runs. */
void transaction_discard(struct client *client);

#endif
