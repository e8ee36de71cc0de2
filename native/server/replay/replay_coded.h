/* replay_coded: replies windows as compressed steps: each distinct step of a batch once, as it is stored, and for
 * each item which of them it shows. The format is in docs/protocol.md. */
#ifndef REPLAY_SERVER_REPLAY_CODED_H
#define REPLAY_SERVER_REPLAY_CODED_H

#include "server/replay/replay_registry.h"

#define REPLAY_CODED_PLACES (1u << 18) /* steps that the windows over one column show, all items together */

/* Whether n items may be answered so; otherwise ERROR_LIMIT: they show too many steps. */
bool replay_coded_allowed(const struct replay_entry *entry, uint32_t n, const uint8_t *columns, uint32_t column_count,
                          struct error *error);
/* Replies [ids, probabilities, weights, name, bytes, …]: the columns of items, then a coded one for each column of steps
 * that the windows among `columns` look at. */
void replay_coded_reply(struct client *client, struct replay_batch *batch, const uint8_t *columns,
                        uint32_t column_count);

#endif
