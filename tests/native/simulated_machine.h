/* simulated_machine: a disk that fails and loses what was not brought to it, worker threads, clocks and secrets, all of
 * them decided by one seed. The linker puts these in the place of the real calls (--wrap, native/CMakeLists.txt), so the
 * server's code is the one that ships.
 *
 * Files are real ones, so that what runs sees what it wrote. Beside them stands what a failure of the machine would
 * leave: for each file its bytes as of the last fsync, and the writes and cuts since; for the folder its names as of its
 * last fsync, and the changes of names since. `disk_end` chooses what survives of those:
 *   - a kill of the process loses nothing that was written, and brings nothing to the disk either: a loss of power after the
 *     next start may still take it;
 *   - a loss of power keeps any of the changes of names, and of each file some of its writes: the oldest, and the next of
 *     them in part, at times with zeros in the place of the rest; or any sectors, each as one of the writes left it, with
 *     zeros where none of them has reached the disk, and any length that the file has had. Nothing else survives.
 * After an fsync that failed, what had been written may never reach the disk, though later fsyncs succeed, as on Linux: it is
 * in memory alone, where this process and the next ones see it until the power is lost, unless they write it again.
 * A worker's job is done when `machine_work` says so, on the thread of the test: between any two turns of the loop, or late.
 * There may be several servers, each with a disk and in a folder of its own: `use_disk` says which of them runs. */
#ifndef REPLAY_TESTS_SIMULATED_MACHINE_H
#define REPLAY_TESTS_SIMULATED_MACHINE_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/random.h"
#include "base/sha1.h"
#include "base/worker.h"
#include "check.h"

#define DISK_FOLDER "appendonlydir" /* the one that is simulated, below the current one */
#define DISKS 2
#define DISK_FILES 512u
#define DISK_DESCRIPTORS 1024
#define DISK_SECTOR 512u

static struct random_state chance;

static inline uint32_t below(uint32_t limit) {
    return (uint32_t)random_below(&chance, limit);
}

static inline bool one_in(uint32_t n) {
    return below(n) == 0;
}

/* ---- clocks and secrets ---------------------------------------------------------------------------------------------- */

static uint64_t machine_us;

uint64_t __wrap_clock_monotonic_us(void);
uint64_t __wrap_clock_monotonic_ns(void);
int64_t __wrap_clock_unix_us(void);
int64_t __wrap_clock_unix_ms(void);
bool __wrap_random_secret(void *bytes, size_t length);
uint64_t __wrap_random_entropy(void);

uint64_t __wrap_clock_monotonic_us(void) {
    return ++machine_us; /* looking at a clock takes time */
}

uint64_t __wrap_clock_monotonic_ns(void) {
    return 1000 * __wrap_clock_monotonic_us();
}

int64_t __wrap_clock_unix_us(void) {
    return (int64_t)(1700000000000000 + __wrap_clock_monotonic_us());
}

int64_t __wrap_clock_unix_ms(void) {
    return __wrap_clock_unix_us() / 1000;
}

uint64_t __wrap_random_entropy(void) {
    return random_next(&chance);
}

bool __wrap_random_secret(void *bytes, size_t length) {
    for (size_t i = 0; i < length; i++) ((uint8_t *)bytes)[i] = (uint8_t)random_next(&chance);
    return true;
}

/* Digests are only compared with each other here, and most of a seed's time was SHA-1. */
void __wrap_sha1(const void *data, size_t length, uint8_t digest[SHA1_BYTES]);

void __wrap_sha1(const void *data, size_t length, uint8_t digest[SHA1_BYTES]) {
    uint64_t a = 0x9e3779b97f4a7c15ull ^ length, b = 0xc2b2ae3d27d4eb4full, word;
    const uint8_t *bytes = data;
    for (; length > 0; length -= length < sizeof word ? length : sizeof word, bytes += sizeof word) {
        word = 0;
        memcpy(&word, bytes, length < sizeof word ? length : sizeof word);
        a = (a ^ word) * 0xff51afd7ed558ccdull;
        b = (b ^ (a >> 29) ^ word) * 0xc4ceb9fe1a85ec53ull;
        a ^= b >> 32;
    }
    memcpy(digest, &a, sizeof a);
    memcpy(digest + sizeof a, &b, sizeof b);
    memset(digest + sizeof a + sizeof b, 0, SHA1_BYTES - sizeof a - sizeof b);
}

