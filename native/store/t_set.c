/* t_set: sets in three forms, from the smallest that takes all members. A set never goes back to a smaller one. */
#include "store/t_set.h"

#include <assert.h>

#include "base/memory.h"
#include "store/t_set_small.h"

#define MEMORY_SAMPLES 64
#define TIDY_BUCKETS 4

struct set_hashed {
    struct value head;
    struct dict dict; /* of NULL values */
};

_Static_assert(SET_PACKED_BYTES <= UINT8_MAX, "packed lengths are bytes");

static const struct set_integers *integers_of(const struct value *set) {
    return (const struct set_integers *)set;
}

static const struct set_packed *packed_of(const struct value *set) {
    return (const struct set_packed *)set;
}

struct dict *set_dict(struct value *set) {
    return set->encoding == ENCODING_DICT ? &((struct set_hashed *)set)->dict : NULL;
}

static const struct dict *dict_of(const struct value *set) {
    return &((const struct set_hashed *)set)->dict;
}

/* ---- members ----------------------------------------------------------------------------------------------------- */

static void set_member_of_integer(struct set_member *member, int64_t integer) {
    member->data = NULL;
    member->integer = integer;
    member->hashed = false;
}

void set_member_text(struct set_member *member) {
    if (member->data) return;
    member->length = number_format_int64(member->integer, member->digits);
    member->data = (const uint8_t *)member->digits;
}

/* False: it is none. */
static bool set_member_integer(const struct set_member *member, int64_t *integer) {
    if (member->data) return number_parse_int64(member->data, member->length, integer);
    *integer = member->integer;
    return true;
}

static uint32_t hash_of(struct set_member *member) {
    set_member_text(member);
    if (!member->hashed) member->hash = dict_hash(member->data, member->length);
    member->hashed = true;
    return member->hash;
}

static void member_of_entry(struct set_member *member, const struct dict_entry *entry) {
    member->data = entry->key;
    member->length = entry->key_length;
    member->hash = entry->hash;
    member->hashed = true;
}

/* ---- asking ------------------------------------------------------------------------------------------------------ */

struct value *set_new(void) {
    return (struct value *)set_integers_new();
}

size_t set_count(const struct value *set) {
    switch (set->encoding) {
    case ENCODING_INTEGERS: return integers_of(set)->count;
    case ENCODING_PACKED: return packed_of(set)->count;
    default: return dict_count(dict_of(set));
    }
}

bool set_contains(const struct value *set, struct set_member *member) {
    int64_t integer;
    uint32_t place;
    switch (set->encoding) {
    case ENCODING_INTEGERS:
        return set_member_integer(member, &integer) && set_integers_find(integers_of(set), integer, &place);
    case ENCODING_PACKED:
        set_member_text(member);
        return set_packed_find(packed_of(set), member->data, member->length, &place);
    default: {
        uint32_t hash = hash_of(member);
        return dict_peek(dict_of(set), hash, member->data, member->length);
    }
    }
}

bool set_next(const struct value *set, struct set_position *position, struct set_member *member) {
    if (set->encoding == ENCODING_INTEGERS) {
        if (position->offset == integers_of(set)->count) return false;
        set_member_of_integer(member, set_integers_at(integers_of(set), position->offset++));
        return true;
    }
    if (set->encoding == ENCODING_PACKED) {
        member->hashed = false;
        return set_packed_next(packed_of(set), &position->offset, &member->data, &member->length);
    }
    const struct dict_entry *entry = dict_next(dict_of(set), &position->position);
    if (entry) member_of_entry(member, entry);
    return entry;
}

void set_random(struct value *set, struct random_state *random, struct set_member *member) {
    if (set->encoding == ENCODING_DICT) {
        member_of_entry(member, dict_random(set_dict(set), random));
        return;
    }
    uint64_t index = random_below(random, set_count(set));
    if (set->encoding == ENCODING_INTEGERS) {
        set_member_of_integer(member, set_integers_at(integers_of(set), (uint32_t)index));
        return;
    }
    uint32_t offset = 0;
    member->hashed = false;
    for (uint64_t i = 0; i <= index; i++) set_packed_next(packed_of(set), &offset, &member->data, &member->length);
}

void set_tidy(struct value *set) {
    struct dict *dict = set_dict(set);
    if (dict) dict_rehash(dict, TIDY_BUCKETS);
}

/* ---- changing ---------------------------------------------------------------------------------------------------- */

static struct value *hashed_new(void) {
    struct set_hashed *set = memory_alloc(sizeof *set);
    if (!set) return NULL;
    set->head = (struct value){.type = VALUE_SET, .encoding = ENCODING_DICT};
    dict_init(&set->dict);
    return &set->head;
}

static enum set_add_result dict_put(struct dict *dict, struct set_member *member) {
    uint32_t hash = hash_of(member);
    if (dict_find(dict, hash, member->data, member->length)) return SET_ADD_PRESENT;
    return dict_add(dict, hash, member->data, member->length) ? SET_ADD_ADDED : SET_ADD_EXHAUSTED;
}

/* Adds a member that is not there to a set that can take it in its form. */
static bool put_new(struct value **set, struct set_member *member) {
    if ((*set)->encoding == ENCODING_DICT) return dict_put(set_dict(*set), member) == SET_ADD_ADDED;
    set_member_text(member);
    struct set_packed *packed = (struct set_packed *)*set;
    if (!set_packed_append(&packed, member->data, member->length)) return false;
    *set = &packed->head;
    return true;
}

