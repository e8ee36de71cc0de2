/* snapshot_folder: names, times of cut, removal. */
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

/* The time of the cut as its header has it; a header that is damaged counts as newest, so that it is looked at and refused,
 * not silently passed over for an older one. */
static int64_t time_of_cut(int folder, const char *name) {
    struct snapshot_file_header header;
    int descriptor = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) return INT64_MIN;
    ssize_t got = read(descriptor, &header, sizeof header);
    close(descriptor);
    if (got != (ssize_t)sizeof header ||
        header.checksum != crc32c(0, &header, offsetof(struct snapshot_file_header, checksum)))
        return INT64_MAX;
    return header.cut_unix_ms;
}

int snapshot_newest(const char *folder, char name[NAME_MAX + 1], struct error *error) {
    int64_t newest = INT64_MIN;
    name[0] = '\0';
    DIR *directory = opendir(folder);
    if (!directory) return error_set(error, ERROR_GENERIC, "cannot read the folder %s: %s", folder, strerror(errno));
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (!ends_with(entry->d_name, SNAPSHOT_SUFFIX) || !snapshot_name_is_valid(entry->d_name)) continue;
        int64_t cut = time_of_cut(dirfd(directory), entry->d_name);
        if (cut > newest || (cut == newest && strcmp(entry->d_name, name) > 0)) {
            newest = cut;
            snprintf(name, NAME_MAX + 1, "%s", entry->d_name);
        }
    }
    closedir(directory);
    return 0;
}

/* The oldest of our files but `spared`, by name ("": there is none), and how many there are. */
static uint32_t oldest_of_ours(DIR *directory, const char *spared, char name[NAME_MAX + 1]) {
    uint32_t count = 0;
    name[0] = '\0';
    rewinddir(directory);
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (!is_our_name(entry->d_name)) continue;
        count++;
        if (strcmp(entry->d_name, spared) != 0 && (!name[0] || strcmp(entry->d_name, name) < 0))
            snprintf(name, NAME_MAX + 1, "%s", entry->d_name);
    }
    return count;
}

void snapshot_prune(int folder, uint32_t keep, const char *spared) {
    char name[NAME_MAX + 1];
    int descriptor = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = descriptor < 0 ? NULL : fdopendir(descriptor);
    if (!directory) {
        if (descriptor >= 0) close(descriptor);
        return;
    }
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
