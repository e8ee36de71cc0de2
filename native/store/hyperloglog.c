/* hyperloglog: hashing, dense registers, and the estimate. */
#include "store/hyperloglog.h"

#include <math.h>
#include <string.h>

#define INDEX_BITS 14
#define RANK_BITS (64 - INDEX_BITS) /* of the hash: a register counts the zeros before the first one of them */
#define HASH_SEED 0xadc83b19u
#define ALPHA 0.721347520444481703680 /* 1 / (2 ln 2): Ertl's constant for infinitely many registers */

/* ---- hashing ------------------------------------------------------------------------------------------------------- */

static uint64_t little_endian(const uint8_t *bytes, size_t count) {
    uint64_t word = 0;
    for (size_t i = 0; i < count; i++) word |= (uint64_t)bytes[i] << (8 * i);
    return word;
}

/* Austin Appleby's MurmurHash64A, which reads words in little-endian order on every machine. */
static uint64_t murmur_hash(const uint8_t *bytes, size_t length, uint64_t seed) {
    const uint64_t multiplier = 0xc6a4a7935bd1e995u;
    uint64_t hash = seed ^ (length * multiplier);
    for (; length >= 8; bytes += 8, length -= 8) {
        uint64_t word = little_endian(bytes, 8) * multiplier;
        word = (word ^ word >> 47) * multiplier;
        hash = (hash ^ word) * multiplier;
    }
    if (length > 0) hash = (hash ^ little_endian(bytes, length)) * multiplier;
    hash = (hash ^ hash >> 47) * multiplier;
    return hash ^ hash >> 47;
}

uint32_t hyperloglog_register_of(const uint8_t *element, size_t length, uint8_t *value) {
    uint64_t hash = murmur_hash(element, length, HASH_SEED);
    uint64_t rank = hash >> INDEX_BITS | (uint64_t)1 << RANK_BITS;
    *value = (uint8_t)(__builtin_ctzll(rank) + 1);
    return hash & (HYPERLOGLOG_REGISTERS - 1);
}

/* ---- header -------------------------------------------------------------------------------------------------------- */

bool hyperloglog_is_valid(const uint8_t *bytes, size_t length) {
    if (length < HYPERLOGLOG_HEADER_BYTES || memcmp(bytes, "HYLL", 4) != 0) return false;
    return bytes[4] == HYPERLOGLOG_SPARSE || (bytes[4] == HYPERLOGLOG_DENSE && length == HYPERLOGLOG_DENSE_BYTES);
}

static void write_header(uint8_t *bytes, enum hyperloglog_form form) {
    memset(bytes, 0, HYPERLOGLOG_HEADER_BYTES);
    memcpy(bytes, "HYLL", 4);
    bytes[4] = (uint8_t)form;
}

void hyperloglog_clear(struct hyperloglog *sketch) {
    write_header(sketch->bytes, HYPERLOGLOG_SPARSE);
    /* One run of all registers. */
    sketch->bytes[HYPERLOGLOG_HEADER_BYTES] = 0x7f;
    sketch->bytes[HYPERLOGLOG_HEADER_BYTES + 1] = 0xff;
    sketch->length = HYPERLOGLOG_HEADER_BYTES + 2;
}

bool hyperloglog_take(struct hyperloglog *sketch, const uint8_t *bytes, size_t length) {
    if (length > HYPERLOGLOG_MOST_BYTES) return false;
    memcpy(sketch->bytes, bytes, length);
    sketch->length = length;
    return true;
}

bool hyperloglog_kept_estimate(const uint8_t *bytes, uint64_t *estimate) {
    *estimate = little_endian(bytes + 8, 8);
    return !(bytes[15] & 0x80);
}

void hyperloglog_keep_estimate(uint8_t *bytes, uint64_t estimate) {
    for (int i = 0; i < 8; i++) bytes[8 + i] = (uint8_t)(estimate >> (8 * i));
}

/* ---- registers ----------------------------------------------------------------------------------------------------- */

/* Six bits each, the lowest of a byte first. The last register ends with the last byte. */
static uint8_t dense_get(const uint8_t *bytes, uint32_t index) {
    const uint8_t *at = bytes + HYPERLOGLOG_HEADER_BYTES + index * 6 / 8;
    uint32_t shift = index * 6 & 7, word = at[0];
    if (shift > 2) word |= (uint32_t)at[1] << 8;
    return word >> shift & 63;
}

static void dense_set(uint8_t *bytes, uint32_t index, uint8_t value) {
    uint8_t *at = bytes + HYPERLOGLOG_HEADER_BYTES + index * 6 / 8;
    uint32_t shift = index * 6 & 7, mask = 63u << shift, word = (uint32_t)value << shift;
    at[0] = (uint8_t)((at[0] & ~mask) | word);
    if (shift > 2) at[1] = (uint8_t)((at[1] & ~(mask >> 8)) | word >> 8);
}

bool hyperloglog_raise_dense(uint8_t *bytes, uint32_t index, uint8_t value) {
    if (dense_get(bytes, index) >= value) return false;
    dense_set(bytes, index, value);
    return true;
}

static inline void raise_to(uint8_t *at, uint8_t value) {
    if (*at < value) *at = value;
}

