/* error: how the layers below the server report a refusal: a code for programs and a sentence for people. */
#ifndef REPLAY_BASE_ERROR_H
#define REPLAY_BASE_ERROR_H

#include <stdbool.h>

enum error_code {
    ERROR_NONE = 0,
    ERROR_GENERIC,      /* ERR */
    ERROR_NOTABLE,      /* NOTABLE: no such table */
    ERROR_EXISTS,       /* EXISTS: a table of that name exists */
    ERROR_BADSCHEMA,    /* BADSCHEMA: spec or column set is wrong */
    ERROR_BADSHAPE,     /* BADSHAPE: a blob's size does not fit n items of the column */
    ERROR_BADPRIORITY,  /* BADPRIORITY: NaN, infinite, negative, or too large for the exponent */
    ERROR_TIMEOUT,      /* TIMEOUT: the condition did not come true in time; the message is the reason */
    ERROR_LIMIT,        /* LIMIT: a configured bound */
    ERROR_STALEVERSION, /* STALEVERSION: weights of that version or newer are already there */
    ERROR_NOGRADIENT,   /* NOGRADIENT: no gradient of that name waits */
    ERROR_CLOSED,       /* CLOSED: nothing enters the table any more */
    ERROR_NOPERM,       /* NOPERM: access rules forbid it */
    ERROR_CODES
};

struct error {
    enum error_code code;
    char message[480];
};

/* Sets code and formatted message; always returns -1, so that callers can `return error_set(…)`. */
int error_set(struct error *error, enum error_code code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The same for predicates, which say why not: always returns false. */
bool error_because(struct error *error, enum error_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
const char *error_code_name(enum error_code code); /* "ERR", "NOTABLE", … */

#endif
