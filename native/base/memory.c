/* memory: malloc with a running total, so that INFO and maxmemory know what the server holds. */
#include "base/memory.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

static atomic_size_t heap_bytes;
static atomic_size_t heap_peak_bytes;
static atomic_size_t mapped_bytes;

static void count_up(size_t size_bytes) {
    size_t now = atomic_fetch_add_explicit(&heap_bytes, size_bytes, memory_order_relaxed) + size_bytes;
    size_t peak = atomic_load_explicit(&heap_peak_bytes, memory_order_relaxed);
    while (now > peak && !atomic_compare_exchange_weak_explicit(&heap_peak_bytes, &peak, now, memory_order_relaxed,
                                                                memory_order_relaxed)) {
    }
}

static void count_down(size_t size_bytes) {
    atomic_fetch_sub_explicit(&heap_bytes, size_bytes, memory_order_relaxed);
}

void *memory_alloc(size_t size_bytes) {
    void *pointer = malloc(size_bytes ? size_bytes : 1);
    if (pointer) count_up(malloc_usable_size(pointer));
    return pointer;
}

void *memory_calloc(size_t count, size_t size_bytes) {
    void *pointer = calloc(count ? count : 1, size_bytes ? size_bytes : 1);
    if (pointer) count_up(malloc_usable_size(pointer));
    return pointer;
}

/* As realloc: on failure the old block stays as it was. */
void *memory_realloc(void *pointer, size_t size_bytes) {
    if (!pointer) return memory_alloc(size_bytes);
    size_t before = malloc_usable_size(pointer);
    void *moved = realloc(pointer, size_bytes ? size_bytes : 1);
    if (!moved) return NULL;
    count_up(malloc_usable_size(moved));
    count_down(before);
    return moved;
}

void memory_free(void *pointer) {
    if (!pointer) return;
    count_down(malloc_usable_size(pointer));
    free(pointer);
}

size_t memory_used_bytes(void) {
    return atomic_load_explicit(&heap_bytes, memory_order_relaxed);
}

size_t memory_peak_bytes(void) {
    return atomic_load_explicit(&heap_peak_bytes, memory_order_relaxed);
}

void *memory_map(size_t size_bytes) {
    if (size_bytes == 0) size_bytes = 1;
    void *pointer = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pointer == MAP_FAILED) return NULL;
    atomic_fetch_add_explicit(&mapped_bytes, size_bytes, memory_order_relaxed);
    return pointer;
}

void memory_unmap(void *pointer, size_t size_bytes) {
    if (!pointer) return;
    if (size_bytes == 0) size_bytes = 1;
    munmap(pointer, size_bytes);
    atomic_fetch_sub_explicit(&mapped_bytes, size_bytes, memory_order_relaxed);
}

size_t memory_mapped_bytes(void) {
    return atomic_load_explicit(&mapped_bytes, memory_order_relaxed);
}
