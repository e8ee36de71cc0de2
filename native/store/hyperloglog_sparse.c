/* hyperloglog_sparse: sketches with few registers raised, as runs.
 *
 *     00llllll              l + 1 registers of 0 (up to 64)
 *     01llllll llllllll     l + 1 registers of 0 (up to 16,384), the higher bits first
 *     1vvvvvll              l + 1 registers (up to 4) of v + 1 (up to 32)
 *
 * Two sketches with the same registers may be cut into runs differently. So that they are the same bytes as in Redis,
 * runs are split and joined where Redis does: a register that is raised splits its run into up to three, and then values
 * that are the same are joined within five runs, from the run before it on. */
#include <string.h>

#include "store/hyperloglog.h"

#define SHORT_ZEROS 64u
#define RUN_MOST 4u         /* registers of a value */
#define RUNS_LOOKED_AT 5    /* for equal neighbours after a change */
#define SPLIT_MOST_BYTES 5u /* zeros, a value, zeros */

static bool is_value(uint8_t byte) {
    return byte & 0x80;
}

static uint8_t value_of(uint8_t byte) {
    return (uint8_t)((byte >> 2 & 31) + 1);
}

static uint32_t length_of(uint8_t byte) {
    return (byte & 3u) + 1;
}

static uint8_t value_run(uint8_t value, uint32_t length) {
    return (uint8_t)(0x80 | (value - 1) << 2 | (length - 1));
}

bool hyperloglog_run_at(const uint8_t *bytes, size_t length, size_t offset, struct hyperloglog_run *run) {
    uint8_t byte = bytes[offset];
    if (is_value(byte)) {
        *run = (struct hyperloglog_run){value_of(byte), length_of(byte), 1};
    } else if (byte & 0x40) {
        if (offset + 1 >= length) return false;
        *run = (struct hyperloglog_run){0, (uint32_t)((byte & 0x3f) << 8 | bytes[offset + 1]) + 1, 2};
    } else {
        *run = (struct hyperloglog_run){0, (byte & 0x3fu) + 1, 1};
    }
    return true;
}

static uint32_t put_zeros(uint8_t *out, uint32_t length) {
    if (length <= SHORT_ZEROS) {
        out[0] = (uint8_t)(length - 1);
        return 1;
    }
    out[0] = (uint8_t)(0x40 | (length - 1) >> 8);
    out[1] = (uint8_t)(length - 1);
    return 2;
}

static uint32_t put_run(uint8_t *out, uint8_t value, uint32_t length) {
    if (length == 0) return 0;
    if (value == 0) return put_zeros(out, length);
    out[0] = value_run(value, length);
    return 1;
}

/* Joins values that are the same, from `offset` on. */
static void join_neighbours(struct hyperloglog *sketch, size_t offset) {
    uint8_t *bytes = sketch->bytes;
    for (int looked = 0; looked < RUNS_LOOKED_AT && offset < sketch->length; looked++) {
        uint8_t byte = bytes[offset];
        if (!is_value(byte)) {
            offset += byte & 0x40 ? 2 : 1;
            continue;
        }
        uint8_t next = offset + 1 < sketch->length ? bytes[offset + 1] : 0;
        uint32_t together = length_of(byte) + length_of(next);
        if (is_value(next) && value_of(next) == value_of(byte) && together <= RUN_MOST) {
            bytes[offset + 1] = value_run(value_of(byte), together);
            memmove(bytes + offset, bytes + offset + 1, sketch->length - offset - 1);
            sketch->length--;
        } else {
            offset++;
        }
    }
}

/* The run that holds a register: where it begins, and those before it. */
struct place {
    struct hyperloglog_start run, before, before_that;
    struct hyperloglog_run found;
};

static bool find(const struct hyperloglog *sketch, struct hyperloglog_start start, uint32_t index,
                 struct place *place) {
    place->run = place->before = place->before_that = start;
    while (place->run.offset < sketch->length &&
           hyperloglog_run_at(sketch->bytes, sketch->length, place->run.offset, &place->found)) {
        if (index < place->run.first + place->found.length) return true;
        place->before_that = place->before;
        place->before = place->run;
        place->run.offset += place->found.bytes;
        place->run.first += place->found.length;
    }
    return false;
}

/* Joining begins at the run before the one that is raised. So the run before that stays as it is, and a search may start
 * there, unless it finds the register at once: then the run before is not known. */
enum hyperloglog_result hyperloglog_raise_sparse(struct hyperloglog *sketch, struct hyperloglog_start *start,
                                                 uint32_t index, uint8_t value, size_t sparse_bytes, bool *fits) {
    struct place place;
    if (!find(sketch, *start, index, &place)) return HYPERLOGLOG_CORRUPT;
    if (place.run.offset == start->offset && !find(sketch, HYPERLOGLOG_BEGINNING, index, &place))
        return HYPERLOGLOG_CORRUPT;
    *start = place.before_that;
    const struct hyperloglog_run *run = &place.found;
    if (run->value >= value) return HYPERLOGLOG_SAME;
    uint8_t split[SPLIT_MOST_BYTES];
    uint32_t first = place.run.first, length = put_run(split, run->value, index - first);
    length += put_run(split + length, value, 1);
    length += put_run(split + length, run->value, first + run->length - 1 - index);
    size_t grown = sketch->length - run->bytes + length;
    *fits = length <= run->bytes || (grown <= sparse_bytes && grown <= HYPERLOGLOG_MOST_BYTES);
    if (!*fits) return HYPERLOGLOG_SAME;
    uint8_t *at = sketch->bytes + place.run.offset;
    memmove(at + length, at + run->bytes, sketch->length - place.run.offset - run->bytes);
    memcpy(at, split, length);
    sketch->length = grown;
    join_neighbours(sketch, place.before.offset);
    return HYPERLOGLOG_CHANGED;
}
