/* sha_end: how SHA-1 and SHA-256 end a message (FIPS 180-4, section 5.1.1). */
#ifndef REPLAY_BASE_SHA_END_H
#define REPLAY_BASE_SHA_END_H

#include <stddef.h>
#include <stdint.h>

#define SHA_BLOCK_BYTES 64u

/* The last one or two blocks: what of the message fills no whole block, a one bit, zeros, and its length in bits. Returns
 * their bytes. */
size_t sha_end(const void *data, size_t length, uint8_t end[2 * SHA_BLOCK_BYTES]);

#endif
