/* text: a growable string that is appended to by format, for INFO, CLIENT LIST and messages. */
#ifndef REPLAY_BASE_TEXT_H
#define REPLAY_BASE_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

/* Start with `struct text text = {0};`. When memory runs out `failed` is set and later appends do nothing. */
struct text {
    char *data; /* ended by a zero byte; NULL while empty */
    size_t length;
    size_t capacity;
    bool failed;
};

void text_append(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_append_formatted(struct text *text, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));
void text_append_bytes(struct text *text, const void *bytes, size_t length);
void text_free(struct text *text);
/* The bytes of the UTF-8 character that `bytes` begin with, at most `left` >= 1; 0: they begin with none. */
size_t text_character(const void *bytes, size_t left);

/* "1.50M" */
void text_human_bytes(char *out, size_t size, double bytes);

#endif
