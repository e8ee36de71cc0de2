/* glob: patterns of KEYS, SCAN MATCH and CONFIG GET: * ? [abc] [^a-z] and backslash, on bytes. */
#ifndef REPLAY_STORE_GLOB_H
#define REPLAY_STORE_GLOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Takes O(pattern * text) steps at most, so that no pattern can hold the server. */
bool glob_match(const uint8_t *pattern, size_t pattern_length, const uint8_t *text, size_t length);

#endif
