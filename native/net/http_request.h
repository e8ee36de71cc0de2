/* http_request: the head of an HTTP/1.x request, as far as a server of read-only pages has to understand it. */
#ifndef REPLAY_NET_HTTP_REQUEST_H
#define REPLAY_NET_HTTP_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTTP_PATH_BYTES 256u

struct http_request {
    int status;       /* 0: it is well; else that of the refusal */
    bool head_only;   /* HEAD */
    bool keep;        /* the connection stays open afterwards */
    bool openmetrics; /* application/openmetrics-text is accepted */
    char path[HTTP_PATH_BYTES]; /* without the query; "" where it is longer */
};

/* Returns the bytes of the head with the blank line at its end, 0: it has not come whole. */
size_t http_request_parse(struct http_request *request, const uint8_t *bytes, size_t length);

#endif
