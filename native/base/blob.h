/* blob: a reference-counted byte buffer, so that large values travel from socket to store to socket without a copy.
 * Single-threaded: only the thread that owns the shard retains and releases. */
#ifndef REPLAY_BASE_BLOB_H
#define REPLAY_BASE_BLOB_H

#include <stddef.h>
#include <stdint.h>

struct blob {
    size_t length;
    uint32_t references;
    uint8_t data[];
};

/* A blob of `length` uninitialised bytes with one reference, or NULL when memory is exhausted. */
struct blob *blob_new(size_t length);
struct blob *blob_retain(struct blob *blob);
void blob_release(struct blob *blob); /* NULL is allowed */

#endif
