/* append_reader: walks ahead through a window of the file, which grows as it must, to the next checksum that agrees, and hands
 * out the commands before it. */
#include "persist/append_reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/memory.h"
#include "persist/append_lines.h"

#define WINDOW_BYTES (1u << 20)
#define SECTOR_BYTES 512u /* the least that a disk writes as a whole */
#define MOST_ARGUMENTS (64u << 20)
#define MOST_WORD_BYTES (1ull << 30)

/* What stands at a place of the window. */
enum scanned { SCANNED, SCANNED_SHORT, SCANNED_WRONG, SCANNED_NO_MEMORY };

struct scan {
    const uint8_t *bytes;
    size_t length, at;
    const char *wrong; /* what is wrong there */
};

void append_reader_open(struct append_reader *reader, int descriptor, uint64_t size, const char *name) {
    *reader = (struct append_reader){.descriptor = descriptor, .size = size, .name = name};
}

struct append_end append_reader_end(const struct append_reader *reader) {
    bool is_within = reader->synced < reader->at; /* or in a transaction that is left out */
    return (struct append_end){.size = reader->at,
                               .checksum = reader->checksum,
                               .is_checked = reader->checked_at == reader->at,
                               .salt = reader->salt_at < reader->at ? reader->salt : 0,
                               .synced = is_within ? reader->synced : reader->at,
                               .synced_checksum = is_within ? reader->synced_checksum : reader->checksum};
}

void append_reader_close(struct append_reader *reader) {
    memory_free(reader->window);
    memory_free(reader->arguments);
}

/* ---- lines and words ----------------------------------------------------------------------------------------------- */

