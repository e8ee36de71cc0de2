/* disk_memory: the file, its mappings, and the two helpers. */
#include "base/disk_memory.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/arithmetic.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/thread.h"

#ifdef __linux__

#define LEAST_STEP_BYTES (256u << 10) /* reserved at once */
#define MOST_STEP_BYTES (64u << 20)
#define STEPS_IN_REGION 64u
#define PIECE_BYTES (16u << 20)       /* in one call, so that the owner never waits for more */
#define WRITE_BACK_MS 250u
#define ASK_AGAIN_US 250000u /* after the disk was found full, the system is not asked for space before */
#define EXPECTED 4096u                /* a power of two */
#define UNMAP_PIECE_BYTES (64u << 20)
#define LOOKED_AT 256u /* pages in one call */

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

struct expected {
    const uint8_t *bytes;
    size_t size_bytes;
    enum disk_use use;
};

struct disk_memory {
    int descriptor;
    uint64_t end_bytes;              /* of the file: its regions lie one after another */
    struct disk_region *_Atomic regions;
    _Atomic uint64_t backed_bytes, cold_pages;
    int refused;                     /* the errno of the last that asked for space; 0: it got some */
    size_t refused_bytes;            /* the least that the owner was refused since then: as much is not asked for … */
    uint64_t ask_again_us;           /* … before this time */
    int refusal;                     /* the errno of that */
    _Atomic uint64_t ahead_again_us; /* the helper reserves nothing ahead before */
    struct error failure;            /* why there is a region too few; ERROR_NONE: there is not */
    char folder[PATH_MAX];
    pthread_mutex_t reserving;       /* held while space is reserved */
    pthread_t helper, writer;
    sem_t work, writer_ends;
    bool has_writer;
    atomic_bool ending, told;
    struct expected expected[EXPECTED];
    _Atomic uint32_t expected_given, expected_taken;
};

static size_t page_bytes(void) {
    static size_t bytes;
    if (bytes == 0) bytes = (size_t)sysconf(_SC_PAGESIZE);
    return bytes;
}

/* ---- pages --------------------------------------------------------------------------------------------------------- */

/* The pages that some bytes touch. */
static uint8_t *pages_of(const void *bytes, size_t *size_bytes) {
    size_t page = page_bytes();
    uintptr_t from = (uintptr_t)bytes / page * page;
    *size_bytes = round_up((uintptr_t)bytes + *size_bytes - from, page);
    return (uint8_t *)from; /* NOLINT(performance-no-int-to-ptr) */
}

/* How many are absent; with `any` 1 as soon as one is. */
static uint64_t count_absent(uint8_t *from, size_t size_bytes, bool any) {
    unsigned char present[LOOKED_AT];
    size_t page = page_bytes();
    uint64_t absent = 0;
    for (size_t at = 0; at < size_bytes; at += LOOKED_AT * page) {
        size_t piece = at_most(size_bytes - at, LOOKED_AT * page);
        if (mincore(from + at, piece, present) < 0) return 0;
        for (size_t i = 0; i < piece / page; i++) absent += !(present[i] & 1);
        if (any && absent) return 1;
    }
    return absent;
}

bool pages_are_resident(const void *bytes, size_t size_bytes) {
    uint8_t *from = pages_of(bytes, &size_bytes);
    return count_absent(from, size_bytes, true) == 0;
}

uint64_t pages_absent(const void *bytes, size_t size_bytes) {
    uint8_t *from = pages_of(bytes, &size_bytes);
    return count_absent(from, size_bytes, false);
}

void pages_begin_reading(const void *bytes, size_t size_bytes) {
    uint8_t *from = pages_of(bytes, &size_bytes);
    (void)madvise(from, size_bytes, MADV_WILLNEED);
}

/* For systems that cannot do it for a whole range. What is read is of no interest, and may be written meanwhile. */
static void touch(const volatile uint8_t *from, size_t size_bytes) {
    for (size_t at = 0; at < size_bytes; at += page_bytes()) (void)from[at];
}

