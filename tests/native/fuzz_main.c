/* fuzz_main: drives a LLVMFuzzerTestOneInput where libFuzzer is not there: mutates inputs for a bounded time, and keeps
 * those that take the program where none before them has been (gcc's -fsanitize-coverage=trace-pc), as libFuzzer and AFL
 * do. Takes -max_total_time=SECONDS (5), -runs=N (no limit), -seed=N (1), -corpus=FILE of inputs to begin with, and
 * -save=FILE for those found to be worth keeping; in both, an input is a line of hexadecimal digits. An input that fails is
 * kept in the file crash-input, which -shorten=FILE makes as short as it can while it still fails. Any other arguments are
 * files to run, once each or -runs=N times. */
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/random.h"

#define LONGEST_INPUT 4096u
#define POOL 16384u
#define EDGES (1u << 16) /* a power of two: an edge of the program's graph is a place in the map, by hash */
#define TOUCHED EDGES

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* These a target may do without: what runs first, what is told at the end, and what inputs are cut at multiples of. */
int LLVMFuzzerInitialize(int *argc, char ***argv) __attribute__((weak));
void fuzz_report(void) __attribute__((weak));
extern const size_t fuzz_unit __attribute__((weak));
void __sanitizer_cov_trace_pc(void);
/* Ends with NULL. A target may do without. */
extern const char *const fuzz_seeds[] __attribute__((weak));
/* The sanitizers'; absent in a build without them. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

struct input {
    uint8_t *bytes;
    size_t length;
};

static struct input pool[POOL];
static size_t pool_count;
static uint8_t current[LONGEST_INPUT];
static size_t current_length;
static unsigned long long executions;
static bool is_running;

/* ---- coverage -------------------------------------------------------------------------------------------------------- */

static uint8_t hits[EDGES]; /* of the input that runs */
static uint8_t known[EDGES]; /* of all inputs: a bit for each order of magnitude of hits */
static uint32_t touched[TOUCHED];
static uint32_t touched_count;
static uintptr_t previous_block;
static size_t known_count;

/* Called at every basic block of what was compiled for it. */
__attribute__((no_sanitize("address", "undefined"), optimize("O2"))) void __sanitizer_cov_trace_pc(void) {
    uintptr_t block = (uintptr_t)__builtin_return_address(0);
    uint32_t edge = (uint32_t)(((block ^ previous_block) * 0x9e3779b97f4a7c15ull) >> 48);
    previous_block = block << 1;
    if (hits[edge] == 0) {
        if (touched_count == TOUCHED) return;
        touched[touched_count++] = edge;
    }
    if (hits[edge] < 255) hits[edge]++;
}

static uint8_t magnitude(uint8_t count) {
    if (count == 0) return 0; /* a thread of the server was between its two steps */
    return (uint8_t)(count < 4     ? 1u << (count - 1)
                     : count < 8   ? 8
                     : count < 16  ? 16
                     : count < 32  ? 32
                     : count < 128 ? 64
                                   : 128);
}

/* Runs the current input; true: it did something that none before it did. */
static bool run_current(void) {
    touched_count = 0;
    previous_block = 0;
    is_running = true;
    LLVMFuzzerTestOneInput(current, current_length);
    is_running = false;
    executions++;
    bool fresh = false;
    for (uint32_t i = 0; i < touched_count; i++) {
        uint32_t edge = touched[i];
        uint8_t bit = magnitude(hits[edge]);
        if (bit & ~known[edge]) {
            fresh = true;
            known_count += known[edge] == 0;
            known[edge] |= bit;
        }
        hits[edge] = 0;
    }
    return fresh;
}

/* ---- inputs ---------------------------------------------------------------------------------------------------------- */

static char crash_path[4096]; /* whole: a target may change its folder */
static unsigned long long seed;

static void write_input(const char *path) {
    FILE *file = fopen(path, "wb");
    if (!file) return;
    fwrite(current, 1, current_length, file);
    fclose(file);
}

static void keep_failing_input(void) {
    write_input(crash_path);
    fprintf(stderr, "input %llu of seed %llu, of %zu bytes, is kept in %s; -shorten=FILE makes it shorter\n",
            executions, seed, current_length, crash_path);
}

/* A check of the target failed. */
static void on_exit_within(void) {
    if (is_running) keep_failing_input();
}

static void on_abort(int number) {
    keep_failing_input();
    signal(number, SIG_DFL);
}

static void keep_current(void) {
    if (pool_count == POOL || current_length == 0) return;
    uint8_t *bytes = malloc(current_length);
    if (!bytes) return;
    memcpy(bytes, current, current_length);
    pool[pool_count++] = (struct input){bytes, current_length};
}