/* ---- memory ---------------------------------------------------------------------------------------------------------- */

static uint32_t memory_failure; /* one allocation in so many fails; 0: none does */
static uint64_t memory_failures;

void *__real_memory_alloc(size_t size_bytes);
void *__real_memory_calloc(size_t count, size_t size_bytes);
void *__real_memory_realloc(void *pointer, size_t size_bytes);
void *__wrap_memory_alloc(size_t size_bytes);
void *__wrap_memory_calloc(size_t count, size_t size_bytes);
void *__wrap_memory_realloc(void *pointer, size_t size_bytes);

static inline bool memory_fails(void) {
    if (memory_failure == 0 || !one_in(memory_failure)) return false;
    memory_failures++;
    return true;
}

void *__wrap_memory_alloc(size_t size_bytes) {
    return memory_fails() ? NULL : __real_memory_alloc(size_bytes);
}

void *__wrap_memory_calloc(size_t count, size_t size_bytes) {
    return memory_fails() ? NULL : __real_memory_calloc(count, size_bytes);
}

void *__wrap_memory_realloc(void *pointer, size_t size_bytes) {
    return memory_fails() ? NULL : __real_memory_realloc(pointer, size_bytes);
}

/* ---- the disk -------------------------------------------------------------------------------------------------------- */

struct change {
    struct change *next;
    bool cuts; /* to `at` bytes */
    size_t at, length;
    uint8_t bytes[];
};

struct bytes {
    uint8_t *at;
    size_t length;
};

struct file {
    struct bytes synced;
    size_t fsynced; /* so many bytes of that by fsync: the rest has survived by chance */
    struct change *first, **end; /* since then */
    size_t length; /* with them */
    bool has_lost; /* an fsync has failed, and what was written before it is in memory alone: */
    struct bytes seen; /* what processes see instead of `synced` */
};

struct name {
    struct name *next;
    char name[NAME_MAX + 1], from[NAME_MAX + 1]; /* from: it was renamed; "": it was not */
    int file; /* -1: it is gone */
};

/* Each server has one, which is simulated below the folder that its process is in; the current one belongs to whoever runs. */
struct disk {
    int folder; /* its process is in; with one disk nobody leaves it */
    struct file files[DISK_FILES];
    uint32_t file_count;
    struct name *names_synced, *names_now; /* no name twice */
    struct name *name_changes, **name_changes_end; /* since the last fsync of the folder */
    bool is_gone; /* the process has ended: nothing that it does reaches the disk */
    uint32_t ends_in; /* so many calls; 0: it goes on */
    enum disk_end { DISK_KILLED, DISK_WITHOUT_POWER } end_then;
    uint32_t failure; /* one call in so many fails; 0: none does */
    uint32_t read_failure; /* and of those that read */
    uint64_t calls, failures;
    uint64_t ended_us;
    uint64_t failed_us; /* when a call failed first; 0: none has */
};

static struct disk disks[DISKS] = {{.name_changes_end = &disks[0].name_changes},
                                   {.name_changes_end = &disks[1].name_changes}};
static struct disk *disk = &disks[0];

enum { NOT_OURS, IS_FOLDER, IS_FILE, IS_READ };
static struct {
    int kind, file; /* of the disk whose process opened it */
    struct disk *disk;
} descriptors[DISK_DESCRIPTORS];

int __real_openat(int folder, const char *name, int flags, ...);
int __real_open(const char *name, int flags, ...);
int __real_close(int descriptor);
ssize_t __real_writev(int descriptor, const struct iovec *pieces, int count);
int __real_fsync(int descriptor);
int __real_fdatasync(int descriptor);
ssize_t __real_read(int descriptor, void *bytes, size_t length);
ssize_t __real_pread(int descriptor, void *bytes, size_t length, off_t at);
ssize_t __real_pwrite(int descriptor, const void *bytes, size_t length, off_t at);
int __real_ftruncate(int descriptor, off_t length);
int __real_renameat(int folder, const char *from, int to_folder, const char *to);
int __real_unlinkat(int folder, const char *name, int flags);
int __wrap_openat(int folder, const char *name, int flags, ...);
int __wrap_open(const char *name, int flags, ...);
int __wrap_close(int descriptor);
ssize_t __wrap_writev(int descriptor, const struct iovec *pieces, int count);
int __wrap_fsync(int descriptor);
int __wrap_fdatasync(int descriptor);
ssize_t __wrap_read(int descriptor, void *bytes, size_t length);
ssize_t __wrap_pread(int descriptor, void *bytes, size_t length, off_t at);
ssize_t __wrap_pwrite(int descriptor, const void *bytes, size_t length, off_t at);
int __wrap_ftruncate(int descriptor, off_t length);
int __wrap_renameat(int folder, const char *from, int to_folder, const char *to);
int __wrap_unlinkat(int folder, const char *name, int flags);

