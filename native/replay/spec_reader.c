#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "replay/spec_reader.h"
#include "replay/table.h"

#define SHOWN_BYTES 64 /* of a string in a message */
#define TRUNCATED "expected a msgpack map of a table's settings, and it ends early or is malformed"

/* Writes a value for a message: a long string is shortened between characters, and control characters are replaced. */
static void describe(const struct msgpack_value *value, char *text, size_t size) {
    size_t shown = 0;
    switch (value->type) {
    case MSGPACK_NIL: snprintf(text, size, "nil"); break;
    case MSGPACK_BOOLEAN: snprintf(text, size, "%s", value->boolean ? "true" : "false"); break;
    case MSGPACK_UNSIGNED: snprintf(text, size, "%" PRIu64, value->unsigned_integer); break;
    case MSGPACK_SIGNED: snprintf(text, size, "%" PRId64, value->signed_integer); break;
    case MSGPACK_DOUBLE: snprintf(text, size, "%g (a float)", value->real); break;
    case MSGPACK_STRING:
        shown = value->bytes.length;
        if (shown > SHOWN_BYTES)
            for (shown = SHOWN_BYTES; shown && (value->bytes.data[shown] & 0xc0) == 0x80;) shown--;
        snprintf(text, size, "'%.*s%s'", (int)shown, (const char *)value->bytes.data,
                 shown < value->bytes.length ? "…" : "");
        if (shown < value->bytes.length) {
            size_t at = strlen(text);
            snprintf(text + at, size - at, " of %zu bytes", value->bytes.length);
        }
        break;
    case MSGPACK_BINARY: snprintf(text, size, "%zu bytes of binary", value->bytes.length); break;
    case MSGPACK_ARRAY: snprintf(text, size, "an array of %" PRIu32, value->count); break;
    case MSGPACK_MAP: snprintf(text, size, "a map of %" PRIu32, value->count); break;
    }
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = '?';
}

int spec_refuse(struct spec_reader *spec, const char *what, const char *expected, const struct msgpack_value *got) {
    char came[96] = "none";
    if (got) describe(got, came, sizeof came);
    return error_set(spec->error, ERROR_BADSCHEMA, "%s: expected %s, got %s", what, expected, came);
}

int spec_next_value(struct spec_reader *spec, struct msgpack_value *value) {
    return msgpack_read(&spec->bytes, value) ? 0 : error_set(spec->error, ERROR_BADSCHEMA, TRUNCATED);
}

int spec_read_unsigned(struct spec_reader *spec, const char *what, uint64_t least, uint64_t most, uint64_t *number) {
    struct msgpack_value value;
    if (spec_next_value(spec, &value)) return -1;
    if (value.type != MSGPACK_UNSIGNED || value.unsigned_integer < least || value.unsigned_integer > most) {
        char expected[64];
        snprintf(expected, sizeof expected, "an integer from %" PRIu64 " to %" PRIu64, least, most);
        return spec_refuse(spec, what, expected, &value);
    }
    *number = value.unsigned_integer;
    return 0;
}

int spec_read_real(struct spec_reader *spec, const char *what, double least, double most, double *number) {
    struct msgpack_value value;
    if (spec_next_value(spec, &value)) return -1;
    double real = value.type == MSGPACK_DOUBLE     ? value.real
                  : value.type == MSGPACK_UNSIGNED ? (double)value.unsigned_integer
                                                   : NAN;
    if (!(real >= least && real <= most)) {
        char expected[64];
        snprintf(expected, sizeof expected, "a number from %g to %g", least, most);
        return spec_refuse(spec, what, expected, &value);
    }
    *number = real;
    return 0;
}

int spec_take_name(struct spec_reader *spec, const char *what, const struct msgpack_value *value, char *name) {
    bool valid = value->type == MSGPACK_STRING && value->bytes.length >= 1 && value->bytes.length <= TABLE_MAX_NAME;
    for (size_t i = 0; valid && i < value->bytes.length; i++)
        valid = value->bytes.data[i] > 0x20 && value->bytes.data[i] != 0x7f;
    if (!valid) return spec_refuse(spec, what, "a name of 1 to 255 bytes without blanks or control characters", value);
    memcpy(name, value->bytes.data, value->bytes.length);
    name[value->bytes.length] = 0;
    return 0;
}

int spec_take_choice(struct spec_reader *spec, const char *what, const struct msgpack_value *value,
                     const char *const *names, size_t count, int *choice) {
    char list[128] = "";
    for (size_t i = 0; i < count; i++) {
        if (msgpack_string_is(value, names[i])) {
            *choice = (int)i;
            return 0;
        }
        strcat(strcat(list, i ? ", " : "one of: "), names[i]);
    }
    return spec_refuse(spec, what, list, value);
}

int spec_read_key(struct spec_reader *spec, const char *what, const char *const *names, size_t count, uint32_t *seen,
                  int *key) {
    struct msgpack_value value;
    if (spec_next_value(spec, &value)) return -1;
    for (size_t i = 0; i < count; i++) {
        if (!msgpack_string_is(&value, names[i])) continue;
        if (*seen & 1u << i)
            return error_set(spec->error, ERROR_BADSCHEMA, "%s: key '%s' is given twice", what, names[i]);
        *seen |= 1u << i;
        *key = (int)i;
        return 0;
    }
    if (value.type != MSGPACK_STRING) return spec_refuse(spec, what, "keys that are strings", &value);
    char came[96];
    describe(&value, came, sizeof came);
    return error_set(spec->error, ERROR_BADSCHEMA, "%s: unknown key %s; check its spelling against docs/protocol.md",
                     what, came);
}

int spec_read_map(struct spec_reader *spec, const char *what, uint32_t *pairs) {
    struct msgpack_value value;
    if (spec_next_value(spec, &value)) return -1;
    if (value.type != MSGPACK_MAP) return spec_refuse(spec, what, "a map", &value);
    *pairs = value.count;
    return 0;
}