/* Moves all members to another form. False: memory exhausted, nothing changed. */
static bool convert(struct value **set, struct value *larger) {
    struct set_position position = {0};
    struct set_member member;
    bool moved = larger;
    while (moved && set_next(*set, &position, &member)) moved = put_new(&larger, &member);
    if (!moved) {
        value_free(larger);
        return false;
    }
    larger->expiry = (*set)->expiry;
    larger->access = (*set)->access;
    value_free(*set);
    *set = larger;
    return true;
}

static bool can_pack(const struct value *set, size_t length) {
    return set_count(set) < SET_PACKED_MEMBERS && length <= SET_PACKED_BYTES;
}

static enum set_add_result add_integer(struct value **set, int64_t integer) {
    struct set_integers *integers = (struct set_integers *)*set;
    uint32_t index;
    if (set_integers_find(integers, integer, &index)) return SET_ADD_PRESENT;
    if (!set_integers_insert(&integers, index, integer)) return SET_ADD_EXHAUSTED;
    *set = &integers->head;
    return SET_ADD_ADDED;
}

enum set_add_result set_add(struct value **set, struct set_member *member) {
    int64_t integer;
    if ((*set)->encoding == ENCODING_INTEGERS) {
        bool is_integer = set_member_integer(member, &integer);
        if (is_integer && set_count(*set) < SET_INTEGERS) return add_integer(set, integer);
        if (is_integer && set_contains(*set, member)) return SET_ADD_PRESENT;
        set_member_text(member);
        /* The digits of the longest integer fit into the packed form. */
        struct value *larger = can_pack(*set, member->length) ? (struct value *)set_packed_new() : hashed_new();
        if (!convert(set, larger)) return SET_ADD_EXHAUSTED;
    } else if (set_contains(*set, member)) {
        return SET_ADD_PRESENT;
    }
    set_member_text(member);
    if ((*set)->encoding == ENCODING_PACKED && !can_pack(*set, member->length) && !convert(set, hashed_new()))
        return SET_ADD_EXHAUSTED;
    return put_new(set, member) ? SET_ADD_ADDED : SET_ADD_EXHAUSTED;
}

static bool remove_integer(struct value **set, int64_t integer) {
    struct set_integers *integers = (struct set_integers *)*set;
    uint32_t index;
    if (!set_integers_find(integers, integer, &index)) return false;
    set_integers_delete(&integers, index);
    *set = &integers->head;
    return true;
}

static bool remove_packed(struct value **set, const struct set_member *member) {
    struct set_packed *packed = (struct set_packed *)*set;
    uint32_t offset;
    if (!set_packed_find(packed, member->data, member->length, &offset)) return false;
    set_packed_delete(&packed, offset);
    *set = &packed->head;
    return true;
}

bool set_remove(struct value **set, struct set_member *member) {
    int64_t integer;
    if ((*set)->encoding == ENCODING_INTEGERS)
        return set_member_integer(member, &integer) && remove_integer(set, integer);
    set_member_text(member);
    if ((*set)->encoding == ENCODING_PACKED) return remove_packed(set, member);
    struct dict *dict = set_dict(*set);
    uint32_t hash = hash_of(member);
    struct dict_entry *entry = dict_find(dict, hash, member->data, member->length);
    if (!entry) return false;
    dict_unlink(dict, entry);
    dict_entry_free(entry);
    return true;
}

/* ---- whole sets -------------------------------------------------------------------------------------------------- */

static struct value *copy_small(const struct value *set) {
    bool integers = set->encoding == ENCODING_INTEGERS;
    struct value *copy = integers ? (struct value *)set_integers_new() : (struct value *)set_packed_new();
    struct set_position position = {0};
    struct set_member member;
    while (copy && set_next(set, &position, &member)) {
        bool put = integers ? add_integer(&copy, member.integer) == SET_ADD_ADDED : put_new(&copy, &member);
        if (put) continue;
        value_free(copy);
        return NULL;
    }
    return copy;
}

struct value *set_copy(const struct value *set) {
    if (set->encoding != ENCODING_DICT) return copy_small(set);
    struct value *copy = hashed_new();
    struct dict_position position = {0};
    const struct dict_entry *entry;
    while (copy && (entry = dict_next(dict_of(set), &position))) {
        if (dict_add(set_dict(copy), entry->hash, entry->key, entry->key_length)) continue;
        value_free(copy);
        return NULL;
    }
    return copy;
}

bool set_release(struct value *set, size_t *steps) {
    if (set->encoding == ENCODING_DICT && !dict_release(set_dict(set), steps, NULL, NULL)) return false;
    memory_free(set);
    return true;
}

size_t set_memory_bytes(const struct value *set) {
    if (set->encoding == ENCODING_INTEGERS)
        return sizeof(struct set_integers) + (size_t)integers_of(set)->count * integers_of(set)->width;
    if (set->encoding == ENCODING_PACKED) return sizeof(struct set_packed) + packed_of(set)->used;
    struct dict_position position = {0};
    const struct dict_entry *entry;
    size_t bytes = 0, samples = 0;
    while (samples < MEMORY_SAMPLES && (entry = dict_next(dict_of(set), &position))) {
        bytes += sizeof *entry + entry->key_length;
        samples++;
    }
    double mean = samples > 0 ? (double)bytes / (double)samples : 0;
    return sizeof(struct set_hashed) + dict_overhead_bytes(dict_of(set)) +
           (size_t)(mean * (double)dict_count(dict_of(set)));
}
