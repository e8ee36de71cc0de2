/* crc32c: the Castagnoli checksum (RFC 3720, appendix B.4), by the processor's own instruction where it has one. */
#ifndef REPLAY_BASE_CRC32C_H
#define REPLAY_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Of `length` bytes, going on from the checksum of the bytes before them (0 at the start). */
uint32_t crc32c(uint32_t before, const void *data, size_t length);
/* The same by table, whatever the processor; for tests of the other one. */
uint32_t crc32c_portable(uint32_t before, const void *data, size_t length);

#endif
