#include "base/sha_end.h"

#include <string.h>

size_t sha_end(const void *data, size_t length, uint8_t end[2 * SHA_BLOCK_BYTES]) {
    size_t rest = length % SHA_BLOCK_BYTES;
    size_t size = rest + 9 <= SHA_BLOCK_BYTES ? SHA_BLOCK_BYTES : 2 * SHA_BLOCK_BYTES;
    memset(end, 0, size);
    if (rest > 0) memcpy(end, (const uint8_t *)data + (length - rest), rest);
    end[rest] = 0x80;
    uint64_t bits = (uint64_t)length * 8;
    for (unsigned i = 0; i < 8; i++) end[size - 1 - i] = (uint8_t)(bits >> (8 * i));
    return size;
}