bool pages_read(const void *bytes, size_t size_bytes) {
    uint8_t *from = pages_of(bytes, &size_bytes);
    if (madvise(from, size_bytes, MADV_POPULATE_READ) == 0) return true;
    if (errno == EFAULT || errno == EHWPOISON || errno == EIO) return false;
    touch(from, size_bytes);
    return true;
}

/* ---- space --------------------------------------------------------------------------------------------------------- */

static size_t step_bytes(const struct disk_region *region) {
    size_t step = region->size_bytes / STEPS_IN_REGION;
    step = step < LEAST_STEP_BYTES ? LEAST_STEP_BYTES : step > MOST_STEP_BYTES ? MOST_STEP_BYTES : step;
    return round_up(step, page_bytes());
}

/* Up to `size_bytes` of the region, at most a piece. False with errno set. */
static bool reserve_piece(struct disk_region *region, size_t size_bytes) {
    struct disk_memory *disk = region->disk;
    pthread_mutex_lock(&disk->reserving);
    size_t backed = atomic_load_explicit(&region->backed_bytes, memory_order_relaxed);
    size_t more = size_bytes > backed ? at_most(size_bytes - backed, PIECE_BYTES) : 0;
    int failed = 0, error = 0;
    if (more > 0) {
        do failed = fallocate(disk->descriptor, 0, (off_t)(region->at + backed), (off_t)more);
        while (failed < 0 && errno == EINTR);
        error = errno;
    }
    if (failed == 0 && more > 0) {
        atomic_store_explicit(&region->backed_bytes, backed + more, memory_order_release);
        atomic_fetch_add_explicit(&disk->backed_bytes, more, memory_order_relaxed);
    }
    pthread_mutex_unlock(&disk->reserving);
    errno = error;
    return failed == 0;
}

/* As reserve_piece, for the owner. Where the disk was full just now, a call would be refused as well. */
static bool reserve_needed(struct disk_region *region, size_t backed, size_t needed) {
    struct disk_memory *disk = region->disk;
    size_t more = needed - backed;
    bool is_early = disk->ask_again_us && clock_monotonic_us() < disk->ask_again_us;
    if (!is_early || more < disk->refused_bytes) {
        if (reserve_piece(region, needed)) return true;
        disk->refusal = errno;
        disk->refused_bytes = more;
        if (!is_early) disk->ask_again_us = clock_monotonic_us() + ASK_AGAIN_US;
    }
    disk->refused = disk->refusal;
    return false;
}

static void want_ahead(struct disk_region *region, size_t wanted) {
    struct disk_memory *disk = region->disk;
    if (wanted <= atomic_load_explicit(&region->wanted_bytes, memory_order_relaxed)) return;
    uint64_t from_us = atomic_load_explicit(&disk->ahead_again_us, memory_order_relaxed);
    if (from_us && clock_monotonic_us() < from_us) return;
    atomic_store_explicit(&region->wanted_bytes, wanted, memory_order_release);
    sem_post(&disk->work);
}

bool disk_region_back_more(struct disk_region *region, size_t size_bytes) {
    struct disk_memory *disk = region->disk;
    assert(size_bytes <= region->size_bytes);
    size_t step = step_bytes(region), needed = round_up(size_bytes, page_bytes());
    size_t wanted = at_most(round_up(needed, step) + step, region->size_bytes);
    want_ahead(region, wanted);
    size_t backed;
    while ((backed = atomic_load_explicit(&region->backed_bytes, memory_order_acquire)) < needed)
        if (!reserve_needed(region, backed, needed)) return false;
    disk->refused = 0;
    region->eased_bytes = backed >= size_bytes + step / 2 ? backed - step / 2 : size_bytes;
    return true;
}

bool disk_memory_is_full(const struct disk_memory *disk) {
    return disk->refused != 0;
}

