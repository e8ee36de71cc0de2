/* codec: LZ4 and zstd behind one interface; both keep their working memory between calls. */
#include "replay/codec.h"

#include <limits.h>
#include <string.h>

#ifdef REPLAY_LZ4
#include <lz4.h>
#endif
#ifdef REPLAY_ZSTD
#include <zstd.h>
#endif

#include "base/memory.h"
#include "base/words.h"

#define ZSTD_LEVEL 1 /* higher levels gain little on frames and cost much */

struct codec {
    enum step_codec kind;
    void *lz4;
#ifdef REPLAY_ZSTD
    ZSTD_CCtx *compressor;
    ZSTD_DCtx *decompressor;
#endif
};

bool codec_available(enum step_codec kind) {
    switch (kind) {
    case CODEC_NONE: return true;
#ifdef REPLAY_LZ4
    case CODEC_LZ4: return true;
#endif
#ifdef REPLAY_ZSTD
    case CODEC_ZSTD: return true;
#endif
    default: return false;
    }
}

const char *codec_name(enum step_codec kind) {
    static const char *const names[] = {"none", "lz4", "zstd"};
    return names[kind];
}

struct codec *codec_new(enum step_codec kind) {
    struct codec *codec = codec_available(kind) ? memory_calloc(1, sizeof *codec) : NULL;
    if (!codec) return NULL;
    codec->kind = kind;
    bool failed = false;
#ifdef REPLAY_LZ4
    if (kind == CODEC_LZ4) {
        codec->lz4 = memory_calloc(1, (size_t)LZ4_sizeofState());
        failed = !codec->lz4;
    }
#endif
#ifdef REPLAY_ZSTD
    if (kind == CODEC_ZSTD) {
        codec->compressor = ZSTD_createCCtx();
        codec->decompressor = ZSTD_createDCtx();
        failed = !codec->compressor || !codec->decompressor ||
                 ZSTD_isError(ZSTD_CCtx_setParameter(codec->compressor, ZSTD_c_compressionLevel, ZSTD_LEVEL)) ||
                 /* The length is known from the column, and snapshots and requests have checksums of their own: that
                  * saves 7 bytes a block. */
                 ZSTD_isError(ZSTD_CCtx_setParameter(codec->compressor, ZSTD_c_contentSizeFlag, 0));
    }
#endif
    if (failed) {
        codec_free(codec);
        return NULL;
    }
    return codec;
}

void codec_free(struct codec *codec) {
    if (!codec) return;
#ifdef REPLAY_ZSTD
    ZSTD_freeCCtx(codec->compressor);
    ZSTD_freeDCtx(codec->decompressor);
#endif
    memory_free(codec->lz4);
    memory_free(codec);
}

/* The size of the block, or 0 where it would not be smaller than the step. */
static size_t compress(struct codec *codec, const uint8_t *step, size_t length, uint8_t *block) {
    switch (codec->kind) {
#ifdef REPLAY_LZ4
    case CODEC_LZ4:
        return length > LZ4_MAX_INPUT_SIZE
                   ? 0
                   : (size_t)LZ4_compress_fast_extState(codec->lz4, (const char *)step, (char *)block, (int)length,
                                                        (int)length - 1, 1);
#endif
#ifdef REPLAY_ZSTD
    case CODEC_ZSTD: {
        size_t size = ZSTD_compress2(codec->compressor, block, length - 1, step, length);
        return ZSTD_isError(size) ? 0 : size;
    }
#endif
    default: return 0;
    }
}

size_t codec_encode(struct codec *codec, const uint8_t *step, size_t length, uint8_t *block) {
    size_t size = length < CODEC_LEAST_STEP_BYTES ? 0 : compress(codec, step, length, block);
    if (size) return size;
    memcpy(block, step, length);
    return length;
}

bool codec_decode(struct codec *codec, const uint8_t *block, size_t size, uint8_t *step, size_t length) {
    if (size == length) {
        memcpy(step, block, length);
        return true;
    }
    if (size > length || length < CODEC_LEAST_STEP_BYTES) return false;
    switch (codec->kind) {
#ifdef REPLAY_LZ4
    case CODEC_LZ4:
        return length <= INT_MAX &&
               LZ4_decompress_safe((const char *)block, (char *)step, (int)size, (int)length) == (int)length;
#endif
#ifdef REPLAY_ZSTD
    case CODEC_ZSTD: return ZSTD_decompressDCtx(codec->decompressor, step, length, block, size) == length;
#endif
    default: return false;
    }
}

#ifdef REPLAY_LZ4

#define LZ4_LONG 15u        /* a length of four bits that goes on in bytes behind it, up to one that is not 255 */
#define LZ4_LEAST_MATCH 4u
#define LZ4_END_LITERALS 5u /* no match reaches into the last so many bytes of a step, … */
#define LZ4_END_MATCH 12u   /* … and none begins in its last so many */

/* A length goes on in the bytes at *at. False: they do not end. */
static bool go_on(const uint8_t **at, const uint8_t *end, uint64_t *length) {
    uint32_t byte;
    do {
        if (*at == end) return false;
        byte = *(*at)++;
        *length += byte;
    } while (byte == 255);
    return true;
}

/* Whether the block is as the format has it, and of `length` bytes. That depends on lengths and distances alone, so nothing is
 * made: a block is a row of sequences, literals and then a match, which repeats earlier bytes; the last has no match. Matches keep
 * away from the step's end. Each is nearer to it than those before, so the last one tells for all. LZ4_decompress_safe takes
 * every such block, and some that are not quite so. */
static bool is_lz4_block(const uint8_t *at, size_t size, size_t length) {
    const uint8_t *end = at + size;
    uint64_t made = 0, match_at = 0;
    bool is_wrong = false;
    while (at < end) {
        uint32_t token = *at++;
        uint64_t literals = token >> 4;
        if (literals == LZ4_LONG && !go_on(&at, end, &literals)) return false;
        uint64_t left = (uint64_t)(end - at);
        /* A match has two bytes of distance, and a further sequence behind it. */
        if (literals + 3 > left)
            return literals == left && made + literals == length && !is_wrong && made + LZ4_END_LITERALS <= length &&
                   match_at + LZ4_END_MATCH <= length;
        at += literals;
        match_at = made + literals;
        uint64_t distance = load_little_endian(at, 2), match = token & 15;
        is_wrong |= distance - 1 >= match_at;
        at += 2;
        /* No branch: it would often be mispredicted. */
        uint32_t is_long = match == LZ4_LONG, more = *at & (0 - is_long);
        at += is_long;
        match += more;
        if (more == 255 && !go_on(&at, end, &match)) return false;
        made = match_at + match + LZ4_LEAST_MATCH;
    }
    return false;
}

#endif

bool codec_is_block(struct codec *codec, const uint8_t *block, size_t size, uint8_t *scratch, size_t length) {
    if (size == length) return true;
#ifdef REPLAY_LZ4
    bool is_of_lz4 = codec->kind == CODEC_LZ4 && length >= CODEC_LEAST_STEP_BYTES && length <= INT_MAX;
    if (is_of_lz4 && size < length && is_lz4_block(block, size, length)) return true;
#endif
    return codec_decode(codec, block, size, scratch, length);
}

size_t codec_encode_steps(struct codec *codec, const uint8_t *steps, uint32_t n, size_t length, uint32_t *sizes,
                          uint8_t *blocks) {
    uint8_t *block = blocks;
    for (uint32_t i = 0; i < n; i++) {
        size_t size = codec_encode(codec, steps + i * length, length, block);
        sizes[i] = (uint32_t)size;
        block += size;
    }
    return (size_t)(block - blocks);
}
