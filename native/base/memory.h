/* memory: malloc with a running total, so that INFO and maxmemory know what the server holds. Thread-safe.
 * Every allocation in the core goes through these; NULL means exhausted, and the caller answers with an error. */
#ifndef REPLAY_BASE_MEMORY_H
#define REPLAY_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *memory_alloc(size_t size_bytes);
void *memory_calloc(size_t count, size_t size_bytes);
void *memory_realloc(void *pointer, size_t size_bytes);
/* An array of *capacity items becomes one of twice as many, `first` at first. NULL: memory is exhausted, and the array is
 * as it was. */
void *memory_double(void *items, uint32_t *capacity, uint32_t first, size_t item_bytes);
/* The same where it has no room for more than its `count` items. */
static inline void *memory_grow(void *items, size_t count, uint32_t *capacity, uint32_t first, size_t item_bytes) {
    return count < *capacity ? items : memory_double(items, capacity, first, item_bytes);
}
void memory_free(void *pointer);
size_t memory_used_bytes(void); /* heap bytes now held, as the allocator rounds them */
size_t memory_live_bytes(void); /* those but what the reclaimer (see below) is about to give back */
size_t memory_peak_bytes(void);
/* Says that the calling thread, at most one of the process, allocates and frees most: it counts for itself. */
void memory_count_alone(bool on);

/* Anonymous mapping for table storage: pages are committed when first touched. Counted apart from the heap. */
void *memory_map(size_t size_bytes);
void memory_unmap(void *pointer, size_t size_bytes);
/* Asks for large pages behind a mapping that is read all over, for fewer TLB misses. Nothing depends on it. */
void memory_advise_huge(void *pointer, size_t size_bytes);
#define MEMORY_HUGE_BYTES (64u << 20) /* what grows to at least so much may waste the rest of its last large page */
size_t memory_mapped_bytes(void); /* address space, not resident pages */

/* Memory that other processes can map, read-only: `*descriptor` (the caller's, close-on-exec) is sealed against a change of
 * its size and against any write but through the mapping returned here. Committed when first touched; counted as mapped.
 * `*watch` (the caller's) is for memory_shared_is_held; -1 where the system cannot tell. NULL with `errno` set: no memory,
 * or a system that has no such thing (ENOSYS). */
void *memory_map_shared(size_t size_bytes, int *descriptor, int *watch);
void memory_unmap_shared(void *pointer, size_t size_bytes);
/* Whether anyone still has the descriptor given above, a copy of it, or a mapping made through one: its pages then stay
 * committed, though this process has unmapped them. */
bool memory_shared_is_held(int watch);

/* A file's bytes from `offset` on, which is a multiple of the page size, to be read: pages of the file, counted as
 * mapped. It must not be cut short meanwhile. NULL with `errno` set. */
void *memory_map_file(int descriptor, uint64_t offset, size_t size_bytes);
void memory_unmap_file(void *pointer, size_t size_bytes); /* left to the reclaimer, of whatever size */
/* The same to be read and written: what is written is the file's. They are counted nowhere. A fault reads what it
 * needs alone. */
void *memory_map_file_shared(int descriptor, uint64_t offset, size_t size_bytes);
void memory_unmap_file_shared(void *pointer, size_t size_bytes);

/* For a process that owns its memory alone. Large blocks come from the heap and go back to it, rather than to the
 * system, which would have to clear every page again. Of what is free at the heap's end at most MEMORY_KEPT_BYTES
 * are kept. */
void memory_keep_heap(void);
#define MEMORY_KEPT_BYTES (16u << 20)

/* Giving a large block back to the system takes milliseconds (about 0.1 s for a gigabyte). While the reclaimer runs,
 * memory_free and memory_unmap leave blocks of at least MEMORY_RECLAIM_BYTES (of mappings) and
 * MEMORY_RECLAIM_HEAP_BYTES to its thread; they count as held until it has freed them. Smaller ones are freed at
 * once: handing them over would cost more, and the next allocation would not find them. */
#define MEMORY_RECLAIM_BYTES (1u << 20)
#define MEMORY_RECLAIM_HEAP_BYTES (4u << 20)
bool memory_start_reclaimer(void); /* false: no thread could be started; blocks are then freed at once, as before */
void memory_stop_reclaimer(void); /* frees what is left */

#endif
