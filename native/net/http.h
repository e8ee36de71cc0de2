/* http: a few read-only pages over HTTP/1.1, on a listener of their own, beside the kernel's transport.
 *
 * GET and HEAD alone, no bodies in requests. A page is written in slices of the loop into one buffer of its
 * connection, then sent. Connections, requests and answers are bounded. Idle and slow connections are closed, sooner
 * if all places are taken, so that no client keeps others out. All memory but the answers' is allocated when the
 * listener opens. */
#ifndef REPLAY_NET_HTTP_H
#define REPLAY_NET_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"

#define HTTP_CONNECTIONS 16u
#define HTTP_REQUEST_BYTES 8192u             /* request line and headers */
#define HTTP_ANSWER_BYTES (16u << 20)        /* a longer page is refused: 500 */
#define HTTP_REQUEST_US 10000000u            /* from its first byte to its last */
#define HTTP_IDLE_US 120000000u              /* between requests */
#define HTTP_SEND_US 60000000u               /* an answer, from its first byte to its last */
#define HTTP_STALL_US 1000000u               /* without progress: then an answer makes way for who comes */
#define HTTP_ACCEPT_AGAIN_US 100000u         /* after there was no descriptor */
#define HTTP_KEPT_BYTES (1u << 20)           /* memory that a connection keeps between answers */
#define HTTP_TURN_BYTES (1u << 18)           /* sent to one connection in one turn of the loop */

struct http;
struct transport;

/* What a page knows of where it is. */
struct http_cursor {
    uint32_t section;        /* the page's own, as the next two; 0 at the beginning */
    uint64_t after, until;
    bool openmetrics;        /* the client takes application/openmetrics-text, and the page has it */
    int status;              /* 200, which the page may change */
};

struct http_page {
    const char *path;
    const char *type;             /* Content-Type */
    const char *openmetrics_type; /* that instead for who accepts OpenMetrics; NULL: the page has no such form */
    /* Appends to the body until the clock passes the deadline. True: that was all. */
    bool (*write)(void *context, struct http_cursor *cursor, struct text *body, uint64_t deadline_us);
};

/* Listens at `*port` of `host` (0: any free one, which is written back), woken through the kernel's transport. The pages end
 * with a NULL path. NULL with `error`, ERROR_EXISTS where the port is taken. */
struct http *http_new(struct transport *kernel, const char *host, uint16_t *port, const struct http_page *pages,
                      void *context, struct error *error);
void http_stop_listening(struct http *http);
void http_free(struct http *http); /* NULL is allowed */
/* When there is something to do; now_us: at once. */
uint64_t http_due(const struct http *http, uint64_t now_us);
/* One slice of what there is to do, pages until the deadline. Returns when to call again, now_us: at once. */
uint64_t http_step(struct http *http, uint64_t now_us, uint64_t deadline_us);

#endif
