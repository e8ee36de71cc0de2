/* rdb_stream: streams in Redis's files and in the payloads of DUMP: blocks as they are in memory, then numbers,
 * groups, consumers and their pending entries. */
#ifndef REPLAY_PERSIST_RDB_STREAM_H
#define REPLAY_PERSIST_RDB_STREAM_H

#include "persist/rdb_value.h"
#include "store/t_stream.h"

/* Reads what follows the type, one of RDB_STREAM_LISTPACKS to RDB_STREAM_LISTPACKS_3, into an empty stream. False: damaged,
 * and the reader's error says where; or given up, without an error. */
bool rdb_read_stream(struct rdb_reader *reader, uint8_t type, const struct rdb_rest *rest, struct xstream *stream);

/* In the form of RDB_STREAM_LISTPACKS_2, Redis 7.0's. False: given up. */
bool rdb_write_stream(struct rdb_writer *writer, const struct xstream *stream, const struct rdb_rest *rest);

#endif
