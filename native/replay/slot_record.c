/* slot_record: columns of slots, to a snapshot and from it. */
#include "replay/slot_record.h"

#include <string.h>

static size_t list_bytes(const struct slot_store *store) {
    return store->list_length * sizeof(uint32_t);
}

/* ---- writing ------------------------------------------------------------------------------------------------------- */

static size_t column_bytes(const struct slot_store *store, uint32_t column, const uint32_t *slots, uint32_t n) {
    size_t rows = n * sizeof(uint32_t);
    for (uint32_t i = 0; ragged_store_has(store->ragged, column) && i < n; i++)
        rows += ragged_value_bytes(store->ragged, column, slot_ragged(store, column, slots[i]));
    if (ragged_store_has(store->ragged, column)) return rows;
    if (!coded_columns_has(&store->coded, column)) return n * store->value_bytes[column];
    size_t bytes = n * sizeof(uint32_t);
    for (uint32_t i = 0; i < n; i++) {
        size_t size;
        coded_columns_block(&store->coded, column, slots[i], &size);
        bytes += size;
    }
    return bytes;
}

size_t slot_record_bytes(const struct slot_store *store, const uint32_t *slots, uint32_t n) {
    size_t bytes = sizeof n + n * (sizeof slots[0] + list_bytes(store));
    for (uint32_t column = 0; column < store->columns; column++) bytes += column_bytes(store, column, slots, n);
    return bytes;
}

static uint8_t *write_blocks(const struct slot_store *store, uint32_t column, const uint32_t *slots, uint32_t n,
                             uint8_t *to) {
    uint8_t *block_to = to + n * sizeof(uint32_t);
    for (uint32_t i = 0; i < n; i++) {
        size_t size;
        const uint8_t *block = coded_columns_block(&store->coded, column, slots[i], &size);
        uint32_t size_in_file = (uint32_t)size;
        memcpy(to + i * sizeof size_in_file, &size_in_file, sizeof size_in_file);
        memcpy(block_to, block, size);
        block_to += size;
    }
    return block_to;
}

static uint8_t *write_rows(const struct slot_store *store, uint32_t column, const uint32_t *slots, uint32_t n,
                           uint8_t *to) {
    uint8_t *rows_to = to + n * sizeof(uint32_t);
    for (uint32_t i = 0; i < n; i++) {
        const struct ragged_value *value = slot_ragged(store, column, slots[i]);
        memcpy(to + i * sizeof value->length, &value->length, sizeof value->length);
        ragged_store_read(store->ragged, column, value, rows_to);
        rows_to += ragged_value_bytes(store->ragged, column, value);
    }
    return rows_to;
}

void slot_record_write(const struct slot_store *store, const uint32_t *slots, uint32_t n, uint8_t *to) {
    memcpy(to, &n, sizeof n);
    memcpy(to + sizeof n, slots, n * sizeof slots[0]);
    to += sizeof n + n * sizeof slots[0];
    for (uint32_t i = 0; store->list_length > 0 && i < n; i++, to += list_bytes(store))
        memcpy(to, slot_list(store, slots[i]), list_bytes(store));
    for (uint32_t column = 0; column < store->columns; column++) {
        size_t bytes = n * store->value_bytes[column];
        if (coded_columns_has(&store->coded, column)) {
            to = write_blocks(store, column, slots, n, to);
        } else if (ragged_store_has(store->ragged, column)) {
            to = write_rows(store, column, slots, n, to);
        } else if (bytes > 0) {
            column_arrays_gather(&store->arrays, column, slots, n, to, bytes);
            to += bytes;
        }
    }
}

/* ---- reading ------------------------------------------------------------------------------------------------------- */

const char *slot_record_read_slots(const struct slot_store *store, const uint8_t *body, size_t length, uint32_t *slots,
                                   uint32_t *n) {
    *n = 0;
    if (length >= sizeof *n) memcpy(n, body, sizeof *n);
    if (*n < 1 || *n > SLOT_RECORD_MOST) return "a record of no slots, or of too many";
    if (length < sizeof *n + *n * (sizeof slots[0] + list_bytes(store))) return "a record ends within its slots";
    memcpy(slots, body + sizeof *n, *n * sizeof slots[0]);
    return NULL;
}

/* Each block must be one of the store's codec, since what samples it will not look again. */
static const char *read_blocks(struct slot_store *store, uint32_t column, const uint32_t *slots, uint32_t n,
                               const uint8_t **at, const uint8_t *end) {
    const uint8_t *sizes = *at;
    if ((size_t)(end - *at) < n * sizeof(uint32_t)) return "a record ends within the sizes of its blocks";
    *at += n * sizeof(uint32_t);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t size;
        memcpy(&size, sizes + i * sizeof size, sizeof size);
        if (size > (size_t)(end - *at) || size > store->value_bytes[column] ||
            !coded_columns_is_block(&store->coded, column, *at, size))
            return "a block that is none";
        if (coded_columns_put(&store->coded, column, slots[i], *at, size)) return "no memory for a block";
        *at += size;
    }
    return NULL;
}

static const char *read_rows(struct slot_store *store, uint32_t column, const uint32_t *slots, uint32_t n,
                             const uint8_t **at, const uint8_t *end) {
    const uint8_t *lengths = *at;
    if ((size_t)(end - *at) < n * sizeof(uint32_t)) return "a record ends within the lengths of its values";
    *at += n * sizeof(uint32_t);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t length;
        memcpy(&length, lengths + i * sizeof length, sizeof length);
        size_t bytes = length * store->ragged->row_bytes[column];
        if (length > store->ragged->max_length[column] || bytes > (size_t)(end - *at))
            return "a record with a value that is too long";
        if (ragged_store_put(store->ragged, column, slot_ragged(store, column, slots[i]), *at, length))
            return "no memory for a value";
        *at += bytes;
    }
    return NULL;
}

const char *slot_record_read(struct slot_store *store, const uint8_t *body, size_t length) {
    uint32_t slots[SLOT_RECORD_MOST], n;
    const char *wrong = slot_record_read_slots(store, body, length, slots, &n);
    if (wrong) return wrong;
    const uint8_t *at = body + sizeof n + n * sizeof slots[0], *end = body + length;
    for (uint32_t i = 0; store->list_length > 0 && i < n; i++, at += list_bytes(store))
        memcpy(slot_list(store, slots[i]), at, list_bytes(store));
    for (uint32_t column = 0; column < store->columns; column++) {
        size_t bytes = n * store->value_bytes[column];
        if (coded_columns_has(&store->coded, column)) {
            wrong = read_blocks(store, column, slots, n, &at, end);
            if (wrong) return wrong;
        } else if (ragged_store_has(store->ragged, column)) {
            wrong = read_rows(store, column, slots, n, &at, end);
            if (wrong) return wrong;
        } else if (bytes > (size_t)(end - at)) {
            return "a record ends within a column";
        } else if (bytes > 0) {
            column_arrays_scatter(&store->arrays, column, slots, n, at);
            at += bytes;
        }
    }
    return at == end ? NULL : "a record is longer than its slots";
}
