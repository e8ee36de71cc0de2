#include "base/clock.h"

#include <time.h>

uint64_t clock_monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t clock_monotonic_us(void) {
    return clock_monotonic_ns() / 1000;
}

int64_t clock_unix_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int64_t clock_unix_ms(void) {
    return clock_unix_us() / 1000;
}
