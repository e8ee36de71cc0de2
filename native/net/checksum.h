/* checksum: the Internet checksum (RFC 1071) over one piece or many, alone or while copying, for stacks in user space.
 *
 * Sums are one's complement sums of 16-bit words as they lie in memory, folded to 16 bits and not yet inverted: what a
 * header's field takes is `checksum_finish` of the sum, stored as it is. A piece of odd length counts as followed by a
 * zero byte; `struct checksum` joins pieces of any length. */
#ifndef REPLAY_NET_CHECKSUM_H
#define REPLAY_NET_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint16_t checksum_sum(const void *data, size_t length_bytes);
/* The same of what it copies. The areas must not overlap. */
uint16_t checksum_copy(void *restrict to, const void *restrict from, size_t length_bytes);
/* Without vector instructions, for tests: the results are the same. */
uint16_t checksum_sum_portable(const void *data, size_t length_bytes);
uint16_t checksum_copy_portable(void *restrict to, const void *restrict from, size_t length_bytes);

/* Pieces one behind the other. Start with `struct checksum checksum = {0};`. */
struct checksum {
    uint64_t sum;
    bool odd; /* the bytes so far are odd in number: the next piece begins inside a word */
};

/* Adds the sum that checksum_sum or checksum_copy gave for a piece of that length. */
void checksum_add_sum(struct checksum *checksum, uint16_t sum, size_t length_bytes);
void checksum_add(struct checksum *checksum, const void *data, size_t length_bytes);
void checksum_add_copy(struct checksum *checksum, void *restrict to, const void *restrict from, size_t length_bytes);
uint16_t checksum_total(const struct checksum *checksum);

static inline uint16_t checksum_finish(uint16_t sum) {
    return (uint16_t)~sum;
}

/* The sum of the pseudo header of TCP or UDP over IPv4 (RFC 793, 3.1). Addresses as they stand in the header; the length
 * is that of TCP's header and data in bytes, in the host's order. Devices that cut segments want it with length 0. */
uint16_t checksum_pseudo_ipv4(uint32_t source, uint32_t destination, uint8_t protocol, uint16_t length_bytes);

#endif
