/* log: events as lines on standard error, as text for people or as JSON for machines. */
#ifndef REPLAY_BASE_LOG_H
#define REPLAY_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_NOTICE, LOG_WARNING, LOG_ERROR };
enum log_format { LOG_TEXT, LOG_JSON };
extern const char *const log_level_names[], *const log_format_names[]; /* in that order, ended by NULL */

#define LOG_LINE_BYTES 4096u  /* longer lines are cut */
#define LOG_KEPT_BYTES (64u * 1024) /* by log_keep_end */
#define LOG_LINES_A_SECOND 100u /* below LOG_ERROR: a client that floods the server must not make it write for ever */

struct log_field {
    const char *name;
    const char *text; /* NULL: the number */
    int64_t number;
};
/* For log_event: LOG_FIELDS({"table", .text = name}, {"capacity", .number = 5}). */
#define LOG_FIELDS(...) ((const struct log_field[]){__VA_ARGS__, {0}})

/* Sets how lines are written from here on; a process has one log. Until then it writes text, from LOG_NOTICE on. */
void log_configure(enum log_level least, enum log_format format);
void log_as(const char *program); /* whose name lines of text begin with; it stays the caller's */

/* For a parent that reads only the end: where standard error is a file without a name, its beginning is given back
 * to the disk, as far as the kernel and the file system can. */
void log_keep_end(void);

/* One line. Text is the message alone, which says it all; JSON has time, level, program, pid, event, message, and the fields,
 * which may be NULL. `event` is a word. */
void log_event(enum log_level level, const char *event, const struct log_field *fields, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
