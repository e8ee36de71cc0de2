/* gradient_queue: slots that move from the list of those that wait to the list of those that were finished with. */
#include "replay/gradient_queue.h"

#include <assert.h>
#include <string.h>

#include "base/list.h"
#include "base/memory.h"
#include "base/siphash.h"

#define SLOTS (GRADIENT_MOST_WAITING + GRADIENT_MOST_REMEMBERED)
#define BUCKETS 8192u

_Static_assert((BUCKETS & (BUCKETS - 1)) == 0, "a power of two");
_Static_assert(GRADIENT_NAME_BYTES <= UINT8_MAX, "a length fits its byte");

struct gradient_queue *gradient_queue_new(const uint64_t hash_key[2]) {
    struct gradient_queue *queue = memory_calloc(1, sizeof *queue);
    if (!queue) return NULL;
    memcpy(queue->hash_key, hash_key, sizeof queue->hash_key);
    queue->slots = memory_calloc(SLOTS, sizeof *queue->slots);
    queue->buckets = memory_calloc(BUCKETS, sizeof *queue->buckets);
    if (!queue->slots || !queue->buckets) {
        gradient_queue_free(queue);
        return NULL;
    }
    for (uint32_t i = SLOTS; i > 0; i--) {
        queue->slots[i - 1].next = queue->unused;
        queue->unused = &queue->slots[i - 1];
    }
    return queue;
}

void gradient_queue_free(struct gradient_queue *queue) {
    if (!queue) return;
    for (struct gradient *gradient = queue->waiting.head; gradient; gradient = gradient->next)
        blob_release(gradient->blob);
    memory_free(queue->slots);
    memory_free(queue->buckets);
    memory_free(queue);
}

/* ---- lists and names ------------------------------------------------------------------------------------------------ */

static void append(struct gradient_list *list, struct gradient *gradient) {
    LIST_APPEND(list->head, list->tail, gradient, next, previous);
    list->count++;
}

static void take_out(struct gradient_list *list, struct gradient *gradient) {
    LIST_REMOVE(list->head, list->tail, gradient, next, previous);
    list->count--;
}

static struct gradient **bucket_of(const struct gradient_queue *queue, const void *name, size_t length) {
    return &queue->buckets[siphash(name, length, queue->hash_key) & (BUCKETS - 1)];
}

struct gradient *gradient_queue_find(const struct gradient_queue *queue, const void *name, size_t name_length) {
    struct gradient *gradient = *bucket_of(queue, name, name_length);
    while (gradient && (gradient->name_length != name_length || memcmp(gradient->name, name, name_length) != 0))
        gradient = gradient->chain;
    return gradient;
}

static struct gradient *slot_new(struct gradient_queue *queue, const void *name, size_t length,
                                 enum gradient_state state) {
    struct gradient *gradient = queue->unused, **bucket = bucket_of(queue, name, length);
    assert(gradient && length > 0 && length <= GRADIENT_NAME_BYTES);
    queue->unused = gradient->next;
    *gradient = (struct gradient){.chain = *bucket, .state = (uint8_t)state, .name_length = (uint8_t)length};
    memcpy(gradient->name, name, length);
    *bucket = gradient;
    return gradient;
}

static void forget_oldest(struct gradient_queue *queue) {
    struct gradient *gradient = queue->finished.head, **link = bucket_of(queue, gradient->name, gradient->name_length);
    while (*link != gradient) link = &(*link)->chain;
    *link = gradient->chain;
    take_out(&queue->finished, gradient);
    gradient->state = GRADIENT_FREE;
    gradient->next = queue->unused;
    queue->unused = gradient;
    queue->counters.forgotten++;
}

static void keep_name(struct gradient_queue *queue, struct gradient *gradient) {
    append(&queue->finished, gradient);
    if (queue->finished.count > GRADIENT_MOST_REMEMBERED) forget_oldest(queue);
}

/* ---- gradients ------------------------------------------------------------------------------------------------------ */

