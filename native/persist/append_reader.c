/* append_reader: units (a command, a checksum, a transaction) out of a window of the file that grows as it must. */
#include "persist/append_reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/memory.h"
#include "persist/append_writer.h"

#define WINDOW_BYTES (1u << 20)
#define MOST_ARGUMENTS (64u << 20)
#define MOST_WORD_BYTES (1ull << 30)

/* What stands at a place of the window. */
enum scanned { SCANNED, SCANNED_SHORT, SCANNED_WRONG, SCANNED_NO_MEMORY };

struct scan {
    const uint8_t *bytes;
    size_t length, at;
    const char *wrong; /* what was expected there */
};

void append_reader_open(struct append_reader *reader, int descriptor, uint64_t size, const char *name) {
    *reader = (struct append_reader){.descriptor = descriptor, .size = size, .end = size, .name = name};
}

void append_reader_close(struct append_reader *reader) {
    memory_free(reader->window);
    memory_free(reader->arguments);
}

/* ---- lines and words ----------------------------------------------------------------------------------------------- */

/* "*12\r\n" */
static enum scanned scan_number(struct scan *scan, char type, uint64_t most, uint64_t *number) {
    size_t at = scan->at;
    scan->wrong = type == '*' ? "the number of words of a command" : "the length of a word";
    if (at == scan->length) return SCANNED_SHORT;
    if (scan->bytes[at++] != type) return SCANNED_WRONG;
    *number = 0;
    size_t digits = 0;
    while (at < scan->length && scan->bytes[at] >= '0' && scan->bytes[at] <= '9') {
        *number = *number * 10 + (uint64_t)(scan->bytes[at++] - '0');
        if (++digits > 11 || *number > most) return SCANNED_WRONG;
    }
    if (at == scan->length) return SCANNED_SHORT;
    if (digits == 0 || scan->bytes[at++] != '\r') return SCANNED_WRONG;
    if (at == scan->length) return SCANNED_SHORT;
    if (scan->bytes[at++] != '\n') return SCANNED_WRONG;
    scan->at = at;
    return SCANNED;
}

static enum scanned scan_word(struct scan *scan, struct append_argument *word) {
    uint64_t length;
    enum scanned scanned = scan_number(scan, '$', MOST_WORD_BYTES, &length);
    if (scanned != SCANNED) return scanned;
    scan->wrong = "the end of a word";
    if (scan->length - scan->at < length + 2) {
        /* Enough may be here to see that it is wrong, but it costs nothing to wait for all of it. */
        return SCANNED_SHORT;
    }
    word->data = scan->bytes + scan->at;
    word->length = (size_t)length;
    if (word->data[length] != '\r' || word->data[length + 1] != '\n') return SCANNED_WRONG;
    scan->at += (size_t)length + 2;
    return SCANNED;
}

/* Words are kept in reader->arguments. */
static enum scanned scan_command(struct append_reader *reader, struct scan *scan, uint32_t *argc) {
    uint64_t count;
    enum scanned scanned = scan_number(scan, '*', MOST_ARGUMENTS, &count);
    if (scanned != SCANNED) return scanned;
    if (count == 0) return SCANNED_WRONG;
    for (*argc = 0; *argc < count; (*argc)++) {
        struct append_argument *words =
            memory_grow(reader->arguments, *argc, &reader->argument_capacity, 64, sizeof *words);
        if (!words) return SCANNED_NO_MEMORY;
        reader->arguments = words;
        scanned = scan_word(scan, &reader->arguments[*argc]);
        if (scanned != SCANNED) return scanned;
    }
    return SCANNED;
}

static bool is_word(const struct append_reader *reader, uint32_t argc, const char *word) {
    const struct append_argument *name = &reader->arguments[0];
    return argc == 1 && name->length == strlen(word) && strncasecmp((const char *)name->data, word, name->length) == 0;
}

/* A command, or a transaction to its EXEC: a file that ends before it ends within it. */
static enum scanned scan_unit(struct append_reader *reader, struct scan *scan) {
    uint32_t argc;
    enum scanned scanned = scan_command(reader, scan, &argc);
    if (scanned != SCANNED || !is_word(reader, argc, "multi")) return scanned;
    do {
        /* A checksum may stand inside: a script may take longer than what is handed over at once. */
        while (scan->at < scan->length && scan->bytes[scan->at] == '#') {
            if (scan->length - scan->at < APPEND_CHECKSUM_LINE) return SCANNED_SHORT;
            scan->at += APPEND_CHECKSUM_LINE;
        }
        scanned = scan_command(reader, scan, &argc);
    } while (scanned == SCANNED && !is_word(reader, argc, "exec"));
    return scanned;
}

