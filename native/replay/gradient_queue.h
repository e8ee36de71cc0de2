/* gradient_queue: gradients that wait to be applied, oldest first, and the names of those that were applied or
 * dropped.
 *
 * A gradient is identified by its name, so that one delivered twice counts once: while it waits, and afterwards as
 * long as its name is among the GRADIENT_MOST_REMEMBERED newest finished ones. All waiting gradients have one dtype
 * and one length. All memory but that of the vectors is allocated with the queue. */
#ifndef REPLAY_GRADIENT_QUEUE_H
#define REPLAY_GRADIENT_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/blob.h"
#include "base/error.h"
#include "base/weighted_sum.h"

#define GRADIENT_NAME_BYTES 128u
#define GRADIENT_MOST_WAITING 1024u
#define GRADIENT_MOST_REMEMBERED 4096u

enum gradient_state { GRADIENT_FREE, GRADIENT_WAITING, GRADIENT_APPLIED, GRADIENT_DROPPED };

struct gradient {
    struct gradient *next, *previous; /* of those that wait, or that were finished with, oldest first */
    struct gradient *chain;           /* of names that share a bucket */
    struct blob *blob;                /* NULL: it does not wait any more */
    int64_t version;                  /* that it was computed at */
    uint8_t state, name_length;
    bool marked; /* while the names of one command are checked: it is among those checked so far */
    char name[GRADIENT_NAME_BYTES];
};

struct gradient_counters {
    uint64_t pushed, duplicates, applied, dropped;
    uint64_t forgotten; /* names of finished ones that made way for newer */
};

struct gradient_list {
    struct gradient *head, *tail;
    uint32_t count;
};

struct gradient_queue {
    struct gradient_list waiting, finished;
    struct gradient *unused; /* linked by `next` */
    struct gradient_counters counters;
    enum vector_type type; /* of what waits */
    size_t vector_bytes;
    uint64_t hash_key[2];
    struct gradient **buckets;
    struct gradient *slots;
};

/* The key decides in which bucket names fall; a random one keeps clients from choosing. NULL: memory is exhausted. */
struct gradient_queue *gradient_queue_new(const uint64_t hash_key[2]);
void gradient_queue_free(struct gradient_queue *queue); /* NULL is allowed */

/* Adds a gradient at the end, with a reference of its own to the blob. 1: it is new; 0: it is known, and nothing changed;
 * -1: refused. */
int gradient_queue_push(struct gradient_queue *queue, const void *name, size_t name_length, int64_t version,
                        enum vector_type type, struct blob *blob, struct error *error);
/* NULL: the name is not known. */
struct gradient *gradient_queue_find(const struct gradient_queue *queue, const void *name, size_t name_length);
/* The gradient, which waits, does so no longer: its name is remembered as applied or dropped. */
void gradient_queue_finish(struct gradient_queue *queue, struct gradient *gradient, enum gradient_state how);
/* The mean over all that wait of max(0, version − the version it was computed at); 0 where none waits. */
double gradient_queue_staleness(const struct gradient_queue *queue, int64_t version);

/* Writes the names that are remembered, oldest first, as bytes: state, length, name. And reads them back, into a
 * queue that remembers none. NULL: memory is exhausted; -1: malformed. */
struct blob *gradient_queue_remembered(const struct gradient_queue *queue);
int gradient_queue_remember(struct gradient_queue *queue, const struct blob *remembered, struct error *error);

#endif
