/* parse: a resumable parser of RESP requests (arrays of bulk strings, and inline commands). It never sees a socket:
 * bytes are fed to it, and for a large bulk string it says where the bytes should land so that they are read there
 * directly. It never restarts from byte 0, and everything it holds is bounded. */
#ifndef REPLAY_RESP_PARSE_H
#define REPLAY_RESP_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/blob.h"

#define RESP_LARGE_BULK 16384 /* a bulk string of at least this many bytes lands outside the argument arena */

struct resp_limits {
    size_t max_request_bytes;   /* all arguments together */
    size_t max_bulk_bytes;
    uint32_t max_arguments;
    size_t max_inline_bytes;
    /* a client that is not yet authenticated gets smaller limits from the server */
};

struct resp_argument {
    const uint8_t *data; /* NULL when the bytes landed elsewhere (scatter) or were discarded */
    size_t length;
    struct blob *blob;   /* not NULL: `data` points into it; a handler that keeps it calls blob_retain */
};

enum resp_landing_kind {
    RESP_LAND_BLOB,    /* a fresh blob; the default */
    RESP_LAND_SCATTER, /* item i of the bulk goes to base + slots[i] * stride; item_bytes each */
    RESP_LAND_DISCARD, /* read and dropped: the request is already refused, the connection stays in step */
};

struct resp_landing {
    enum resp_landing_kind kind;
    uint8_t *base;
    size_t stride;
    size_t item_bytes;      /* length == item_bytes * number of slots */
    const uint32_t *slots;
};

struct resp_parser; /* defined in parse.c's companion part of this header by its author */

/* Asked once for each bulk string of RESP_LARGE_BULK bytes or more, when all arguments before `index` are complete:
 * fills `landing` (preset to RESP_LAND_BLOB). */
typedef void (*resp_land)(void *context, const struct resp_argument *arguments, uint32_t index, uint32_t count, size_t length,
                          struct resp_landing *landing);

#endif