/* "*12\r\n" */
static enum scanned scan_number(struct scan *scan, char type, uint64_t most, uint64_t *number) {
    size_t at = scan->at;
    scan->wrong = type == '*' ? "expected the number of words of a command" : "expected the length of a word";
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
    scan->wrong = "expected the end of a word";
    if (scan->length - scan->at < length + 2) {
        /* Enough may be here to see that it is wrong, but it costs nothing to wait for all of it. */
        return SCANNED_SHORT;
    }
    word->data = scan->bytes + scan->at;
    word->length = (size_t)length;
    scan->at += (size_t)length;
    if (word->data[length] != '\r' || word->data[length + 1] != '\n') return SCANNED_WRONG;
    scan->at += 2;
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

/* ---- the window ---------------------------------------------------------------------------------------------------- */

static const uint8_t *bytes_of(const struct append_reader *reader) {
    return reader->window + reader->start;
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
    if (from >= reader->size) return 0;
    if (make_room(reader, error)) return -1;
    read_ahead(&reader->ahead, reader->descriptor, from, reader->size);
    size_t room = reader->capacity - reader->length;
    if (room > reader->size - from) room = (size_t)(reader->size - from);
    ssize_t got = read_at(reader, reader->window + reader->length, room, from, error);
    if (got > 0) reader->length += (size_t)got;
    return got < 0 ? -1 : got > 0;
}

/* ---- walking ahead ------------------------------------------------------------------------------------------------- */

/* A transaction is of use as a whole, and only once its EXEC is there: nothing from its MULTI on is handed out before. */
static void hand_out_until_here(struct append_reader *reader) {
    reader->safe = reader->in_transaction ? reader->transaction_at : reader->walked;
    reader->checksum = reader->in_transaction ? reader->transaction_checksum : reader->walked_checksum;
}

static void walk(struct append_reader *reader, const uint8_t *bytes, size_t length) {
    reader->walked_checksum = crc32c(reader->walked_checksum, bytes, length);
    reader->walked += length;
}

static bool is_line(const struct scan *scan, size_t length, const char *expected) {
    return strlen(expected) == length && memcmp(scan->bytes, expected, length) == 0;
}

static enum scanned walk_salt(struct append_reader *reader, struct scan *scan) {
    uint64_t salt = append_line_salt(scan->bytes, scan->length);
    scan->wrong = "expected a salt, one for a file";
    if (reader->salt || salt == 0) return SCANNED_WRONG;
    bool is_first = reader->walked == 0;
    reader->salt = salt;
    reader->salt_at = reader->walked;
    walk(reader, scan->bytes, APPEND_SALT_LINE);
    if (is_first) { /* it has a checksum of its own */
        reader->checked_at = reader->walked;
        hand_out_until_here(reader);
    }
    return SCANNED;
}

static enum scanned walk_synced(struct append_reader *reader, struct scan *scan, size_t length) {
    char expected[APPEND_LONGEST_LINE + 1];
    scan->wrong = "expected a line that says that the disk had all before it";
    if (reader->salt) {
        append_synced_line(reader->walked, reader->salt, expected);
        if (!is_line(scan, length, expected)) return SCANNED_WRONG;
        reader->told = reader->walked;
        reader->told_checksum = reader->walked_checksum;
    }
    walk(reader, scan->bytes, length);
    return SCANNED;
}

static enum scanned walk_line(struct append_reader *reader, struct scan *scan) {
    char expected[APPEND_LONGEST_LINE + 1];
    size_t length = append_line_length(scan->bytes, scan->length);
    if (scan->length < length) return SCANNED_SHORT;
    if (length == APPEND_SALT_LINE) return walk_salt(reader, scan);
    if (length == APPEND_SYNCED_LINE || length == APPEND_OLD_SYNCED_LINE) return walk_synced(reader, scan, length);
    append_checksum_line(reader->walked_checksum, reader->salt, expected);
    scan->wrong = "the checksum does not agree with what stands before it";
    if (!is_line(scan, length, expected)) return SCANNED_WRONG;
    walk(reader, scan->bytes, length);
    reader->checked_at = reader->walked;
    reader->synced = reader->told;
    reader->synced_checksum = reader->told_checksum;
    hand_out_until_here(reader);
    return SCANNED;
}

static enum scanned walk_command(struct append_reader *reader, struct scan *scan) {
    uint32_t argc;
    enum scanned scanned = scan_command(reader, scan, &argc);
    if (scanned != SCANNED) return scanned;
    if (is_word(reader, argc, "multi")) {
        reader->in_transaction = true;
        reader->transaction_at = reader->walked;
        reader->transaction_checksum = reader->walked_checksum;
    } else if (is_word(reader, argc, "exec")) {
        reader->in_transaction = false;
    }
    walk(reader, scan->bytes, scan->at);
    return SCANNED;
}

/* ---- the tail ------------------------------------------------------------------------------------------------------ */

/* What stands behind the last checksum that agrees. */
struct tail {
    bool has_checksum; /* a line that looks like one */
    bool has_hole; /* a sector of zeros */
    uint64_t synced; /* so many bytes were on the disk, as it says */
};

/* `bytes` are the file's from `from` on. A line of a file without a salt is not told from a client's value. But where a salt
 * follows, all before it was on the disk (append_lines.h), and a value that passes for one has the file refused, not cut. */
static void look_at_lines(const struct append_reader *reader, struct tail *tail, const uint8_t *bytes, uint64_t from,
                          size_t length, size_t most) {
    char checksum[APPEND_LONGEST_LINE + 1], synced[APPEND_LONGEST_LINE + 1];
    append_checksum_line(0, reader->salt, checksum);
    const char *salt = checksum + APPEND_OLD_CHECKSUM_LINE - 2; /* the rest of the line */
    for (const uint8_t *at = bytes; (at = memchr(at, '#', most - (size_t)(at - bytes))); at++) {
        size_t left = length - (size_t)(at - bytes);
        uint64_t place = from + (uint64_t)(at - bytes);
        if (reader->salt == 0) {
            if (append_line_salt(at, left)) tail->synced = place;
            continue;
        }
        if (left >= APPEND_CHECKSUM_LINE && memcmp(at, "#CRC:", 5) == 0 &&
            memcmp(at + (salt - checksum), salt, strlen(salt)) == 0)
            tail->has_checksum = true;
        if (left < APPEND_SYNCED_LINE || memcmp(at, "#SYNCED:", 8) != 0) continue;
        append_synced_line(place, reader->salt, synced);
        if (memcmp(at, synced, APPEND_SYNCED_LINE) == 0) tail->synced = place;
    }
}

static bool are_zeros(const uint8_t *bytes, size_t length) {
    return length == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, length - 1) == 0);
}

