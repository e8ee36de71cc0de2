/* rdb_payload: one value as DUMP gives it and RESTORE takes it: type | value | version (2) | checksum (8). */
#ifndef REPLAY_PERSIST_RDB_PAYLOAD_H
#define REPLAY_PERSIST_RDB_PAYLOAD_H

#include "persist/rdb_value.h"

/* False: given up. */
bool rdb_write_payload(struct rdb_writer *writer, const struct value *value, const struct rdb_rest *rest);
/* The same for what has been written so far. */
bool rdb_write_footer(struct rdb_writer *writer, const struct rdb_rest *rest);

enum rdb_payload_result {
    RDB_PAYLOAD_READ,
    RDB_PAYLOAD_FOREIGN, /* the version or the checksum is wrong */
    RDB_PAYLOAD_DAMAGED, /* `error` says where */
    RDB_PAYLOAD_GIVEN_UP
};
/* RDB_PAYLOAD_READ: what precedes the footer is as it was written. */
enum rdb_payload_result rdb_check_footer(const uint8_t *data, size_t length, const struct rdb_rest *rest);
/* RDB_PAYLOAD_READ: the value is in *value. Otherwise *value is NULL, and what was made of it is in *unfinished (NULL:
 * nothing was), for the caller to free. */
enum rdb_payload_result rdb_read_payload(const uint8_t *data, size_t length, const struct rdb_rest *rest,
                                         struct value **value, struct value **unfinished, struct error *error);

#endif
