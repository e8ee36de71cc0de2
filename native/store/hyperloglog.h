/* hyperloglog: sketches that estimate how many different elements were added to them, in Redis's representation.
 *
 * A sketch is a string: a header (the letters HYLL, the form, three bytes of zero, the estimate that was last made, whose
 * highest bit says that it is out of date), then 16,384 registers. In the dense form a register has six bits. In the sparse
 * form runs of equal registers follow one another, as hyperloglog_sparse.c tells.
 * How elements choose registers: Flajolet et al. 2007, with 64 bits of MurmurHash64A. The estimate: Ertl, arXiv:1702.01284,
 * algorithm 6. */
#ifndef REPLAY_STORE_HYPERLOGLOG_H
#define REPLAY_STORE_HYPERLOGLOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HYPERLOGLOG_REGISTERS 16384u
#define HYPERLOGLOG_HEADER_BYTES 16u
#define HYPERLOGLOG_DENSE_BYTES (HYPERLOGLOG_HEADER_BYTES + HYPERLOGLOG_REGISTERS * 6 / 8)
/* No sparse sketch whose registers add up is longer: a register takes two bytes at most. */
#define HYPERLOGLOG_MOST_BYTES (HYPERLOGLOG_HEADER_BYTES + HYPERLOGLOG_REGISTERS * 2)

enum hyperloglog_form { HYPERLOGLOG_DENSE = 0, HYPERLOGLOG_SPARSE = 1 };

/* A sketch to work on, with room for either form. */
struct hyperloglog {
    size_t length;
    uint8_t bytes[HYPERLOGLOG_MOST_BYTES + 8];
};

enum hyperloglog_result {
    HYPERLOGLOG_SAME = 0,
    HYPERLOGLOG_CHANGED = 1,
    HYPERLOGLOG_CORRUPT = -1, /* its runs do not add up to the registers */
};

/* Whether the bytes look like a sketch: header, form, and the length of a dense one. */
bool hyperloglog_is_valid(const uint8_t *bytes, size_t length);
static inline enum hyperloglog_form hyperloglog_form(const uint8_t *bytes) {
    return bytes[4] == HYPERLOGLOG_DENSE ? HYPERLOGLOG_DENSE : HYPERLOGLOG_SPARSE;
}

void hyperloglog_clear(struct hyperloglog *sketch); /* an empty sparse one */
/* Takes the bytes of a valid sketch; false: they are more than any sketch has, so it is corrupt. */
bool hyperloglog_take(struct hyperloglog *sketch, const uint8_t *bytes, size_t length);

/* Which register the element is for, and the value that it has at least. */
uint32_t hyperloglog_register_of(const uint8_t *element, size_t length, uint8_t *value);
/* Raises a register to `value`. A sparse sketch that would take more than `sparse_bytes` becomes dense. */
enum hyperloglog_result hyperloglog_raise(struct hyperloglog *sketch, uint32_t index, uint8_t value,
                                          size_t sparse_bytes);
/* Raises all registers to at least these. */
enum hyperloglog_result hyperloglog_raise_all(struct hyperloglog *sketch,
                                              const uint8_t registers[HYPERLOGLOG_REGISTERS], size_t sparse_bytes);
/* The same in a dense sketch where it lies. */
bool hyperloglog_raise_dense(uint8_t *bytes, uint32_t index, uint8_t value);
/* False: corrupt, and as it was. */
bool hyperloglog_make_dense(struct hyperloglog *sketch);

/* Raises each of `registers` to what it is in the sketch. False: corrupt; some are raised then. */
bool hyperloglog_join(const uint8_t *bytes, size_t length, uint8_t registers[HYPERLOGLOG_REGISTERS]);
uint64_t hyperloglog_estimate(const uint8_t registers[HYPERLOGLOG_REGISTERS]);

bool hyperloglog_kept_estimate(const uint8_t *bytes, uint64_t *estimate); /* false: it is out of date */
void hyperloglog_keep_estimate(uint8_t *bytes, uint64_t estimate);
static inline void hyperloglog_forget_estimate(uint8_t *bytes) {
    bytes[15] |= 0x80;
}

/* ---- the sparse form (hyperloglog_sparse.c) ----------------------------------------------------------------------- */

struct hyperloglog_run {
    uint8_t value; /* 0: registers that nothing has raised */
    uint32_t length;
    uint32_t bytes; /* that the run takes */
};
/* The run at `offset` of a sketch; false: it ends in the middle of it. */
bool hyperloglog_run_at(const uint8_t *bytes, size_t length, size_t offset, struct hyperloglog_run *run);
#define HYPERLOGLOG_SPARSE_VALUE 32 /* the most that a register of the sparse form can be */

/* A run from which the search for registers that come later may start. */
struct hyperloglog_start {
    size_t offset;
    uint32_t first; /* of its registers */
};
#define HYPERLOGLOG_BEGINNING ((struct hyperloglog_start){HYPERLOGLOG_HEADER_BYTES, 0})
/* Raises a register of a sparse sketch, and moves `start` on for registers behind it. `*fits` is false where that must be
 * done in the dense form instead; the sketch is as it was then. */
enum hyperloglog_result hyperloglog_raise_sparse(struct hyperloglog *sketch, struct hyperloglog_start *start,
                                                 uint32_t index, uint8_t value, size_t sparse_bytes, bool *fits);

#endif
