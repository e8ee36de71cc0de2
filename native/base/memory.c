#include "base/memory.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/thread.h"

#define HUGE_PAGE_BYTES (2u << 20) /* smaller mappings have no room for one */

#define RECLAIM_PIECE_BYTES (4u << 20)
#define LARGEST_HEAP_BLOCK_BYTES (32u << 20) /* glibc maps anything larger apart */

/* The sum of both is what is held; each alone may be below zero, where one thread allocated and another freed. Only
 * the thread that called memory_count_alone writes the second, without a lock of the processor's bus, which would be
 * a good part of the cost of a small key. */
static atomic_size_t heap_bytes;
static atomic_size_t lone_bytes;
static _Thread_local bool counts_alone;
static atomic_size_t heap_peak_bytes;
static atomic_size_t reclaiming_bytes; /* no longer in heap_bytes, but not given back yet */
static atomic_size_t mapped_bytes;

/* Written into the block itself, which is free. */
struct reclaimable {
    struct reclaimable *next;
    size_t size_bytes;
    bool mapped;
};

static struct {
    _Atomic(struct reclaimable *) blocks; /* a stack that any thread pushes to and the reclaimer takes whole */
    atomic_bool running;
    pthread_t thread;
    sem_t work;
} reclaimer;

static bool leave_to_reclaimer(void *pointer, size_t size_bytes, bool mapped) {
    if (!atomic_load_explicit(&reclaimer.running, memory_order_acquire)) return false;
    struct reclaimable *block = pointer;
    block->size_bytes = size_bytes;
    block->mapped = mapped;
    block->next = atomic_load_explicit(&reclaimer.blocks, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&reclaimer.blocks, &block->next, block, memory_order_release,
                                                  memory_order_relaxed)) {
    }
    sem_post(&reclaimer.work);
    return true;
}

void memory_count_alone(bool on) {
    counts_alone = on;
}

/* Half is kept when the end of the heap is given back, so that it does not go and come back block by block. */
void memory_keep_heap(void) {
#ifdef M_MMAP_THRESHOLD
    mallopt(M_MMAP_THRESHOLD, LARGEST_HEAP_BLOCK_BYTES);
    mallopt(M_TRIM_THRESHOLD, MEMORY_KEPT_BYTES);
    mallopt(M_TOP_PAD, MEMORY_KEPT_BYTES / 2);
#endif
}

size_t memory_live_bytes(void) {
    return atomic_load_explicit(&heap_bytes, memory_order_relaxed) +
           atomic_load_explicit(&lone_bytes, memory_order_relaxed);
}

static void count(size_t size_bytes) {
    if (counts_alone)
        atomic_store_explicit(&lone_bytes, atomic_load_explicit(&lone_bytes, memory_order_relaxed) + size_bytes,
                              memory_order_relaxed);
    else
        atomic_fetch_add_explicit(&heap_bytes, size_bytes, memory_order_relaxed);
}

static void count_up(size_t size_bytes) {
    count(size_bytes);
    size_t now = memory_live_bytes() + atomic_load_explicit(&reclaiming_bytes, memory_order_relaxed);
    if (now > SIZE_MAX / 2) return; /* read between two changes that belong together */
    size_t peak = atomic_load_explicit(&heap_peak_bytes, memory_order_relaxed);
    while (now > peak && !atomic_compare_exchange_weak_explicit(&heap_peak_bytes, &peak, now, memory_order_relaxed,
                                                                memory_order_relaxed)) {
    }
}

