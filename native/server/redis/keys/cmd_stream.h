/* cmd_stream: what the files of commands on streams share. */
#ifndef REPLAY_SERVER_CMD_STREAM_H
#define REPLAY_SERVER_CMD_STREAM_H

#include "server/redis/keys/keyspace.h"
#include "store/t_stream.h"

/* The stream under the key named by argument `index`, for reading. False: an error is replied. *stream is NULL where there
 * is no key. */
bool stream_for_reading(struct client *client, uint32_t index, struct xstream **stream);
/* The group named by argument `index + 1` of the stream under the key named by argument `index`. NULL: the error is
 * replied. The entry is told of as about to change where `writes`. */
struct stream_place {
    struct dict_entry *entry;
    struct xstream *stream;
    struct xstream_group *group;
};
bool stream_group_argument(struct client *client, uint32_t index, bool writes, struct stream_place *place);
struct xstream_group *stream_group_named(const struct xstream *stream, const struct resp_argument *name);
/* The consumer of this name, which is made where there is none, and told of. NULL: memory is exhausted. */
struct xstream_consumer *stream_consumer_named(struct client *client, uint32_t key_index, struct xstream_group *group,
                                               const struct resp_argument *name, bool *created);
void reply_no_such_group(struct client *client, const struct resp_argument *key, const struct resp_argument *name);
int64_t stream_now_ms(const struct client *client);
/* Counts a change that no watch and no waiting client cares for, and tells subscribers of it (name NULL: nobody). */
void stream_changed_aside(struct client *client, const char *event, uint32_t key_index);

/* ---- ids --------------------------------------------------------------------------------------------------------- */

#define STREAM_INVALID_ID "ERR Invalid stream ID specified as stream command argument"

/* "ms" or "ms-sequence"; the first alone stands for `sequence`. False: it is none. */
bool stream_id_parse(const struct resp_argument *argument, uint64_t sequence, struct xstream_id *id);
/* These reply the error. */
bool stream_id_argument(struct client *client, uint32_t index, uint64_t sequence, struct xstream_id *id);
/* Also "-" and "+". */
bool stream_id_or_end_argument(struct client *client, uint32_t index, uint64_t sequence, struct xstream_id *id);
/* A bound of a range: also "-", "+", and with "(" before it, which leaves the id itself out. */
bool stream_bound_argument(struct client *client, uint32_t index, bool is_end, struct xstream_id *id);

void reply_stream_id(struct client *client, struct xstream_id id);
/* An id, and its fields and values. */
void reply_stream_entry(struct client *client, struct xstream_entry *entry);
/* The same for the entry of this id; false: it is not there, nothing is replied. */
bool reply_stream_entry_of(struct client *client, const struct xstream *stream, struct xstream_id id);

/* The entries with ids in [from, until], at most `most` of them, as an array; within a body that is run in slices (see
 * server/core/exclusive_execution.h) it rests. False: the client was lost meanwhile. */
bool reply_stream_range(struct client *client, const struct xstream *stream, struct xstream_id from,
                        struct xstream_id until, uint64_t most, bool backwards);

/* ---- what is recorded -------------------------------------------------------------------------------------------- */

/* Words of a command that is recorded. */
struct resp_argument stream_word(const char *text);
/* Records XCLAIM, so that the entry is pending as it is now; or pending nowhere, if the stream has it no more. */
void stream_record_pending(struct client *client, const struct resp_argument *key, const struct xstream_group *group,
                           struct xstream_id id, const struct xstream_pending *pending);
/* Records XGROUP SETID: how far the group has come. */
void stream_record_group(struct client *client, const struct resp_argument *key, const struct xstream_group *group);
/* Records XGROUP CREATECONSUMER. */
void stream_record_consumer(struct client *client, const struct resp_argument *key, const struct xstream_group *group,
                            const struct xstream_consumer *consumer);

#endif
