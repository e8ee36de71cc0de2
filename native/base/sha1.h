/* sha1: names of scripts, digests of keys (FIPS 180-4). Not for anything secret. */
#ifndef REPLAY_BASE_SHA1_H
#define REPLAY_BASE_SHA1_H

#include <stddef.h>
#include <stdint.h>

#define SHA1_BYTES 20
#define SHA1_HEX_BYTES 41 /* with its final zero */
void sha1(const void *data, size_t length, uint8_t digest[SHA1_BYTES]);
void sha1_show(const uint8_t digest[SHA1_BYTES], char hex[SHA1_HEX_BYTES]); /* in lower-case hexadecimal */

void sha1_hex(const void *data, size_t length, char hex[SHA1_HEX_BYTES]);

#endif