static inline int kind_of(int descriptor) {
    return descriptor >= 0 && descriptor < DISK_DESCRIPTORS ? descriptors[descriptor].kind : NOT_OURS;
}

static inline void note_kind(int descriptor, int kind) {
    descriptors[descriptor].kind = kind;
    descriptors[descriptor].disk = disk;
}

/* Its process runs from now on. */
static inline void use_disk(struct disk *next) {
    if (next == disk) return;
    disk = next;
    CHECK(fchdir(disk->folder) == 0);
}

static inline void disk_end(enum disk_end end);

/* Of every call that changes what is on the disk. True: it is too late for that. */
static inline bool disk_has_ended(void) {
    if (!disk->is_gone && disk->ends_in > 0 && --disk->ends_in == 0) disk_end(disk->end_then);
    return disk->is_gone;
}

/* True: this call fails, with errno set. */
static inline bool disk_fails(int error) {
    disk->calls++;
    if (disk->failure == 0 || !one_in(disk->failure)) return false;
    disk->failures++;
    if (disk->failed_us == 0) disk->failed_us = machine_us;
    errno = error;
    return true;
}

static inline bool disk_read_fails(void) {
    if (disk->read_failure == 0 || !one_in(disk->read_failure)) return false;
    errno = EIO;
    return true;
}

static inline struct name **find_name(struct name **names, const char *name) {
    while (*names && strcmp((*names)->name, name) != 0) names = &(*names)->next;
    return names;
}

static inline void drop_name(struct name **names, const char *name) {
    struct name **found = find_name(names, name), *dropped = *found;
    if (!dropped) return;
    *found = dropped->next;
    free(dropped);
}

static inline struct name *new_name(const char *name, const char *from, int file) {
    struct name *made = malloc(sizeof *made);
    *made = (struct name){.file = file};
    strcpy(made->name, name);
    strcpy(made->from, from);
    return made;
}

static inline void apply_name(struct name **names, const struct name *change) {
    drop_name(names, change->name);
    if (change->file < 0) return;
    if (change->from[0]) drop_name(names, change->from);
    struct name *made = new_name(change->name, "", change->file);
    made->next = *names;
    *names = made;
}

static inline void change_name(const char *name, const char *from, int file) {
    struct name *change = new_name(name, from, file);
    apply_name(&disk->names_now, change);
    *disk->name_changes_end = change;
    disk->name_changes_end = &change->next;
}

static inline void forget_names(struct name **names) {
    while (*names) drop_name(names, (*names)->name);
}

static inline void forget_name_changes(void) {
    forget_names(&disk->name_changes);
    disk->name_changes_end = &disk->name_changes;
}

static inline void add_change(struct file *file, bool cuts, size_t at, const struct iovec *pieces, int count,
                              size_t length) {
    struct change *change = malloc(sizeof *change + length);
    *change = (struct change){.cuts = cuts, .at = at, .length = length};
    for (size_t done = 0; count > 0 && done < length; pieces++, count--) {
        size_t part = pieces->iov_len < length - done ? pieces->iov_len : length - done;
        memcpy(change->bytes + done, pieces->iov_base, part);
        done += part;
    }
    *file->end = change;
    file->end = &change->next;
    if (cuts || at + length > file->length) file->length = at + length;
}

static inline void resize(struct bytes *bytes, size_t length) {
    bytes->at = realloc(bytes->at, length ? length : 1);
    if (length > bytes->length) memset(bytes->at + bytes->length, 0, length - bytes->length);
    bytes->length = length;
}

