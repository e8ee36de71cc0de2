/* gradients_sum: a weighted sum of gradients on its way to the socket: each slice is summed up when the socket is ready for
 * it, so that a sum of millions of elements never holds the loop. */
#include <assert.h>

#include "base/memory.h"
#include "server/core/client.h"
#include "server/replay/gradients_registry.h"

#define SLICE_READ_BYTES (1u << 20) /* of all vectors together, for one slice: a fraction of a millisecond */

_Static_assert(SLICE_READ_BYTES / GRADIENT_MOST_WAITING >= sizeof(float), "a slice has an element at least");

struct gradients_sum {
    struct reply_source source;
    enum vector_type type;
    uint32_t count;
    size_t done; /* bytes that are summed up */
    struct blob **blobs; /* count of them; released when all is summed up */
    const void **vectors;
    double *weights;
    uint8_t *out;
};

static void release_blobs(struct gradients_sum *sum) {
    for (uint32_t k = 0; k < sum->count; k++) blob_release(sum->blobs[k]);
    sum->count = 0;
}

static void sum_up(struct gradients_sum *sum) {
    size_t element = vector_type_bytes(sum->type), left = sum->source.length_bytes - sum->done;
    size_t slice = SLICE_READ_BYTES / sum->count / element * element;
    if (slice > left) slice = left;
    weighted_sum(sum->type, sum->vectors, sum->weights, sum->count, sum->done / element, slice / element, sum->out);
    sum->done += slice;
    if (sum->done == sum->source.length_bytes) release_blobs(sum);
}

static int vectors_of(struct reply_source *source, size_t offset, struct iovec *vectors, int max) {
    struct gradients_sum *sum = (struct gradients_sum *)(void *)source;
    (void)max;
    assert(offset < source->length_bytes && offset <= sum->done);
    if (offset == sum->done) sum_up(sum);
    vectors[0] = (struct iovec){.iov_base = sum->out + offset, .iov_len = sum->done - offset};
    return 1;
}

static void released(struct reply_source *source) {
    struct gradients_sum *sum = (struct gradients_sum *)(void *)source;
    release_blobs(sum);
    memory_free(sum);
}

struct gradients_sum *gradients_sum_new(const struct gradient_queue *queue, uint32_t count, const double *weights) {
    assert(count >= 1 && count <= queue->waiting.count);
    struct gradients_sum *sum = memory_alloc(
        sizeof *sum + count * (sizeof *sum->blobs + sizeof *sum->vectors + sizeof *sum->weights) + queue->vector_bytes);
    if (!sum) return NULL;
    *sum = (struct gradients_sum){.type = queue->type, .count = count};
    sum->source =
        (struct reply_source){.length_bytes = queue->vector_bytes, .vectors = vectors_of, .released = released};
    sum->weights = (double *)(void *)(sum + 1);
    sum->blobs = (struct blob **)(void *)(sum->weights + count);
    sum->vectors = (const void **)(void *)(sum->blobs + count);
    sum->out = (uint8_t *)(sum->vectors + count);
    const struct gradient *gradient = queue->waiting.head;
    for (uint32_t k = 0; k < count; k++, gradient = gradient->next) {
        sum->weights[k] = weights[k];
        sum->blobs[k] = blob_retain(gradient->blob);
        sum->vectors[k] = gradient->blob->data;
    }
    return sum;
}

void gradients_sum_reply(struct client *client, struct gradients_sum *sum) {
    reply_source(client, &sum->source);
}