/* Whether one of the next bytes, which are not what was expected, begins zeros that end with its sector, or with the file
 * alone, as `to_end` says. */
static int ends_in_zeros(const struct append_reader *reader, uint64_t at, bool to_end, struct error *error) {
    uint8_t bytes[APPEND_LONGEST_LINE + SECTOR_BYTES];
    ssize_t got = read_at(reader, bytes, sizeof bytes, at, error);
    if (got < 0) return -1;
    const uint8_t *zero = memchr(bytes, 0, (size_t)got < APPEND_LONGEST_LINE ? (size_t)got : APPEND_LONGEST_LINE);
    if (!zero) return 0;
    uint64_t from = at + (uint64_t)(zero - bytes), end = from / SECTOR_BYTES * SECTOR_BYTES + SECTOR_BYTES;
    if (end > reader->size) end = reader->size;
    if (!are_zeros(zero, (size_t)(end - from))) return 0;
    for (; to_end && end < reader->size; end += (uint64_t)got) {
        if ((got = read_at(reader, bytes, SECTOR_BYTES, end, error)) <= 0) return got < 0 ? -1 : 1;
        if (!are_zeros(bytes, (size_t)got)) return 0;
    }
    return 1;
}

/* From `at` on. A hole is looked for before `until`: zeros behind what is wrong are no reason for it. */
static int look_at_tail(const struct append_reader *reader, uint64_t at, uint64_t until, struct tail *tail,
                        struct error *error) {
    static const size_t part = 128 * SECTOR_BYTES;
    uint8_t *bytes = memory_alloc(part + APPEND_LONGEST_LINE);
    if (!bytes) return error_set(error, ERROR_GENERIC, "no memory to look at the end of %s", reader->name);
    ssize_t got = 0;
    while (at < reader->size && (got = read_at(reader, bytes, part + APPEND_LONGEST_LINE, at, error)) > 0) {
        uint64_t next = at / part * part + part;
        size_t length = (size_t)got, most = next - at < length ? (size_t)(next - at) : length;
        size_t sector = (size_t)((SECTOR_BYTES - at % SECTOR_BYTES) % SECTOR_BYTES);
        look_at_lines(reader, tail, bytes, at, length, most);
        for (; sector + SECTOR_BYTES <= most && at + sector < until && !tail->has_hole; sector += SECTOR_BYTES)
            tail->has_hole = are_zeros(bytes + sector, SECTOR_BYTES);
        at += most;
    }
    memory_free(bytes);
    return got < 0 ? -1 : 0;
}

static const char no_end[] = "what begins here has no end before the file's";

static enum append_read corrupt(const struct append_reader *reader, uint64_t at, const char *what, uint64_t synced,
                                struct error *error) {
    char had[80] = "";
    if (synced > reader->checked_at) snprintf(had, sizeof had, "; the disk had all before byte %" PRIu64, synced);
    error_set(error, ERROR_GENERIC,
              "%s, byte %" PRIu64 ": %s (what stands before byte %" PRIu64 " agrees with its checksums%s)",
              reader->name, at, what, reader->checked_at, had);
    return APPEND_READ_CORRUPT;
}

static enum append_read hand_out_whole(struct append_reader *reader) {
    hand_out_until_here(reader);
    return reader->safe == reader->size ? APPEND_READ_END : APPEND_READ_TORN;
}

/* In a file of a Redis. */
static enum append_read judge_foreign(struct append_reader *reader, enum scanned scanned, const struct scan *scan,
                                      struct error *error) {
    uint64_t at = reader->walked + (scanned == SCANNED_WRONG ? scan->at : 0);
    struct tail tail = {0};
    if (look_at_tail(reader, reader->walked, 0, &tail, error) < 0) return APPEND_READ_FAILED;
    if (tail.synced) return corrupt(reader, at, scanned == SCANNED_WRONG ? scan->wrong : no_end, tail.synced, error);
    if (scanned == SCANNED_SHORT) return hand_out_whole(reader);
    int zeros = reader->walked > 0 ? ends_in_zeros(reader, at, true, error) : 0;
    if (zeros < 0) return APPEND_READ_FAILED;
    return zeros ? hand_out_whole(reader) : corrupt(reader, at, scan->wrong, 0, error);
}