/* The first `part` bytes of a write; what is missing before it is zeros. */
static inline void apply_change(struct bytes *bytes, const struct change *change, size_t part) {
    if (change->cuts) {
        resize(bytes, change->at);
        return;
    }
    if (change->at + part > bytes->length) resize(bytes, change->at + part);
    if (part > 0) memcpy(bytes->at + change->at, change->bytes, part);
}

static inline void forget_changes(struct file *file) {
    for (struct change *next; file->first; file->first = next) {
        next = file->first->next;
        free(file->first);
    }
    file->end = &file->first;
}

static inline void apply_changes(struct bytes *bytes, const struct file *file) {
    for (const struct change *change = file->first; change; change = change->next)
        apply_change(bytes, change, change->length);
}

static inline void copy_bytes(struct bytes *to, const struct bytes *from) {
    resize(to, from->length);
    if (from->length > 0) memcpy(to->at, from->at, from->length);
}

static inline const struct bytes *bytes_seen(const struct file *file) {
    return file->has_lost ? &file->seen : &file->synced;
}

static inline void sync_file(struct file *file) {
    apply_changes(&file->synced, file);
    if (file->has_lost) apply_changes(&file->seen, file);
    forget_changes(file);
}

/* They count as written, but nothing brings them to the disk any more. Of the file's length the journal tells, as of names: a cut
 * gets there, perhaps also that the file is longer. A system that cannot write its journal stops the whole file system. */
static inline void keep_in_memory(struct file *file) {
    if (!file->has_lost) copy_bytes(&file->seen, &file->synced);
    file->has_lost = true;
    apply_changes(&file->seen, file);
    for (const struct change *change = file->first; change; change = change->next)
        if (change->cuts && change->at < file->synced.length) resize(&file->synced, change->at);
    if (file->fsynced > file->synced.length) file->fsynced = file->synced.length;
    forget_changes(file);
    if (one_in(2) && file->seen.length > file->synced.length) resize(&file->synced, file->seen.length);
}

static inline bool is_on_disk(const struct file *file) {
    const struct bytes *seen = bytes_seen(file), *synced = &file->synced;
    if (file->first || seen->length != synced->length) return false;
    return seen->length == 0 || memcmp(seen->at, synced->at, seen->length) == 0;
}

static inline void open_file(int descriptor, const char *name, bool empties) {
    const struct name *found = *find_name(&disk->names_now, name);
    int file = found ? found->file : (int)disk->file_count;
    if (!found) {
        CHECK(disk->file_count < DISK_FILES);
        disk->files[disk->file_count] = (struct file){.length = 0};
        disk->files[disk->file_count].end = &disk->files[disk->file_count].first;
        disk->file_count++;
        change_name(name, "", file);
    } else if (empties && disk->files[file].length > 0) {
        add_change(&disk->files[file], true, 0, NULL, 0, 0);
    }
    descriptors[descriptor].file = file;
}

int __wrap_openat(int folder, const char *name, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    bool is_ours = kind_of(folder) == IS_FOLDER, writes = is_ours && (flags & O_ACCMODE) != O_RDONLY;
    bool ended = writes && disk_has_ended();
    if (writes && !ended && disk_fails(ENOSPC)) return -1;
    if (is_ours && !writes && disk_read_fails()) return -1;
    int descriptor = __real_openat(folder, name, flags, mode);
    CHECK(descriptor < DISK_DESCRIPTORS);
    if (descriptor >= 0) note_kind(descriptor, is_ours ? IS_READ : NOT_OURS);
    if (writes && descriptor >= 0) {
        note_kind(descriptor, IS_FILE);
        if (!ended) open_file(descriptor, name, flags & O_TRUNC);
    }
    return descriptor;
}

int __wrap_open(const char *name, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    int descriptor = __real_open(name, flags, mode);
    CHECK(descriptor < DISK_DESCRIPTORS);
    if (descriptor >= 0) note_kind(descriptor, strcmp(name, DISK_FOLDER) == 0 ? IS_FOLDER : NOT_OURS);
    return descriptor;
}

int __wrap_close(int descriptor) {
    if (kind_of(descriptor) != NOT_OURS) descriptors[descriptor].kind = NOT_OURS;
    return __real_close(descriptor);
}

ssize_t __wrap_read(int descriptor, void *bytes, size_t length) {
    return kind_of(descriptor) != NOT_OURS && disk_read_fails() ? -1 : __real_read(descriptor, bytes, length);
}

