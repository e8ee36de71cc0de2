/* rdb_payload: a value between its type and its footer. */
#include "persist/rdb_payload.h"

#include "base/crc64.h"
#include "persist/rdb_format.h"

#define CHECKED_AT_ONCE (256u << 10)

/* False: given up. */
static bool checksum(const uint8_t *data, size_t length, const struct rdb_rest *rest, uint64_t *sum) {
    *sum = 0;
    for (size_t at = 0; at < length;) {
        size_t count = length - at < CHECKED_AT_ONCE ? length - at : CHECKED_AT_ONCE;
        *sum = crc64(*sum, data + at, count);
        at += count;
        if (at < length && rest && !rest->rest(rest->context)) return false;
    }
    return true;
}

bool rdb_write_payload(struct rdb_writer *writer, const struct value *value, const struct rdb_rest *rest) {
    rdb_write_byte(writer, rdb_type_of(value));
    return rdb_write_value(writer, value, rest) && rdb_write_footer(writer, rest);
}

bool rdb_write_footer(struct rdb_writer *writer, const struct rdb_rest *rest) {
    uint64_t sum;
    rdb_write_little_endian(writer, RDB_VERSION, 2);
    if (writer->bytes.failed) return true;
    if (!checksum(writer->bytes.data, writer->bytes.length, rest, &sum)) return false;
    rdb_write_little_endian(writer, sum, 8);
    return true;
}

enum rdb_payload_result rdb_check_footer(const uint8_t *data, size_t length, const struct rdb_rest *rest) {
    if (length < RDB_FOOTER_BYTES) return RDB_PAYLOAD_FOREIGN;
    struct rdb_reader footer = {.data = data, .length = length, .at = length - RDB_FOOTER_BYTES};
    uint64_t version, said, sum;
    rdb_read_little_endian(&footer, 2, &version);
    rdb_read_little_endian(&footer, 8, &said);
    if (version > RDB_VERSION_MOST) return RDB_PAYLOAD_FOREIGN;
    if (!checksum(data, length - 8, rest, &sum)) return RDB_PAYLOAD_GIVEN_UP;
    return said == sum ? RDB_PAYLOAD_READ : RDB_PAYLOAD_FOREIGN;
}

enum rdb_payload_result rdb_read_payload(const uint8_t *data, size_t length, const struct rdb_rest *rest,
                                         struct value **value, struct value **unfinished, struct error *error) {
    *value = *unfinished = NULL;
    enum rdb_payload_result footer = rdb_check_footer(data, length, rest);
    if (footer != RDB_PAYLOAD_READ) return footer;
    struct rdb_reader reader = {.data = data, .length = length - RDB_FOOTER_BYTES};
    uint8_t type;
    bool read = rdb_read_byte(&reader, &type) && rdb_read_value(&reader, type, rest, unfinished);
    if (read && !*unfinished) read = rdb_problem(&reader, 0, "a value without elements");
    if (read && reader.at != reader.length)
        read = rdb_problem(&reader, reader.at, "the value ends before its payload does");
    if (read) {
        *value = *unfinished;
        *unfinished = NULL;
        return RDB_PAYLOAD_READ;
    }
    *error = reader.error;
    return reader.error.code == ERROR_NONE ? RDB_PAYLOAD_GIVEN_UP : RDB_PAYLOAD_DAMAGED;
}
