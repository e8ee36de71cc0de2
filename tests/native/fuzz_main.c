/* fuzz_main: drives a LLVMFuzzerTestOneInput where libFuzzer is not there: mutates seeds for a bounded time, the same
 * way for the same seed. Takes -max_total_time=SECONDS (5) and -seed=N (1), and files to run once each. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/random.h"

#define LONGEST_INPUT 4096u
#define POOL 256u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* Ends with NULL. A target may do without. */
extern const char *const fuzz_seeds[] __attribute__((weak));
/* The sanitizers'; absent in a build without them. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

struct input {
    uint8_t bytes[LONGEST_INPUT];
    size_t length;
};

static struct input pool[POOL];
static size_t pool_count;
static struct input current;
static unsigned long long executions;

static void keep_failing_input(void) {
    FILE *file = fopen("crash-input", "wb");
    if (file) {
        fwrite(current.bytes, 1, current.length, file);
        fclose(file);
    }
    fprintf(stderr, "input %llu, of %zu bytes, is kept in ./crash-input\n", executions, current.length);
}

static void on_abort(int number) {
    keep_failing_input();
    signal(number, SIG_DFL);
}

static void fill_pool(void) {
    for (size_t i = 0; fuzz_seeds && fuzz_seeds[i] && pool_count < POOL / 2; i++) {
        struct input *input = &pool[pool_count++];
        input->length = strlen(fuzz_seeds[i]);
        memcpy(input->bytes, fuzz_seeds[i], input->length);
    }
    if (pool_count == 0) pool_count = 1; /* the empty input */
}

static void mutate_once(struct input *input, struct random_state *random) {
    static const uint8_t telling[] = {0, '\r', '\n', '*', '$', '-', '0', '1', '9', '"', '\\', 0x7f, 0x80, 0xfe, 0xff};
    size_t at = input->length ? random_below(random, input->length) : 0;
    const struct input *other = &pool[random_below(random, pool_count)];
    size_t piece = 1 + random_below(random, 16);
    switch (random_below(random, 6)) {
    case 0: /* another byte */
        if (input->length) input->bytes[at] = (uint8_t)random_next(random);
        break;
    case 1:
        if (input->length) input->bytes[at] = telling[random_below(random, sizeof telling)];
        break;
    case 2: /* one more */
        if (input->length < LONGEST_INPUT) {
            memmove(input->bytes + at + 1, input->bytes + at, input->length - at);
            input->bytes[at] = telling[random_below(random, sizeof telling)];
            input->length++;
        }
        break;
    case 3: /* some fewer */
        if (piece > input->length - at) piece = input->length - at;
        memmove(input->bytes + at, input->bytes + at + piece, input->length - at - piece);
        input->length -= piece;
        break;
    case 4: /* the end cut off */ input->length = at; break;
    case 5: /* another input behind */
        piece = other->length < LONGEST_INPUT - input->length ? other->length : LONGEST_INPUT - input->length;
        memcpy(input->bytes + input->length, other->bytes, piece);
        input->length += piece;
        break;
    }
}

static int run_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        return 1;
    }
    current.length = fread(current.bytes, 1, LONGEST_INPUT, file);
    fclose(file);
    LLVMFuzzerTestOneInput(current.bytes, current.length);
    printf("%s: ran\n", path);
    return 0;
}

int main(int argc, char **argv) {
    unsigned long long seconds = 5, seed = 1;
    int files = 0;
    for (int i = 1; i < argc; i++) {
        if (sscanf(argv[i], "-max_total_time=%llu", &seconds) == 1 || sscanf(argv[i], "-seed=%llu", &seed) == 1)
            continue;
        if (run_file(argv[i]) != 0) return 1;
        files++;
    }
    if (files > 0) return 0;
    if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(keep_failing_input);
    signal(SIGABRT, on_abort);
    struct random_state random;
    random_seed(&random, seed);
    fill_pool();
    uint64_t until_us = clock_monotonic_us() + seconds * 1000000u;
    while (clock_monotonic_us() < until_us) {
        current = pool[random_below(&random, pool_count)];
        for (uint64_t i = random_below(&random, 8); i > 0; i--) mutate_once(&current, &random);
        executions++;
        LLVMFuzzerTestOneInput(current.bytes, current.length);
        if (random_below(&random, 16) == 0) {
            size_t place = pool_count < POOL ? pool_count++ : POOL / 2 + random_below(&random, POOL / 2);
            pool[place] = current;
        }
    }
    printf("%llu inputs in %llu s, seed %llu\n", executions, seconds, seed);
    return 0;
}
