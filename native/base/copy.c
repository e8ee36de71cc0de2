#include "base/copy.h"

#include <stdint.h>
#include <string.h>

#define LINE 64u

#if defined(__SSE2__)
#include <emmintrin.h>

#define AHEAD (8 * LINE) /* what the processor's own prefetcher misses at the beginning of each page */

static inline void copy_line(uint8_t *to, const uint8_t *from) {
    __m128i part[4];
    for (int i = 0; i < 4; i++) part[i] = _mm_loadu_si128((const __m128i *)(const void *)(from + 16 * i));
    for (int i = 0; i < 4; i++) _mm_stream_si128((__m128i *)(void *)(to + 16 * i), part[i]);
}

void copy_streamed_pieces(void *to, const uint8_t *const *from, uint32_t count, size_t piece_bytes) {
    uint8_t *out[COPY_STREAM_PIECES];
    const uint8_t *in[COPY_STREAM_PIECES];
    size_t head[COPY_STREAM_PIECES], longest_head = 0;
    for (uint32_t k = 0; k < count; k++) {
        uint8_t *piece = (uint8_t *)to + k * piece_bytes;
        head[k] = -(uintptr_t)piece % LINE;
        if (head[k] > longest_head) longest_head = head[k];
        memcpy(piece, from[k], head[k]);
        out[k] = piece + head[k], in[k] = from[k] + head[k];
    }
    size_t whole = (piece_bytes - longest_head) / LINE * LINE;
    for (size_t i = 0; i < whole; i += LINE)
        for (uint32_t k = 0; k < count; k++) {
            __builtin_prefetch(in[k] + i + AHEAD);
            copy_line(out[k] + i, in[k] + i);
        }
    for (uint32_t k = 0; k < count; k++) memcpy(out[k] + whole, in[k] + whole, piece_bytes - head[k] - whole);
}

void copy_streamed_end(void) {
    _mm_sfence();
}
#else
void copy_streamed_pieces(void *to, const uint8_t *const *from, uint32_t count, size_t piece_bytes) {
    for (uint32_t k = 0; k < count; k++) memcpy((uint8_t *)to + k * piece_bytes, from[k], piece_bytes);
}

void copy_streamed_end(void) {}
#endif

void copy_streamed(void *to, const void *from, size_t bytes) {
    size_t piece_bytes = bytes / (COPY_STREAM_PIECES * LINE) * LINE, copied = piece_bytes * COPY_STREAM_PIECES;
    const uint8_t *pieces[COPY_STREAM_PIECES];
    for (uint32_t k = 0; k < COPY_STREAM_PIECES; k++) pieces[k] = (const uint8_t *)from + k * piece_bytes;
    if (piece_bytes) copy_streamed_pieces(to, pieces, COPY_STREAM_PIECES, piece_bytes);
    memcpy((uint8_t *)to + copied, (const uint8_t *)from + copied, bytes - copied);
}
