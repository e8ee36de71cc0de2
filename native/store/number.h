/* number: text to number and back, as strictly as Redis does it, so that the same strings count as numbers here. */
#ifndef REPLAY_STORE_NUMBER_H
#define REPLAY_STORE_NUMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NUMBER_INT64_TEXT 21       /* longest decimal int64 and its terminator */
#define NUMBER_LONG_DOUBLE_TEXT 5120 /* longest %.17Lf of a finite long double and its terminator */

/* Only the canonical form is an integer: no sign but one '-', no leading zero, no blank, no "-0". */
bool number_parse_int64(const uint8_t *text, size_t length, int64_t *value);
size_t number_format_int64(int64_t value, char text[NUMBER_INT64_TEXT]); /* returns the length */

/* What strtold takes whole, without leading blank, NaN or overflow; infinities pass. */
bool number_parse_long_double(const uint8_t *text, size_t length, long double *value);
/* At most 17 fraction digits, trailing zeros cut: INCRBYFLOAT's form. Returns the length. */
size_t number_format_long_double(long double value, char text[NUMBER_LONG_DOUBLE_TEXT]);

#define NUMBER_DOUBLE_TEXT 32 /* longest %.17g of a double and its terminator */

/* What strtod takes whole, by the same rules: scores. */
bool number_parse_double(const uint8_t *text, size_t length, double *value);
/* %.17g, infinities as "inf" and "-inf". Returns the length. */
size_t number_format_double(double value, char text[NUMBER_DOUBLE_TEXT]);

#endif
