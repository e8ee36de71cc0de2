/* lzf: Marc Lehmann's LZF, as Redis compresses strings of its files: literal runs and references back, a byte at a time.
 *
 *   000lllll literal …            l + 1 literal bytes
 *   lllddddd dddddddd             l + 2 bytes (l from 1 to 6) from d + 1 bytes back
 *   111ddddd llllllll dddddddd    l + 9 bytes from d + 1 bytes back */
#ifndef REPLAY_BASE_LZF_H
#define REPLAY_BASE_LZF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LZF_MOST_RATIO 88u /* three bytes give 264 at most */

/* False: the bytes are damaged, or do not give exactly `length`. */
bool lzf_expand(const uint8_t *data, size_t data_length, uint8_t *out, size_t length);
/* Returns the compressed length, or 0 where it would not be less than `most`, which is all the room there is. */
size_t lzf_compress(const uint8_t *data, size_t length, uint8_t *out, size_t most);

#endif
