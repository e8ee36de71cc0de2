/* store_piece: heads, then parts of each type: written from any form, read into whatever form suits. */
#include "persist/store_piece.h"

#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "store/t_hash.h"
#include "store/t_list.h"
#include "store/t_set.h"
#include "store/t_stream.h"
#include "store/t_string.h"

#define SMALL_PARTS 128u /* values of at most so many parts and bytes are written in one go */
#define SMALL_BYTES (128u << 10)

/* ---- bytes --------------------------------------------------------------------------------------------------------- */

static uint8_t *room_for(struct piece_bytes *bytes, size_t length) {
    if (bytes->capacity - bytes->length < length) {
        size_t capacity = bytes->capacity ? bytes->capacity : 4096;
        while (capacity - bytes->length < length) capacity *= 2;
        uint8_t *data = bytes->failed ? NULL : memory_realloc(bytes->data, capacity);
        bytes->failed |= !data;
        if (!data) return NULL;
        bytes->data = data;
        bytes->capacity = capacity;
    }
    uint8_t *at = bytes->data + bytes->length;
    bytes->length += length;
    return at;
}

void piece_bytes_add(struct piece_bytes *bytes, const void *data, size_t length) {
    uint8_t *at = room_for(bytes, length);
    if (at && length) memcpy(at, data, length);
}

void piece_bytes_free(struct piece_bytes *bytes) {
    memory_free(bytes->data);
    *bytes = (struct piece_bytes){0};
}

static void add_part(struct piece_bytes *bytes, const uint8_t *data, size_t length) {
    uint32_t prefix = (uint32_t)length;
    uint8_t *at = room_for(bytes, sizeof prefix + length);
    if (!at) return;
    memcpy(at, &prefix, sizeof prefix);
    if (length) memcpy(at + sizeof prefix, data, length);
}

static void add_string_part(struct piece_bytes *bytes, const struct value *string) {
    struct string_view view;
    string_view(string, &view);
    add_part(bytes, view.data, view.length);
}

/* Returns where the head stands. */
static size_t add_head(struct piece_bytes *bytes, const struct piece_key *key, uint8_t type, uint8_t flags,
                       uint64_t parts, uint64_t total) {
    size_t at = bytes->length;
    struct piece_head head = {
        .type = type,
        .flags = (uint8_t)(flags | (key->expires ? PIECE_EXPIRES : 0)),
        .key_length = (uint32_t)key->length,
        .parts = parts,
    };
    piece_bytes_add(bytes, &head, sizeof head);
    if (key->expires) piece_bytes_add(bytes, &key->at_ms, sizeof key->at_ms);
    if ((flags & PIECE_FIRST) && !(flags & PIECE_LAST)) piece_bytes_add(bytes, &total, sizeof total);
    piece_bytes_add(bytes, key->key, key->length);
    return at;
}

void piece_string_head(struct piece_bytes *bytes, const struct piece_key *key, uint8_t flags, uint64_t parts,
                       uint64_t total) {
    add_head(bytes, key, VALUE_STRING, flags, parts, total);
}

/* ---- writing ------------------------------------------------------------------------------------------------------- */

static uint64_t parts_of(const struct value *value) {
    switch ((enum value_type)value->type) {
    case VALUE_STRING: return string_length(value);
    case VALUE_LIST: return list_length((const struct list *)value);
    case VALUE_HASH: return hash_count((const struct hash *)value);
    case VALUE_SET: return set_count(value);
    case VALUE_SORTED_SET: return zset_count((const struct zset *)value);
    case VALUE_STREAM: return stream_piece_parts(xstream_of(value));
    default: return 0;
    }
}

bool piece_is_small(const struct value *value) {
    if (value->type == VALUE_STRING) return string_length(value) < STRING_BLOB_BYTES;
    if (value->type != VALUE_LIST && value->type != VALUE_STREAM && value->encoding != ENCODING_DICT) return true;
    return parts_of(value) <= SMALL_PARTS && value_memory_bytes(value) <= SMALL_BYTES;
}

static void add_score(struct piece_bytes *bytes, const struct zset_item *item) {
    piece_bytes_add(bytes, &item->score, sizeof item->score);
    add_part(bytes, item->member, item->length);
}

