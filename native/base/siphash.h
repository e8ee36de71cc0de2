/* siphash: SipHash-1-3 (Aumasson and Bernstein, 2012), a keyed hash: clients cannot make keys collide on purpose. */
#ifndef REPLAY_BASE_SIPHASH_H
#define REPLAY_BASE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t siphash(const void *data, size_t length, const uint64_t key[2]);

#endif
