/* argument: reads words and numbers out of request arguments, as strictly as Redis does. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "server/core/command.h"

bool argument_is(const struct resp_argument *argument, const char *word) {
    size_t length = strlen(word);
    return argument->data && argument->length == length && strncasecmp((const char *)argument->data, word, length) == 0;
}

/* One spelling per number: no plus sign, no leading zeros, no spaces, no "-0". */
bool argument_int64(const struct resp_argument *argument, int64_t *value) {
    const uint8_t *text = argument->data;
    size_t length = argument->length;
    if (!text || length == 0 || length > 20) return false;
    bool negative = text[0] == '-';
    size_t i = negative ? 1 : 0;
    if (i == length || text[i] < '0' || text[i] > '9') return false;
    if (text[i] == '0') {
        *value = 0;
        return length == 1;
    }
    uint64_t bound = negative ? (uint64_t)INT64_MAX + 1 : (uint64_t)INT64_MAX;
    uint64_t number = 0;
    for (; i < length; i++) {
        uint64_t digit = (uint64_t)text[i] - '0';
        if (text[i] < '0' || text[i] > '9' || number > (bound - digit) / 10) return false;
        number = number * 10 + digit;
    }
    *value = negative ? (int64_t)(0 - number) : (int64_t)number;
    return true;
}

/* Anything strtod takes as a whole, infinities included, but not NaN. */
bool argument_double(const struct resp_argument *argument, double *value) {
    char text[256];
    size_t length = argument->length;
    if (!argument->data || length == 0 || length >= sizeof text) return false;
    memcpy(text, argument->data, length);
    text[length] = '\0';
    if (text[0] == ' ' || (text[0] >= '\t' && text[0] <= '\r')) return false;
    char *end;
    double number = strtod(text, &end);
    if (end != text + length || isnan(number)) return false;
    *value = number;
    return true;
}

struct blob *argument_blob(const struct resp_argument *argument) {
    if (argument->blob) return blob_retain(argument->blob);
    struct blob *blob = blob_new(argument->length);
    if (blob && argument->length) memcpy(blob->data, argument->data, argument->length);
    return blob;
}
