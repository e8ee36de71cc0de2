/* crc16: the checksum that gives a Redis key its slot: XMODEM's polynomial, not reflected, beginning with 0. */
#ifndef REPLAY_BASE_CRC16_H
#define REPLAY_BASE_CRC16_H

#include <stddef.h>
#include <stdint.h>

uint16_t crc16(const void *data, size_t length);

#endif