void disk_memory_forget_refusal(struct disk_memory *disk) {
    disk->refused = 0;
}

int disk_memory_refuse(const struct disk_memory *disk, const char *what, struct error *error) {
    return error_set(error, ERROR_LIMIT, "no space on disk for %s in %.200s: %s; free some, or make the table smaller",
                     what, disk->folder, strerror(disk->refused));
}

/* ---- helpers ------------------------------------------------------------------------------------------------------- */

void disk_memory_expect(struct disk_memory *disk, const void *bytes, size_t size_bytes, enum disk_use use) {
    uint32_t given = atomic_load_explicit(&disk->expected_given, memory_order_relaxed);
    uint32_t waiting = given - atomic_load_explicit(&disk->expected_taken, memory_order_acquire);
    if (waiting == EXPECTED) return;
    disk->expected[given % EXPECTED] = (struct expected){bytes, size_bytes, use};
    atomic_store_explicit(&disk->expected_given, given + 1, memory_order_release);
    if (!atomic_exchange(&disk->told, true)) sem_post(&disk->work);
}

/* First all are asked for, so that the disk has much to do at once, then each is waited for. */
static void read_expected(struct disk_memory *disk) {
    uint32_t given = atomic_load_explicit(&disk->expected_given, memory_order_acquire);
    uint32_t taken = atomic_load_explicit(&disk->expected_taken, memory_order_relaxed);
    for (uint32_t i = taken; i != given; i++) {
        const struct expected *expected = &disk->expected[i % EXPECTED];
        pages_begin_reading(expected->bytes, expected->size_bytes);
    }
    for (uint32_t i = taken; i != given; i++) {
        const struct expected *expected = &disk->expected[i % EXPECTED];
        size_t size_bytes = expected->size_bytes;
        uint8_t *from = pages_of(expected->bytes, &size_bytes);
        int advice = expected->use == DISK_TO_WRITE ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
        (void)madvise(from, size_bytes, advice);
        atomic_store_explicit(&disk->expected_taken, i + 1, memory_order_release);
    }
}

static void reserve_wanted(struct disk_memory *disk) {
    struct disk_region *region = atomic_load_explicit(&disk->regions, memory_order_acquire);
    for (; region; region = region->next) {
        size_t wanted = atomic_load_explicit(&region->wanted_bytes, memory_order_acquire);
        while (atomic_load_explicit(&region->backed_bytes, memory_order_relaxed) < wanted) {
            if (reserve_piece(region, wanted)) continue;
            /* Little is left: the owner reserves what it needs itself, and asks again, but later. */
            atomic_store_explicit(&disk->ahead_again_us, clock_monotonic_us() + ASK_AGAIN_US, memory_order_relaxed);
            atomic_compare_exchange_strong(&region->wanted_bytes, &wanted, 0);
            break;
        }
    }
}

/* The memory map is locked for no longer than a piece takes; closing the file gives its space back. */
static void free_now(struct disk_memory *disk) {
    for (struct disk_region *region = atomic_load(&disk->regions); region;) {
        struct disk_region *next = region->next;
        for (size_t at = 0; at < region->size_bytes && at < region->backed_bytes; at += UNMAP_PIECE_BYTES)
            (void)madvise(region->base + at, at_most(UNMAP_PIECE_BYTES, region->size_bytes - at), MADV_DONTNEED);
        memory_unmap_file_shared(region->base, region->size_bytes);
        memory_free(region);
        region = next;
    }
    close(disk->descriptor);
    pthread_mutex_destroy(&disk->reserving);
    sem_destroy(&disk->work);
    sem_destroy(&disk->writer_ends);
    memory_free(disk);
}

static void *help(void *argument) {
    struct disk_memory *disk = argument;
    while (!atomic_load_explicit(&disk->ending, memory_order_acquire)) {
        while (sem_wait(&disk->work) < 0 && errno == EINTR) {
        }
        (void)atomic_exchange(&disk->told, false); /* an exchange, which shows all that was given before it was told */
        reserve_wanted(disk);
        read_expected(disk);
    }
    if (!disk->has_writer) return NULL; /* it never came to anything */
    pthread_join(disk->writer, NULL);
    free_now(disk);
    return NULL;
}

