/* sha256: the hash of FIPS 180-4, in which passwords of users are kept. */
#ifndef REPLAY_BASE_SHA256_H
#define REPLAY_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define SHA256_BYTES 32u
#define SHA256_HEX_BYTES 64u

void sha256(const void *data, size_t length, uint8_t digest[SHA256_BYTES]);
/* The digest in lower-case hexadecimal, ended by a zero byte. */
void sha256_hex(const void *data, size_t length, char hex[SHA256_HEX_BYTES + 1]);

#endif
