/* coded_reply_windows: decodes each distinct step where it is shown first, and copies it from there to where it is shown again. */
#include "replay/coded_reply_windows.h"

#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "base/words.h"
#include "replay/codec.h"

struct coded {
    const uint8_t *index, *sizes, *blocks; /* as they came: not aligned */
    uint32_t steps;
    enum step_codec codec;
};

/* A distinct step: where its block lies, and, once it was shown, where. */
struct step {
    const uint8_t *block;
    size_t block_bytes;
    const uint8_t *shown;
};

static uint32_t word(const uint8_t *words, uint64_t at) {
    return load_u32(words + at * sizeof(uint32_t));
}

static int read_head(struct coded *coded, const uint8_t *bytes, size_t length, uint64_t places, struct error *error) {
    if (length < 2 * sizeof(uint32_t))
        return error_set(error, ERROR_BADSHAPE, "expected coded steps, got %zu bytes", length);
    coded->steps = word(bytes, 0);
    uint32_t codec = word(bytes, 1);
    uint64_t head = (2 + places + coded->steps) * sizeof(uint32_t);
    if (coded->steps > places || head > length) {
        return error_set(error, ERROR_BADSHAPE,
                         "expected coded steps for %" PRIu64 " places, got %" PRIu32 " steps in %zu bytes", places,
                         coded->steps, length);
    }
    if (codec > CODEC_ZSTD || !codec_available((enum step_codec)codec)) {
        return error_set(error, ERROR_BADSHAPE,
                         "steps are coded by codec %" PRIu32 " (1: lz4, 2: zstd), which is not in this build; install "
                         "its library and build again, or sample without coded steps",
                         codec);
    }
    coded->codec = (enum step_codec)codec;
    coded->index = bytes + 2 * sizeof(uint32_t);
    coded->sizes = coded->index + places * sizeof(uint32_t);
    coded->blocks = bytes + head;
    return 0;
}

static int find_blocks(const struct coded *coded, size_t blocks_bytes, struct step *steps, struct error *error) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < coded->steps; i++) {
        uint32_t size = word(coded->sizes, i);
        if (at + size > blocks_bytes) break;
        steps[i] = (struct step){.block = coded->blocks + at, .block_bytes = size};
        at += size;
        if (i + 1 == coded->steps && at == blocks_bytes) return 0;
    }
    return coded->steps == 0 && blocks_bytes == 0
               ? 0
               : error_set(error, ERROR_BADSHAPE, "expected %" PRIu32 " blocks that fill %zu bytes", coded->steps,
                           blocks_bytes);
}

/* Shows a step at `to`. */
static int show(struct codec *codec, struct step *step, uint8_t *to, size_t step_bytes, struct error *error) {
    if (step->shown) {
        memcpy(to, step->shown, step_bytes);
        return 0;
    }
    if (step->block_bytes == step_bytes) {
        memcpy(to, step->block, step_bytes);
    } else if (!codec || !codec_decode(codec, step->block, step->block_bytes, to, step_bytes)) {
        return error_set(error, ERROR_BADSHAPE, "expected a step of %zu bytes, got a block of %zu that is none",
                         step_bytes, step->block_bytes);
    }
    step->shown = to;
    return 0;
}

int expand_windows(const uint8_t *bytes, size_t length, uint32_t n, uint32_t windows, const uint32_t *steps,
                   uint8_t *const *out, size_t step_bytes, struct error *error) {
    struct coded coded;
    uint64_t places = 0, place = 0;
    for (uint32_t i = 0; i < windows; i++) places += (uint64_t)steps[i] * n;
    if (read_head(&coded, bytes, length, places, error)) return -1;
    struct step *distinct = memory_alloc(coded.steps * sizeof *distinct + 1);
    struct codec *codec = coded.codec == CODEC_NONE ? NULL : codec_new(coded.codec);
    if (!distinct || (coded.codec != CODEC_NONE && !codec)) {
        memory_free(distinct);
        codec_free(codec);
        return error_set(error, ERROR_GENERIC, "out of memory for %" PRIu32 " steps", coded.steps);
    }
    int failed = find_blocks(&coded, length - (size_t)(coded.blocks - bytes), distinct, error);
    for (uint32_t i = 0; !failed && i < n; i++) {
        for (uint32_t j = 0; !failed && j < windows; j++) {
            uint8_t *to = out[j] + (size_t)i * steps[j] * step_bytes;
            for (uint32_t k = 0; !failed && k < steps[j]; k++, to += step_bytes) {
                uint32_t which = word(coded.index, place++);
                failed = which < coded.steps
                             ? show(codec, &distinct[which], to, step_bytes, error)
                             : error_set(error, ERROR_BADSHAPE, "expected a step below %" PRIu32 ", got %" PRIu32,
                                         coded.steps, which);
            }
        }
    }
    memory_free(distinct);
    codec_free(codec);
    return failed ? -1 : 0;
}