static void count_down(size_t size_bytes) {
    count(0 - size_bytes);
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

void *memory_double(void *items, uint32_t *capacity, uint32_t first, size_t item_bytes) {
    uint32_t larger = *capacity ? 2 * *capacity : first;
    void *grown = memory_realloc(items, larger * item_bytes);
    if (grown) *capacity = larger;
    return grown;
}

void memory_free(void *pointer) {
    if (!pointer) return;
    size_t size_bytes = malloc_usable_size(pointer);
    count_down(size_bytes);
    if (size_bytes >= MEMORY_RECLAIM_HEAP_BYTES) {
        atomic_fetch_add_explicit(&reclaiming_bytes, size_bytes, memory_order_relaxed);
        if (leave_to_reclaimer(pointer, size_bytes, false)) return;
        atomic_fetch_sub_explicit(&reclaiming_bytes, size_bytes, memory_order_relaxed);
    }
    free(pointer);
}

size_t memory_used_bytes(void) {
    return memory_live_bytes() + atomic_load_explicit(&reclaiming_bytes, memory_order_relaxed);
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

static void unmap_now(void *pointer, size_t size_bytes) {
    int result = munmap(pointer, size_bytes);
    assert(result == 0);
    (void)result;
    atomic_fetch_sub_explicit(&mapped_bytes, size_bytes, memory_order_relaxed);
}

void memory_unmap(void *pointer, size_t size_bytes) {
    if (!pointer) return;
    if (size_bytes == 0) size_bytes = 1;
    if (size_bytes >= MEMORY_RECLAIM_BYTES && leave_to_reclaimer(pointer, size_bytes, true)) return;
    unmap_now(pointer, size_bytes);
}

void memory_advise_huge(void *pointer, size_t size_bytes) {
#ifdef MADV_HUGEPAGE
    if (size_bytes >= HUGE_PAGE_BYTES) (void)madvise(pointer, size_bytes, MADV_HUGEPAGE);
#else
    (void)pointer;
    (void)size_bytes;
#endif
}

size_t memory_mapped_bytes(void) {
    return atomic_load_explicit(&mapped_bytes, memory_order_relaxed);
}

/* A page of the process's own lies before shared ones, and before those of a file: the reclaimer writes its list there. */
static size_t own_page_bytes(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* ---- shared memory ----------------------------------------------------------------------------------- */

#ifdef MFD_ALLOW_SEALING
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif

static int open_shared(size_t size_bytes) {
    int descriptor = memfd_create("replay-server", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (descriptor >= 0 && ftruncate(descriptor, (off_t)size_bytes) < 0) {
        close(descriptor);
        return -1;
    }
    return descriptor;
}

/* Readers are counted by opened file: the copies and mappings of one that was opened for them keep it open. A lease to
 * write is given to whoever has the only file that is open for reading. The mapping to write through counts for nothing. */
bool memory_shared_is_held(int watch) {
    if (fcntl(watch, F_SETLEASE, F_WRLCK) < 0) return errno == EAGAIN;
    (void)fcntl(watch, F_SETLEASE, F_UNLCK);
    return false;
}

static int open_again(int descriptor) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* A file of its own for those who read, and another to watch it with; or the one that there is, unwatched. */
static void open_for_readers(int *descriptor, int *watch) {
    *watch = open_again(*descriptor);
    bool can_tell = *watch >= 0 && !memory_shared_is_held(*watch);
    int readers = can_tell ? open_again(*descriptor) : -1;
    if (readers >= 0 && memory_shared_is_held(*watch)) {
        close(*descriptor);
        *descriptor = readers;
        return;
    }
    if (readers >= 0) close(readers);
    if (*watch >= 0) close(*watch);
    *watch = -1;
}

void *memory_map_shared(size_t size_bytes, int *descriptor, int *watch) {
    size_t own_bytes = own_page_bytes();
    *descriptor = open_shared(size_bytes);
    uint8_t *own = *descriptor < 0 ? NULL : memory_map(own_bytes + size_bytes);
    int error = errno;
    if (own && mmap(own + own_bytes, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, *descriptor, 0) !=
                   MAP_FAILED) {
        int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
        if (fcntl(*descriptor, F_ADD_SEALS, seals) == 0) {
            open_for_readers(descriptor, watch);
            return own + own_bytes;
        }
    }
    if (own) {
        error = errno == EINVAL ? ENOSYS : errno; /* a kernel that does not know the seal */
        unmap_now(own, own_bytes + size_bytes);
    }
    if (*descriptor >= 0) close(*descriptor);
    *descriptor = -1;
    errno = error;
    return NULL;
}

void memory_unmap_shared(void *pointer, size_t size_bytes) {
    if (!pointer) return;
    size_t own_bytes = own_page_bytes();
    memory_unmap((uint8_t *)pointer - own_bytes, own_bytes + size_bytes);
}
#else
void *memory_map_shared(size_t size_bytes, int *descriptor, int *watch) {
    (void)size_bytes;
    *descriptor = *watch = -1;
    errno = ENOSYS;
    return NULL;
}

void memory_unmap_shared(void *pointer, size_t size_bytes) {
    (void)pointer;
    (void)size_bytes;
}

bool memory_shared_is_held(int watch) {
    (void)watch;
    return false;
}
#endif

/* ---- the reclaimer ----------------------------------------------------------------------------------- */

/* The kernel holds the address space locked while it unmaps: a gigabyte at once would keep the server's next mapping, and
 * its next touch of a new page, waiting for a tenth of a second. So pages are given back first, which locks others out
 * for no longer than a piece takes, and mappings not at all. Once the server stops, nobody waits for a mapping, but for
 * the end: a table may have terabytes of address space, millions of pieces, and the rest goes at once. */
static void unmap_in_pieces(uint8_t *start, size_t size_bytes) {
    for (size_t offset = 0; offset < size_bytes; offset += RECLAIM_PIECE_BYTES) {
        size_t left = size_bytes - offset;
        if (!atomic_load_explicit(&reclaimer.running, memory_order_relaxed)) break;
        madvise(start + offset, left < RECLAIM_PIECE_BYTES ? left : RECLAIM_PIECE_BYTES, MADV_DONTNEED);
    }
    unmap_now(start, size_bytes);
}

/* The same for a block of malloc's: what its pages hold is given back first, so that free has little left to unmap. */
static void empty_in_pieces(uint8_t *start, size_t size_bytes) {
    uintptr_t from = ((uintptr_t)start + RECLAIM_PIECE_BYTES - 1) / RECLAIM_PIECE_BYTES * RECLAIM_PIECE_BYTES;
    uintptr_t end = (uintptr_t)start + size_bytes;
    for (; end - from >= RECLAIM_PIECE_BYTES; from += RECLAIM_PIECE_BYTES)
        madvise((void *)from, RECLAIM_PIECE_BYTES, MADV_DONTNEED);
}

static void reclaim_all(void) {
    struct reclaimable *block = atomic_exchange_explicit(&reclaimer.blocks, NULL, memory_order_acquire);
    while (block) {
        struct reclaimable *next = block->next;
        size_t size_bytes = block->size_bytes;
        if (block->mapped) {
            unmap_in_pieces((uint8_t *)block, size_bytes);
        } else {
            if (size_bytes > LARGEST_HEAP_BLOCK_BYTES) empty_in_pieces((uint8_t *)block, size_bytes);
            free(block);
            atomic_fetch_sub_explicit(&reclaiming_bytes, size_bytes, memory_order_relaxed);
        }
        block = next;
    }
}

static void *reclaim(void *argument) {
    (void)argument;
    while (atomic_load_explicit(&reclaimer.running, memory_order_acquire)) {
        sem_wait(&reclaimer.work);
        reclaim_all();
    }
    return NULL;
}

bool memory_start_reclaimer(void) {
    assert(!atomic_load(&reclaimer.running));
    if (sem_init(&reclaimer.work, 0, 0) != 0) return false;
    atomic_store_explicit(&reclaimer.running, true, memory_order_release);
    if (thread_start(&reclaimer.thread, reclaim, NULL) == 0) return true;
    atomic_store_explicit(&reclaimer.running, false, memory_order_release);
    sem_destroy(&reclaimer.work);
    return false;
}

void memory_stop_reclaimer(void) {
    if (!atomic_exchange(&reclaimer.running, false)) return;
    sem_post(&reclaimer.work);
    pthread_join(reclaimer.thread, NULL);
    reclaim_all();
    sem_destroy(&reclaimer.work);
}

/* ---- files ----------------------------------------------------------------------------------------------------------- */

void *memory_map_file(int descriptor, uint64_t offset, size_t size_bytes) {
    size_t own_bytes = own_page_bytes();
    uint8_t *own = memory_map(own_bytes + size_bytes);
    if (!own) return NULL;
    void *pointer = mmap(own + own_bytes, size_bytes, PROT_READ, MAP_PRIVATE | MAP_FIXED, descriptor, (off_t)offset);
    if (pointer == MAP_FAILED) {
        int error = errno;
        unmap_now(own, own_bytes + size_bytes);
        errno = error;
        return NULL;
    }
    (void)madvise(pointer, size_bytes, MADV_SEQUENTIAL);
    return pointer;
}

/* However little is mapped: it may be the last that holds a file of any size. */
void memory_unmap_file(void *pointer, size_t size_bytes) {
    size_t own_bytes = own_page_bytes();
    uint8_t *own = (uint8_t *)pointer - own_bytes;
    if (!leave_to_reclaimer(own, own_bytes + size_bytes, true)) unmap_now(own, own_bytes + size_bytes);
}

void *memory_map_file_shared(int descriptor, uint64_t offset, size_t size_bytes) {
    void *pointer = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, (off_t)offset);
    if (pointer == MAP_FAILED) return NULL;
    (void)madvise(pointer, size_bytes, MADV_RANDOM);
    return pointer;
}

void memory_unmap_file_shared(void *pointer, size_t size_bytes) {
    munmap(pointer, size_bytes);
}
