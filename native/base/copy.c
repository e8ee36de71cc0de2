#include "base/copy.h"

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>

#define LINE 64u
#define STRANDS 4u /* read side by side, so that the processor's prefetcher follows four pages at once */

static inline void copy_line(uint8_t *to, const uint8_t *from) {
    __m128i part[4];
    for (int i = 0; i < 4; i++) part[i] = _mm_loadu_si128((const __m128i *)(const void *)(from + 16 * i));
    for (int i = 0; i < 4; i++) _mm_stream_si128((__m128i *)(void *)(to + 16 * i), part[i]);
}

void copy_streamed(void *to, const void *from, size_t bytes) {
    uint8_t *out = to;
    const uint8_t *in = from;
    size_t head = -(uintptr_t)out % LINE;
    if (bytes < head + STRANDS * LINE) {
        memcpy(out, in, bytes);
        return;
    }
    memcpy(out, in, head);
    out += head, in += head, bytes -= head;
    size_t strand = bytes / (STRANDS * LINE) * LINE;
    for (size_t i = 0; i < strand; i += LINE)
        for (size_t k = 0; k < STRANDS; k++) copy_line(out + k * strand + i, in + k * strand + i);
    memcpy(out + STRANDS * strand, in + STRANDS * strand, bytes - STRANDS * strand);
}

void copy_streamed_end(void) {
    _mm_sfence();
}
#else
void copy_streamed(void *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
}

void copy_streamed_end(void) {}
#endif
