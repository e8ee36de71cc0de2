#include "tools/reply_reader.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* A value has ended: so have the arrays that it was the last of. */
static enum reply_status value_ended(struct reply_reader *reader) {
    while (reader->depth > 0) {
        if (--reader->elements_left[reader->depth - 1] > 0) return REPLY_MORE;
        reader->depth--;
    }
    return REPLY_COMPLETE;
}

static bool parse_length(const char *text, int64_t *length) {
    int used = 0;
    long long number;
    if (sscanf(text, "%lld%n", &number, &used) != 1 || text[used] != '\0') return false;
    *length = number;
    return number >= -1;
}

/* The line is complete, without its end. */
static enum reply_status take_line(struct reply_reader *reader) {
    const char *text = reader->line + 1;
    int64_t length;
    switch (reader->line[0]) {
    case '-':
        if (reader->errors++ == 0) snprintf(reader->first_error, sizeof reader->first_error, "%s", text);
        return value_ended(reader);
    case '+':
    case ':': return value_ended(reader);
    case '$':
        if (!parse_length(text, &length)) return REPLY_MALFORMED;
        if (length < 0) return value_ended(reader);
        reader->bulk_left = (uint64_t)length + 2;
        return REPLY_MORE;
    case '*':
        if (!parse_length(text, &length)) return REPLY_MALFORMED;
        if (length <= 0) return value_ended(reader);
        if (reader->depth == REPLY_DEPTH) return REPLY_MALFORMED;
        reader->elements_left[reader->depth++] = (uint64_t)length;
        return REPLY_MORE;
    default: return REPLY_MALFORMED;
    }
}

/* Takes bytes of a line; of one that is too long the rest is dropped, which only errors' texts may be. */
static enum reply_status feed_line(struct reply_reader *reader, const uint8_t *data, size_t length, size_t *used) {
    const uint8_t *end = memchr(data, '\n', length);
    size_t taken = end ? (size_t)(end - data) : length;
    size_t room = sizeof reader->line - 1 - reader->line_length;
    size_t kept = taken < room ? taken : room;
    memcpy(reader->line + reader->line_length, data, kept);
    reader->line_length += (uint32_t)kept;
    *used = end ? taken + 1 : taken;
    if (!end) return REPLY_MORE;
    if (reader->line_length > 0 && reader->line[reader->line_length - 1] == '\r') reader->line_length--;
    reader->line[reader->line_length] = '\0';
    reader->line_length = 0;
    return take_line(reader);
}

enum reply_status reply_reader_feed(struct reply_reader *reader, const uint8_t *data, size_t length, size_t *consumed) {
    size_t at = 0;
    enum reply_status status = REPLY_MORE;
    while (at < length && status == REPLY_MORE) {
        size_t used;
        if (reader->bulk_left > 0) {
            used = length - at < reader->bulk_left ? length - at : (size_t)reader->bulk_left;
            reader->bulk_left -= used;
            if (reader->bulk_left == 0) status = value_ended(reader);
        } else {
            status = feed_line(reader, data + at, length - at, &used);
        }
        at += used;
    }
    *consumed = at;
    return status;
}
