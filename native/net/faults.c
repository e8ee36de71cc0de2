#include "net/faults.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"

struct held_frame {
    void *frame;
    uint32_t to_overtake; /* frames that still go first */
    uint64_t deadline_us;
};

struct fault_path {
    struct random_state random; /* of its own, so that directions do not depend on each other */
    struct random_state cuts;
    struct fault_counters counters;
    struct held_frame held[FAULTS_HELD_MAX]; /* oldest first */
    uint32_t held_count;
};

struct faults {
    struct fault_settings settings;
    struct fault_callbacks callbacks;
    struct fault_path paths[FAULTS_DIRECTIONS];
};

#define KEYS "loss, duplicate, reorder, cut, seed, hold-frames, hold-us"

static int parse_probability(const char *key, const char *text, double *value, struct error *error) {
    char *end;
    double number = strtod(text, &end);
    if (end == text || *end || !(number >= 0 && number <= 1)) {
        return error_set(error, ERROR_GENERIC, "dpdk-faults: expected a probability from 0 to 1 for %s, got '%s'", key,
                         text);
    }
    *value = number;
    return 0;
}

static int parse_number(const char *key, const char *text, uint64_t least, uint64_t most, uint64_t *value,
                        struct error *error) {
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    bool is_number = text[0] >= '0' && text[0] <= '9' && !*end && errno == 0;
    if (!is_number || number < least || number > most) {
        return error_set(error, ERROR_GENERIC,
                         "dpdk-faults: expected a whole number from %llu to %llu for %s, got '%s'",
                         (unsigned long long)least, (unsigned long long)most, key, text);
    }
    *value = number;
    return 0;
}

static int parse_pair(const char *key, const char *value, struct fault_settings *settings, struct error *error) {
    uint64_t number = 0;
    if (strcmp(key, "loss") == 0) return parse_probability(key, value, &settings->loss, error);
    if (strcmp(key, "duplicate") == 0) return parse_probability(key, value, &settings->duplicate, error);
    if (strcmp(key, "reorder") == 0) return parse_probability(key, value, &settings->reorder, error);
    if (strcmp(key, "cut") == 0) return parse_probability(key, value, &settings->cut, error);
    if (strcmp(key, "seed") == 0) return parse_number(key, value, 0, UINT64_MAX, &settings->seed, error);
    if (strcmp(key, "hold-frames") == 0) {
        int status = parse_number(key, value, 1, 1000, &number, error);
        settings->hold_frames = (uint32_t)number;
        return status;
    }
    if (strcmp(key, "hold-us") == 0) {
        int status = parse_number(key, value, 1, 1000000, &number, error);
        settings->hold_us = (uint32_t)number;
        return status;
    }
    return error_set(error, ERROR_GENERIC, "dpdk-faults: expected one of " KEYS ", got '%s'", key);
}

int faults_parse(const char *text, struct fault_settings *settings, struct error *error) {
    *settings = (struct fault_settings){.seed = 1, .hold_frames = 8, .hold_us = 2000};
    char buffer[256];
    if (strlen(text) >= sizeof buffer) {
        return error_set(error, ERROR_GENERIC, "dpdk-faults: expected at most %zu characters, got %zu",
                         sizeof buffer - 1, strlen(text));
    }
    memcpy(buffer, text, strlen(text) + 1);
    char *rest = buffer;
    while (rest) {
        char *pair = strsep(&rest, ",");
        char *equals = strchr(pair, '=');
        if (!equals) {
            return error_set(error, ERROR_GENERIC,
                             "dpdk-faults: expected pairs as in 'loss=0.01,duplicate=0.01,reorder=0.01,seed=1' "
                             "(keys " KEYS "), got '%s'",
                             pair);
        }
        *equals = '\0';
        if (parse_pair(pair, equals + 1, settings, error) != 0) return -1;
    }
    return 0;
}

