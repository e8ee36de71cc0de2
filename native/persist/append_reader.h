/* append_reader: the commands of an increment, in order; its checksums are checked on the way. The commands between a
 * MULTI and its EXEC are handed out as one unit, or not at all.
 *
 * How a torn end is distinguished from damage: the writer ends everything that it writes at once with a checksum. So
 * if a crash cut off the end of a write, or left it as zeros, no checksum follows. If the last unit is incomplete and
 * no checksum follows it, the end is torn, and the file can be cut there. So it can if the last checksum that follows
 * agrees with everything before it: a script took longer than what is written at once, and the server ended before the
 * script did. In any other case bytes have changed after they were written, and the file is corrupt. A transaction is never handed out in part, because all of a unit is in
 * memory before its first command is handed out. */
#ifndef REPLAY_PERSIST_APPEND_READER_H
#define REPLAY_PERSIST_APPEND_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct append_argument {
    const uint8_t *data;
    size_t length;
};

struct append_reader {
    int descriptor;
    const char *name;     /* for messages */
    uint64_t size;        /* of the file */
    uint64_t at;          /* all before it was handed out, or was a checksum */
    uint32_t checksum;    /* of what stands before `at` */
    uint64_t checked_at;  /* all before it agrees with a checksum */
    uint8_t *window;      /* `length` bytes of it, from `start` on, are the file's from `at` on */
    size_t start, length, capacity;
    uint64_t end;         /* where zeros begin that nothing follows; size: there are none */
    size_t taken, left;   /* of the unit in hand: bytes handed out, bytes still to hand out */
    struct append_argument *arguments;
    uint32_t argument_capacity;
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
/* The next command; *arguments hold until the next call. MULTI and EXEC themselves are not handed out. */
enum append_read append_reader_next(struct append_reader *reader, uint32_t *argc,
                                    const struct append_argument **arguments, struct error *error);

#endif
