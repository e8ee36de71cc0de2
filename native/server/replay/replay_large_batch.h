/* replay_large_batch: a batch whose reply takes more work than fits a turn of the loop. The batch is drawn, or found,
 * and copied out in slices (slices.h), between which other requests are served. The reply is sent when the batch is
 * complete. */
#ifndef REPLAY_SERVER_REPLAY_LARGE_BATCH_H
#define REPLAY_SERVER_REPLAY_LARGE_BATCH_H

#include "server/replay/replay_registry.h"

#define REPLAY_PART_BYTES (256u << 10) /* copied at once; a reply that copies more is made in parts */

/* A sample, or a GET, of more items than may be pinned, all of whose columns are copied: each part is let go of as soon as it is
 * copied. Replies, now or in later turns, also where it is refused. */
void replay_sample_in_parts(struct client *client, struct replay_request *request);
void replay_get_in_parts(struct client *client, struct replay_request *request);
/* Whether a GET of a table that follows a primary's is to be made by replay_get_in_parts: it is large, as its columns of fixed
 * size tell, or those rows that its items have in others. */
bool replay_follower_gets_in_parts(const struct replay_request *request);
bool replay_follower_copies_many_rows(const struct replay_request *request, const struct replay_batch *batch);
/* The reply of a batch that is pinned: columns are copied, or steps found, in slices. Takes the handler's batch over. */
void replay_make_in_parts(struct client *client, struct replay_request *request, struct replay_batch *batch);
/* Bytes of the columns asked for that are copied into a reply of n items. */
size_t replay_copied_bytes(const struct replay_request *request, uint32_t n);
/* The request is over. */
void replay_parts_drop(struct replay_request *request);

#endif