ssize_t __wrap_pread(int descriptor, void *bytes, size_t length, off_t at) {
    return kind_of(descriptor) != NOT_OURS && disk_read_fails() ? -1 : __real_pread(descriptor, bytes, length, at);
}

ssize_t __wrap_writev(int descriptor, const struct iovec *pieces, int count) {
    if (kind_of(descriptor) != IS_FILE) return __real_writev(descriptor, pieces, count);
    size_t length = 0;
    for (int i = 0; i < count; i++) length += pieces[i].iov_len;
    if (disk_has_ended()) return (ssize_t)length;
    if (disk_fails(one_in(2) ? ENOSPC : EIO)) {
        if (length < 2 || one_in(2)) return -1;
        length = 1 + below((uint32_t)length - 1); /* so much of it was written */
    }
    struct file *file = &disk->files[descriptors[descriptor].file];
    add_change(file, false, file->length, pieces, count, length);
    struct change *change = (struct change *)((uint8_t *)file->end - offsetof(struct change, next));
    struct iovec piece = {change->bytes, length};
    CHECK(length == 0 || __real_writev(descriptor, &piece, 1) == (ssize_t)length);
    return (ssize_t)length;
}

int __wrap_fsync(int descriptor) {
    int kind = kind_of(descriptor);
    if (kind == NOT_OURS || kind == IS_READ || disk_has_ended()) return 0;
    bool fails = disk_fails(EIO);
    if (kind == IS_FOLDER) {
        if (fails) return -1;
        for (const struct name *change = disk->name_changes; change; change = change->next)
            apply_name(&disk->names_synced, change);
        forget_name_changes();
        return 0;
    }
    struct file *file = &disk->files[descriptors[descriptor].file];
    if (fails && one_in(2))
        keep_in_memory(file);
    else
        sync_file(file);
    if (!fails) file->fsynced = file->synced.length;
    return fails ? -1 : 0;
}

int __wrap_fdatasync(int descriptor) {
    return __wrap_fsync(descriptor);
}

ssize_t __wrap_pwrite(int descriptor, const void *bytes, size_t length, off_t at) {
    if (kind_of(descriptor) != IS_FILE) return __real_pwrite(descriptor, bytes, length, at);
    if (disk_has_ended()) return (ssize_t)length;
    if (disk_fails(EIO)) return -1;
    struct iovec piece = {(void *)(uintptr_t)bytes, length};
    add_change(&disk->files[descriptors[descriptor].file], false, (size_t)at, &piece, 1, length);
    return __real_pwrite(descriptor, bytes, length, at);
}

int __wrap_ftruncate(int descriptor, off_t length) {
    if (kind_of(descriptor) != IS_FILE) return __real_ftruncate(descriptor, length);
    if (disk_has_ended()) return 0;
    if (disk_fails(EIO)) return -1;
    add_change(&disk->files[descriptors[descriptor].file], true, (size_t)length, NULL, 0, 0);
    return __real_ftruncate(descriptor, length);
}

int __wrap_renameat(int folder, const char *from, int to_folder, const char *to) {
    if (kind_of(folder) != IS_FOLDER) return __real_renameat(folder, from, to_folder, to);
    if (disk_has_ended()) return 0;
    if (disk_fails(EIO)) return -1;
    const struct name *found = *find_name(&disk->names_now, from);
    CHECK(found);
    change_name(to, from, found->file);
    return __real_renameat(folder, from, to_folder, to);
}

int __wrap_unlinkat(int folder, const char *name, int flags) {
    if (kind_of(folder) != IS_FOLDER) return __real_unlinkat(folder, name, flags);
    if (disk_has_ended()) return 0;
    if (disk_fails(EIO)) return -1;
    if (*find_name(&disk->names_now, name)) change_name(name, "", -1);
    return __real_unlinkat(folder, name, flags);
}

/* ---- workers --------------------------------------------------------------------------------------------------------- */

struct jobs {
    struct worker_job *first, **end;
};

struct worker {
    struct worker *next;
    struct disk *disk; /* of its process */
    struct jobs given, done;
    const void *feed; /* its next job takes what comes from there, and waits until that has ended; NULL: from nowhere */
    void (*notify)(void *context);
    void *context;
};

static struct worker *workers;
static const void *next_feed; /* of the job that is given next */

