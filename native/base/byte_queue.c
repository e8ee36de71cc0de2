/* byte_queue: each thread has a counter that it alone moves, of the bytes that it has put or taken, and moves it when those are
 * copied. The semaphore is raised for each piece. A reader that waits for it looks again, and may find nothing new. */
#include "base/byte_queue.h"

#include <errno.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/arithmetic.h"
#include "base/memory.h"

struct byte_queue {
    sem_t news;
    atomic_size_t put, taken;
    atomic_bool ended;
    size_t capacity;
    uint8_t bytes[];
};

struct byte_queue *byte_queue_new(size_t capacity) {
    struct byte_queue *queue = memory_alloc(sizeof *queue + capacity);
    if (!queue) return NULL;
    queue->capacity = capacity;
    atomic_init(&queue->put, 0);
    atomic_init(&queue->taken, 0);
    atomic_init(&queue->ended, false);
    if (sem_init(&queue->news, 0, 0) == 0) return queue;
    memory_free(queue);
    return NULL;
}

void byte_queue_free(struct byte_queue *queue) {
    if (!queue) return;
    sem_destroy(&queue->news);
    memory_free(queue);
}

size_t byte_queue_put(struct byte_queue *queue, const void *bytes, size_t length) {
    size_t put = atomic_load_explicit(&queue->put, memory_order_relaxed);
    size_t taken = atomic_load_explicit(&queue->taken, memory_order_acquire); /* what was taken has been copied */
    size_t count = (size_t)at_most(length, queue->capacity - (put - taken)), at = put % queue->capacity;
    size_t first = (size_t)at_most(count, queue->capacity - at);
    if (count == 0) return 0;
    memcpy(queue->bytes + at, bytes, first);
    memcpy(queue->bytes, (const uint8_t *)bytes + first, count - first);
    atomic_store_explicit(&queue->put, put + count, memory_order_release);
    sem_post(&queue->news);
    return count;
}

void byte_queue_end(struct byte_queue *queue) {
    atomic_store_explicit(&queue->ended, true, memory_order_release);
    sem_post(&queue->news);
}

size_t byte_queue_take(struct byte_queue *queue, void *out, size_t length) {
    size_t taken = atomic_load_explicit(&queue->taken, memory_order_relaxed), put;
    for (;;) {
        bool ended = atomic_load_explicit(&queue->ended, memory_order_acquire); /* before what was put is looked at */
        put = atomic_load_explicit(&queue->put, memory_order_acquire);
        if (put != taken) break;
        if (ended) return 0;
        while (sem_wait(&queue->news) < 0 && errno == EINTR) {
        }
    }
    size_t count = (size_t)at_most(length, put - taken), at = taken % queue->capacity;
    size_t first = (size_t)at_most(count, queue->capacity - at);
    memcpy(out, queue->bytes + at, first);
    memcpy((uint8_t *)out + first, queue->bytes, count - first);
    atomic_store_explicit(&queue->taken, taken + count, memory_order_release);
    return count;
}