static int check(const struct gradient_queue *queue, enum vector_type type, const struct blob *blob,
                 struct error *error) {
    if (queue->waiting.count == GRADIENT_MOST_WAITING)
        return error_set(error, ERROR_LIMIT, "%u gradients wait, the most there may be; apply or drop some",
                         GRADIENT_MOST_WAITING);
    if (queue->waiting.count == 0 || (type == queue->type && blob->length == queue->vector_bytes)) return 0;
    return error_set(error, ERROR_BADSHAPE,
                     "expected a gradient like those that wait, %s of %zu bytes, got %s of %zu bytes",
                     vector_type_name(queue->type), queue->vector_bytes, vector_type_name(type), blob->length);
}

int gradient_queue_push(struct gradient_queue *queue, const void *name, size_t name_length, int64_t version,
                        enum vector_type type, struct blob *blob, struct error *error) {
    assert(version >= 0 && blob->length > 0 && blob->length % vector_type_bytes(type) == 0);
    if (gradient_queue_find(queue, name, name_length)) {
        queue->counters.duplicates++;
        return 0;
    }
    if (check(queue, type, blob, error)) return -1;
    struct gradient *gradient = slot_new(queue, name, name_length, GRADIENT_WAITING);
    gradient->version = version;
    gradient->blob = blob_retain(blob);
    queue->type = type;
    queue->vector_bytes = blob->length;
    append(&queue->waiting, gradient);
    queue->counters.pushed++;
    return 1;
}

void gradient_queue_finish(struct gradient_queue *queue, struct gradient *gradient, enum gradient_state how) {
    assert(gradient->state == GRADIENT_WAITING && (how == GRADIENT_APPLIED || how == GRADIENT_DROPPED));
    take_out(&queue->waiting, gradient);
    blob_release(gradient->blob);
    gradient->blob = NULL;
    gradient->state = (uint8_t)how;
    if (how == GRADIENT_APPLIED)
        queue->counters.applied++;
    else
        queue->counters.dropped++;
    keep_name(queue, gradient);
}

double gradient_queue_staleness(const struct gradient_queue *queue, int64_t version) {
    double sum = 0;
    for (const struct gradient *gradient = queue->waiting.head; gradient; gradient = gradient->next)
        if (version > gradient->version) sum += (double)(version - gradient->version);
    return queue->waiting.count ? sum / queue->waiting.count : 0;
}

/* ---- in files ------------------------------------------------------------------------------------------------------- */

struct blob *gradient_queue_remembered(const struct gradient_queue *queue) {
    size_t length = 0;
    const struct gradient *gradient = queue->finished.head;
    for (; gradient; gradient = gradient->next) length += 2u + gradient->name_length;
    struct blob *blob = blob_new(length);
    if (!blob) return NULL;
    uint8_t *at = blob->data;
    for (gradient = queue->finished.head; gradient; gradient = gradient->next) {
        *at++ = gradient->state;
        *at++ = gradient->name_length;
        memcpy(at, gradient->name, gradient->name_length);
        at += gradient->name_length;
    }
    return blob;
}

int gradient_queue_remember(struct gradient_queue *queue, const struct blob *remembered, struct error *error) {
    for (size_t at = 0; at < remembered->length;) {
        const uint8_t *entry = remembered->data + at;
        size_t left = remembered->length - at, length = left > 2 ? entry[1] : 0;
        bool whole = length > 0 && length <= GRADIENT_NAME_BYTES && length <= left - 2;
        if (!whole || (entry[0] != GRADIENT_APPLIED && entry[0] != GRADIENT_DROPPED))
            return error_set(error, ERROR_GENERIC, "names of gradients are malformed");
        if (queue->finished.count == GRADIENT_MOST_REMEMBERED || gradient_queue_find(queue, entry + 2, length))
            return error_set(error, ERROR_GENERIC, "a name of a gradient is there twice, or there are too many");
        keep_name(queue, slot_new(queue, entry + 2, length, entry[0]));
        at += 2 + length;
    }
    return 0;
}