struct worker *__wrap_worker_new(void);
struct worker *__wrap_worker_new_urgent(void (*finished)(void *context), void *context);
void __wrap_worker_free(struct worker *worker);
void __wrap_worker_give(struct worker *worker, struct worker_job *job);
struct worker_job *__wrap_worker_finished(struct worker *worker);
struct worker_job *__wrap_worker_wait(struct worker *worker);

static inline void empty_jobs(struct jobs *jobs) {
    jobs->first = NULL;
    jobs->end = &jobs->first;
}

static inline void add_job(struct jobs *jobs, struct worker_job *job) {
    job->next = NULL;
    *jobs->end = job;
    jobs->end = &job->next;
}

static inline void do_job(struct worker *worker) {
    CHECK(!worker->feed); /* else it would wait for ever */
    struct worker_job *job = worker->given.first;
    worker->given.first = job->next;
    if (!job->next) worker->given.end = &worker->given.first;
    job->run(job);
    add_job(&worker->done, job);
    if (worker->notify) worker->notify(worker->context);
}

struct worker *__wrap_worker_new_urgent(void (*finished)(void *context), void *context) {
    struct worker *worker = malloc(sizeof *worker);
    *worker = (struct worker){.next = workers, .disk = disk, .notify = finished, .context = context};
    empty_jobs(&worker->given);
    empty_jobs(&worker->done);
    return workers = worker;
}

struct worker *__wrap_worker_new(void) {
    return __wrap_worker_new_urgent(NULL, NULL);
}

void __wrap_worker_free(struct worker *worker) {
    if (!worker) return;
    while (worker->given.first) do_job(worker);
    struct worker **link = &workers;
    while (*link != worker) link = &(*link)->next;
    *link = worker->next;
    free(worker);
}

void __wrap_worker_give(struct worker *worker, struct worker_job *job) {
    if (next_feed) worker->feed = next_feed;
    next_feed = NULL;
    add_job(&worker->given, job);
}

struct worker_job *__wrap_worker_finished(struct worker *worker) {
    struct worker_job *done = worker->done.first;
    empty_jobs(&worker->done);
    return done;
}

struct worker_job *__wrap_worker_wait(struct worker *worker) {
    while (!worker->done.first) do_job(worker);
    return __wrap_worker_finished(worker);
}

static inline void end_feed(const void *feed) {
    for (struct worker *worker = workers; worker; worker = worker->next)
        if (worker->feed == feed) worker->feed = NULL;
}

/* One of two workers with something to do does one job. */
static inline void machine_work(void) {
    for (struct worker *worker = workers, *next; worker; worker = next) {
        next = worker->next;
        if (!worker->given.first || worker->feed || !one_in(2)) continue;
        use_disk(worker->disk);
        do_job(worker);
    }
}

/* ---- the end of a process, and of its machine ------------------------------------------------------------------------ */

/* The oldest, and a part of the next, perhaps with zeros in the place of what follows. */
static inline void keep_oldest_changes(struct file *file, uint32_t kept, bool with_zeros) {
    const struct change *change = file->first;
    for (; kept > 0; change = change->next, kept--) apply_change(&file->synced, change, change->length);
    if (change && !change->cuts) apply_change(&file->synced, change, below((uint32_t)change->length + 1));
    if (change && with_zeros && file->length > file->synced.length) resize(&file->synced, file->length);
}

/* The file is as long as after `kept` changes. A sector is as one of the changes has left it that wrote to it, or as it was:
 * most often as the last. Where a cut has survived, what it cut off has not. */
static inline void keep_any_sectors(struct file *file, uint32_t kept) {
    struct bytes now = {0}, *on_disk = &file->synced;
    uint32_t lost = 2u << below(4), number = 0;
    size_t length = on_disk->length;
    copy_bytes(&now, bytes_seen(file)); /* a sector goes to the disk as a whole */
    for (const struct change *change = file->first; change; change = change->next, number++) {
        if (change->cuts && number >= kept) break;
        apply_change(&now, change, change->length);
        if (change->cuts && on_disk->length > change->at) resize(on_disk, change->at);
        size_t from = change->at / DISK_SECTOR * DISK_SECTOR, end = change->at + change->length;
        for (; !change->cuts && from < end; from += DISK_SECTOR) {
            size_t part = now.length - from < DISK_SECTOR ? now.length - from : DISK_SECTOR;
            if (one_in(lost)) continue;
            if (on_disk->length < from + part) resize(on_disk, from + part);
            memcpy(on_disk->at + from, now.at + from, part);
        }
        if (number < kept) length = now.length;
    }
    resize(on_disk, length);
    free(now.at);
}

