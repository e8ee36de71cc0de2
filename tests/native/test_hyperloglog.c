/* test_hyperloglog: both forms against plain registers, and damaged sketches. */
#include <string.h>

#include "base/random.h"
#include "check.h"
#include "store/hyperloglog.h"

static struct hyperloglog sketch;
static uint8_t model[HYPERLOGLOG_REGISTERS], registers[HYPERLOGLOG_REGISTERS];

static void check_registers(void) {
    memset(registers, 0, sizeof registers);
    CHECK(hyperloglog_is_valid(sketch.bytes, sketch.length));
    CHECK(hyperloglog_join(sketch.bytes, sketch.length, registers));
    CHECK(memcmp(registers, model, sizeof model) == 0);
}

/* Raises registers by chance, among the first `spread`, until the sketch has been dense for a while. */
static void raise_by_chance(struct random_state *random, uint32_t spread, size_t sparse_bytes) {
    memset(model, 0, sizeof model);
    hyperloglog_clear(&sketch);
    for (int i = 0; i < 3000; i++) {
        uint32_t index = (uint32_t)random_below(random, spread);
        uint8_t value = (uint8_t)(1 + random_below(random, i % 50 == 0 ? 51 : 8));
        bool raises = model[index] < value;
        if (raises) model[index] = value;
        CHECK(hyperloglog_raise(&sketch, index, value, sparse_bytes) ==
              (raises ? HYPERLOGLOG_CHANGED : HYPERLOGLOG_SAME));
        if (i % 37 == 0) check_registers();
    }
    check_registers();
}

static void both_forms_hold_what_was_raised(void) {
    struct random_state random;
    random_seed(&random, 1);
    raise_by_chance(&random, HYPERLOGLOG_REGISTERS, 3000);
    CHECK(hyperloglog_form(sketch.bytes) == HYPERLOGLOG_DENSE);
    raise_by_chance(&random, HYPERLOGLOG_REGISTERS, HYPERLOGLOG_MOST_BYTES);
    raise_by_chance(&random, 300, 3000);
    raise_by_chance(&random, 7, 20);
}

/* Registers raised in order, which is quicker, give the same bytes as one by one. */
static void raising_all_gives_the_same_bytes(void) {
    static struct hyperloglog one_by_one;
    struct random_state random;
    random_seed(&random, 2);
    for (int round = 0; round < 40; round++) {
        memset(model, 0, sizeof model);
        hyperloglog_clear(&sketch);
        for (int i = 0; i < 300; i++)
            hyperloglog_raise(&sketch, (uint32_t)random_below(&random, 900), (uint8_t)(1 + random_below(&random, 3)),
                              3000);
        one_by_one = sketch;
        for (int i = 0; i < 1500; i++) model[random_below(&random, 2500)] = (uint8_t)(1 + random_below(&random, 5));
        CHECK(hyperloglog_raise_all(&sketch, model, 3000) == HYPERLOGLOG_CHANGED);
        for (uint32_t i = 0; i < HYPERLOGLOG_REGISTERS; i++)
            if (model[i] > 0) hyperloglog_raise(&one_by_one, i, model[i], 3000);
        CHECK(one_by_one.length == sketch.length && memcmp(one_by_one.bytes, sketch.bytes, sketch.length) == 0);
    }
}

static void an_estimate_is_near(void) {
    memset(model, 0, sizeof model);
    for (uint32_t i = 0; i < 200000; i++) {
        uint8_t value;
        uint32_t index = hyperloglog_register_of((const uint8_t *)&i, sizeof i, &value);
        if (model[index] < value) model[index] = value;
        if (i + 1 != 100 && i + 1 != 10000 && i + 1 != 200000) continue;
        double estimate = (double)hyperloglog_estimate(model);
        CHECK(estimate > 0.96 * (i + 1) && estimate < 1.04 * (i + 1)); /* five standard errors of 0.81 % */
    }
    hyperloglog_clear(&sketch);
    uint64_t kept;
    CHECK(hyperloglog_kept_estimate(sketch.bytes, &kept) && kept == 0);
    hyperloglog_keep_estimate(sketch.bytes, 0x123456789abcu);
    CHECK(hyperloglog_kept_estimate(sketch.bytes, &kept) && kept == 0x123456789abcu);
    hyperloglog_forget_estimate(sketch.bytes);
    CHECK(!hyperloglog_kept_estimate(sketch.bytes, &kept));
}

/* Bytes by chance behind a header: each answer is allowed, none reads or writes beyond. */
static void damaged_sketches_do_no_harm(void) {
    struct random_state random;
    random_seed(&random, 3);
    for (int round = 0; round < 3000; round++) {
        static uint8_t bytes[HYPERLOGLOG_MOST_BYTES + 100];
        size_t length = HYPERLOGLOG_HEADER_BYTES + random_below(&random, round % 10 == 0 ? sizeof bytes - 16 : 400);
        hyperloglog_clear(&sketch);
        memcpy(bytes, sketch.bytes, HYPERLOGLOG_HEADER_BYTES);
        for (size_t i = HYPERLOGLOG_HEADER_BYTES; i < length; i++) bytes[i] = (uint8_t)random_next(&random);
        memset(registers, 0, sizeof registers);
        bool adds_up = hyperloglog_join(bytes, length, registers);
        CHECK(hyperloglog_take(&sketch, bytes, length) == (length <= HYPERLOGLOG_MOST_BYTES));
        if (length > HYPERLOGLOG_MOST_BYTES) continue;
        for (int i = 0; i < 5; i++)
            hyperloglog_raise(&sketch, (uint32_t)random_below(&random, HYPERLOGLOG_REGISTERS), 40 - 10 * i, 3000);
        memset(model, 3, sizeof model);
        if (hyperloglog_raise_all(&sketch, model, 3000) != HYPERLOGLOG_CORRUPT) continue;
        CHECK(!adds_up);
    }
}

int main(void) {
    RUN(both_forms_hold_what_was_raised);
    RUN(raising_all_gives_the_same_bytes);
    RUN(an_estimate_is_near);
    RUN(damaged_sketches_do_no_harm);
    return 0;
}
