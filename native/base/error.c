#include "base/error.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

static const char *const names[ERROR_CODES] = {
    [ERROR_NONE] = "OK",
    [ERROR_GENERIC] = "ERR",
    [ERROR_NOTABLE] = "NOTABLE",
    [ERROR_EXISTS] = "EXISTS",
    [ERROR_BADSCHEMA] = "BADSCHEMA",
    [ERROR_BADSHAPE] = "BADSHAPE",
    [ERROR_BADPRIORITY] = "BADPRIORITY",
    [ERROR_TIMEOUT] = "TIMEOUT",
    [ERROR_LIMIT] = "LIMIT",
    [ERROR_STALEVERSION] = "STALEVERSION",
    [ERROR_NOGRADIENT] = "NOGRADIENT",
    [ERROR_CLOSED] = "CLOSED",
    [ERROR_NOPERM] = "NOPERM",
};

static void set(struct error *error, enum error_code code, const char *format, va_list arguments) {
    error->code = code;
    vsnprintf(error->message, sizeof error->message, format, arguments);
}

int error_set(struct error *error, enum error_code code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    set(error, code, format, arguments);
    va_end(arguments);
    return -1;
}

bool error_because(struct error *error, enum error_code code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    set(error, code, format, arguments);
    va_end(arguments);
    return false;
}

const char *error_code_name(enum error_code code) {
    assert(code >= ERROR_NONE && code < ERROR_CODES);
    return names[code];
}