/* Some of the changes of a file that no fsync has brought to the disk. */
static inline void lose_changes(struct file *file) {
    enum { KEEP_NOTHING, KEEP_ALL, KEEP_OLDEST, KEEP_OLDEST_AND_ZEROS, KEEP_SECTORS, KEEP_LENGTH };
    uint32_t count = 0, way = below(KEEP_LENGTH + 1);
    for (const struct change *change = file->first; change; change = change->next) count++;
    if (count == 0 || way == KEEP_NOTHING) return;
    if (way >= KEEP_SECTORS)
        keep_any_sectors(file, way == KEEP_SECTORS ? below(count + 1) : count);
    else
        keep_oldest_changes(file, way == KEEP_ALL ? count : below(count + 1), way == KEEP_OLDEST_AND_ZEROS);
}

static inline void lose_names(void) {
    uint32_t way = below(4), left = below(8);
    for (const struct name *change = disk->name_changes; change; change = change->next) {
        bool survives = way == 0 || (way == 1 && left > 0) || (way == 2 && one_in(2));
        if (left > 0) left--;
        if (survives) apply_name(&disk->names_synced, change);
    }
}

static inline void remove_simulated_files(void) {
    DIR *folder = opendir(DISK_FOLDER);
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        if (entry->d_name[0] != '.') __real_unlinkat(dirfd(folder), entry->d_name, 0);
    if (folder) closedir(folder);
}

static inline void write_simulated_file(const struct name *name, const struct bytes *bytes) {
    char path[sizeof DISK_FOLDER + NAME_MAX + 1];
    snprintf(path, sizeof path, "%s/%s", DISK_FOLDER, name->name);
    int descriptor = __real_open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(descriptor >= 0 && write(descriptor, bytes->at, bytes->length) == (ssize_t)bytes->length);
    __real_close(descriptor);
}

/* As processes see it: with what no fsync has brought to the disk yet. */
static inline void write_seen_file(const struct name *name) {
    struct file *file = &disk->files[name->file];
    struct bytes seen = {0};
    copy_bytes(&seen, bytes_seen(file));
    apply_changes(&seen, file);
    file->length = seen.length;
    write_simulated_file(name, &seen);
    free(seen.at);
}

/* Nothing that the process does from now on reaches the disk; it is to be taken away before disk_begin. `disk->ends_in` and
 * `disk->end_then` make this happen before one of the next calls, in the middle of what they are part of. */
static inline void disk_end(enum disk_end end) {
    disk->is_gone = true;
    disk->ended_us = machine_us;
    if (end == DISK_KILLED) return;
    for (uint32_t i = 0; i < disk->file_count; i++) {
        lose_changes(&disk->files[i]);
        forget_changes(&disk->files[i]);
        disk->files[i].has_lost = false;
    }
    lose_names();
    forget_name_changes();
    forget_names(&disk->names_now);
    for (const struct name *name = disk->names_synced; name; name = name->next) apply_name(&disk->names_now, name);
}

static inline void flip_bit(const char *name, size_t at) {
    char path[sizeof DISK_FOLDER + NAME_MAX + 1];
    uint8_t byte;
    snprintf(path, sizeof path, "%s/%s", DISK_FOLDER, name);
    int descriptor = __real_open(path, O_RDWR);
    CHECK(descriptor >= 0 && __real_pread(descriptor, &byte, 1, (off_t)at) == 1);
    byte ^= (uint8_t)(1 << below(8));
    CHECK(__real_pwrite(descriptor, &byte, 1, (off_t)at) == 1);
    __real_close(descriptor);
}

/* The next process finds what has survived. */
static inline void disk_begin(void) {
    remove_simulated_files();
    for (const struct name *name = disk->names_now; name; name = name->next) write_seen_file(name);
    for (int i = 0; i < DISK_DESCRIPTORS; i++)
        if (descriptors[i].disk == disk) descriptors[i].kind = NOT_OURS;
    disk->is_gone = false;
    disk->ends_in = 0;
    disk->failed_us = 0;
}

#endif
