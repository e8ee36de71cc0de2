/* t_hash: hashes, packed while small, as a dict otherwise. */
#include "store/t_hash.h"

#include <string.h>

#include "base/memory.h"

#define PACKED_HEADER 2
#define PACKED_SMALLEST 32
#define MEMORY_SAMPLES 64

_Static_assert(HASH_PACKED_BYTES <= UINT8_MAX, "packed lengths are bytes");

struct hash *hash_new(void) {
    struct hash *hash = memory_calloc(1, sizeof *hash);
    if (hash) hash->head = (struct value){.type = VALUE_HASH, .encoding = ENCODING_PACKED};
    return hash;
}

size_t hash_count(const struct hash *hash) {
    return hash->head.encoding == ENCODING_PACKED ? hash->packed.count : dict_count(&hash->dict);
}

static uint32_t record_bytes(const uint8_t *record) {
    return PACKED_HEADER + (uint32_t)record[0] + record[1];
}

static uint8_t *packed_find(const struct hash_packed *packed, const uint8_t *field, size_t length) {
    for (uint32_t offset = 0; offset < packed->used;) {
        uint8_t *record = packed->bytes + offset;
        if (record[0] == length && memcmp(record + PACKED_HEADER, field, length) == 0) return record;
        offset += record_bytes(record);
    }
    return NULL;
}

static void packed_view(const uint8_t *record, struct string_view *value) {
    value->data = record + PACKED_HEADER + record[0];
    value->length = record[1];
    value->blob = NULL;
}

bool hash_get(struct hash *hash, const uint8_t *field, size_t length, struct string_view *value) {
    if (hash->head.encoding == ENCODING_PACKED) {
        const uint8_t *record = packed_find(&hash->packed, field, length);
        if (record) packed_view(record, value);
        return record;
    }
    struct dict_entry *entry = dict_find(&hash->dict, dict_hash(field, length), field, length);
    if (entry) string_view(entry->value, value);
    return entry;
}

static void drop_string(void *context, void *value) {
    (void)context;
    string_free(value);
}

static enum hash_set_result dict_put(struct dict *dict, const uint8_t *field, size_t length, const uint8_t *value,
                                     size_t value_length, struct blob *blob) {
    struct value *string = string_new(value, value_length, blob);
    if (!string) return HASH_SET_EXHAUSTED;
    uint32_t hashed = dict_hash(field, length);
    struct dict_entry *entry = dict_find(dict, hashed, field, length);
    if (entry) {
        string_free(entry->value);
        entry->value = string;
        return HASH_SET_UPDATED;
    }
    entry = dict_add(dict, hashed, field, length);
    if (!entry) {
        string_free(string);
        return HASH_SET_EXHAUSTED;
    }
    entry->value = string;
    return HASH_SET_ADDED;
}

/* Turns the packed buffer into a dict; false when memory is exhausted, the hash is then unchanged. */
static bool unpack(struct hash *hash) {
    struct hash_packed packed = hash->packed;
    struct dict dict;
    dict_init(&dict);
    for (uint32_t offset = 0; offset < packed.used;) {
        const uint8_t *record = packed.bytes + offset;
        struct string_view value;
        offset += record_bytes(record);
        packed_view(record, &value);
        if (dict_put(&dict, record + PACKED_HEADER, record[0], value.data, value.length, NULL) == HASH_SET_EXHAUSTED) {
            dict_clear(&dict, drop_string, NULL);
            return false;
        }
    }
    memory_free(packed.bytes);
    hash->head.encoding = ENCODING_DICT;
    hash->dict = dict;
    return true;
}

static bool packed_reserve(struct hash_packed *packed, uint32_t bytes) {
    if (bytes <= packed->capacity) return true;
    uint32_t capacity = packed->capacity == 0 ? PACKED_SMALLEST : packed->capacity;
    while (capacity < bytes) capacity += capacity / 2;
    uint8_t *grown = memory_realloc(packed->bytes, capacity);
    if (!grown) return false;
    packed->bytes = grown;
    packed->capacity = capacity;
    return true;
}

/* The value's length may change in the middle of the buffer: what lies behind moves. */
static enum hash_set_result packed_put(struct hash_packed *packed, const uint8_t *field, size_t length,
                                       const uint8_t *value, size_t value_length) {
    uint8_t *record = packed_find(packed, field, length);
    uint32_t offset = record ? (uint32_t)(record - packed->bytes) : packed->used;
    uint32_t before = record ? record_bytes(record) : 0;
    uint32_t after = PACKED_HEADER + (uint32_t)length + (uint32_t)value_length;
    if (after > before && !packed_reserve(packed, packed->used + after - before)) return HASH_SET_EXHAUSTED;
    uint8_t *place = packed->bytes + offset;
    memmove(place + after, place + before, packed->used - offset - before);
    place[0] = (uint8_t)length;
    place[1] = (uint8_t)value_length;
    memcpy(place + PACKED_HEADER, field, length);
    memcpy(place + PACKED_HEADER + length, value, value_length);
    packed->used += after - before;
    packed->count += !record;
    return !record ? HASH_SET_ADDED : HASH_SET_UPDATED;
}