static void add_stream_part(struct piece_bytes *bytes, const struct stream_part *part) {
    uint32_t prefix = (uint32_t)(part->head_length + part->length);
    piece_bytes_add(bytes, &prefix, sizeof prefix);
    piece_bytes_add(bytes, part->head, part->head_length);
    piece_bytes_add(bytes, part->data, part->length);
}

static void write_stream(struct piece_bytes *bytes, const struct xstream *stream) {
    struct stream_piece_walk walk = {0};
    struct stream_part part;
    while (stream_piece_next(stream, &walk, &part)) add_stream_part(bytes, &part);
}

static void write_fields(struct piece_bytes *bytes, const struct hash *hash) {
    struct hash_position position = {0};
    const uint8_t *field;
    size_t length;
    struct string_view view;
    while (hash_next(hash, &position, &field, &length, &view)) {
        add_part(bytes, field, length);
        add_part(bytes, view.data, view.length);
    }
}

static void write_members(struct piece_bytes *bytes, const struct value *set) {
    struct set_position position = {0};
    struct set_member member;
    while (set_next(set, &position, &member)) {
        set_member_text(&member);
        add_part(bytes, member.data, member.length);
    }
}

void piece_write(struct piece_bytes *bytes, const struct piece_key *key, const struct value *value) {
    struct string_view view;
    add_head(bytes, key, (uint8_t)value->type, PIECE_FIRST | PIECE_LAST, parts_of(value), 0);
    switch ((enum value_type)value->type) {
    case VALUE_STRING:
        string_view(value, &view);
        piece_bytes_add(bytes, view.data, view.length);
        break;
    case VALUE_LIST:
        if (list_length((const struct list *)value) > 0) {
            struct list_position position = list_at((const struct list *)value, 0);
            do {
                add_string_part(bytes, *list_element(position));
            } while (list_step(&position, false));
        }
        break;
    case VALUE_HASH: write_fields(bytes, (const struct hash *)value); break;
    case VALUE_SET: write_members(bytes, value); break;
    case VALUE_SORTED_SET: {
        struct zset_position position = {0};
        struct zset_item item;
        while (zset_next((const struct zset *)value, &position, &item)) add_score(bytes, &item);
        break;
    }
    case VALUE_STREAM: write_stream(bytes, xstream_of(value)); break;
    default: break;
    }
}

/* Parts of a value of which some are written. */
struct some {
    struct piece_bytes *bytes;
    uint64_t parts;
};

static void visit_field(void *context, struct dict_entry *entry) {
    struct some *some = context;
    add_part(some->bytes, entry->key, entry->key_length);
    add_string_part(some->bytes, entry->value);
    some->parts++;
}

static void visit_member(void *context, struct dict_entry *entry) {
    struct some *some = context;
    add_part(some->bytes, entry->key, entry->key_length);
    some->parts++;
}

static bool add_elements(struct some *some, const struct list *list, struct piece_walk *walk, size_t until) {
    if (!walk->begun) walk->list = list_at(list, 0);
    while (!walk->list_ended && some->bytes->length < until && !some->bytes->failed) {
        add_string_part(some->bytes, *list_element(walk->list));
        some->parts++;
        walk->list_ended = !list_step(&walk->list, false);
    }
    return !walk->list_ended;
}

static bool add_scored(struct some *some, const struct zset *zset, struct piece_walk *walk, size_t until) {
    struct zset_item item;
    while (some->bytes->length < until && !some->bytes->failed) {
        if (!zset_next(zset, &walk->zset, &item)) return false;
        add_score(some->bytes, &item);
        some->parts++;
    }
    return true;
}

static bool add_of_stream(struct some *some, const struct xstream *stream, struct piece_walk *walk, size_t until) {
    struct stream_part part;
    while (some->bytes->length < until && !some->bytes->failed) {
        if (!stream_piece_next(stream, &walk->stream, &part)) return false;
        add_stream_part(some->bytes, &part);
        some->parts++;
    }
    return true;
}

static bool add_of_dict(struct some *some, struct dict *dict, dict_visit visit, struct piece_walk *walk, size_t until) {
    while (some->bytes->length < until && !some->bytes->failed)
        if (!dict_walk_step(&walk->dict, dict, visit, some)) return false;
    return true;
}

