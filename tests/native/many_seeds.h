/* many_seeds: runs one seed after the other, several at a time, each in a process and a folder of its own; goes on where an
 * interrupted run was. */
#ifndef REPLAY_TESTS_MANY_SEEDS_H
#define REPLAY_TESTS_MANY_SEEDS_H

#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "own_folder.h"
#include "server_content.h"
#include "simulated_machine.h"

#define MOST_JOBS 64u
#define NOTE_SEEDS 500u /* between two notes of how far it has come */
#define MOST_FAILED 10u /* then it is known that something is wrong */

static uint64_t seed;
static volatile sig_atomic_t is_stopped;

static struct {
    void (*run)(void); /* the seed, from the beginning to the end */
    uint64_t next, end, failed, first_failed;
    struct {
        pid_t child; /* 0: none */
        uint64_t seed;
    } jobs[MOST_JOBS];
    uint32_t job_count, running;
    const char *progress; /* file; NULL: none */
} all;

/* In a process and a folder of its own, so that it goes the same way whatever runs beside it or ran before it. */
static inline pid_t begin_seed(uint32_t job) {
    char folder[32];
    sprintf(folder, "%u", job);
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) return child;
    signal(SIGINT, SIG_IGN); /* the parent waits for it */
    CHECK((mkdir(folder, 0700) == 0 || errno == EEXIST) && chdir(folder) == 0);
    CHECK(mkdir(DISK_FOLDER, 0700) == 0 || errno == EEXIST);
    remove_simulated_files();
    all.run();
    _exit(0);
}

static inline void stop(int number) {
    (void)number;
    is_stopped = 1;
}

/* All before it have ended. */
static inline uint64_t first_running(void) {
    uint64_t first = all.next;
    for (uint32_t i = 0; i < all.job_count; i++)
        if (all.jobs[i].child && all.jobs[i].seed < first) first = all.jobs[i].seed;
    return first;
}

static inline void note_progress(void) {
    if (!all.progress) return;
    FILE *file = fopen(all.progress, "w");
    CHECK(file);
    fprintf(file, "%llu %llu %llu\n", (unsigned long long)first_running(), (unsigned long long)all.failed,
            (unsigned long long)all.first_failed);
    CHECK(fclose(file) == 0);
}

static inline void read_progress(void) {
    unsigned long long next, failed, first_failed;
    FILE *file = all.progress ? fopen(all.progress, "r") : NULL;
    if (!file) return;
    if (fscanf(file, "%llu %llu %llu", &next, &failed, &first_failed) == 3 && next > all.next) {
        all.next = next;
        all.failed = failed;
        all.first_failed = first_failed;
        printf("goes on with seed %llu\n", next);
    }
    fclose(file);
}

static inline void begin_seeds(void) {
    for (uint32_t i = 0; i < all.job_count && all.next < all.end && all.failed < MOST_FAILED && !is_stopped; i++) {
        if (all.jobs[i].child) continue;
        seed = all.jobs[i].seed = all.next++;
        all.jobs[i].child = begin_seed(i);
        all.running++;
    }
}

static inline void take_end(void) {
    int status;
    pid_t child = wait(&status);
    if (child < 0 && errno == EINTR) return;
    uint32_t i = 0;
    while (i < all.job_count && all.jobs[i].child != child) i++;
    CHECK(child > 0 && i < all.job_count);
    uint64_t ended = all.jobs[i].seed;
    all.jobs[i].child = 0;
    all.running--;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "seed %llu does not hold\n", (unsigned long long)ended);
        if (all.failed++ == 0 || ended < all.first_failed) all.first_failed = ended;
    }
    if (ended % NOTE_SEEDS == 0) note_progress();
}

/* Until all have ended, or those that had begun when the run was interrupted. */
static inline void run_seeds(void) {
    struct sigaction action = {.sa_handler = stop};
    CHECK(sigaction(SIGINT, &action, NULL) == 0 && sigaction(SIGTERM, &action, NULL) == 0);
    note_progress();
    for (begin_seeds(); all.running > 0; begin_seeds()) take_end();
    if (is_stopped)
        note_progress();
    else if (all.progress)
        unlink(all.progress);
}

static inline void say_failed_seeds(void) {
    if (all.failed > 0)
        fprintf(stderr, "%llu seeds before seed %llu do not hold, the first is %llu\n", (unsigned long long)all.failed,
                (unsigned long long)all.next, (unsigned long long)all.first_failed);
    if (is_stopped) fprintf(stderr, "stopped before seed %llu\n", (unsigned long long)all.next);
}

/* Of all seeds, for the processes that they run in. */
static inline void *share_with_seeds(size_t bytes) {
    void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    return shared;
}

static inline const char *value_of(const char *argument, const char *name) {
    size_t length = strlen(name);
    return strncmp(argument, name, length) == 0 ? argument + length : NULL;
}

static inline void read_arguments(int argc, char **argv) {
    uint64_t seeds = 150;
    all.next = all.job_count = 1;
    for (int i = 1; i < argc; i++) {
        const char *value;
        if ((value = value_of(argv[i], "-first="))) all.next = strtoull(value, NULL, 10);
        if ((value = value_of(argv[i], "-seeds="))) seeds = strtoull(value, NULL, 10);
        if ((value = value_of(argv[i], "-jobs="))) all.job_count = (uint32_t)strtoul(value, NULL, 10);
        if ((value = value_of(argv[i], "-progress="))) all.progress = value;
        if (strcmp(argv[i], "-trace") == 0) tracing = true;
    }
    CHECK(all.job_count >= 1 && all.job_count <= MOST_JOBS && (!all.progress || all.progress[0] == '/'));
    all.end = all.next + seeds;
}

/* Which of them are to be run. */
static inline void prepare_seeds(int argc, char **argv, void (*run)(void)) {
    all.run = run;
    read_arguments(argc, argv);
    read_progress();
    /* A life takes over the memory of the one before it, which the kernel need not clear again. */
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    enter_own_folder();
}

#endif
