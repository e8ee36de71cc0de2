/* glob: pattern matching as Redis does it, without recursion. */
#include "store/glob.h"

/* Matches one byte against the element at the pattern's start, which is no star; *consumed gets the element's length.
 * As in Redis an unclosed class ends with the pattern, a reversed range is turned round, and the last byte of a pattern
 * may be a lone backslash. */
static bool element_matches(const uint8_t *pattern, size_t length, uint8_t byte, size_t *consumed) {
    if (pattern[0] == '?') {
        *consumed = 1;
        return true;
    }
    if (pattern[0] == '\\' && length >= 2) {
        *consumed = 2;
        return pattern[1] == byte;
    }
    if (pattern[0] != '[') {
        *consumed = 1;
        return pattern[0] == byte;
    }
    size_t at = 1;
    bool negated = at < length && pattern[at] == '^', matched = false;
    at += negated;
    while (at < length && pattern[at] != ']') {
        if (pattern[at] == '\\' && at + 1 < length) {
            matched |= pattern[at + 1] == byte;
            at += 2;
        } else if (at + 2 < length && pattern[at + 1] == '-') {
            uint8_t low = pattern[at], high = pattern[at + 2];
            if (low > high) {
                uint8_t swapped = low;
                low = high;
                high = swapped;
            }
            matched |= low <= byte && byte <= high;
            at += 3;
        } else {
            matched |= pattern[at] == byte;
            at++;
        }
    }
    *consumed = at < length ? at + 1 : length;
    return matched != negated;
}

bool glob_match(const uint8_t *pattern, size_t pattern_length, const uint8_t *text, size_t length) {
    size_t p = 0, t = 0, star = SIZE_MAX, retry = 0, consumed;
    /* As in Redis, where not even stars match an empty text. */
    if (length == 0) return pattern_length == 0;
    while (t < length) {
        if (p < pattern_length && pattern[p] == '*') {
            star = p++;
            retry = t;
        } else if (p < pattern_length && element_matches(pattern + p, pattern_length - p, text[t], &consumed)) {
            p += consumed;
            t++;
        } else if (star != SIZE_MAX) {
            /* Let the last star take one byte more; earlier stars need not be tried again. */
            p = star + 1;
            t = ++retry;
        } else {
            return false;
        }
    }
    while (p < pattern_length && pattern[p] == '*') p++;
    return p == pattern_length;
}
