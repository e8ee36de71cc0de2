#include "base/blob.h"

#include <assert.h>

#include "base/memory.h"

struct blob *blob_new(size_t length) {
    if (length > SIZE_MAX - sizeof(struct blob)) return NULL;
    struct blob *blob = memory_alloc(sizeof(struct blob) + length);
    if (!blob) return NULL;
    blob->length = length;
    blob->references = 1;
    return blob;
}

struct blob *blob_retain(struct blob *blob) {
    assert(blob->references > 0 && blob->references < UINT32_MAX);
    blob->references++;
    return blob;
}

void blob_release(struct blob *blob) {
    if (!blob) return;
    assert(blob->references > 0);
    if (--blob->references == 0) memory_free(blob);
}
