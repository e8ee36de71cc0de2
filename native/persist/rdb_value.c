/* rdb_value: values out of their parts, whichever way those are packed. */
#include "persist/rdb_value.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "persist/rdb_format.h"
#include "persist/rdb_stream.h"
#include "store/t_hash.h"
#include "store/t_list.h"
#include "store/t_set.h"
#include "store/t_string.h"
#include "store/t_zset.h"

#define PARTS_KEPT_BYTES 64

/* A value that grows by its parts. */
struct build {
    struct rdb_reader *reader;
    const struct rdb_rest *rest;
    struct value *value;
    size_t parts;
    size_t began; /* of the part, for what is told */
    /* Of a pair: the field or member that came before its value or score. */
    bool has_first;
    const uint8_t *first;
    size_t first_length;
    uint8_t kept[PARTS_KEPT_BYTES];
};

static bool no_memory(struct build *build) {
    return rdb_problem(build->reader, build->began, "no memory for the value");
}

static bool goes_on(struct build *build) {
    const struct rdb_rest *rest = build->rest;
    return ++build->parts % RDB_PARTS_TO_REST != 0 || !rest || rest->rest(rest->context);
}

/* ---- parts ----------------------------------------------------------------------------------------------------------- */

static bool add_element(struct build *build, const uint8_t *data, size_t length) {
    struct value *string = string_new(data, length, NULL);
    if (string && list_push((struct list *)build->value, false, string)) return goes_on(build);
    if (string) string_free(string);
    return no_memory(build);
}

static bool add_member(struct build *build, const uint8_t *data, size_t length) {
    struct set_member member;
    set_member_of(&member, data, length);
    switch (set_add(&build->value, &member)) {
    case SET_ADD_ADDED: return goes_on(build);
    case SET_ADD_PRESENT: return rdb_problem(build->reader, build->began, "a member of a set comes twice");
    default: return no_memory(build);
    }
}

static bool add_field(struct build *build, const uint8_t *field, size_t length, const uint8_t *value,
                      size_t value_length) {
    switch (hash_set((struct hash *)build->value, field, length, value, value_length, NULL)) {
    case HASH_SET_ADDED: return goes_on(build);
    case HASH_SET_UPDATED: return rdb_problem(build->reader, build->began, "a field of a hash comes twice");
    default: return no_memory(build);
    }
}

static bool add_scored(struct build *build, const uint8_t *member, size_t length, double score) {
    struct zset *zset = (struct zset *)build->value;
    struct zset_place place;
    if (zset_find(zset, member, length, &place))
        return rdb_problem(build->reader, build->began, "a member of a sorted set comes twice");
    return zset_note(zset, &place, member, length, score) ? goes_on(build) : no_memory(build);
}

/* Keeps the first of a pair, whose bytes may not last, until the second comes. */
static bool keep_first(struct build *build, const uint8_t *data, size_t length) {
    build->has_first = true;
    build->first_length = length;
    build->first = data;
    if (length > sizeof build->kept) return true; /* no integer's text: it lies in the packed string */
    if (length > 0) memcpy(build->kept, data, length);
    build->first = build->kept;
    return true;
}

static bool take_element(void *context, const uint8_t *data, size_t length) {
    return add_element(context, data, length);
}

static bool take_member(void *context, const uint8_t *data, size_t length) {
    return add_member(context, data, length);
}

static bool take_of_pair(void *context, const uint8_t *data, size_t length) {
    struct build *build = context;
    if (!build->has_first) return keep_first(build, data, length);
    build->has_first = false;
    return add_field(build, build->first, build->first_length, data, length);
}

static bool take_of_scored(void *context, const uint8_t *data, size_t length) {
    struct build *build = context;
    double score;
    if (!build->has_first) return keep_first(build, data, length);
    build->has_first = false;
    if (!number_parse_double(data, length, &score) || isnan(score))
        return rdb_problem(build->reader, build->began, "a score is not a number");
    return add_scored(build, build->first, build->first_length, score);
}

