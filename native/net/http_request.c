/* http_request: request line and headers (RFC 9112). A body is not read: whoever sends one is answered and closed. */
#include "net/http_request.h"

#include <string.h>
#include <strings.h>

struct span {
    const char *at;
    size_t length;
};

/* Up to the next newline, which is passed by; without the return before it. */
static struct span next_line(const char **at, const char *end) {
    const char *newline = memchr(*at, '\n', (size_t)(end - *at));
    struct span line = {*at, (size_t)((newline ? newline : end) - *at)};
    *at = newline ? newline + 1 : end;
    if (line.length > 0 && line.at[line.length - 1] == '\r') line.length--;
    return line;
}

static struct span next_word(struct span *line) {
    const char *blank = memchr(line->at, ' ', line->length);
    struct span word = {line->at, blank ? (size_t)(blank - line->at) : line->length};
    size_t passed = word.length + (blank != NULL);
    line->at += passed;
    line->length -= passed;
    return word;
}

static bool is(struct span span, const char *text) {
    return span.length == strlen(text) && memcmp(span.at, text, span.length) == 0;
}

static bool is_header(struct span line, const char *name, struct span *value) {
    size_t length = strlen(name);
    if (line.length <= length || line.at[length] != ':' || strncasecmp(line.at, name, length) != 0) return false;
    *value = (struct span){line.at + length + 1, line.length - length - 1};
    return true;
}

static bool holds(struct span value, const char *word) {
    size_t length = strlen(word);
    for (size_t i = 0; i + length <= value.length; i++)
        if (strncasecmp(value.at + i, word, length) == 0) return true;
    return false;
}

static void take_request_line(struct http_request *request, struct span line) {
    struct span method = next_word(&line), target = next_word(&line);
    request->head_only = is(method, "HEAD");
    request->keep = is(line, "HTTP/1.1");
    if (method.length == 0 || target.length == 0 || target.at[0] != '/')
        request->status = 400;
    else if (line.length < 8 || memcmp(line.at, "HTTP/", 5) != 0)
        request->status = 400;
    else if (memcmp(line.at, "HTTP/1.", 7) != 0)
        request->status = 505;
    else if (!request->head_only && !is(method, "GET"))
        request->status = 405;
    const char *query = memchr(target.at, '?', target.length);
    size_t length = query ? (size_t)(query - target.at) : target.length;
    if (request->status == 0 && length < sizeof request->path && !memchr(target.at, '\0', length)) {
        memcpy(request->path, target.at, length);
        request->path[length] = '\0';
    }
}

static void take_header(struct http_request *request, struct span line) {
    struct span value;
    if (is_header(line, "connection", &value)) {
        if (holds(value, "close")) request->keep = false;
    } else if (is_header(line, "accept", &value)) {
        request->openmetrics |= holds(value, "application/openmetrics-text");
    } else if (is_header(line, "transfer-encoding", &value) || is_header(line, "content-length", &value)) {
        request->keep = false;
    }
}

size_t http_request_parse(struct http_request *request, const uint8_t *bytes, size_t length) {
    *request = (struct http_request){.status = 0};
    const char *at = (const char *)bytes, *end = at + length;
    bool first = true;
    while (at < end && memchr(at, '\n', (size_t)(end - at))) {
        struct span line = next_line(&at, end);
        if (first)
            take_request_line(request, line);
        else if (line.length == 0)
            return (size_t)(at - (const char *)bytes);
        else
            take_header(request, line);
        first = false;
    }
    return 0;
}
