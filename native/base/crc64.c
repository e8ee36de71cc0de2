/* crc64: eight bytes at a time, by eight tables. */
#include "base/crc64.h"

#include <pthread.h>
#include <string.h>

#define POLYNOMIAL 0x95ac9329ac4bc9b5u /* 0xad93d23594c935a9 with its bits reversed */

/* tables[k][b]: what byte b does to the checksum when k bytes follow it. */
static uint64_t tables[8][256];
static pthread_once_t filled = PTHREAD_ONCE_INIT;

static void fill(void) {
    for (unsigned byte = 0; byte < 256; byte++) {
        uint64_t value = byte;
        for (int bit = 0; bit < 8; bit++) value = value >> 1 ^ (value & 1 ? POLYNOMIAL : 0);
        tables[0][byte] = value;
    }
    for (unsigned byte = 0; byte < 256; byte++)
        for (int k = 1; k < 8; k++) tables[k][byte] = tables[k - 1][byte] >> 8 ^ tables[0][tables[k - 1][byte] & 0xff];
}

uint64_t crc64(uint64_t before, const void *data, size_t length) {
    pthread_once(&filled, fill);
    const uint8_t *at = data;
    uint64_t value = before;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    for (; length >= 8; at += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, at, sizeof word);
        word ^= value;
        value = 0;
        for (int k = 0; k < 8; k++) value ^= tables[7 - k][word >> (8 * k) & 0xff];
    }
#endif
    for (; length > 0; at++, length--) value = value >> 8 ^ tables[0][(value ^ *at) & 0xff];
    return value;
}