/* ---- from strings ---------------------------------------------------------------------------------------------------- */

/* Reads a string and gives it to `take`. */
static bool read_part(struct build *build, rdb_take take) {
    struct rdb_string string;
    build->began = build->reader->at;
    if (!rdb_read_string(build->reader, &string)) return false;
    bool taken = take(build, string.data, string.length);
    rdb_string_free(&string);
    return taken;
}

static bool read_parts(struct build *build, rdb_take take) {
    uint64_t count;
    if (!rdb_read_length(build->reader, &count)) return false;
    for (; count > 0; count--)
        if (!read_part(build, take)) return false;
    return true;
}

static bool read_fields(struct build *build) {
    uint64_t count;
    if (!rdb_read_length(build->reader, &count)) return false;
    for (; count > 0; count--) {
        struct rdb_string field, value;
        build->began = build->reader->at;
        if (!rdb_read_string(build->reader, &field)) return false;
        bool added = rdb_read_string(build->reader, &value);
        if (added) {
            added = add_field(build, field.data, field.length, value.data, value.length);
            rdb_string_free(&value);
        }
        rdb_string_free(&field);
        if (!added) return false;
    }
    return true;
}

static bool read_scored(struct build *build, bool as_text) {
    uint64_t count;
    if (!rdb_read_length(build->reader, &count)) return false;
    for (; count > 0; count--) {
        struct rdb_string member;
        double score;
        build->began = build->reader->at;
        if (!rdb_read_string(build->reader, &member)) return false;
        bool added = as_text ? rdb_read_text_score(build->reader, &score) : rdb_read_score(build->reader, &score);
        added = added && add_scored(build, member.data, member.length, score);
        rdb_string_free(&member);
        if (!added) return false;
    }
    return true;
}

/* ---- from what is packed --------------------------------------------------------------------------------------------- */

static bool read_packed(struct build *build, enum rdb_packing packing, rdb_take take) {
    struct rdb_string packed;
    build->began = build->reader->at;
    if (!rdb_read_string(build->reader, &packed)) return false;
    bool taken = rdb_unpack(build->reader, packing, &packed, build->began, take, build);
    if (taken && build->has_first)
        taken = rdb_problem(build->reader, build->began, "the last element of a packed value lacks its other half");
    rdb_string_free(&packed);
    return taken;
}

#define QUICKLIST_PLAIN 1u /* a node that is one string */
#define QUICKLIST_PACKED 2u

static bool read_quicklist(struct build *build, bool has_containers) {
    uint64_t nodes, container = QUICKLIST_PACKED;
    if (!rdb_read_length(build->reader, &nodes)) return false;
    for (; nodes > 0; nodes--) {
        size_t began = build->reader->at;
        if (has_containers && !rdb_read_length(build->reader, &container)) return false;
        if (container != QUICKLIST_PLAIN && container != QUICKLIST_PACKED)
            return rdb_problem(build->reader, began, "%" PRIu64 " is no kind of a list's node", container);
        bool read = container == QUICKLIST_PLAIN
                        ? read_part(build, take_element)
                        : read_packed(build, has_containers ? RDB_PACKED_LISTPACK : RDB_PACKED_ZIPLIST, take_element);
        if (!read) return false;
    }
    return true;
}

/* ---- values ---------------------------------------------------------------------------------------------------------- */

static bool read_string_value(struct build *build) {
    struct rdb_string string;
    build->began = build->reader->at;
    if (!rdb_read_string(build->reader, &string)) return false;
    build->value = string_new(string.data, string.length, NULL);
    rdb_string_free(&string);
    return build->value || no_memory(build);
}

static bool begin_list(struct build *build) {
    struct list *list = list_new();
    build->value = list ? &list->head : NULL;
    return list || no_memory(build);
}

