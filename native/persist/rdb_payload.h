/* rdb_payload: one value as DUMP gives it and RESTORE takes it: type | value | version (2) | checksum (8). */
#ifndef REPLAY_PERSIST_RDB_PAYLOAD_H
#define REPLAY_PERSIST_RDB_PAYLOAD_H

#include "persist/rdb_value.h"

/* False: given up. */
bool rdb_write_payload(struct rdb_writer *writer, const struct value *value, const struct rdb_rest *rest);

enum rdb_payload_result {
    RDB_PAYLOAD_READ,
    RDB_PAYLOAD_FOREIGN, /* the version or the checksum is wrong */
    RDB_PAYLOAD_DAMAGED, /* `error` says where */
    RDB_PAYLOAD_GIVEN_UP
};
/* *value is NULL unless it is read; what had been made of it is in *rest_of, for the caller to free. */
enum rdb_payload_result rdb_read_payload(const uint8_t *data, size_t length, const struct rdb_rest *rest,
                                         struct value **value, struct value **rest_of, struct error *error);

#endif
