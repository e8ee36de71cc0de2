/* crc16: a byte at a time, by one table. */
#include "base/crc16.h"

#include <pthread.h>

#define POLYNOMIAL 0x1021u

static uint16_t table[256];
static pthread_once_t filled = PTHREAD_ONCE_INIT;

static void fill(void) {
    for (unsigned byte = 0; byte < 256; byte++) {
        unsigned value = byte << 8;
        for (int bit = 0; bit < 8; bit++) value = value << 1 ^ (value & 0x8000u ? POLYNOMIAL : 0);
        table[byte] = (uint16_t)value;
    }
}

uint16_t crc16(const void *data, size_t length) {
    pthread_once(&filled, fill);
    const uint8_t *bytes = data;
    uint16_t value = 0;
    for (size_t i = 0; i < length; i++) value = (uint16_t)(value << 8 ^ table[value >> 8 ^ bytes[i]]);
    return value;
}