static int digit(int character) {
    if (character >= '0' && character <= '9') return character - '0';
    return character >= 'a' && character <= 'f' ? character - 'a' + 10 : -1;
}

static bool read_corpus(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) {
        perror(path);
        return false;
    }
    int high = -1, character;
    current_length = 0;
    while ((character = getc(file)) != EOF) {
        int value = digit(character);
        if (character == '\n') {
            if (current_length > 0 && run_current()) keep_current();
            current_length = 0;
            high = -1;
        } else if (value >= 0 && high < 0) {
            high = value;
        } else if (value >= 0 && current_length < LONGEST_INPUT) {
            current[current_length++] = (uint8_t)(high << 4 | value);
            high = -1;
        }
    }
    fclose(file);
    return true;
}

/* Writes the inputs that are needed to see all that was seen, the shortest first. */
static int compare_lengths(const void *left, const void *right) {
    const struct input *a = left, *b = right;
    return a->length < b->length ? -1 : a->length > b->length;
}

static void save_corpus(const char *path) {
    FILE *file = fopen(path, "w");
    if (!file) {
        perror(path);
        return;
    }
    qsort(pool, pool_count, sizeof *pool, compare_lengths);
    memset(known, 0, sizeof known);
    size_t saved = 0;
    for (size_t i = 0; i < pool_count; i++) {
        memcpy(current, pool[i].bytes, pool[i].length);
        current_length = pool[i].length;
        if (!run_current()) continue;
        for (size_t j = 0; j < current_length; j++) fprintf(file, "%02x", current[j]);
        fputc('\n', file);
        saved++;
    }
    fclose(file);
    printf("%zu inputs saved\n", saved);
}

static void read_seeds(void) {
    for (size_t i = 0; fuzz_seeds && fuzz_seeds[i]; i++) {
        current_length = strlen(fuzz_seeds[i]);
        memcpy(current, fuzz_seeds[i], current_length);
        run_current();
        keep_current();
    }
    if (pool_count > 0) return;
    current[0] = 0;
    current_length = 1;
    run_current();
    keep_current();
}

static size_t unit(void) {
    return &fuzz_unit ? fuzz_unit : 1;
}

static size_t cut_to_units(size_t length) {
    return length - length % unit();
}

static void insert_byte(size_t at, uint8_t byte) {
    if (current_length == LONGEST_INPUT) return;
    memmove(current + at + 1, current + at, current_length - at);
    current[at] = byte;
    current_length++;
}

/* A piece of another input in the middle of this one. */
static void insert_piece(size_t at, struct random_state *random) {
    const struct input *other = &pool[random_below(random, pool_count)];
    size_t from = cut_to_units(random_below(random, other->length));
    size_t piece = 1 + random_below(random, other->length - from);
    if (piece > LONGEST_INPUT - current_length) piece = LONGEST_INPUT - current_length;
    if (piece > unit()) piece = cut_to_units(piece);
    memmove(current + at + piece, current + at, current_length - at);
    memcpy(current + at, other->bytes + from, piece);
    current_length += piece;
}

static void remove_piece(size_t at, size_t piece) {
    if (piece > current_length - at) piece = current_length - at;
    memmove(current + at, current + at + piece, current_length - at - piece);
    current_length -= piece;
}

static void mutate_once(struct random_state *random) {
    static const uint8_t telling[] = {0, '\r', '\n', '*', '$', '-', '0', '1', '9', '"', '\\', 0x7f, 0x80, 0xfe, 0xff};
    size_t at = current_length ? random_below(random, current_length) : 0, seam = cut_to_units(at);
    switch (random_below(random, 7)) {
    case 0: /* another byte */
        if (current_length) current[at] = (uint8_t)random_next(random);
        break;
    case 1:
        if (current_length) current[at] = telling[random_below(random, sizeof telling)];
        break;
    case 2: /* one more */
        for (size_t i = 0; i < unit(); i++)
            insert_byte(seam, random_below(random, 2) ? telling[random_below(random, sizeof telling)]
                                                      : (uint8_t)random_next(random));
        break;
    case 3: /* some fewer */ remove_piece(seam, unit() * (1 + random_below(random, 16))); break;
    case 4: /* the end cut off */ current_length = seam; break;
    case 5: insert_piece(seam, random); break;
    case 6: /* one step up or down */
        if (current_length) current[at] = (uint8_t)(current[at] + (random_below(random, 2) ? 1 : -1));
        break;
    }
}

/* Where bytes stand for choices rather than for a format, any will do. */
static void make_anew(struct random_state *random) {
    current_length = unit() * (1 + random_below(random, LONGEST_INPUT / unit() / 4));
    for (size_t i = 0; i < current_length; i++) current[i] = (uint8_t)random_next(random);
}

