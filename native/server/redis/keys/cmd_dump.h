/* cmd_dump: values as DUMP gives them, for who sends them elsewhere. */
#ifndef REPLAY_SERVER_CMD_DUMP_H
#define REPLAY_SERVER_CMD_DUMP_H

#include "persist/store_piece.h"
#include "server/core/client.h"
#include "store/value.h"

/* Fills `bytes`, which are zeros and are the caller's to free, within exclusive_run_command. bytes->failed tells of want of
 * memory. False: the client is lost. */
bool dump_payload(struct client *client, const struct value *value, struct piece_bytes *bytes);

#endif