static bool add_some(struct some *some, struct value *value, struct piece_walk *walk, size_t until) {
    switch ((enum value_type)value->type) {
    case VALUE_LIST: return add_elements(some, (const struct list *)value, walk, until);
    case VALUE_HASH: return add_of_dict(some, &((struct hash *)value)->dict, visit_field, walk, until);
    case VALUE_SET: return add_of_dict(some, set_dict(value), visit_member, walk, until);
    case VALUE_SORTED_SET: return add_scored(some, (const struct zset *)value, walk, until);
    case VALUE_STREAM: return add_of_stream(some, xstream_of(value), walk, until);
    default: return false;
    }
}

bool piece_write_some(struct piece_bytes *bytes, const struct piece_key *key, struct value *value,
                      struct piece_walk *walk) {
    struct some some = {.bytes = bytes};
    size_t at = add_head(bytes, key, (uint8_t)value->type, walk->begun ? 0 : PIECE_FIRST, 0, parts_of(value));
    bool more = add_some(&some, value, walk, at + PIECE_BYTES);
    if (bytes->failed) return false;
    /* How many parts fit, and whether they were the last, is known only now. */
    struct piece_head *head = (struct piece_head *)(void *)(bytes->data + at);
    struct piece_head filled;
    memcpy(&filled, head, sizeof filled);
    filled.parts = some.parts;
    bool first = !walk->begun;
    walk->begun = true;
    if (!more && !first) filled.flags |= PIECE_LAST;
    memcpy(head, &filled, sizeof filled);
    return more || first; /* what began is ended by a piece of its own, which may be empty */
}

/* ---- reading ------------------------------------------------------------------------------------------------------- */

struct reading {
    const uint8_t *at;
    size_t left;
};

static bool take(struct reading *reading, void *out, size_t length) {
    if (reading->left < length) return false;
    memcpy(out, reading->at, length);
    reading->at += length;
    reading->left -= length;
    return true;
}

static bool take_part(struct reading *reading, const uint8_t **data, size_t *length) {
    uint32_t prefix;
    if (!take(reading, &prefix, sizeof prefix) || reading->left < prefix) return false;
    *data = reading->at;
    *length = prefix;
    reading->at += prefix;
    reading->left -= prefix;
    return true;
}

/* Parts are measured, so that the next piece is found. */
static bool pass_parts(struct reading *reading, const struct piece_head *head) {
    const uint8_t *data;
    size_t length;
    if (head->type == VALUE_STRING) {
        if (head->parts > reading->left) return false;
        reading->at += head->parts;
        reading->left -= (size_t)head->parts;
        return true;
    }
    for (uint64_t i = 0; i < head->parts; i++) {
        double score;
        if (head->type == VALUE_SORTED_SET && !take(reading, &score, sizeof score)) return false;
        if (!take_part(reading, &data, &length)) return false;
        if (head->type == VALUE_HASH && !take_part(reading, &data, &length)) return false;
    }
    return true;
}

int piece_read(const uint8_t **data, size_t *length, struct piece *piece, struct error *error) {
    struct reading reading = {*data, *length};
    struct piece_head *head = &piece->head;
    *piece = (struct piece){.total = 0};
    bool whole = take(&reading, head, sizeof *head) && head->type < VALUE_TYPES &&
                 head->flags <= (PIECE_FIRST | PIECE_LAST | PIECE_EXPIRES) && head->zero == 0;
    if (whole && (head->flags & PIECE_EXPIRES)) whole = take(&reading, &piece->key.at_ms, sizeof piece->key.at_ms);
    if (whole && (head->flags & PIECE_FIRST) && !(head->flags & PIECE_LAST))
        whole = take(&reading, &piece->total, sizeof piece->total);
    else if (whole)
        piece->total = head->parts;
    if (!whole || head->key_length > reading.left) return error_set(error, ERROR_GENERIC, "a key is malformed");
    piece->key.expires = head->flags & PIECE_EXPIRES;
    piece->key.key = reading.at;
    piece->key.length = head->key_length;
    reading.at += head->key_length;
    reading.left -= head->key_length;
    piece->data = reading.at;
    if (!pass_parts(&reading, head)) return error_set(error, ERROR_GENERIC, "the value of a key is malformed");
    piece->length = (size_t)(reading.at - piece->data);
    *data = reading.at;
    *length = reading.left;
    return 0;
}