static bool begin_set(struct build *build) {
    build->value = set_new();
    return build->value || no_memory(build);
}

static bool begin_hash(struct build *build) {
    struct hash *hash = hash_new();
    build->value = hash ? &hash->head : NULL;
    return hash || no_memory(build);
}

static bool begin_zset(struct build *build) {
    struct zset *zset = zset_new_unordered();
    build->value = zset ? &zset->head : NULL;
    return zset || no_memory(build);
}

/* A stream may be empty. */
static bool begin_stream(struct build *build) {
    struct xstream *stream = xstream_new();
    build->value = stream ? &stream->head : NULL;
    build->parts = 1;
    return stream || no_memory(build);
}

static void rest_while_ordering(void *context) {
    const struct build *build = context;
    if (build->rest) build->rest->rest(build->rest->context);
}

static bool end_zset(struct build *build) {
    struct zset *zset = (struct zset *)build->value;
    if (!zset_order(zset, rest_while_ordering, build)) return no_memory(build);
    return zset_pack(zset) || no_memory(build);
}

static bool read_type(struct build *build, uint8_t type) {
    switch (type) {
    case RDB_STRING: return read_string_value(build);
    case RDB_LIST: return begin_list(build) && read_parts(build, take_element);
    case RDB_LIST_ZIPLIST: return begin_list(build) && read_packed(build, RDB_PACKED_ZIPLIST, take_element);
    case RDB_LIST_QUICKLIST: return begin_list(build) && read_quicklist(build, false);
    case RDB_LIST_QUICKLIST_2: return begin_list(build) && read_quicklist(build, true);
    case RDB_SET: return begin_set(build) && read_parts(build, take_member);
    case RDB_SET_INTSET: return begin_set(build) && read_packed(build, RDB_PACKED_INTSET, take_member);
    case RDB_SET_LISTPACK: return begin_set(build) && read_packed(build, RDB_PACKED_LISTPACK, take_member);
    case RDB_HASH: return begin_hash(build) && read_fields(build);
    case RDB_HASH_ZIPMAP: return begin_hash(build) && read_packed(build, RDB_PACKED_ZIPMAP, take_of_pair);
    case RDB_HASH_ZIPLIST: return begin_hash(build) && read_packed(build, RDB_PACKED_ZIPLIST, take_of_pair);
    case RDB_HASH_LISTPACK: return begin_hash(build) && read_packed(build, RDB_PACKED_LISTPACK, take_of_pair);
    case RDB_ZSET: return begin_zset(build) && read_scored(build, true) && end_zset(build);
    case RDB_ZSET_2: return begin_zset(build) && read_scored(build, false) && end_zset(build);
    case RDB_ZSET_ZIPLIST:
        return begin_zset(build) && read_packed(build, RDB_PACKED_ZIPLIST, take_of_scored) && end_zset(build);
    case RDB_ZSET_LISTPACK:
        return begin_zset(build) && read_packed(build, RDB_PACKED_LISTPACK, take_of_scored) && end_zset(build);
    case RDB_STREAM_LISTPACKS:
    case RDB_STREAM_LISTPACKS_2:
    case RDB_STREAM_LISTPACKS_3:
        return begin_stream(build) && rdb_read_stream(build->reader, type, build->rest, xstream_of(build->value));
    case RDB_MODULE:
    case RDB_MODULE_2: return rdb_problem(build->reader, build->reader->at, "a value of a module, which is not here");
    default: return rdb_problem(build->reader, build->reader->at, "%u is no type of a value", type);
    }
}

bool rdb_read_value(struct rdb_reader *reader, uint8_t type, const struct rdb_rest *rest, struct value **value) {
    struct build build = {.reader = reader, .rest = rest};
    bool read = read_type(&build, type);
    *value = build.value;
    if (read && type != RDB_STRING && build.parts == 0) {
        value_free(build.value);
        *value = NULL;
    }
    return read;
}
