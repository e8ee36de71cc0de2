/* codec: steps as compressed blocks, by LZ4 or zstd where the build found their libraries.
 *
 * A block holds one step of one column, so that any step can be read without its neighbours. A step that compression
 * does not make smaller is kept as it is: a block as long as the step is the step itself. Steps of fewer than
 * CODEC_LEAST_STEP_BYTES are never compressed. */
#ifndef REPLAY_REPLAY_CODEC_H
#define REPLAY_REPLAY_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "replay/table.h"

#define CODEC_LEAST_STEP_BYTES 128u

struct codec; /* one for each thread that codes */

bool codec_available(enum step_codec kind);
const char *codec_name(enum step_codec kind); /* "none", "lz4", "zstd" */
struct codec *codec_new(enum step_codec kind); /* NULL: out of memory, or not in this build */
void codec_free(struct codec *codec);
/* Writes a block of at most `length` bytes, which may be the step itself; returns its size. */
size_t codec_encode(struct codec *codec, const uint8_t *step, size_t length, uint8_t *block);
/* Whether the block is one of a step of `length` bytes, which is then written. Reads and writes nothing beyond. */
bool codec_decode(struct codec *codec, const uint8_t *block, size_t size, uint8_t *step, size_t length);
/* The same for whoever does not want the step: with LZ4 none is made of a block that is one, which takes a fraction of the time.
 * `scratch` has room for it otherwise. */
bool codec_is_block(struct codec *codec, const uint8_t *block, size_t size, uint8_t *scratch, size_t length);

/* n packed steps to n sizes and the blocks behind one another, whose length it returns; `blocks` has room for the steps as
 * they are. */
size_t codec_encode_steps(struct codec *codec, const uint8_t *steps, uint32_t n, size_t length, uint32_t *sizes,
                          uint8_t *blocks);

#endif
