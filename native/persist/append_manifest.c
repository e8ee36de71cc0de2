/* append_manifest: its lines, strictly: a manifest that is not as it was written is refused, never guessed at. */
#include "persist/append_manifest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"
#include "base/write.h"

#define MOST_BYTES ((APPEND_MOST_INCREMENTS + 2) * (2 * NAME_MAX))

void append_base_name(const struct append_manifest *manifest, uint64_t number, char name[NAME_MAX + 1]) {
    snprintf(name, NAME_MAX + 1, "%.200s.%" PRIu64 APPEND_BASE_SUFFIX, manifest->stem, number);
}

void append_increment_name(const struct append_manifest *manifest, uint64_t number, char name[NAME_MAX + 1]) {
    snprintf(name, NAME_MAX + 1, "%.200s.%" PRIu64 APPEND_INCREMENT_SUFFIX, manifest->stem, number);
}

static void manifest_name(const struct append_manifest *manifest, char name[NAME_MAX + 1]) {
    snprintf(name, NAME_MAX + 1, "%.200s" APPEND_MANIFEST_SUFFIX, manifest->stem);
}

static void write_lines(const struct append_manifest *manifest, struct text *text) {
    char name[NAME_MAX + 1];
    if (manifest->base > 0) {
        append_base_name(manifest, manifest->base, name);
        text_append(text, "file %s seq %" PRIu64 " type b\n", name, manifest->base);
    }
    for (uint64_t i = 0; i < manifest->count; i++) {
        append_increment_name(manifest, manifest->first + i, name);
        text_append(text, "file %s seq %" PRIu64 " type i\n", name, manifest->first + i);
    }
}

/* One line; false where it is none of ours. */
static bool read_line(struct append_manifest *manifest, const char *line) {
    uint64_t number;
    char type, name[NAME_MAX + 1], expected[2 * NAME_MAX];
    const char *seq = strstr(line, " seq ");
    if (!seq || sscanf(seq, " seq %" SCNu64 " type %c", &number, &type) != 2 || number == 0) return false;
    if (type == 'b' && manifest->base == 0 && manifest->count == 0) {
        append_base_name(manifest, number, name);
        manifest->base = number;
    } else if (type == 'i' && (manifest->count == 0 || number == manifest->first + manifest->count) &&
               manifest->count < APPEND_MOST_INCREMENTS) {
        append_increment_name(manifest, number, name);
        if (manifest->count == 0) manifest->first = number;
        manifest->count++;
    } else {
        return false;
    }
    snprintf(expected, sizeof expected, "file %s seq %" PRIu64 " type %c", name, number, type);
    return strcmp(line, expected) == 0;
}

static int read_lines(struct append_manifest *manifest, char *text, const char *name, struct error *error) {
    int number = 1;
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1, number++) {
        *end = '\0';
        if (!read_line(manifest, line))
            return error_set(error, ERROR_GENERIC, "%s, line %d: expected 'file NAME seq N type b|i', got '%.100s'",
                             name, number, line);
        if (end[1] == '\0')
            return manifest->count > 0 ? 1 : error_set(error, ERROR_GENERIC, "%s: no increment is named", name);
    }
    return error_set(error, ERROR_GENERIC, "%s: it is empty, or ends within a line", name);
}

int append_manifest_read(int folder, const char *stem, struct append_manifest *manifest, struct error *error) {
    char name[NAME_MAX + 1];
    *manifest = (struct append_manifest){.first = 1};
    snprintf(manifest->stem, sizeof manifest->stem, "%s", stem);
    manifest_name(manifest, name);
    int descriptor = openat(folder, name, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0 && errno == ENOENT) return 0;
    if (descriptor < 0) return error_set(error, ERROR_GENERIC, "cannot open %s: %s", name, strerror(errno));
    char *text = memory_calloc(1, MOST_BYTES + 1);
    ssize_t got = text ? read(descriptor, text, MOST_BYTES) : -1;
    int result = got < 0 ? error_set(error, ERROR_GENERIC, "cannot read %s: %s", name, strerror(errno))
                         : read_lines(manifest, text, name, error);
    close(descriptor);
    memory_free(text);
    return result;
}

static int write_file(int folder, const char *name, const struct text *text) {
    int descriptor = openat(folder, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (descriptor < 0) return -1;
    bool written = write_all(descriptor, text->data, text->length) == 0 && fsync(descriptor) == 0;
    int kept = errno;
    close(descriptor);
    errno = kept;
    return written ? 0 : -1;
}

int append_manifest_write(int folder, const struct append_manifest *manifest, bool *renamed, struct error *error) {
    char name[NAME_MAX + 1], temporary[NAME_MAX + 8];
    manifest_name(manifest, name);
    snprintf(temporary, sizeof temporary, "%.230s.tmp", name);
    struct text text = {0};
    write_lines(manifest, &text);
    errno = ENOMEM;
    *renamed = !text.failed && text.data && write_file(folder, temporary, &text) == 0 &&
               renameat(folder, temporary, folder, name) == 0;
    bool written = *renamed && fsync(folder) == 0;
    if (!written) error_set(error, ERROR_GENERIC, "cannot write %s: %s", name, strerror(errno));
    if (!*renamed) (void)unlinkat(folder, temporary, 0);
    text_free(&text);
    return written ? 0 : -1;
}

static bool is_named(const struct append_manifest *manifest, const char *name) {
    char known[NAME_MAX + 1];
    append_base_name(manifest, manifest->base, known);
    if (manifest->base > 0 && strcmp(name, known) == 0) return true;
    for (uint64_t i = 0; i < manifest->count; i++) {
        append_increment_name(manifest, manifest->first + i, known);
        if (strcmp(name, known) == 0) return true;
    }
    return false;
}

/* "STEM.12.base.snapshot" and the like. */
static bool is_of_our_names(const struct append_manifest *manifest, const char *name) {
    size_t stem = strlen(manifest->stem);
    if (strncmp(name, manifest->stem, stem) != 0 || name[stem] != '.') return false;
    const char *number = name + stem + 1;
    size_t digits = strspn(number, "0123456789");
    const char *rest = number + digits;
    return digits > 0 && (strcmp(rest, APPEND_INCREMENT_SUFFIX) == 0 ||
                          strncmp(rest, APPEND_BASE_SUFFIX, strlen(APPEND_BASE_SUFFIX)) == 0);
}

void append_manifest_tidy(int folder, const struct append_manifest *manifest) {
    int descriptor = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = descriptor < 0 ? NULL : fdopendir(descriptor);
    if (!directory) {
        if (descriptor >= 0) close(descriptor);
        return;
    }
    for (struct dirent *entry; (entry = readdir(directory));)
        if (is_of_our_names(manifest, entry->d_name) && !is_named(manifest, entry->d_name))
            (void)unlinkat(folder, entry->d_name, 0);
    closedir(directory);
}