/* ---- a failing input made shorter ------------------------------------------------------------------------------------- */

static bool still_fails(void) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(1);
        alarm(60);
        LLVMFuzzerTestOneInput(current, current_length);
        _exit(0);
    }
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && status != 0;
}

/* Leaves out what it fails without, in ever smaller pieces. */
static int shorten(const char *path) {
    static uint8_t whole[LONGEST_INPUT];
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        return 1;
    }
    current_length = fread(current, 1, LONGEST_INPUT, file);
    fclose(file);
    if (!still_fails()) {
        printf("%s: does not fail\n", path);
        return 1;
    }
    for (size_t piece = cut_to_units(current_length / 2); piece >= unit(); piece = cut_to_units(piece / 2)) {
        for (size_t at = 0; at < current_length;) {
            size_t length = current_length;
            memcpy(whole, current, length);
            remove_piece(at, piece);
            if (still_fails()) continue;
            memcpy(current, whole, length);
            current_length = length;
            at += piece;
        }
    }
    char shorter[sizeof crash_path];
    if (snprintf(shorter, sizeof shorter, "%s.short", path) < (int)sizeof shorter) write_input(shorter);
    printf("%s: %zu bytes, which fail too\n", shorter, current_length);
    return 0;
}

static int run_file(const char *path, unsigned long long times) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        return 1;
    }
    current_length = fread(current, 1, LONGEST_INPUT, file);
    fclose(file);
    for (unsigned long long i = 0; i < times; i++) run_current();
    printf("%s: ran %llu times\n", path, times);
    return 0;
}

/* ---- the search ------------------------------------------------------------------------------------------------------ */

struct search {
    unsigned long long seconds, runs;
    const char *corpus, *save;
};

static void search(const struct search *how) {
    struct random_state random;
    random_seed(&random, seed);
    uint64_t until_us = clock_monotonic_us() + how->seconds * 1000000u;
    while (executions < how->runs && clock_monotonic_us() < until_us) {
        /* What came last is mutated as often as all the rest: it leads where nobody has been. */
        size_t newest = pool_count > 64 && random_below(&random, 2) ? pool_count - 64 : 0;
        const struct input *from = &pool[newest + random_below(&random, pool_count - newest)];
        memcpy(current, from->bytes, from->length);
        current_length = from->length;
        for (uint64_t i = 1 + random_below(&random, 6); i > 0; i--) mutate_once(&random);
        if (unit() > 1 && random_below(&random, 3) == 0) make_anew(&random);
        if (run_current()) keep_current();
    }
    printf("%llu inputs, seed %llu; %zu kept, for %zu edges\n", executions, seed, pool_count, known_count);
}

/* 0: nothing failed. */
static int run(const struct search *how) {
    read_seeds();
    if (how->corpus && !read_corpus(how->corpus)) return 1;
    search(how);
    if (how->save) save_corpus(how->save);
    for (size_t i = 0; i < pool_count; i++) free(pool[i].bytes);
    return 0;
}

int main(int argc, char **argv) {
    struct search how = {.seconds = 5, .runs = UINT64_MAX};
    const char *failing = NULL;
    int files = 0;
    seed = 1;
    if (!getcwd(crash_path, sizeof crash_path - 16)) return 1;
    strcat(crash_path, "/crash-input");
    if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(keep_failing_input);
    signal(SIGABRT, on_abort);
    atexit(on_exit_within);
    if (LLVMFuzzerInitialize && LLVMFuzzerInitialize(&argc, &argv) != 0) return 1;
    memset(hits, 0, sizeof hits);
    for (int i = 1; i < argc; i++) {
        if (sscanf(argv[i], "-max_total_time=%llu", &how.seconds) == 1 || sscanf(argv[i], "-seed=%llu", &seed) == 1 ||
            sscanf(argv[i], "-runs=%llu", &how.runs) == 1)
            continue;
        if (strncmp(argv[i], "-corpus=", 8) == 0)
            how.corpus = argv[i] + 8;
        else if (strncmp(argv[i], "-save=", 6) == 0)
            how.save = argv[i] + 6;
        else if (strncmp(argv[i], "-shorten=", 9) == 0)
            failing = argv[i] + 9;
    }
    if (failing) return shorten(failing);
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-') continue;
        if (run_file(argv[i], how.runs == UINT64_MAX ? 1 : how.runs) != 0) return 1;
        files++;
    }
    int code = files > 0 ? 0 : run(&how);
    if (fuzz_report) fuzz_report();
    return code;
}
