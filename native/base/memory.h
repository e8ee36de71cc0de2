/* memory: malloc with a running total, so that INFO and maxmemory know what the server holds. Thread-safe.
 * Every allocation in the core goes through these; NULL means exhausted, and the caller answers with an error. */
#ifndef REPLAY_BASE_MEMORY_H
#define REPLAY_BASE_MEMORY_H

#include <stddef.h>

void *memory_alloc(size_t size_bytes);
void *memory_calloc(size_t count, size_t size_bytes);
void *memory_realloc(void *pointer, size_t size_bytes);
void memory_free(void *pointer);
size_t memory_used_bytes(void); /* heap bytes now held, as the allocator rounds them */
size_t memory_peak_bytes(void);

/* Anonymous mapping for table storage: pages are committed when first touched. Counted apart from the heap. */
void *memory_map(size_t size_bytes);
void memory_unmap(void *pointer, size_t size_bytes);
size_t memory_mapped_bytes(void); /* address space, not resident pages */

#endif