/* ---- the window ---------------------------------------------------------------------------------------------------- */

static const uint8_t *bytes_of(const struct append_reader *reader) {
    return reader->window + reader->start;
}

/* Drops the first bytes of the window, which were handed out. */
static void pass(struct append_reader *reader, size_t length) {
    reader->checksum = crc32c(reader->checksum, bytes_of(reader), length);
    reader->start += length;
    reader->length -= length;
    reader->at += length;
}

static ssize_t read_at(const struct append_reader *reader, void *out, size_t length, uint64_t at, struct error *error) {
    ssize_t got;
    do {
        got = pread(reader->descriptor, out, length, (off_t)at);
    } while (got < 0 && errno == EINTR);
    if (got < 0) error_set(error, ERROR_GENERIC, "cannot read %s: %s", reader->name, strerror(errno));
    return got;
}

static int make_room(struct append_reader *reader, struct error *error) {
    if (reader->start > 0) memmove(reader->window, bytes_of(reader), reader->length);
    reader->start = 0;
    if (reader->length <= reader->capacity / 2 && reader->capacity > 0) return 0;
    size_t capacity = reader->capacity ? 2 * reader->capacity : WINDOW_BYTES;
    uint8_t *window = memory_realloc(reader->window, capacity);
    if (!window) return error_set(error, ERROR_GENERIC, "no memory for %zu bytes of %s", capacity, reader->name);
    reader->window = window;
    reader->capacity = capacity;
    return 0;
}

/* More of the file into the window, which grows when it is more than half full: what a long command costs is in
 * proportion to its length. 0: there is no more. */
static int read_more(struct append_reader *reader, struct error *error) {
    uint64_t from = reader->at + reader->length;
    if (from >= reader->end) return 0;
    if (make_room(reader, error)) return -1;
    size_t room = reader->capacity - reader->length;
    if (room > reader->end - from) room = (size_t)(reader->end - from);
    ssize_t got = read_at(reader, reader->window + reader->length, room, from, error);
    if (got > 0) reader->length += (size_t)got;
    return got < 0 ? -1 : got > 0;
}

static enum append_read corrupt(const struct append_reader *reader, uint64_t at, const char *what,
                                struct error *error) {
    error_set(error, ERROR_GENERIC,
              "%s, byte %" PRIu64 ": %s (what stands before byte %" PRIu64 " agrees with its checksums)", reader->name,
              at, what, reader->checked_at);
    return APPEND_READ_CORRUPT;
}

static enum append_read check_line(struct append_reader *reader, struct error *error) {
    char expected[APPEND_CHECKSUM_LINE + 1];
    snprintf(expected, sizeof expected, APPEND_CHECKSUM_FORMAT, reader->checksum);
    if (memcmp(bytes_of(reader), expected, APPEND_CHECKSUM_LINE) != 0)
        return corrupt(reader, reader->at, "the checksum does not agree with what stands before it", error);
    pass(reader, APPEND_CHECKSUM_LINE);
    reader->checked_at = reader->at;
    return APPEND_READ_COMMAND;
}

/* ---- the end ------------------------------------------------------------------------------------------------------- */

/* The last checksum of the window; NULL: none follows. */
static const uint8_t *last_checksum(const struct append_reader *reader) {
    const uint8_t *bytes = bytes_of(reader), *last = NULL;
    for (size_t i = 0; i + APPEND_CHECKSUM_LINE <= reader->length; i++) {
        const uint8_t *found = memchr(bytes + i, '#', reader->length - i - APPEND_CHECKSUM_LINE + 1);
        if (!found) break;
        i = (size_t)(found - bytes);
        if (memcmp(found, "#CRC:", 5) == 0 && memcmp(found + 13, "\r\n", 2) == 0 && (i == 0 || found[-1] == '\n'))
            last = found;
    }
    return last;
}

/* Whether what the window begins with was cut off, and not damaged: see the header. */
static bool was_cut_off(const struct append_reader *reader) {
    const uint8_t *last = last_checksum(reader);
    if (!last) return true;
    char expected[APPEND_CHECKSUM_LINE + 1];
    uint32_t checksum = crc32c(reader->checksum, bytes_of(reader), (size_t)(last - bytes_of(reader)));
    snprintf(expected, sizeof expected, APPEND_CHECKSUM_FORMAT, checksum);
    return memcmp(last, expected, APPEND_CHECKSUM_LINE) == 0;
}

