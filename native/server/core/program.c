/* program: started with posix_spawn and waited for on a worker's thread; an eventfd tells the loop that it has ended. */
#include "server/core/program.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/worker.h"
#include "server/core/notifier.h"

#define PROGRAM_LOOK_NS 10000000 /* how often it is asked whether it has ended */

extern char **environ;

enum { INPUT, OUTPUT, COMPLAINTS };

struct program {
    struct worker_job job; /* first: what the worker hands back */
    struct worker *worker; /* NULL: nothing was run yet */
    void (*ended)(void *context, struct program_end *end);
    void *context;
    char **arguments;
    int wake; /* an eventfd: it has ended */
    int descriptors[3]; /* its standard ones; the worker's while it runs */
    int failed;
    bool running;
    atomic_bool ending; /* the server is: it is not waited for */
};

/* ---- on the worker's thread ------------------------------------------------------------------------------------------- */

/* With the signals as a program expects them: the server blocks some and ignores others. */
static int start(char **arguments, const int descriptors[3], pid_t *pid) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, defaults;
    sigemptyset(&none);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    sigaddset(&defaults, SIGHUP);
    sigaddset(&defaults, SIGXFSZ);
    if (posix_spawn_file_actions_init(&files) != 0) return ENOMEM;
    if (posix_spawnattr_init(&attributes) != 0) {
        posix_spawn_file_actions_destroy(&files);
        return ENOMEM;
    }
    int failed = 0;
    for (int i = 0; i < 3 && !failed; i++) failed = posix_spawn_file_actions_adddup2(&files, descriptors[i], i);
    if (!failed) failed = posix_spawnattr_setsigmask(&attributes, &none);
    if (!failed) failed = posix_spawnattr_setsigdefault(&attributes, &defaults);
    if (!failed) failed = posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    if (!failed) failed = posix_spawn(pid, arguments[0], &files, &attributes, arguments, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    return failed;
}

static void run(struct worker_job *job) {
    struct program *program = (struct program *)job;
    pid_t pid = 0;
    int status = 0, failed = start(program->arguments, program->descriptors, &pid);
    uint64_t until_us = clock_monotonic_us() + PROGRAM_MOST_US;
    program->failed = failed ? -1 : 0;
    if (failed) {
        dprintf(program->descriptors[COMPLAINTS], "cannot run %s: %s\n", program->arguments[0], strerror(failed));
        return;
    }
    while (waitpid(pid, &status, WNOHANG) == 0) {
        const struct timespec pause = {.tv_nsec = PROGRAM_LOOK_NS};
        if (clock_monotonic_us() >= until_us || atomic_load(&program->ending)) kill(pid, SIGKILL);
        nanosleep(&pause, NULL);
    }
    program->failed = status;
}

static void tell(void *context) {
    const struct program *program = context;
    notifier_tell(program->wake);
}

/* ---- on the loop's ---------------------------------------------------------------------------------------------------- */

static void close_all(struct program *program) {
    for (int i = 0; i < 3; i++) {
        if (program->descriptors[i] >= 0) close(program->descriptors[i]);
        program->descriptors[i] = -1;
    }
}

static void on_end(void *context, int descriptor) {
    struct program *program = context;
    notifier_take(descriptor);
    if (!program->running || !worker_finished(program->worker)) return;
    program->running = false;
    struct program_end end = {.failed = program->failed, .output = program->descriptors[OUTPUT]};
    ssize_t length = pread(program->descriptors[COMPLAINTS], end.complaints, sizeof end.complaints - 1, 0);
    end.complaints[length > 0 ? length : 0] = '\0';
    program->descriptors[OUTPUT] = -1;
    close_all(program);
    lseek(end.output, 0, SEEK_SET);
    program->ended(program->context, &end);
}

struct program *program_new(struct transport *kernel, void (*ended)(void *context, struct program_end *end),
                            void *context, struct error *error) {
    struct program *program = memory_calloc(1, sizeof *program);
    if (!program) {
        error_set(error, ERROR_GENERIC, "no memory");
        return NULL;
    }
    *program = (struct program){.job = {.run = run}, .ended = ended, .context = context, .descriptors = {-1, -1, -1}};
    program->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (program->wake < 0) error_set(error, ERROR_GENERIC, "no descriptor to run a program: %s", strerror(errno));
    if (program->wake >= 0 && transport_kernel_watch(kernel, program->wake, on_end, program, error) == 0)
        return program;
    program_free(program);
    return NULL;
}

void program_free(struct program *program) {
    if (!program) return;
    atomic_store(&program->ending, true);
    worker_free(program->worker);
    close_all(program);
    if (program->wake >= 0) close(program->wake);
    memory_free(program);
}

int program_start(struct program *program, char **arguments, const void *input, size_t length, struct error *error) {
    static const char *const names[] = {"replay-server-input", "replay-server-output", "replay-server-complaints"};
    if (!program->worker) program->worker = worker_new_urgent(tell, program);
    if (!program->worker) return error_set(error, ERROR_GENERIC, "no memory, or no thread");
    bool opened = true;
    for (int i = 0; i < 3; i++) {
        program->descriptors[i] = memfd_create(names[i], MFD_CLOEXEC);
        opened &= program->descriptors[i] >= 0;
    }
    if (!opened || (length > 0 && pwrite(program->descriptors[INPUT], input, length, 0) != (ssize_t)length)) {
        error_set(error, ERROR_GENERIC, "%s", strerror(errno));
        close_all(program);
        return -1;
    }
    program->arguments = arguments;
    program->running = true;
    worker_give(program->worker, &program->job);
    return 0;
}

bool program_runs(const struct program *program) {
    return program->running;
}