static void *write_back(void *argument) {
    struct disk_memory *disk = argument;
    for (;;) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += WRITE_BACK_MS * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (sem_timedwait(&disk->writer_ends, &until) == 0) return NULL;
        if (errno == ETIMEDOUT) (void)sync_file_range(disk->descriptor, 0, 0, SYNC_FILE_RANGE_WRITE);
    }
}

/* ---- making one ---------------------------------------------------------------------------------------------------- */

/* Nobody else finds it, and it is gone when this process is. */
static int open_unlinked(const char *folder) {
    int descriptor = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600);
    if (descriptor >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT && errno != EINVAL))
        return descriptor;
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/.replay-table-XXXXXX", folder) >= (int)sizeof path) return -1;
    descriptor = mkostemp(path, O_CLOEXEC);
    if (descriptor >= 0) unlink(path);
    return descriptor;
}

static int begin(struct disk_memory *disk, const char *folder, struct error *error) {
    if (!realpath(folder, disk->folder)) snprintf(disk->folder, sizeof disk->folder, "%s", folder);
    disk->descriptor = open_unlinked(folder);
    if (disk->descriptor < 0)
        return error_set(error, ERROR_GENERIC,
                         "no file for a table's storage can be made in %.200s: %s; give the server a dir that it may "
                         "write to, or use storage \"memory\"",
                         disk->folder, strerror(errno));
    if (fallocate(disk->descriptor, 0, 0, (off_t)page_bytes()) < 0) {
        disk->refused = errno;
        return errno == EOPNOTSUPP
                   ? error_set(error, ERROR_GENERIC,
                               "the file system of %.200s cannot reserve space (fallocate), which storage \"disk\" "
                               "needs; use another dir, or storage \"memory\"",
                               disk->folder)
                   : disk_memory_refuse(disk, "a table", error);
    }
    return 0;
}

static int start_helpers(struct disk_memory *disk) {
    if (thread_start(&disk->helper, help, disk) != 0) return -1;
    disk->has_writer = thread_start(&disk->writer, write_back, disk) == 0;
    if (disk->has_writer) return 0;
    atomic_store(&disk->ending, true);
    sem_post(&disk->work);
    pthread_join(disk->helper, NULL);
    return -1;
}

struct disk_memory *disk_memory_new(const char *folder, struct error *error) {
    struct disk_memory *disk = memory_calloc(1, sizeof *disk);
    if (!disk) {
        error_set(error, ERROR_GENERIC, "out of memory for a table's storage");
        return NULL;
    }
    disk->descriptor = -1;
    pthread_mutex_init(&disk->reserving, NULL);
    bool ready = sem_init(&disk->work, 0, 0) == 0 && sem_init(&disk->writer_ends, 0, 0) == 0;
    if (ready && begin(disk, folder, error) == 0) {
        if (start_helpers(disk) == 0) return disk;
        error_set(error, ERROR_GENERIC, "no thread could be started for a table's storage");
    }
    if (disk->descriptor >= 0) close(disk->descriptor);
    memory_free(disk);
    return NULL;
}

void disk_memory_free(struct disk_memory *disk) {
    if (!disk) return;
    pthread_detach(disk->helper);
    atomic_store_explicit(&disk->ending, true, memory_order_release);
    sem_post(&disk->work);
    sem_post(&disk->writer_ends); /* the last: the helper frees all once the writer has taken it */
}

