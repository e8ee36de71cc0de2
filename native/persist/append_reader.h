/* append_reader: the commands of an increment, in order; its checksums are checked on the way. The commands between a
 * MULTI and its EXEC are handed out as one unit, or not at all.
 *
 * Every write ends with a checksum of all that stands before it, and what stands before one that agrees is as it was written.
 * Only that is handed out, and at the file's end what is complete. What a loss of power leaves of writes that were not brought
 * to the disk:
 *   - the end is missing. Then what is incomplete is followed by no checksum.
 *   - sectors are missing, with later ones behind them, since a disk writes in any order. They read as zeros: the rest of a
 *     sector, or a whole one.
 * Both are torn tails, and the file can be cut after the last whole unit that agrees. Anything else has changed after it was
 * written, and the file is corrupt. So are zeros in what had been brought to the disk: the first write after an fsync says in
 * a line how far the file was on the disk then (append_lines.h). If nothing was written after the last fsync, no line tells of
 * it. Zeros that damage has put into what only that fsync had brought to the disk pass for a torn tail.
 *
 * Behind the last checksum that agrees nothing says what is a line and what is part of a value. There only the file's salt
 * tells, which was on the disk before anything else: a file of ours that begins with zeros is corrupt.
 *
 * A file of a Redis has neither salt nor checksums. All that is complete is handed out, and an incomplete command at the end, or
 * zeros up to the end, are a torn tail. Sectors of zeros before that may be a client's: nothing can tell. */
#ifndef REPLAY_PERSIST_APPEND_READER_H
#define REPLAY_PERSIST_APPEND_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/read_ahead.h"

struct append_argument {
    const uint8_t *data;
    size_t length;
};

struct append_reader {
    int descriptor;
    const char *name;     /* for messages */
    uint64_t size;        /* of the file */
    uint64_t at;          /* all before it was handed out */
    uint64_t safe;        /* all before it may be */
    uint32_t checksum;    /* of what stands before `safe` */
    uint64_t checked_at;  /* all before it agrees with a checksum */
    uint64_t synced;      /* all before it was on the disk, as a line says that agrees with a checksum */
    uint32_t synced_checksum;
    uint64_t told;        /* the same, as a line says that no checksum has followed yet */
    uint32_t told_checksum;
    uint64_t salt;        /* 0: the file has told of none so far */
    uint64_t salt_at;     /* where its line begins, which may be cut off */
    uint64_t walked;      /* all before it was looked at */
    uint32_t walked_checksum;
    bool in_transaction;  /* there; where it begins: */
    uint64_t transaction_at;
    uint32_t transaction_checksum;
    uint8_t *window;      /* `length` bytes of it, from `start` on, are the file's from `at` on */
    size_t start, length, capacity;
    struct read_ahead ahead;
    size_t taken;         /* bytes of the command in hand */
    struct append_argument *arguments;
    uint32_t argument_capacity;
    unsigned outcome;     /* enum append_read: of the walk; APPEND_READ_COMMAND: it goes on */
};

/* Up to where a file was read, and what is known of that. */
struct append_end {
    uint64_t size;
    uint32_t checksum; /* of all before it */
    bool is_checked;   /* the file ends with that */
    uint64_t synced;   /* all before it was on the disk, whatever became of fsyncs since */
    uint32_t synced_checksum;
    uint64_t salt;     /* 0: it has none */
};

enum append_read {
    APPEND_READ_COMMAND,
    APPEND_READ_END,
    APPEND_READ_TORN,    /* the file ends in the middle of something that began at `at` */
    APPEND_READ_CORRUPT, /* `error` says where and how */
    APPEND_READ_FAILED   /* memory, or the disk */
};

void append_reader_open(struct append_reader *reader, int descriptor, uint64_t size, const char *name);
void append_reader_close(struct append_reader *reader); /* not the descriptor */
struct append_end append_reader_end(const struct append_reader *reader);
/* The next command; *arguments hold until the next call. MULTI and EXEC themselves are not handed out. */
enum append_read append_reader_next(struct append_reader *reader, uint32_t *argc,
                                    const struct append_argument **arguments, struct error *error);

#endif