/* What the walk has come to is no command and no line, or ends before its end: see the header. */
static enum append_read judge(struct append_reader *reader, enum scanned scanned, const struct scan *scan,
                              struct error *error) {
    uint64_t at = reader->walked + (scanned == SCANNED_WRONG ? scan->at : 0);
    struct tail tail = {0};
    uint64_t until = scanned == SCANNED_WRONG ? at + 1 : reader->size;
    if (reader->checked_at == 0) return judge_foreign(reader, scanned, scan, error);
    if (look_at_tail(reader, reader->checked_at, until, &tail, error) < 0) return APPEND_READ_FAILED;
    if (scanned == SCANNED_WRONG && !tail.has_hole) {
        int zeros = ends_in_zeros(reader, at, false, error);
        if (zeros < 0) return APPEND_READ_FAILED;
        tail.has_hole = zeros;
    }
    if (tail.synced <= reader->checked_at) {
        if (tail.has_hole) return APPEND_READ_TORN;
        if (scanned == SCANNED_SHORT && !tail.has_checksum) return hand_out_whole(reader);
    }
    const char *what = scanned == SCANNED_WRONG ? scan->wrong
                       : tail.has_checksum ? "what begins here has no end before the file's, though a checksum follows"
                                           : no_end;
    return corrupt(reader, at, what, tail.synced, error);
}

/* ---- handing out --------------------------------------------------------------------------------------------------- */

/* Until there is something to hand out, or, with reader->outcome, nothing is left. */
static void walk_on(struct append_reader *reader, struct error *error) {
    while (reader->outcome == APPEND_READ_COMMAND && reader->safe == reader->at) {
        size_t walked = (size_t)(reader->walked - reader->at);
        struct scan scan = {.bytes = bytes_of(reader) + walked, .length = reader->length - walked};
        enum scanned scanned = scan.length == 0       ? SCANNED_SHORT
                               : scan.bytes[0] == '#' ? walk_line(reader, &scan)
                                                      : walk_command(reader, &scan);
        if (scanned == SCANNED) continue;
        if (scanned == SCANNED_NO_MEMORY) {
            error_set(error, ERROR_GENERIC, "no memory for the words of a command of %s", reader->name);
            reader->outcome = APPEND_READ_FAILED;
            return;
        }
        int more = scanned == SCANNED_SHORT ? read_more(reader, error) : 0;
        if (more < 0) reader->outcome = APPEND_READ_FAILED;
        if (more == 0)
            reader->outcome = reader->safe == reader->size ? APPEND_READ_END : judge(reader, scanned, &scan, error);
    }
}

static void pass(struct append_reader *reader, size_t length) {
    reader->start += length;
    reader->length -= length;
    reader->at += length;
}

enum append_read append_reader_next(struct append_reader *reader, uint32_t *argc,
                                    const struct append_argument **arguments, struct error *error) {
    for (;;) {
        pass(reader, reader->taken);
        reader->taken = 0;
        walk_on(reader, error);
        if (reader->at == reader->safe) return reader->outcome;
        struct scan scan = {.bytes = bytes_of(reader), .length = (size_t)(reader->safe - reader->at)};
        if (scan.bytes[0] == '#') {
            reader->taken = append_line_length(scan.bytes, scan.length);
            continue;
        }
        if (scan_command(reader, &scan, argc) != SCANNED) {
            error_set(error, ERROR_GENERIC, "no memory for the words of a command of %s", reader->name);
            return APPEND_READ_FAILED;
        }
        reader->taken = scan.at;
        *arguments = reader->arguments;
        if (!is_word(reader, *argc, "multi") && !is_word(reader, *argc, "exec")) return APPEND_READ_COMMAND;
    }
}