/* Four registers in three bytes at a time. */
static void join_dense(const uint8_t *bytes, uint8_t *registers) {
    const uint8_t *at = bytes + HYPERLOGLOG_HEADER_BYTES;
    for (uint32_t i = 0; i < HYPERLOGLOG_REGISTERS; i += 4, at += 3) {
        raise_to(&registers[i], at[0] & 63);
        raise_to(&registers[i + 1], (uint8_t)((at[0] >> 6 | at[1] << 2) & 63));
        raise_to(&registers[i + 2], (uint8_t)((at[1] >> 4 | at[2] << 4) & 63));
        raise_to(&registers[i + 3], at[2] >> 2);
    }
}

bool hyperloglog_join(const uint8_t *bytes, size_t length, uint8_t registers[HYPERLOGLOG_REGISTERS]) {
    if (hyperloglog_form(bytes) == HYPERLOGLOG_DENSE) {
        join_dense(bytes, registers);
        return true;
    }
    uint32_t index = 0;
    struct hyperloglog_run run;
    for (size_t offset = HYPERLOGLOG_HEADER_BYTES; offset < length; offset += run.bytes) {
        if (!hyperloglog_run_at(bytes, length, offset, &run) || run.length > HYPERLOGLOG_REGISTERS - index)
            return false;
        if (run.value > 0)
            for (uint32_t i = 0; i < run.length; i++) raise_to(&registers[index + i], run.value);
        index += run.length;
    }
    return index == HYPERLOGLOG_REGISTERS;
}

bool hyperloglog_make_dense(struct hyperloglog *sketch) {
    uint8_t registers[HYPERLOGLOG_REGISTERS] = {0};
    if (hyperloglog_form(sketch->bytes) == HYPERLOGLOG_DENSE) return true;
    if (!hyperloglog_join(sketch->bytes, sketch->length, registers)) return false;
    sketch->bytes[4] = HYPERLOGLOG_DENSE;
    sketch->length = HYPERLOGLOG_DENSE_BYTES;
    memset(sketch->bytes + HYPERLOGLOG_HEADER_BYTES, 0, HYPERLOGLOG_DENSE_BYTES - HYPERLOGLOG_HEADER_BYTES);
    for (uint32_t i = 0; i < HYPERLOGLOG_REGISTERS; i++)
        if (registers[i] > 0) dense_set(sketch->bytes, i, registers[i]);
    return true;
}

static enum hyperloglog_result raise_from(struct hyperloglog *sketch, struct hyperloglog_start *start, uint32_t index,
                                          uint8_t value, size_t sparse_bytes) {
    if (hyperloglog_form(sketch->bytes) == HYPERLOGLOG_SPARSE) {
        bool fits = value <= HYPERLOGLOG_SPARSE_VALUE;
        enum hyperloglog_result result = HYPERLOGLOG_SAME;
        if (fits) result = hyperloglog_raise_sparse(sketch, start, index, value, sparse_bytes, &fits);
        if (fits) return result;
        if (!hyperloglog_make_dense(sketch)) return HYPERLOGLOG_CORRUPT;
    }
    return hyperloglog_raise_dense(sketch->bytes, index, value) ? HYPERLOGLOG_CHANGED : HYPERLOGLOG_SAME;
}

enum hyperloglog_result hyperloglog_raise(struct hyperloglog *sketch, uint32_t index, uint8_t value,
                                          size_t sparse_bytes) {
    struct hyperloglog_start start = HYPERLOGLOG_BEGINNING;
    return raise_from(sketch, &start, index, value, sparse_bytes);
}

enum hyperloglog_result hyperloglog_raise_all(struct hyperloglog *sketch,
                                              const uint8_t registers[HYPERLOGLOG_REGISTERS], size_t sparse_bytes) {
    struct hyperloglog_start start = HYPERLOGLOG_BEGINNING;
    enum hyperloglog_result all = HYPERLOGLOG_SAME;
    for (uint32_t i = 0; i < HYPERLOGLOG_REGISTERS; i++) {
        if (registers[i] == 0) continue;
        enum hyperloglog_result result = raise_from(sketch, &start, i, registers[i], sparse_bytes);
        if (result == HYPERLOGLOG_CORRUPT) return result;
        if (result == HYPERLOGLOG_CHANGED) all = result;
    }
    return all;
}

/* ---- the estimate -------------------------------------------------------------------------------------------------- */

/* Ertl's sigma: what registers of zero tell. */
static double sigma(double x) {
    if (x == 1.0) return INFINITY;
    double y = 1.0, z = x, before;
    do {
        x *= x;
        before = z;
        z += x * y;
        y += y;
    } while (before != z);
    return z;
}

/* Ertl's tau: what registers at their limit tell. */
static double tau(double x) {
    if (x == 0.0 || x == 1.0) return 0.0;
    double y = 1.0, z = 1.0 - x, before;
    do {
        x = sqrt(x);
        before = z;
        y *= 0.5;
        z -= pow(1.0 - x, 2) * y;
    } while (before != z);
    return z / 3.0;
}

uint64_t hyperloglog_estimate(const uint8_t registers[HYPERLOGLOG_REGISTERS]) {
    const double m = HYPERLOGLOG_REGISTERS;
    uint32_t counts[64] = {0}; /* of registers by value */
    for (uint32_t i = 0; i < HYPERLOGLOG_REGISTERS; i++) counts[registers[i] & 63]++;
    double z = m * tau((m - counts[RANK_BITS + 1]) / m);
    for (int value = RANK_BITS; value >= 1; value--) {
        z += counts[value];
        z *= 0.5;
    }
    z += m * sigma(counts[0] / m);
    return (uint64_t)llroundl((long double)(ALPHA * m * m / z));
}
