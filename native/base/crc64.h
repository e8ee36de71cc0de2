/* crc64: the checksum of Redis's files and dumps: Jones' polynomial, reflected, beginning with 0. */
#ifndef REPLAY_BASE_CRC64_H
#define REPLAY_BASE_CRC64_H

#include <stddef.h>
#include <stdint.h>

/* Of `length` bytes, going on from the checksum of the bytes before them (0 at the start). */
uint64_t crc64(uint64_t before, const void *data, size_t length);

#endif
