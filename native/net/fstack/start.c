#include "net/fstack/start.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ff_api.h>

#include "net/dpdk/eal.h"
#include "net/fstack/wraps.h"

#define SAID_MOST_BYTES 8192
#define LINES 8

static struct {
    bool under_way;
    int output, error; /* the real ones */
    int said; /* a file in memory that both lead to meanwhile */
} start = {.output = -1, .error = -1, .said = -1};

static void put(const char *text) {
    ssize_t ignored = write(start.error, text, strlen(text));
    (void)ignored;
}

/* The last lines of what was printed, but those that repeat what was configured. */
static void put_last_lines(void) {
    static char said[SAID_MOST_BYTES + 1];
    off_t end = lseek(start.said, 0, SEEK_END);
    ssize_t got = pread(start.said, said, SAID_MOST_BYTES, end > SAID_MOST_BYTES ? end - SAID_MOST_BYTES : 0);
    said[got > 0 ? got : 0] = '\0';
    const char *lines[LINES];
    int count = 0;
    for (char *line = said, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        bool repeats = (line[0] == '[' && strstr(line, "]: ")) || strncmp(line, "f-stack -", 9) == 0;
        if (line[0] == '\0' || repeats) continue;
        lines[count++ % LINES] = line;
    }
    for (int i = count > LINES ? count - LINES : 0; i < count; i++) {
        put("  ");
        put(lines[i % LINES]);
        put("\n");
    }
}

/* Called by exit, which ff_init calls where it fails, and by abort. Only `write` is used, so that it may run wherever that
 * was. */
static void explain(void) {
    if (!start.under_way) return;
    start.under_way = false;
    put("replay-server-fstack: F-Stack did not start: ");
    if (wraps_error()[0]) {
        put(wraps_error());
        put("\n");
        return;
    }
    put(eal_last_words()[0] ? eal_last_words() : "it printed this");
    put("; `replay-server doctor` looks for what is amiss\n");
    put_last_lines();
}

static void on_exit_while_starting(void) {
    if (!start.under_way) return;
    fflush(stdout);
    explain();
}

static void on_abort(int signal_number) {
    (void)signal_number;
    explain();
    _exit(EXIT_FAILURE);
}

void fstack_start(const char *path) {
    start.said = memfd_create("fstack-start", MFD_CLOEXEC);
    start.output = dup(STDOUT_FILENO);
    start.error = dup(STDERR_FILENO);
    if (start.said < 0 || start.output < 0 || start.error < 0) {
        fprintf(stderr, "replay-server-fstack: cannot keep what F-Stack prints apart: %s\n", strerror(errno));
        exit(EXIT_FAILURE);
    }
    fflush(stdout);
    dup2(start.said, STDOUT_FILENO);
    dup2(start.said, STDERR_FILENO);
    atexit(on_exit_while_starting);
    struct sigaction before, now = {.sa_handler = on_abort};
    sigaction(SIGABRT, &now, &before);
    start.under_way = true;
    char configuration[280];
    snprintf(configuration, sizeof configuration, "--conf=%s", path);
    char program[] = "replay-server", type[] = "--proc-type=primary", process[] = "--proc-id=0";
    char *const arguments[] = {program, configuration, type, process, NULL};
    ff_init(4, arguments);
    start.under_way = false;
    sigaction(SIGABRT, &before, NULL);
    fflush(stdout);
    dup2(start.output, STDOUT_FILENO);
    dup2(start.error, STDERR_FILENO);
    close(start.output);
    close(start.error);
    close(start.said);
}

void fstack_silence_output(void) {
    fflush(stdout);
    dup2(STDERR_FILENO, STDOUT_FILENO);
}
