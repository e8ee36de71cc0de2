/* crc32c: eight bytes at a time, by tables or by the instruction of SSE 4.2; there in three streams, whose checksums are
 * joined by tables that shift one past the bytes of another (Gopal et al., "Fast CRC Computation", Intel, 2011). */
#include "base/crc32c.h"

#include <string.h>
#include <threads.h>

#include "base/words.h"

#define POLYNOMIAL 0x82f63b78u /* reflected */
#define STREAM_BYTES 4096u /* of each of the three */

static uint32_t tables[8][256]; /* of a byte with 0 … 7 bytes behind it */
static uint32_t shift_tables[4][256]; /* of each byte of a checksum, past STREAM_BYTES zero bytes */
static once_flag tables_are_made = ONCE_FLAG_INIT;

static uint32_t by_table(uint32_t state, const uint8_t *data, size_t length) {
    for (; length >= 8; data += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        word ^= state;
        state = tables[7][word & 255] ^ tables[6][word >> 8 & 255] ^ tables[5][word >> 16 & 255] ^
                tables[4][word >> 24 & 255] ^ tables[3][word >> 32 & 255] ^ tables[2][word >> 40 & 255] ^
                tables[1][word >> 48 & 255] ^ tables[0][word >> 56];
    }
    for (; length > 0; data++, length--) state = tables[0][(state ^ *data) & 255] ^ state >> 8;
    return state;
}

static void make_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int bit = 0; bit < 8; bit++) state = state >> 1 ^ (state & 1 ? POLYNOMIAL : 0);
        tables[0][byte] = state;
    }
    for (uint32_t byte = 0; byte < 256; byte++) {
        for (int behind = 1; behind < 8; behind++) {
            uint32_t state = tables[behind - 1][byte];
            tables[behind][byte] = tables[0][state & 255] ^ state >> 8;
        }
    }
    /* The shift is linear: that of a byte is the sum (exclusive or) of those of its bits. */
    static const uint8_t zeros[STREAM_BYTES];
    for (int place = 0; place < 4; place++) {
        for (uint32_t byte = 1; byte < 256; byte++) {
            uint32_t lowest = byte & -byte;
            shift_tables[place][byte] = byte == lowest
                                            ? by_table(byte << 8 * place, zeros, STREAM_BYTES)
                                            : shift_tables[place][lowest] ^ shift_tables[place][byte ^ lowest];
        }
    }
}

uint32_t crc32c_portable(uint32_t before, const void *data, size_t length) {
    call_once(&tables_are_made, make_tables);
    return ~by_table(~before, data, length);
}

#if defined(__x86_64__) && defined(__GNUC__)

#include <nmmintrin.h>

static uint32_t shift(uint32_t state) {
    return shift_tables[0][state & 255] ^ shift_tables[1][state >> 8 & 255] ^ shift_tables[2][state >> 16 & 255] ^
           shift_tables[3][state >> 24];
}

/* The instruction takes three cycles and one can begin in each: three streams keep it busy. */
__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t before, const uint8_t *data, size_t length) {
    uint64_t state = before;
    for (; length >= 3 * STREAM_BYTES; data += 3 * STREAM_BYTES, length -= 3 * STREAM_BYTES) {
        uint64_t second = 0, third = 0;
        for (size_t at = 0; at < STREAM_BYTES; at += 8) {
            state = _mm_crc32_u64(state, load_u64(data + at));
            second = _mm_crc32_u64(second, load_u64(data + STREAM_BYTES + at));
            third = _mm_crc32_u64(third, load_u64(data + 2 * STREAM_BYTES + at));
        }
        state = shift(shift((uint32_t)state) ^ (uint32_t)second) ^ (uint32_t)third;
    }
    for (; length >= 8; data += 8, length -= 8) state = _mm_crc32_u64(state, load_u64(data));
    for (; length > 0; data++, length--) state = _mm_crc32_u8((uint32_t)state, *data);
    return (uint32_t)state;
}

uint32_t crc32c(uint32_t before, const void *data, size_t length) {
    call_once(&tables_are_made, make_tables);
    return ~(__builtin_cpu_supports("sse4.2") ? by_instruction(~before, data, length)
                                              : by_table(~before, data, length));
}

#else

uint32_t crc32c(uint32_t before, const void *data, size_t length) {
    return crc32c_portable(before, data, length);
}

#endif
