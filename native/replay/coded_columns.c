/* coded_columns: blocks of a pool, by column and slot. */
#include "replay/coded_columns.h"

#include <assert.h>
#include <string.h>

#include "base/arithmetic.h"
#include "base/memory.h"

#define LEAST_BLOCK_BYTES 64u
#define CLASSES_IN_DOUBLING 8u
#define LEAST_CHUNK_BYTES (64u << 10)

void coded_columns_init(struct coded_columns *coded, uint32_t columns, const size_t *value_bytes) {
    memset(coded, 0, sizeof *coded);
    coded->columns = columns;
    for (uint32_t i = 0; i < columns; i++) {
        if (!value_bytes[i]) continue;
        column_set_add(&coded->set, i);
        coded->value_bytes[i] = value_bytes[i];
        coded->slot_bytes += value_bytes[i];
        coded->largest = value_bytes[i] > coded->largest ? value_bytes[i] : coded->largest;
    }
}

int coded_columns_map(struct coded_columns *coded, enum step_codec codec, uint64_t slots, uint64_t most_bytes,
                      struct disk_memory *disk) {
    if (!coded->slot_bytes) return 0;
    uint64_t slack = column_set_count(&coded->set) * sizeof(uint32_t);
    const struct block_sizes sizes = {LEAST_BLOCK_BYTES, coded->largest + sizeof(uint32_t), CLASSES_IN_DOUBLING,
                                      LEAST_CHUNK_BYTES};
    coded->slots = slots;
    coded->codec = codec_new(codec);
    coded->scratch = memory_map(coded->largest);
    bool failed = !coded->codec || !coded->scratch ||
                  block_pool_init(&coded->pool, &sizes, at_most((coded->slot_bytes + slack) * slots, most_bytes), disk);
    for (uint32_t i = 0; i < coded->columns && !failed; i++) {
        if (!coded_columns_has(coded, i)) continue;
        coded->block[i] = memory_map(slots * sizeof *coded->block[i]);
        failed = !coded->block[i];
    }
    return failed ? -1 : 0;
}

void coded_columns_free(struct coded_columns *coded) {
    for (uint32_t i = 0; i < coded->columns; i++) memory_unmap(coded->block[i], coded->slots * sizeof *coded->block[i]);
    memory_unmap(coded->scratch, coded->largest);
    codec_free(coded->codec);
    block_pool_free(&coded->pool);
    memset(coded, 0, sizeof *coded);
}

int coded_columns_put(struct coded_columns *coded, uint32_t column, uint32_t slot, const uint8_t *block, size_t size) {
    assert(coded_columns_has(coded, column) && size <= coded->value_bytes[column]);
    uint8_t **at = &coded->block[column][slot];
    if (*at) block_pool_give(&coded->pool, *at);
    uint32_t head = (uint32_t)size;
    *at = block_pool_take(&coded->pool, sizeof head + size);
    if (!*at) return -1;
    memcpy(*at, &head, sizeof head);
    memcpy(*at + sizeof head, block, size);
    return 0;
}

int coded_columns_encode(struct coded_columns *coded, uint32_t column, uint32_t slot, const uint8_t *value) {
    size_t size = codec_encode(coded->codec, value, coded->value_bytes[column], coded->scratch);
    return coded_columns_put(coded, column, slot, coded->scratch, size);
}

const uint8_t *coded_columns_block(const struct coded_columns *coded, uint32_t column, uint32_t slot, size_t *size) {
    const uint8_t *block = coded->block[column][slot];
    assert(block);
    uint32_t head;
    memcpy(&head, block, sizeof head);
    *size = head;
    return block + sizeof head;
}

bool coded_columns_is_block(const struct coded_columns *coded, uint32_t column, const uint8_t *block, size_t size) {
    return codec_is_block(coded->codec, block, size, coded->scratch, coded->value_bytes[column]);
}

void coded_columns_decode(const struct coded_columns *coded, uint32_t column, uint32_t slot, uint8_t *value) {
    size_t size;
    const uint8_t *block = coded_columns_block(coded, column, slot, &size);
    bool decoded = codec_decode(coded->codec, block, size, value, coded->value_bytes[column]);
    assert(decoded); /* see the header: every block that is read is one */
    (void)decoded;
}

uint64_t coded_columns_bytes(const struct coded_columns *coded, uint32_t slot) {
    uint64_t bytes = 0;
    COLUMN_SET_EACH(column, &coded->set) {
        const uint8_t *block = coded->block[column][slot];
        assert(block);
        bytes += block_pool_taken(&coded->pool, block);
    }
    return bytes;
}

void coded_columns_forget(struct coded_columns *coded, uint32_t slot) {
    COLUMN_SET_EACH(column, &coded->set) {
        uint8_t **at = &coded->block[column][slot];
        if (*at) block_pool_give(&coded->pool, *at);
        *at = NULL;
    }
}
