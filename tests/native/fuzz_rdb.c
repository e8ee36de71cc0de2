/* fuzz_rdb: whatever bytes stand where Redis's formats should, they are read or refused. What is read as a value is written
 * and read again, and is the same then. */
#include <assert.h>
#include <string.h>

#include "persist/rdb_file.h"
#include "persist/rdb_payload.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Begins of values and files that the driver mutates; the first byte says which. */
const char *const fuzz_seeds[] = {
    "v\x01\x02\x01"
    "a\xc0\x07",
    "v\x02\x02\x01"
    "a\x01"
    "b",
    "v\x04\x01\x01"
    "f\x02vv",
    "v\x05\x01\x01"
    "m\x01\x02\x03\x04\x05\x06\x07\x40",
    "v\x03\x01\x01"
    "m\x03"
    "1.5",
    "v\x0b\x0c\x02",
    "v\x12\x01\x02\x0d\x0d",
    "v\x10\x0b\x0b",
    "v\x09\x08\x01\x01"
    "f\x01\x01v",
    "v\x0e\x01\x0d\x0d",
    "v\x01\x01\xc3\x04\x0c\x02"
    "abc",
    "fREDIS0010\xfa\x05"
    "ctime\xc2\x01\x02\x03\x04\xfe\x01\xfb\x01\x01\xfc\x01\x01\x01\x01\x01\x01",
    "fREDIS0009\xf9\x07\xf8\x07\xfd\x01\x01\x01\x01\x01\x01k\x01\x01"
    "e\xf5\x03lib\xff",
    NULL,
};

static struct value *read_whole(const uint8_t *data, size_t size) {
    struct rdb_reader reader = {.data = data + 1, .length = size - 1};
    struct value *value = NULL;
    bool read = size > 0 && rdb_read_value(&reader, data[0], NULL, &value);
    assert(read || size == 0 || reader.error.code != ERROR_NONE);
    if (read) return value;
    value_free(value);
    return NULL;
}

static void write_again(const struct value *value, bool compresses) {
    struct rdb_writer writer = {.compresses = compresses}, second = {.compresses = compresses};
    struct value *again, *part;
    struct error error;
    assert(rdb_write_payload(&writer, value, NULL) && !writer.bytes.failed);
    assert(rdb_read_payload(writer.bytes.data, writer.bytes.length, NULL, &again, &part, &error) == RDB_PAYLOAD_READ);
    assert(again->type == value->type && rdb_write_payload(&second, again, NULL));
    assert(second.bytes.length == writer.bytes.length);
    value_free(again);
    piece_bytes_free(&writer.bytes);
    piece_bytes_free(&second.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    if (data[0] == 'f') {
        struct rdb_content content = {0};
        struct error error;
        rdb_file_parse("file", data + 1, size - 1, &content, NULL, &error);
        store_content_free(&content.store);
        return 0;
    }
    struct value *value = read_whole(data + 1, size - 1);
    if (!value) return 0;
    write_again(value, true);
    write_again(value, false);
    value_free(value);
    return 0;
}