enum hash_set_result hash_set(struct hash *hash, const uint8_t *field, size_t length, const uint8_t *value,
                              size_t value_length, struct blob *blob) {
    if (hash->head.encoding == ENCODING_PACKED) {
        bool fits = length <= HASH_PACKED_BYTES && value_length <= HASH_PACKED_BYTES &&
                    (hash->packed.count < HASH_PACKED_FIELDS || packed_find(&hash->packed, field, length));
        if (fits) return packed_put(&hash->packed, field, length, value, value_length);
        if (!unpack(hash)) return HASH_SET_EXHAUSTED;
    }
    return dict_put(&hash->dict, field, length, value, value_length, blob);
}

bool hash_delete(struct hash *hash, const uint8_t *field, size_t length) {
    if (hash->head.encoding == ENCODING_PACKED) {
        struct hash_packed *packed = &hash->packed;
        uint8_t *record = packed_find(packed, field, length);
        if (!record) return false;
        uint32_t size = record_bytes(record);
        memmove(record, record + size, (size_t)(packed->bytes + packed->used - (record + size)));
        packed->used -= size;
        packed->count--;
        return true;
    }
    struct dict_entry *entry = dict_find(&hash->dict, dict_hash(field, length), field, length);
    if (!entry) return false;
    dict_unlink(&hash->dict, entry);
    string_free(entry->value);
    dict_entry_free(entry);
    return true;
}

bool hash_next(const struct hash *hash, struct hash_position *position, const uint8_t **field, size_t *length,
               struct string_view *value) {
    if (hash->head.encoding == ENCODING_PACKED) {
        if (position->offset >= hash->packed.used) return false;
        const uint8_t *record = hash->packed.bytes + position->offset;
        *field = record + PACKED_HEADER;
        *length = record[0];
        packed_view(record, value);
        position->offset += record_bytes(record);
        return true;
    }
    const struct dict_entry *entry = dict_next(&hash->dict, &position->position);
    if (!entry) return false;
    *field = entry->key;
    *length = entry->key_length;
    string_view(entry->value, value);
    return true;
}

static bool packed_copy(struct hash_packed *copy, const struct hash_packed *packed) {
    if (!packed_reserve(copy, packed->used)) return false;
    if (packed->used > 0) memcpy(copy->bytes, packed->bytes, packed->used);
    copy->used = packed->used;
    copy->count = packed->count;
    return true;
}

static bool dict_copy(struct dict *copy, const struct dict *dict) {
    dict_init(copy);
    struct dict_position position = {0};
    const struct dict_entry *entry;
    while ((entry = dict_next(dict, &position))) {
        struct value *string = string_copy(entry->value);
        struct dict_entry *added = string ? dict_add(copy, entry->hash, entry->key, entry->key_length) : NULL;
        if (!added) {
            if (string) string_free(string);
            return false;
        }
        added->value = string;
    }
    return true;
}

struct hash *hash_copy(const struct hash *hash) {
    struct hash *copy = hash_new();
    if (!copy) return NULL;
    copy->head.encoding = hash->head.encoding;
    bool copied = hash->head.encoding == ENCODING_PACKED ? packed_copy(&copy->packed, &hash->packed)
                                                         : dict_copy(&copy->dict, &hash->dict);
    if (copied) return copy;
    size_t steps = SIZE_MAX;
    hash_release(copy, &steps);
    return NULL;
}

bool hash_release(struct hash *hash, size_t *steps) {
    if (hash->head.encoding == ENCODING_PACKED)
        memory_free(hash->packed.bytes);
    else if (!dict_release(&hash->dict, steps, drop_string, NULL))
        return false;
    memory_free(hash);
    return true;
}

size_t hash_memory_bytes(const struct hash *hash) {
    if (hash->head.encoding == ENCODING_PACKED) return sizeof *hash + hash->packed.capacity;
    struct dict_position position = {0};
    const struct dict_entry *entry;
    size_t bytes = 0, samples = 0;
    while (samples < MEMORY_SAMPLES && (entry = dict_next(&hash->dict, &position))) {
        bytes += sizeof *entry + entry->key_length + string_memory_bytes(entry->value);
        samples++;
    }
    double mean = samples > 0 ? (double)bytes / (double)samples : 0;
    return sizeof *hash + dict_overhead_bytes(&hash->dict) + (size_t)(mean * (double)dict_count(&hash->dict));
}