/* A system that went down may have left zeros where it had not written yet: the file then ends before them. 1: it was
 * found to end sooner than was thought. */
static int cut_zeros(struct append_reader *reader, struct error *error) {
    uint8_t tail[4096];
    uint64_t end = reader->end;
    while (end > reader->at) {
        size_t length = end - reader->at < sizeof tail ? (size_t)(end - reader->at) : sizeof tail;
        ssize_t got = read_at(reader, tail, length, end - length, error);
        if (got < 0) return -1;
        if ((size_t)got < length) break;
        while (length > 0 && tail[length - 1] == 0) {
            length--;
            end--;
        }
        if (length > 0) break;
    }
    if (end == reader->end) return 0;
    reader->end = end;
    if (reader->at + reader->length > end) reader->length = (size_t)(end - reader->at);
    return 1;
}

/* ---- units --------------------------------------------------------------------------------------------------------- */

static enum append_read at_the_end(const struct append_reader *reader, struct error *error) {
    if (reader->length == 0) return reader->end < reader->size ? APPEND_READ_TORN : APPEND_READ_END;
    if (was_cut_off(reader)) return APPEND_READ_TORN;
    return corrupt(reader, reader->at, "what begins here has no end before the file's, though a checksum follows",
                   error);
}

/* Brings the next unit, whole, to the window's start. APPEND_READ_COMMAND: it is there, reader->left bytes of it. */
static enum append_read next_unit(struct append_reader *reader, struct error *error) {
    for (;;) {
        bool is_checksum = reader->length > 0 && *bytes_of(reader) == '#';
        if (is_checksum && reader->length >= APPEND_CHECKSUM_LINE) {
            enum append_read checked = check_line(reader, error);
            int cut = checked == APPEND_READ_COMMAND ? 1 : cut_zeros(reader, error);
            if (cut <= 0) return cut < 0 ? APPEND_READ_FAILED : checked;
            continue;
        }
        struct scan scan = {.bytes = bytes_of(reader), .length = reader->length};
        enum scanned scanned = reader->length > 0 && !is_checksum ? scan_unit(reader, &scan) : SCANNED_SHORT;
        if (scanned == SCANNED) {
            reader->left = scan.at;
            return APPEND_READ_COMMAND;
        }
        if (scanned == SCANNED_NO_MEMORY) {
            error_set(error, ERROR_GENERIC, "no memory for the words of a command of %s", reader->name);
            return APPEND_READ_FAILED;
        }
        int more = scanned == SCANNED_WRONG ? cut_zeros(reader, error) : read_more(reader, error);
        if (more < 0) return APPEND_READ_FAILED;
        if (more > 0) continue;
        if (scanned == SCANNED_SHORT) return at_the_end(reader, error);
        char what[120];
        snprintf(what, sizeof what, "expected %s", scan.wrong);
        return corrupt(reader, reader->at + scan.at, what, error);
    }
}

/* Checksums that stand inside a transaction. */
static enum append_read check_inside(struct append_reader *reader, struct error *error) {
    while (reader->left > 0 && *bytes_of(reader) == '#') {
        enum append_read checked = check_line(reader, error);
        if (checked != APPEND_READ_COMMAND) return checked;
        reader->left -= APPEND_CHECKSUM_LINE;
    }
    return APPEND_READ_COMMAND;
}

enum append_read append_reader_next(struct append_reader *reader, uint32_t *argc,
                                    const struct append_argument **arguments, struct error *error) {
    for (;;) {
        if (reader->taken > 0) pass(reader, reader->taken);
        reader->taken = 0;
        enum append_read found = reader->left > 0 ? check_inside(reader, error) : APPEND_READ_COMMAND;
        if (found == APPEND_READ_COMMAND && reader->left == 0) found = next_unit(reader, error);
        if (found != APPEND_READ_COMMAND) return found;
        struct scan scan = {.bytes = bytes_of(reader), .length = reader->left};
        if (scan_command(reader, &scan, argc) != SCANNED) {
            error_set(error, ERROR_GENERIC, "no memory for the words of a command of %s", reader->name);
            return APPEND_READ_FAILED;
        }
        reader->taken = scan.at;
        reader->left -= scan.at;
        *arguments = reader->arguments;
        if (!is_word(reader, *argc, "multi") && !is_word(reader, *argc, "exec")) return APPEND_READ_COMMAND;
    }
}
