/* lzf: expanding, and compressing by a table of where three bytes were seen last. */
#include "base/lzf.h"

#include <string.h>

#define LITERALS_MOST 32u
#define MATCH_LEAST 3u
#define MATCH_MOST 264u
#define DISTANCE_MOST 8192u
#define HASH_BITS_MOST 13

/* Of the table of what was seen, which is cleared first: as few as the length needs. */
static unsigned hash_bits(size_t length) {
    return length < 256 ? 7 : length < 4096 ? 10 : HASH_BITS_MOST;
}

bool lzf_expand(const uint8_t *data, size_t data_length, uint8_t *out, size_t length) {
    size_t at = 0, written = 0;
    while (at < data_length) {
        unsigned control = data[at++];
        if (control < LITERALS_MOST) {
            size_t count = control + 1;
            if (count > data_length - at || count > length - written) return false;
            memcpy(out + written, data + at, count);
            at += count;
            written += count;
            continue;
        }
        size_t count = (control >> 5) + 2;
        if (control >> 5 == 7) {
            if (at >= data_length) return false;
            count += data[at++];
        }
        if (at >= data_length) return false;
        size_t distance = ((control & 31) << 8 | data[at++]) + 1;
        if (distance > written || count > length - written) return false;
        /* They may overlap: byte by byte. */
        for (const uint8_t *from = out + written - distance; count > 0; count--) out[written++] = *from++;
    }
    return written == length;
}

static uint32_t three_at(const uint8_t *at) {
    return (uint32_t)at[0] << 16 | (uint32_t)at[1] << 8 | at[2];
}

/* Writes the literals data[0 .. count) in runs. Returns what is written, or SIZE_MAX for want of room. */
static size_t put_literals(const uint8_t *data, size_t count, uint8_t *out, size_t written, size_t most) {
    while (count > 0) {
        size_t run = count < LITERALS_MOST ? count : LITERALS_MOST;
        if (most - written < run + 1) return SIZE_MAX;
        out[written++] = (uint8_t)(run - 1);
        memcpy(out + written, data, run);
        written += run;
        data += run;
        count -= run;
    }
    return written;
}

static size_t put_reference(size_t count, size_t distance, uint8_t *out, size_t written, size_t most) {
    if (most - written < 3) return SIZE_MAX;
    distance--;
    count -= 2;
    if (count < 7) {
        out[written++] = (uint8_t)(count << 5 | distance >> 8);
    } else {
        out[written++] = (uint8_t)(7u << 5 | distance >> 8);
        out[written++] = (uint8_t)(count - 7);
    }
    out[written++] = (uint8_t)distance;
    return written;
}

static size_t match_length(const uint8_t *data, size_t length, size_t at, size_t before) {
    size_t most = length - at < MATCH_MOST ? length - at : MATCH_MOST, count = MATCH_LEAST;
    while (count < most && data[before + count] == data[at + count]) count++;
    return count;
}

size_t lzf_compress(const uint8_t *data, size_t length, uint8_t *out, size_t most) {
    uint32_t seen[1u << HASH_BITS_MOST]; /* a place, counted from 1 */
    size_t at = 0, literals = 0, written = 0;
    unsigned bits = hash_bits(length);
    if (length > UINT32_MAX - 1) return 0;
    memset(seen, 0, sizeof *seen << bits);
    while (at + MATCH_LEAST <= length) {
        uint32_t three = three_at(data + at);
        uint32_t *place = &seen[(three * 2654435761u) >> (32 - bits)];
        size_t before = *place;
        *place = (uint32_t)(at + 1);
        if (before == 0 || at + 1 - before > DISTANCE_MOST || three_at(data + before - 1) != three) {
            at++;
            continue;
        }
        size_t count = match_length(data, length, at, before - 1);
        written = put_literals(data + literals, at - literals, out, written, most);
        if (written != SIZE_MAX) written = put_reference(count, at + 1 - before, out, written, most);
        if (written == SIZE_MAX) return 0;
        at += count;
        literals = at;
    }
    written = put_literals(data + literals, length - literals, out, written, most);
    return written == SIZE_MAX || written >= most ? 0 : written;
}
