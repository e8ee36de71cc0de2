/* value: what is common to all types: names, sizes, freeing. */
#include "store/value.h"

#include <stdint.h>

#include "store/t_hash.h"
#include "store/t_list.h"
#include "store/t_set.h"
#include "store/t_stream.h"
#include "store/t_string.h"
#include "store/t_zset.h"

const char *value_type_name(const struct value *value) {
    static const char *const names[VALUE_TYPES] = {"string", "list", "hash", "set", "zset", "stream"};
    return names[value->type];
}

const char *value_encoding_name(const struct value *value) {
    switch ((enum value_encoding)value->encoding) {
    case ENCODING_INTEGER: return "int";
    case ENCODING_BYTES:
        /* The border is Redis's, which clients may look at; here both are stored alike. */
        return string_length(value) <= 44 ? "embstr" : "raw";
    case ENCODING_BLOB: return "raw";
    case ENCODING_CHUNKS: return "quicklist";
    case ENCODING_PACKED: return value->type == VALUE_SET ? "hashtable" : "listpack"; /* 7.0 knows no packed sets */
    case ENCODING_DICT: return value->type == VALUE_SORTED_SET ? "skiplist" : "hashtable";
    case ENCODING_INTEGERS: return "intset";
    case ENCODING_LISTPACKS: return "stream";
    }
    return "unknown";
}

size_t value_memory_bytes(const struct value *value) {
    switch ((enum value_type)value->type) {
    case VALUE_LIST: return list_memory_bytes((const struct list *)value);
    case VALUE_HASH: return hash_memory_bytes((const struct hash *)value);
    case VALUE_SET: return set_memory_bytes(value);
    case VALUE_SORTED_SET: return zset_memory_bytes((const struct zset *)value);
    case VALUE_STREAM: return xstream_memory_bytes(xstream_of(value));
    default: return string_memory_bytes(value);
    }
}

struct value *value_copy(const struct value *value) {
    switch ((enum value_type)value->type) {
    case VALUE_LIST: return (struct value *)list_copy((const struct list *)value);
    case VALUE_HASH: return (struct value *)hash_copy((const struct hash *)value);
    case VALUE_SET: return set_copy(value);
    case VALUE_SORTED_SET: return (struct value *)zset_copy((const struct zset *)value);
    case VALUE_STREAM: return (struct value *)xstream_copy(xstream_of(value));
    default: return string_copy(value);
    }
}

size_t value_free_effort(const struct value *value) {
    switch ((enum value_type)value->type) {
    case VALUE_LIST: return list_length((const struct list *)value);
    case VALUE_HASH: return value->encoding == ENCODING_DICT ? hash_count((const struct hash *)value) : 1;
    case VALUE_SET: return value->encoding == ENCODING_DICT ? set_count(value) : 1;
    case VALUE_SORTED_SET: return zset_free_effort((const struct zset *)value);
    case VALUE_STREAM: return xstream_free_effort(xstream_of(value));
    default: return 1;
    }
}

bool value_release(struct value *value, size_t *steps) {
    switch ((enum value_type)value->type) {
    case VALUE_LIST: return list_release((struct list *)value, steps);
    case VALUE_HASH: return hash_release((struct hash *)value, steps);
    case VALUE_SET: return set_release(value, steps);
    case VALUE_SORTED_SET: return zset_release((struct zset *)value, steps);
    case VALUE_STREAM: return xstream_release(xstream_of(value), steps);
    default: string_free(value); return true;
    }
}

void value_free(struct value *value) {
    size_t steps = SIZE_MAX;
    if (value) value_release(value, &steps);
}
