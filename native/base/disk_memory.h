/* disk_memory: memory that lies in an unlinked file, mapped shared. The system's page cache keeps as much of it as fits, and
 * the file has the rest. So it may be larger than the host's memory, and its pages may be absent when they are wanted.
 *
 * Why a full disk kills nobody: a write to a mapped page without room in the file is a SIGBUS. So space is reserved by
 * fallocate before the first write (disk_region_back), which can be refused; the file is sparse beyond that. It would break
 * if bytes beyond backed_bytes were written, and on file systems that promise space with fallocate and do not keep it.
 * After a refusal the system is asked again a quarter of a second later, not for each add.
 *
 * One thread owns it. Two helpers of its own keep that thread from waiting: one reserves space ahead and makes pages ready
 * that are expected to be used, the other has dirty pages written early, so that the system does not slow down whoever
 * dirties more. */
#ifndef REPLAY_BASE_DISK_MEMORY_H
#define REPLAY_BASE_DISK_MEMORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct disk_memory;

struct disk_region {
    uint8_t *base; /* page-aligned; zeroed at first */
    size_t size_bytes;
    struct disk_memory *disk;
    uint64_t at; /* in the file */
    _Atomic size_t backed_bytes; /* of its beginning: space in the file is reserved for them */
    _Atomic size_t wanted_bytes; /* that the helper shall reserve */
    size_t eased_bytes; /* so many ask for nothing: space is there for more */
    struct disk_region *next;
};

/* A file in `folder`, without a name. NULL with `error` set: there can be none, or space cannot be reserved in it. */
struct disk_memory *disk_memory_new(const char *folder, struct error *error);
/* With all its regions, in the background: nobody waits. NULL is allowed. */
void disk_memory_free(struct disk_memory *disk);
/* Address space for so many bytes. NULL: there is none, and `disk_memory_failed` says why. */
struct disk_region *disk_region_new(struct disk_memory *disk, size_t size_bytes);
/* Sets the error of the region that could not be made. False: all could. */
bool disk_memory_failed(const struct disk_memory *disk, struct error *error);

bool disk_region_back_more(struct disk_region *region, size_t size_bytes);
/* Reserves space for the first bytes of a region. False: there is none, and `disk_memory_refuse` says why. */
static inline bool disk_region_back(struct disk_region *region, size_t size_bytes) {
    return size_bytes <= region->eased_bytes || disk_region_back_more(region, size_bytes);
}
/* Whether the last that asked for more space got none, since the last refusal was forgotten: before something that may fail
 * for other reasons, too. */
bool disk_memory_is_full(const struct disk_memory *disk);
void disk_memory_forget_refusal(struct disk_memory *disk);
/* Sets ERROR_LIMIT: `what` finds no space, for the reason of the last refusal. Returns -1. */
int disk_memory_refuse(const struct disk_memory *disk, const char *what, struct error *error);

enum disk_use { DISK_TO_READ, DISK_TO_WRITE };
/* These bytes will be used soon: a helper reads what is absent of them. Forgotten where it has too much to do already. */
void disk_memory_expect(struct disk_memory *disk, const void *bytes, size_t size_bytes, enum disk_use use);

uint64_t disk_memory_backed_bytes(const struct disk_memory *disk); /* that the file takes */
/* Pages that had to be read before a reply could be made, as counted by those who read them, on any thread. */
void disk_memory_count_cold(struct disk_memory *disk, uint64_t pages);
uint64_t disk_memory_cold_pages(const struct disk_memory *disk);

/* ---- pages, of any mapping ---- */
/* Whether all pages that these bytes touch are in memory. True where the system cannot tell. */
bool pages_are_resident(const void *bytes, size_t size_bytes);
uint64_t pages_absent(const void *bytes, size_t size_bytes); /* how many are not */
/* Begins to read those that are absent, without waiting. */
void pages_begin_reading(const void *bytes, size_t size_bytes);
/* Returns when all are there. False: the disk cannot be read. */
bool pages_read(const void *bytes, size_t size_bytes);

#endif
