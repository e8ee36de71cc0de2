/* transaction: the commands that a client has queued since MULTI. */
#ifndef REPLAY_SERVER_TRANSACTION_H
#define REPLAY_SERVER_TRANSACTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/core/client.h"

/* See struct upcalls. */
bool transaction_queue(struct client *client, struct command_entry *entry);
void transaction_refused(struct client *client);
const char *transaction_refusal_prefix(struct client *client, const struct command *command);
uint32_t transaction_flags(const struct client *client, const struct command *command);
size_t transaction_bytes(const struct client *client);
/* How many are queued, -1 outside of a transaction: for CLIENT LIST. */
int64_t transaction_count(const struct client *client);
bool transaction_has(const struct client *client, const struct command *command,
                     bool (*is_so)(const struct client *client, const struct command *command, uint32_t argc,
                                   const struct resp_argument *argv, void *context),
                     void *context);
/* Ends the transaction, if there is one, and all watches: nothing of it runs. */
void transaction_discard(struct client *client);

#endif
