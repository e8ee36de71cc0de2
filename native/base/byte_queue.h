/* byte_queue: bytes from one thread to another, through a ring of a fixed size. The writer never waits, the reader does. There is
 * no lock: a thread that steps back cannot keep the other one waiting. */
#ifndef REPLAY_BASE_BYTE_QUEUE_H
#define REPLAY_BASE_BYTE_QUEUE_H

#include <stddef.h>

struct byte_queue;

struct byte_queue *byte_queue_new(size_t capacity); /* NULL: memory is exhausted */
void byte_queue_free(struct byte_queue *queue); /* nobody waits. NULL is allowed */
/* The writer's: as many as there is room for; how many that were. */
size_t byte_queue_put(struct byte_queue *queue, const void *bytes, size_t length);
void byte_queue_end(struct byte_queue *queue); /* no more come; may be called again */
/* The reader's: waits for one byte at least, and takes at most `length`. 0: they have ended. */
size_t byte_queue_take(struct byte_queue *queue, void *out, size_t length);

#endif
