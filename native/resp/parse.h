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
    bool unauthenticated;       /* these are the smaller limits of a client before AUTH; only words the errors */
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

/* Asked once for each bulk string of RESP_LARGE_BULK bytes or more, when all arguments before `index` are complete:
 * fills `landing` (preset to RESP_LAND_BLOB). */
typedef void (*resp_land)(void *context, const struct resp_argument *arguments, uint32_t index, uint32_t count,
                          size_t length, struct resp_landing *landing);

enum resp_status {
    RESP_NEED_MORE,      /* everything fed was consumed; feed more */
    RESP_LANDING,        /* as NEED_MORE, and the next bytes belong to a large bulk: see resp_parser_landing */
    RESP_REQUEST,        /* `arguments[0 .. count)` is a request; call resp_parser_next before feeding on */
    RESP_PROTOCOL_ERROR, /* `error` says what; the stream cannot be followed any further */
};

/* Why a request that was followed to its end must not be run: its bytes were not kept. */
enum resp_refusal { RESP_ACCEPTED, RESP_REQUEST_TOO_LARGE, RESP_OUT_OF_MEMORY };

enum resp_parser_state {
    RESP_STATE_START,
    RESP_STATE_MULTIBULK_LINE,
    RESP_STATE_INLINE,
    RESP_STATE_BULK_START,
    RESP_STATE_BULK_LINE,
    RESP_STATE_BULK,
    RESP_STATE_LANDING,
    RESP_STATE_BULK_END,
    RESP_STATE_REQUEST,
    RESP_STATE_ERROR
};

#define RESP_LINE_BYTES 32 /* longest "*…" or "$…" line, its end included */

struct resp_parser {
    const struct resp_limits *limits; /* the owner's; may be exchanged between requests */
    resp_land land;
    void *context;

    /* the request */
    struct resp_argument *arguments;
    uint32_t count;
    enum resp_refusal refusal;
    size_t request_bytes;     /* sum of all arguments' lengths */
    char error[160];

    /* how far it has come */
    enum resp_parser_state state;
    uint32_t expected;        /* arguments announced */
    uint32_t received;        /* arguments complete, kept or not */
    uint32_t capacity;        /* of `arguments` */
    uint8_t *arena;           /* small arguments, in order */
    size_t arena_used, arena_capacity;
    size_t bulk_length, bulk_done;
    bool bulk_kept;           /* the small bulk in progress goes to the arena */
    struct resp_landing landing;
    struct blob *landing_blob;
    uint8_t end_seen;         /* bytes of the bulk's "\r\n" */
    uint8_t line_length;
    char line[RESP_LINE_BYTES];
};

void resp_parser_init(struct resp_parser *parser, const struct resp_limits *limits, resp_land land, void *context);
void resp_parser_free(struct resp_parser *parser); /* releases a request in progress too */

/* Takes bytes up to the end of the first request; `consumed` says how many. Splitting a stream differently between
 * calls never changes the requests that come out. */
enum resp_status resp_parser_feed(struct resp_parser *parser, const uint8_t *data, size_t length, size_t *consumed);

/* While the status is RESP_LANDING: where the next bytes of the stream may be read to directly. Fills at most `max`
 * vectors of together at most `most_bytes`, and returns how many. 0: the items are so small that reading into a buffer
 * and feeding it is cheaper. */
int resp_parser_landing(const struct resp_parser *parser, size_t most_bytes, struct iovec *vectors, int max);
/* `length` bytes were read to where resp_parser_landing said. */
void resp_parser_landed(struct resp_parser *parser, size_t length);

/* Forgets the request (its blobs are released) and makes ready for the next. */
void resp_parser_next(struct resp_parser *parser);
/* True when a request has begun but not ended. */
bool resp_parser_midway(const struct resp_parser *parser);
/* Decodes the word that begins at *at, as Redis's inline commands have them, quotes and escapes included. It is put to
 * *out, which may be where it stood: what comes out is never longer. Both are moved behind it. False: quotes are
 * unbalanced. */
bool resp_decode_word(const char **at, const char *end, char **out);
/* For CLIENT LIST: all that is held for requests; of that, what the arguments of the one at hand take. */
size_t resp_parser_held_bytes(const struct resp_parser *parser);
size_t resp_parser_used_bytes(const struct resp_parser *parser);

#endif
