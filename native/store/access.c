#include "store/access.h"

void access_tell_time(struct access_clock *clock, uint64_t now_us) {
    uint64_t seconds = now_us / 1000000;
    clock->seconds = (uint32_t)seconds & ACCESS_BITS;
    clock->minutes = (uint32_t)(seconds / 60) & 0xffffu;
}

uint32_t access_frequency(const struct access_clock *clock, const struct value *value) {
    uint32_t counter = value->access & 0xffu, since = value->access >> 8;
    if (clock->decay_minutes == 0) return counter;
    uint32_t periods = ((clock->minutes - since) & 0xffffu) / clock->decay_minutes;
    return periods < counter ? counter - periods : 0;
}

/* A counter above its first value c grows by one with the probability 1 / ((c - first) * log_factor + 1). */
void access_count(const struct access_clock *clock, struct value *value, struct random_state *random) {
    uint32_t counter = access_frequency(clock, value);
    if (counter < ACCESS_COUNTER_MAX) {
        uint64_t above = counter > ACCESS_COUNTER_FIRST ? counter - ACCESS_COUNTER_FIRST : 0;
        if (above == 0 || random_below(random, above * clock->log_factor + 1) == 0) counter++;
    }
    value->access = (clock->minutes << 8 | counter) & ACCESS_BITS;
}

uint32_t access_idle_s(const struct access_clock *clock, const struct value *value) {
    return (clock->seconds - value->access) & ACCESS_BITS;
}

void access_set_idle(const struct access_clock *clock, struct value *value, int64_t idle_s) {
    if (!clock->by_frequency)
        value->access = (clock->seconds - (uint32_t)(idle_s < ACCESS_BITS ? idle_s : ACCESS_BITS)) & ACCESS_BITS;
}

void access_set_frequency(const struct access_clock *clock, struct value *value, uint32_t frequency) {
    if (clock->by_frequency) value->access = (clock->minutes << 8 | frequency) & ACCESS_BITS;
}