struct disk_region *disk_region_new(struct disk_memory *disk, size_t size_bytes) {
    size_bytes = round_up(size_bytes ? size_bytes : 1, page_bytes());
    struct disk_region *region = memory_calloc(1, sizeof *region);
    if (!region) {
        error_set(&disk->failure, ERROR_GENERIC, "out of memory for a table's storage");
        return NULL;
    }
    int failed = ftruncate(disk->descriptor, (off_t)(disk->end_bytes + size_bytes));
    void *base = failed ? NULL : memory_map_file_shared(disk->descriptor, disk->end_bytes, size_bytes);
    if (!base) {
        error_set(&disk->failure, ERROR_LIMIT,
                  "a table whose storage may grow to %llu bytes cannot have a file in %.200s: %s; make capacity "
                  "smaller",
                  (unsigned long long)(disk->end_bytes + size_bytes), disk->folder, strerror(errno));
        memory_free(region);
        return NULL;
    }
    *region = (struct disk_region){.base = base, .size_bytes = size_bytes, .disk = disk, .at = disk->end_bytes};
    disk->end_bytes += size_bytes;
    region->next = atomic_load_explicit(&disk->regions, memory_order_relaxed);
    atomic_store_explicit(&disk->regions, region, memory_order_release);
    return region;
}

bool disk_memory_failed(const struct disk_memory *disk, struct error *error) {
    if (disk->failure.code == ERROR_NONE) return false;
    *error = disk->failure;
    return true;
}

uint64_t disk_memory_backed_bytes(const struct disk_memory *disk) {
    return atomic_load_explicit(&disk->backed_bytes, memory_order_relaxed);
}

void disk_memory_count_cold(struct disk_memory *disk, uint64_t pages) {
    atomic_fetch_add_explicit(&disk->cold_pages, pages, memory_order_relaxed);
}

uint64_t disk_memory_cold_pages(const struct disk_memory *disk) {
    return atomic_load_explicit(&disk->cold_pages, memory_order_relaxed);
}

#else /* no such file can be made: whoever asks for one is told so, and the rest is never called */

struct disk_memory *disk_memory_new(const char *folder, struct error *error) {
    (void)folder;
    error_set(error, ERROR_GENERIC, "storage \"disk\" needs Linux; use storage \"memory\"");
    return NULL;
}

void disk_memory_free(struct disk_memory *disk) {
    assert(!disk);
}

struct disk_region *disk_region_new(struct disk_memory *disk, size_t size_bytes) {
    (void)disk, (void)size_bytes;
    return NULL;
}

bool disk_memory_failed(const struct disk_memory *disk, struct error *error) {
    (void)disk, (void)error;
    return false;
}

bool disk_region_back_more(struct disk_region *region, size_t size_bytes) {
    (void)region, (void)size_bytes;
    return false;
}

bool disk_memory_is_full(const struct disk_memory *disk) {
    (void)disk;
    return false;
}

void disk_memory_forget_refusal(struct disk_memory *disk) {
    (void)disk;
}

int disk_memory_refuse(const struct disk_memory *disk, const char *what, struct error *error) {
    (void)disk, (void)what, (void)error;
    return -1;
}

void disk_memory_expect(struct disk_memory *disk, const void *bytes, size_t size_bytes, enum disk_use use) {
    (void)disk, (void)bytes, (void)size_bytes, (void)use;
}

uint64_t disk_memory_backed_bytes(const struct disk_memory *disk) {
    (void)disk;
    return 0;
}

void disk_memory_count_cold(struct disk_memory *disk, uint64_t pages) {
    (void)disk, (void)pages;
}

uint64_t disk_memory_cold_pages(const struct disk_memory *disk) {
    (void)disk;
    return 0;
}

bool pages_are_resident(const void *bytes, size_t size_bytes) {
    (void)bytes, (void)size_bytes;
    return true;
}

void pages_begin_reading(const void *bytes, size_t size_bytes) {
    (void)bytes, (void)size_bytes;
}

uint64_t pages_absent(const void *bytes, size_t size_bytes) {
    (void)bytes, (void)size_bytes;
    return 0;
}

bool pages_read(const void *bytes, size_t size_bytes) {
    (void)bytes, (void)size_bytes;
    return true;
}
#endif
