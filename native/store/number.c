#include "store/number.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool number_parse_int64(const uint8_t *text, size_t length, int64_t *value) {
    if (length == 0 || length >= NUMBER_INT64_TEXT) return false;
    if (length == 1 && text[0] == '0') {
        *value = 0;
        return true;
    }
    bool negative = text[0] == '-';
    size_t at = negative ? 1 : 0;
    if (at == length || text[at] < '1' || text[at] > '9') return false;
    uint64_t magnitude = 0;
    for (; at < length; at++) {
        unsigned digit = (unsigned)text[at] - '0';
        if (digit > 9 || magnitude > (UINT64_MAX - digit) / 10) return false;
        magnitude = magnitude * 10 + digit;
    }
    if (magnitude > (uint64_t)INT64_MAX + (negative ? 1 : 0)) return false;
    *value = negative ? (int64_t)(0 - magnitude) : (int64_t)magnitude;
    return true;
}

size_t number_format_int64(int64_t value, char text[NUMBER_INT64_TEXT]) {
    char reversed[NUMBER_INT64_TEXT];
    uint64_t magnitude = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    size_t digits = 0, length = 0;
    do {
        reversed[digits++] = (char)('0' + magnitude % 10);
        magnitude /= 10;
    } while (magnitude > 0);
    if (value < 0) text[length++] = '-';
    while (digits > 0) text[length++] = reversed[--digits];
    text[length] = '\0';
    return length;
}

bool number_parse_long_double(const uint8_t *text, size_t length, long double *value) {
    char terminated[NUMBER_LONG_DOUBLE_TEXT];
    if (length == 0 || length >= sizeof terminated || isspace(text[0])) return false;
    memcpy(terminated, text, length);
    terminated[length] = '\0';
    char *end;
    errno = 0;
    *value = strtold(terminated, &end);
    if ((size_t)(end - terminated) != length || isnan(*value)) return false;
    /* A denormal result also sets ERANGE and is fine; overflow and total underflow are not. */
    return errno != ERANGE || (!isinf(*value) && fpclassify(*value) != FP_ZERO);
}

size_t number_format_long_double(long double value, char text[NUMBER_LONG_DOUBLE_TEXT]) {
    if (isinf(value)) return (size_t)snprintf(text, NUMBER_LONG_DOUBLE_TEXT, value > 0 ? "inf" : "-inf");
    int length = snprintf(text, NUMBER_LONG_DOUBLE_TEXT, "%.17Lf", value);
    while (text[length - 1] == '0') length--;
    if (text[length - 1] == '.') length--;
    text[length] = '\0';
    if (strcmp(text, "-0") == 0) {
        memcpy(text, "0", 2);
        length = 1;
    }
    return (size_t)length;
}

/* Most scores are short whole numbers, which need no strtod: up to 15 digits a double holds them exactly. */
static bool parse_short_whole(const uint8_t *text, size_t length, double *value) {
    bool negative = text[0] == '-';
    size_t at = negative ? 1 : 0;
    if (length - at == 0 || length - at > 15) return false;
    int64_t magnitude = 0;
    for (; at < length; at++) {
        unsigned digit = (unsigned)text[at] - '0';
        if (digit > 9) return false;
        magnitude = magnitude * 10 + digit;
    }
    *value = negative ? -(double)magnitude : (double)magnitude; /* "-0" is −0, as of strtod */
    return true;
}

bool number_parse_double(const uint8_t *text, size_t length, double *value) {
    char terminated[NUMBER_LONG_DOUBLE_TEXT];
    if (length == 0 || length >= sizeof terminated || isspace(text[0])) return false;
    if (parse_short_whole(text, length, value)) return true;
    memcpy(terminated, text, length);
    terminated[length] = '\0';
    char *end;
    errno = 0;
    *value = strtod(terminated, &end);
    if ((size_t)(end - terminated) != length || isnan(*value)) return false;
    return errno != ERANGE || (!isinf(*value) && *value != 0);
}

size_t number_format_double(double value, char text[NUMBER_DOUBLE_TEXT]) {
    if (isinf(value)) return (size_t)snprintf(text, NUMBER_DOUBLE_TEXT, value > 0 ? "inf" : "-inf");
    /* A whole number below 10^15 is written without an exponent: no need of printf. */
    if (value > -1e15 && value < 1e15 && (double)(int64_t)value == value && !(value == 0 && signbit(value)))
        return number_format_int64((int64_t)value, text);
    return (size_t)snprintf(text, NUMBER_DOUBLE_TEXT, "%.17g", value);
}