struct faults *faults_new(const struct fault_settings *settings, const struct fault_callbacks *callbacks) {
    struct faults *faults = memory_calloc(1, sizeof *faults);
    if (!faults) return NULL;
    faults->settings = *settings;
    faults->callbacks = *callbacks;
    for (int direction = 0; direction < FAULTS_DIRECTIONS; direction++) {
        uint64_t seed = settings->seed * FAULTS_DIRECTIONS + (uint64_t)direction;
        random_seed(&faults->paths[direction].random, seed);
        random_seed(&faults->paths[direction].cuts, ~seed);
    }
    return faults;
}

/* Takes one held frame out and passes it on. */
static void release(struct faults *faults, enum fault_direction direction, uint32_t place) {
    struct fault_path *path = &faults->paths[direction];
    void *frame = path->held[place].frame;
    path->held_count--;
    memmove(&path->held[place], &path->held[place + 1], (path->held_count - place) * sizeof path->held[0]);
    faults->callbacks.pass(faults->callbacks.context, direction, frame);
}

static void pass(struct faults *faults, enum fault_direction direction, void *frame) {
    struct fault_path *path = &faults->paths[direction];
    faults->callbacks.pass(faults->callbacks.context, direction, frame);
    for (uint32_t place = 0; place < path->held_count;)
        if (--path->held[place].to_overtake == 0)
            release(faults, direction, place);
        else
            place++;
}

void faults_frame(struct faults *faults, enum fault_direction direction, void *frame, uint64_t now_us) {
    const struct fault_settings *settings = &faults->settings;
    struct fault_path *path = &faults->paths[direction];
    /* All are drawn for each frame, so that one probability does not change which frames the others hit. */
    bool lost = random_unit(&path->random) < settings->loss;
    bool duplicated = random_unit(&path->random) < settings->duplicate;
    bool reordered = random_unit(&path->random) < settings->reorder;
    uint32_t to_overtake = 1 + (uint32_t)random_below(&path->random, settings->hold_frames);
    path->counters.frames++;
    if (lost) {
        path->counters.lost++;
        faults->callbacks.drop(faults->callbacks.context, direction, frame);
        return;
    }
    if (random_unit(&path->cuts) < settings->cut) {
        path->counters.cut++;
        faults->callbacks.cut(faults->callbacks.context, direction, frame, random_unit(&path->cuts));
    }
    void *copy = duplicated ? faults->callbacks.copy(faults->callbacks.context, direction, frame) : NULL;
    if (copy) {
        path->counters.duplicated++;
        pass(faults, direction, copy);
    }
    if (reordered && path->held_count < FAULTS_HELD_MAX) {
        path->counters.reordered++;
        path->held[path->held_count++] =
            (struct held_frame){.frame = frame, .to_overtake = to_overtake, .deadline_us = now_us + settings->hold_us};
        return;
    }
    pass(faults, direction, frame);
}

uint64_t faults_poll(struct faults *faults, uint64_t now_us) {
    uint64_t next_us = UINT64_MAX;
    for (int direction = 0; direction < FAULTS_DIRECTIONS; direction++) {
        struct fault_path *path = &faults->paths[direction];
        /* All wait equally long, so the oldest is due first. */
        while (path->held_count > 0 && path->held[0].deadline_us <= now_us)
            release(faults, (enum fault_direction)direction, 0);
        if (path->held_count > 0 && path->held[0].deadline_us < next_us) next_us = path->held[0].deadline_us;
    }
    return next_us;
}

struct fault_counters faults_counters(const struct faults *faults, enum fault_direction direction) {
    return faults->paths[direction].counters;
}

void faults_free(struct faults *faults) {
    if (!faults) return;
    for (int direction = 0; direction < FAULTS_DIRECTIONS; direction++) {
        struct fault_path *path = &faults->paths[direction];
        for (uint32_t place = 0; place < path->held_count; place++)
            faults->callbacks.drop(faults->callbacks.context, (enum fault_direction)direction, path->held[place].frame);
    }
    memory_free(faults);
}
