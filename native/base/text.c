/* text: a growable string that is appended to by format. */
#include "base/text.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"

/* Room for `more` bytes and the final zero. */
static bool text_reserve(struct text *text, size_t more) {
    if (text->failed) return false;
    size_t wanted = text->length + more + 1;
    if (wanted <= text->capacity) return true;
    size_t capacity = text->capacity ? text->capacity : 256;
    while (capacity < wanted) capacity *= 2;
    char *data = memory_realloc(text->data, capacity);
    if (!data) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->capacity = capacity;
    return true;
}

void text_append_formatted(struct text *text, const char *format, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    int needed = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (needed >= 0 && text_reserve(text, (size_t)needed)) {
        vsnprintf(text->data + text->length, (size_t)needed + 1, format, arguments);
        text->length += (size_t)needed;
    }
}

void text_append(struct text *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    text_append_formatted(text, format, arguments);
    va_end(arguments);
}

void text_append_bytes(struct text *text, const void *bytes, size_t length) {
    if (!text_reserve(text, length)) return;
    if (length) memcpy(text->data + text->length, bytes, length);
    text->length += length;
    text->data[text->length] = '\0';
}

void text_free(struct text *text) {
    memory_free(text->data);
    *text = (struct text){0};
}
