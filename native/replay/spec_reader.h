/* spec_reader: reads the values of a table's spec, and says of a wrong one what was expected and what was got.
 *
 * `what` names the setting in messages. All return 0, or -1 with ERROR_BADSCHEMA set. */
#ifndef REPLAY_REPLAY_SPEC_READER_H
#define REPLAY_REPLAY_SPEC_READER_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/msgpack.h"

struct spec_reader {
    struct msgpack_reader bytes;
    struct error *error;
};

/* "what: expected …, got …"; `got` is NULL where nothing came. */
int spec_refuse(struct spec_reader *spec, const char *what, const char *expected, const struct msgpack_value *got);

/* These read the next value. */
int spec_next_value(struct spec_reader *spec, struct msgpack_value *value);
int spec_read_unsigned(struct spec_reader *spec, const char *what, uint64_t least, uint64_t most, uint64_t *number);
int spec_read_real(struct spec_reader *spec, const char *what, double least, double most, double *number);
int spec_read_map(struct spec_reader *spec, const char *what, uint32_t *pairs);
/* Reads which of the allowed keys comes next; refuses others, and one that was there before. */
int spec_read_key(struct spec_reader *spec, const char *what, const char *const *names, size_t count, uint32_t *seen,
                  int *key);

/* These take a value that was read. */
/* A name is 1 to 255 bytes without blanks and control characters, so that it can stand in messages and logs. `name` has
 * room for TABLE_MAX_NAME + 1 bytes; a zero ends it. */
int spec_take_name(struct spec_reader *spec, const char *what, const struct msgpack_value *value, char *name);
int spec_take_choice(struct spec_reader *spec, const char *what, const struct msgpack_value *value,
                     const char *const *names, size_t count, int *choice);

#endif
