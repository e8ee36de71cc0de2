/* replay_ragged: answers a ragged column: where the rows of each item begin and end, and then the rows, sent from where they
 * lie. The format is in docs/protocol.md. */
#ifndef REPLAY_SERVER_REPLAY_RAGGED_H
#define REPLAY_SERVER_REPLAY_RAGGED_H

#include "server/replay/replay_source.h"

/* Bytes of a ragged column of a batch as it is answered: int64 offsets[n + 1], then the rows. */
size_t replay_ragged_bytes(const struct replay_batch *batch, uint32_t column);
/* As replay_source_extra and replay_source_reply, of a ragged column. */
size_t replay_ragged_extra(const struct replay_batch *batch, uint32_t column);
void replay_ragged_reply(struct client *client, struct replay_batch *batch, struct replay_column_source *source,
                         uint32_t column, uint8_t *extra);

#endif
