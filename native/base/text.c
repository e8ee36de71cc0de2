#include "base/text.h"

#include <stdint.h>
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

size_t text_character(const void *bytes, size_t left) {
    const uint8_t *at = bytes;
    if (at[0] < 0x80) return 1;
    size_t length = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
    if (at[0] < 0xc2 || at[0] > 0xf4 || length > left) return 0;
    for (size_t i = 1; i < length; i++)
        if ((at[i] & 0xc0) != 0x80) return 0;
    bool is_overlong = (at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xf0 && at[1] < 0x90);
    bool is_none = (at[0] == 0xed && at[1] > 0x9f) || (at[0] == 0xf4 && at[1] > 0x8f);
    return is_overlong || is_none ? 0 : length;
}

void text_human_bytes(char *out, size_t size, double bytes) {
    static const char units[] = "BKMGT";
    int unit = 0;
    while (bytes >= 1024 && units[unit + 1]) {
        bytes /= 1024;
        unit++;
    }
    if (unit == 0)
        snprintf(out, size, "%.0fB", bytes);
    else
        snprintf(out, size, "%.2f%c", bytes, units[unit]);
}
