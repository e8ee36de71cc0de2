/* snapshot_folder: names, order, removal. */
#include "persist/snapshot_folder.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "persist/snapshot_file.h"
#include "persist/snapshot_format.h"

static const char pattern[] = "replay-dddddddd-dddddd-ddd" SNAPSHOT_SUFFIX; /* d: a digit */

void snapshot_name_new(char name[NAME_MAX + 1], int64_t unix_ms) {
    time_t seconds = (time_t)(unix_ms / 1000);
    struct tm utc;
    gmtime_r(&seconds, &utc);
    snprintf(name, NAME_MAX + 1, "replay-%04d%02d%02d-%02d%02d%02d-%03d" SNAPSHOT_SUFFIX, utc.tm_year + 1900,
             utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, (int)(unix_ms % 1000));
}

static bool is_our_name(const char *name) {
    if (strlen(name) != sizeof pattern - 1) return false;
    for (size_t i = 0; i < sizeof pattern - 1; i++) {
        bool is_digit = isdigit((unsigned char)name[i]) != 0;
        if (i >= 7 && pattern[i] == 'd' ? !is_digit : name[i] != pattern[i]) return false;
    }
    return true;
}

static bool ends_with(const char *name, const char *suffix) {
    size_t length = strlen(name), end = strlen(suffix);
    return length > end && strcmp(name + length - end, suffix) == 0;
}

/* ---- order --------------------------------------------------------------------------------------------------------- */

/* Clocks go back, and files get other names: what tells which of two snapshots is the later one is a number in them. */
struct order {
    bool damaged; /* or no header */
    uint64_t number; /* 0: of before there were any */
    int64_t cut_unix_ms;
};

static bool has_header(ssize_t got, const struct snapshot_file_header *header) {
    return got == (ssize_t)sizeof *header && memcmp(header->magic, SNAPSHOT_MAGIC, sizeof header->magic) == 0 &&
           header->checksum == crc32c(0, header, offsetof(struct snapshot_file_header, checksum));
}

/* False: there is no such file, or it cannot be opened. */
static bool read_order(int folder, const char *name, struct order *order) {
    struct snapshot_file_header header;
    int descriptor = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) return false;
    ssize_t got = read(descriptor, &header, sizeof header);
    close(descriptor);
    *order = (struct order){.damaged = !has_header(got, &header)};
    if (order->damaged) return true;
    order->cut_unix_ms = header.cut_unix_ms;
    if (header.version >= SNAPSHOT_NUMBERED_VERSION) order->number = header.number;
    return true;
}

static bool is_later(const struct order *order, const char *name, const struct order *other, const char *other_name) {
    if (order->number != other->number) return order->number > other->number;
    if (order->cut_unix_ms != other->cut_unix_ms) return order->cut_unix_ms > other->cut_unix_ms;
    return strcmp(name, other_name) > 0;
}

static bool is_snapshot(const char *name) {
    return ends_with(name, SNAPSHOT_SUFFIX) && snapshot_name_is_valid(name);
}

/* One that is damaged counts as newest, so that it is looked at and refused, not silently passed over for an older one. */
int snapshot_newest(const char *folder, char name[NAME_MAX + 1], struct error *error) {
    struct order newest, order;
    name[0] = '\0';
    DIR *directory = opendir(folder);
    if (!directory) return error_set(error, ERROR_GENERIC, "cannot read the folder %s: %s", folder, strerror(errno));
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (!is_snapshot(entry->d_name) || !read_order(dirfd(directory), entry->d_name, &order)) continue;
        if (order.damaged) order.number = UINT64_MAX;
        if (name[0] && !is_later(&order, entry->d_name, &newest, name)) continue;
        newest = order;
        snprintf(name, NAME_MAX + 1, "%s", entry->d_name);
    }
    closedir(directory);
    return 0;
}

/* NULL: it cannot be read. */
static DIR *read_folder(int folder) {
    int descriptor = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = descriptor < 0 ? NULL : fdopendir(descriptor);
    if (!directory && descriptor >= 0) close(descriptor);
    return directory;
}

uint64_t snapshot_last_number(int folder) {
    uint64_t last = 0;
    struct order order;
    DIR *directory = read_folder(folder);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        if (!is_snapshot(entry->d_name) || !read_order(folder, entry->d_name, &order)) continue;
        if (order.number > last && order.number < UINT64_MAX) last = order.number;
    }
    if (directory) closedir(directory);
    return last;
}

/* ---- how many ------------------------------------------------------------------------------------------------------ */

bool snapshot_has_room(int folder, const char *name, uint32_t most_named) {
    uint32_t named = 0;
    if (is_our_name(name) || faccessat(folder, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0) return true;
    DIR *directory = read_folder(folder);
    for (struct dirent *entry; directory && (entry = readdir(directory));)
        named += is_snapshot(entry->d_name) && !is_our_name(entry->d_name);
    if (directory) closedir(directory);
    return named < most_named;
}

/* The oldest of our files but `spared` ("": there is none), and how many there are. */
static uint32_t oldest_of_ours(DIR *directory, const char *spared, char name[NAME_MAX + 1]) {
    uint32_t count = 0;
    struct order oldest, order;
    name[0] = '\0';
    rewinddir(directory);
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (!is_our_name(entry->d_name)) continue;
        count++;
        if (strcmp(entry->d_name, spared) == 0 || !read_order(dirfd(directory), entry->d_name, &order)) continue;
        if (order.damaged) order.cut_unix_ms = INT64_MIN;
        if (name[0] && is_later(&order, entry->d_name, &oldest, name)) continue;
        oldest = order;
        snprintf(name, NAME_MAX + 1, "%s", entry->d_name);
    }
    return count;
}

void snapshot_prune(int folder, uint32_t keep, const char *spared) {
    char name[NAME_MAX + 1];
    DIR *directory = read_folder(folder);
    if (!directory) return;
    while (oldest_of_ours(directory, spared, name) > keep && name[0])
        if (unlinkat(folder, name, 0) < 0) break;
    closedir(directory);
}

uint32_t snapshot_remove_partial(const char *folder, char name[NAME_MAX + 1]) {
    uint32_t count = 0;
    name[0] = '\0';
    DIR *directory = opendir(folder);
    if (!directory) return 0;
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (!ends_with(entry->d_name, SNAPSHOT_SUFFIX SNAPSHOT_PARTIAL_SUFFIX)) continue;
        if (unlinkat(dirfd(directory), entry->d_name, 0) < 0) continue;
        snprintf(name, NAME_MAX + 1, "%s", entry->d_name);
        count++;
    }
    closedir(directory);
    return count;
}
