/* t_set_small: sorted arrays of integers, and packed members. */
#include "store/t_set_small.h"

#include <string.h>

#include "base/memory.h"

#define GRAIN_BYTES 16 /* as the allocator rounds: within a grain nothing need be asked of it */
#define ALLOCATOR_BYTES 8

/* What is allocated for a set of so many bytes, header included. */
static size_t held_bytes(size_t bytes) {
    return (bytes + ALLOCATOR_BYTES + GRAIN_BYTES - 1) / GRAIN_BYTES * GRAIN_BYTES - ALLOCATOR_BYTES;
}

/* The set in a place of another size, or NULL: memory exhausted, it stands where it stood. */
static void *resized(void *set, size_t before, size_t after) {
    return held_bytes(before) == held_bytes(after) ? set : memory_realloc(set, held_bytes(after));
}

/* ---- integers ---------------------------------------------------------------------------------------------------- */

static size_t integers_bytes(uint32_t count, uint32_t width) {
    return sizeof(struct set_integers) + (size_t)count * width;
}

struct set_integers *set_integers_new(void) {
    struct set_integers *set = memory_alloc(held_bytes(sizeof *set));
    if (set) {
        set->head = (struct value){.type = VALUE_SET, .encoding = ENCODING_INTEGERS};
        set->count = 0;
        set->width = sizeof(int16_t);
    }
    return set;
}

static uint32_t width_of(int64_t integer) {
    if (integer >= INT16_MIN && integer <= INT16_MAX) return sizeof(int16_t);
    return integer >= INT32_MIN && integer <= INT32_MAX ? sizeof(int32_t) : sizeof(int64_t);
}

static int64_t read_integer(const uint8_t *data, uint32_t width, uint32_t index) {
    int16_t small;
    int32_t middle;
    int64_t large;
    const uint8_t *place = data + (size_t)index * width;
    switch (width) {
    case sizeof small: memcpy(&small, place, sizeof small); return small;
    case sizeof middle: memcpy(&middle, place, sizeof middle); return middle;
    default: memcpy(&large, place, sizeof large); return large;
    }
}

static void write_integer(uint8_t *data, uint32_t width, uint32_t index, int64_t integer) {
    int16_t small = (int16_t)integer;
    int32_t middle = (int32_t)integer;
    uint8_t *place = data + (size_t)index * width;
    switch (width) {
    case sizeof small: memcpy(place, &small, sizeof small); break;
    case sizeof middle: memcpy(place, &middle, sizeof middle); break;
    default: memcpy(place, &integer, sizeof integer); break;
    }
}

int64_t set_integers_at(const struct set_integers *set, uint32_t index) {
    return read_integer(set->data, set->width, index);
}

bool set_integers_find(const struct set_integers *set, int64_t integer, uint32_t *index) {
    uint32_t from = 0, to = set->count;
    /* Integers often come in order. */
    if (to > 0 && set_integers_at(set, to - 1) < integer) from = to;
    while (from < to) {
        uint32_t middle = from + (to - from) / 2;
        if (set_integers_at(set, middle) < integer)
            from = middle + 1;
        else
            to = middle;
    }
    *index = from;
    return from < set->count && set_integers_at(set, from) == integer;
}

bool set_integers_insert(struct set_integers **place, uint32_t index, int64_t integer) {
    struct set_integers *set = *place;
    uint32_t width = width_of(integer) > set->width ? width_of(integer) : set->width;
    set = resized(set, integers_bytes(set->count, set->width), integers_bytes(set->count + 1, width));
    if (!set) return false;
    *place = set;
    if (width > set->width) {
        /* From the last on, since each is written behind where it was read. */
        for (uint32_t i = set->count; i > 0; i--)
            write_integer(set->data, width, i - 1, read_integer(set->data, set->width, i - 1));
        set->width = width;
    }
    uint8_t *hole = set->data + (size_t)index * width;
    memmove(hole + width, hole, (size_t)(set->count - index) * width);
    write_integer(set->data, width, index, integer);
    set->count++;
    return true;
}

void set_integers_delete(struct set_integers **place, uint32_t index) {
    struct set_integers *set = *place;
    uint8_t *hole = set->data + (size_t)index * set->width;
    memmove(hole, hole + set->width, (size_t)(set->count - index - 1) * set->width);
    set->count--;
    set = resized(set, integers_bytes(set->count + 1, set->width), integers_bytes(set->count, set->width));
    if (set) *place = set; /* else it keeps more room than it needs */
}

/* ---- packed members ---------------------------------------------------------------------------------------------- */

struct set_packed *set_packed_new(void) {
    struct set_packed *set = memory_alloc(held_bytes(sizeof *set));
    if (set) {
        set->head = (struct value){.type = VALUE_SET, .encoding = ENCODING_PACKED};
        set->count = 0;
        set->used = 0;
    }
    return set;
}

bool set_packed_next(const struct set_packed *set, uint32_t *offset, const uint8_t **data, size_t *length) {
    if (*offset >= set->used) return false;
    const uint8_t *record = set->data + *offset;
    *data = record + 1;
    *length = record[0];
    *offset += 1u + record[0];
    return true;
}

bool set_packed_find(const struct set_packed *set, const uint8_t *data, size_t length, uint32_t *offset) {
    for (uint32_t at = 0; at < set->used; at += 1u + set->data[at]) {
        if (set->data[at] == length && memcmp(set->data + at + 1, data, length) == 0) {
            *offset = at;
            return true;
        }
    }
    return false;
}

bool set_packed_append(struct set_packed **place, const uint8_t *data, size_t length) {
    struct set_packed *set = *place;
    set = resized(set, sizeof *set + set->used, sizeof *set + set->used + 1 + length);
    if (!set) return false;
    *place = set;
    set->data[set->used] = (uint8_t)length;
    if (length > 0) memcpy(set->data + set->used + 1, data, length);
    set->used += 1 + (uint32_t)length;
    set->count++;
    return true;
}

void set_packed_delete(struct set_packed **place, uint32_t offset) {
    struct set_packed *set = *place;
    uint32_t size = 1u + set->data[offset];
    memmove(set->data + offset, set->data + offset + size, set->used - offset - size);
    set->used -= size;
    set->count--;
    set = resized(set, sizeof *set + set->used + size, sizeof *set + set->used);
    if (set) *place = set;
}