static struct value *value_new(const struct piece *piece) {
    switch ((enum value_type)piece->head.type) {
    case VALUE_LIST: return (struct value *)list_new();
    case VALUE_HASH: return (struct value *)hash_new();
    case VALUE_SET: return set_new();
    case VALUE_SORTED_SET: return (struct value *)zset_new();
    case VALUE_STREAM: return (struct value *)xstream_new();
    default: return NULL;
    }
}

/* NULL: no memory. */
static const char *add_element(struct reading *reading, struct list *list) {
    const uint8_t *data;
    size_t length;
    take_part(reading, &data, &length);
    struct value *element = string_new(data, length, NULL);
    if (element && list_push(list, false, element)) return "";
    value_free(element);
    return NULL;
}

static const char *add_field(struct reading *reading, struct hash *hash) {
    const uint8_t *field, *data;
    size_t field_length, length;
    take_part(reading, &field, &field_length);
    take_part(reading, &data, &length);
    enum hash_set_result result = hash_set(hash, field, field_length, data, length, NULL);
    return result == HASH_SET_ADDED ? "" : result == HASH_SET_UPDATED ? "a field is there twice" : NULL;
}

static const char *add_member(struct reading *reading, struct value **set) {
    const uint8_t *data;
    size_t length;
    struct set_member member;
    take_part(reading, &data, &length);
    set_member_of(&member, data, length);
    enum set_add_result result = set_add(set, &member);
    return result == SET_ADD_ADDED ? "" : result == SET_ADD_PRESENT ? "a member is there twice" : NULL;
}

static const char *add_scored_member(struct reading *reading, struct zset *zset) {
    const uint8_t *data;
    size_t length;
    double score;
    struct zset_place place;
    take(reading, &score, sizeof score);
    take_part(reading, &data, &length);
    if (score != score) return "a score is no number";
    if (zset_find(zset, data, length, &place)) return "a member is there twice";
    return zset_put(zset, &place, data, length, score) ? "" : NULL;
}

static const char *read_stream_part(struct reading *reading, struct xstream *stream) {
    const uint8_t *data;
    size_t length;
    take_part(reading, &data, &length);
    return stream_piece_add(stream, data, length);
}

static int add_string(const struct piece *piece, struct value **value, struct error *error) {
    if (piece->head.flags == (PIECE_FIRST | PIECE_LAST) ||
        piece->head.flags == (PIECE_FIRST | PIECE_LAST | PIECE_EXPIRES)) {
        *value = string_new(piece->data, piece->length, NULL);
        return *value ? 0 : error_set(error, ERROR_GENERIC, "no memory for a string of %zu bytes", piece->length);
    }
    size_t before = *value ? string_length(*value) : 0;
    if (piece->total > STRING_MAX_BYTES || piece->length > STRING_MAX_BYTES - before)
        return error_set(error, ERROR_GENERIC, "a string is longer than strings may be");
    uint8_t *bytes = string_writable(value, before + piece->length);
    if (!bytes) return error_set(error, ERROR_GENERIC, "no memory for a string of %zu bytes", before + piece->length);
    if (piece->length) memcpy(bytes + before, piece->data, piece->length);
    return 0;
}

int piece_add_parts(const struct piece *piece, struct value **value, struct error *error) {
    if (piece->head.type == VALUE_STRING) return add_string(piece, value, error);
    struct reading reading = {piece->data, piece->length};
    if (!*value) *value = value_new(piece);
    const char *wrong = *value ? "" : NULL;
    for (uint64_t i = 0; i < piece->head.parts && wrong && !*wrong; i++) {
        switch ((enum value_type)piece->head.type) {
        case VALUE_LIST: wrong = add_element(&reading, (struct list *)*value); break;
        case VALUE_HASH: wrong = add_field(&reading, (struct hash *)*value); break;
        case VALUE_SET: wrong = add_member(&reading, value); break;
        case VALUE_SORTED_SET: wrong = add_scored_member(&reading, (struct zset *)*value); break;
        case VALUE_STREAM: wrong = read_stream_part(&reading, xstream_of(*value)); break;
        default: break;
        }
    }
    if (!wrong) return error_set(error, ERROR_GENERIC, "no memory for a value");
    return *wrong ? error_set(error, ERROR_GENERIC, "%s", wrong) : 0;
}
