/* log: a line is made on the stack and written by one call. */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"

const char *const log_level_names[] = {"debug", "info", "notice", "warning", "error", NULL};
const char *const log_format_names[] = {"text", "json", NULL};

static struct {
    atomic_int least, format;
    atomic_bool keeps_end;
    const char *_Atomic program;
    atomic_uint_fast64_t second, lines, left_out; /* of this second; since a line was last written */
} log_state = {.least = LOG_NOTICE, .program = "replay-server"};

void log_configure(enum log_level least, enum log_format format) {
    log_state.least = (int)least;
    log_state.format = (int)format;
}

void log_as(const char *program) {
    log_state.program = program;
}

void log_keep_end(void) {
    log_state.keeps_end = true;
}

struct line {
    char bytes[LOG_LINE_BYTES];
    size_t length;
};

/* What does not fit is left out, with room for what closes the line. */
static void put(struct line *line, const char *text, size_t length) {
    size_t room = sizeof line->bytes - 8 - line->length;
    if (length > room) length = room;
    memcpy(line->bytes + line->length, text, length);
    line->length += length;
}

static void put_text(struct line *line, const char *text) {
    put(line, text, strlen(text));
}

/* Whether a terminal would obey the character: U+0000 to U+001F, and U+007F to U+009F, among which is another
 * beginning of escape sequences. */
static bool is_control(const char *at, size_t length) {
    return length == 1 ? (uint8_t)*at < 0x20 || *at == 0x7f : length == 2 && *at == '\xc2' && (uint8_t)at[1] < 0xa0;
}

/* What is no UTF-8 becomes a question mark. */
static void put_quoted(struct line *line, const char *text) {
    put_text(line, "\"");
    const char *end = text + strlen(text);
    for (const char *at = text; at < end;) {
        size_t length = text_character(at, (size_t)(end - at));
        if (sizeof line->bytes - line->length < 64) break; /* no half of an escape */
        if (*at == '"' || *at == '\\') {
            const char escaped[] = {'\\', *at};
            put(line, escaped, 2);
        } else if (length == 0) {
            put_text(line, "?");
        } else if (is_control(at, length)) {
            char escaped[8];
            snprintf(escaped, sizeof escaped, "\\u%04x", (uint8_t)at[length - 1]);
            put_text(line, escaped);
        } else {
            put(line, at, length);
        }
        at += length ? length : 1;
    }
    put_text(line, "\"");
}

static void put_json(struct line *line, enum log_level level, const char *event, const struct log_field *fields,
                     const char *message, uint64_t left_out) {
    int64_t now_ms = clock_unix_ms();
    time_t seconds = (time_t)(now_ms / 1000);
    struct tm when = {0};
    gmtime_r(&seconds, &when);
    char text[160];
    size_t length = strftime(text, sizeof text, "{\"time\":\"%Y-%m-%dT%H:%M:%S", &when);
    snprintf(text + length, sizeof text - length,
             ".%03dZ\",\"level\":\"%s\",\"pid\":%ld,\"program\":", (int)(now_ms % 1000), log_level_names[level],
             (long)getpid());
    put_text(line, text);
    put_quoted(line, log_state.program);
    put_text(line, ",\"event\":");
    put_quoted(line, event);
    put_text(line, ",\"message\":");
    put_quoted(line, message);
    for (; fields && fields->name && sizeof line->bytes - line->length > 256; fields++) {
        put_text(line, ",");
        put_quoted(line, fields->name);
        put_text(line, ":");
        if (fields->text) {
            put_quoted(line, fields->text);
        } else {
            snprintf(text, sizeof text, "%" PRId64, fields->number);
            put_text(line, text);
        }
    }
    if (left_out > 0) {
        snprintf(text, sizeof text, ",\"left_out\":%" PRIu64, left_out);
        put_text(line, text);
    }
    put_text(line, "}");
}

static void put_plain(struct line *line, const char *message, uint64_t left_out) {
    char text[64];
    put_text(line, log_state.program);
    put_text(line, ": ");
    put_text(line, message);
    if (left_out > 0) {
        snprintf(text, sizeof text, " (%" PRIu64 " lines before it were left out)", left_out);
        put_text(line, text);
    }
}

static bool is_too_much(enum log_level level) {
    uint64_t second = clock_monotonic_us() / 1000000;
    if (log_state.second != second) {
        log_state.second = second;
        log_state.lines = 0;
    }
    if (level >= LOG_ERROR || log_state.lines++ < LOG_LINES_A_SECOND) return false;
    log_state.left_out++;
    return true;
}

/* One event, one line, and nothing that a terminal would obey: clients' bytes may be among it. */
static void clean(char *message) {
    const char *end = message + strlen(message);
    for (char *at = message; at < end;) {
        size_t length = text_character(at, (size_t)(end - at));
        if (length == 0)
            *at = '?';
        else if (is_control(at, length))
            memset(at, ' ', length);
        at += length ? length : 1;
    }
}

/* Whether lines can be written without waiting: a server must not wait for the reader of its log. A pipe that is
 * ready has room for a line, LOG_LINE_BYTES being PIPE_BUF. */
static bool is_taken(void) {
    struct pollfd standard_error = {.fd = STDERR_FILENO, .events = POLLOUT};
    return poll(&standard_error, 1, 0) != 0;
}

/* What is left out reads as zeros, so that places in the file stay as they are. */
static void drop_beginning(void) {
#ifdef FALLOC_FL_PUNCH_HOLE
    int before = errno;
    struct stat file;
    if (fstat(STDERR_FILENO, &file) == 0 && S_ISREG(file.st_mode) && file.st_nlink == 0) {
        off_t more = file.st_size - (off_t)LOG_KEPT_BYTES;
        if (more > 0) (void)!fallocate(STDERR_FILENO, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, more);
    }
    errno = before;
#endif
}

void log_event(enum log_level level, const char *event, const struct log_field *fields, const char *format, ...) {
    if ((int)level < log_state.least || is_too_much(level)) return;
    char message[LOG_LINE_BYTES / 2];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    clean(message);
    uint64_t left_out = atomic_exchange(&log_state.left_out, 0);
    struct line line = {.length = 0};
    if (log_state.format == LOG_JSON)
        put_json(&line, level, event, fields, message, left_out);
    else
        put_plain(&line, message, left_out);
    line.bytes[line.length++] = '\n';
    if (level < LOG_ERROR && !is_taken()) {
        log_state.left_out += left_out + 1;
        return;
    }
    if (write(STDERR_FILENO, line.bytes, line.length) < 0) errno = 0; /* there is nowhere else to complain */
    if (log_state.keeps_end) drop_beginning();
}
