/* test_round_robin: members with messages of any length, served one after another: nobody is behind by more than two quanta
 * a member, whatever the lengths, and whoever has nothing to send saves nothing up. */
#include <stdbool.h>
#include <stdint.h>

#include "base/random.h"
#include "check.h"
#include "net/round_robin.h"

#define QUANTUM 1000u
#define MEMBERS 16u

static struct round_robin line;
static struct round_robin_member members[MEMBERS];
static uint64_t sent[MEMBERS];

static void open_line(void) {
    line = (struct round_robin){.quantum_bytes = QUANTUM};
    for (uint32_t i = 0; i < MEMBERS; i++) {
        members[i] = (struct round_robin_member){0};
        sent[i] = 0;
    }
}

static uint32_t index_of(const struct round_robin_member *member) {
    return (uint32_t)(member - members);
}

/* Sends messages of up to `longest` bytes until the credit does not pay for one; it has more to send then. */
static uint32_t serve_one(struct random_state *random, const uint32_t *longest) {
    struct round_robin_member *member = round_robin_serve(&line);
    CHECK(member && !member->waits);
    uint32_t i = index_of(member);
    for (uint32_t bytes; (bytes = 1 + (uint32_t)random_below(random, longest[i])) <= member->credit_bytes;) {
        round_robin_spend(&line, member, bytes);
        sent[i] += bytes;
    }
    round_robin_wait(&line, member);
    round_robin_end_service(member);
    return i;
}

static void shares_are_equal_whatever_the_lengths_of_messages(void) {
    struct random_state random;
    random_seed(&random, 1);
    uint32_t longest[MEMBERS];
    for (uint32_t many = 2; many <= MEMBERS; many *= 2) {
        open_line();
        for (uint32_t i = 0; i < many; i++) {
            longest[i] = i % 4 == 0 ? 3 : i % 4 == 1 ? QUANTUM : 1 + (uint32_t)random_below(&random, QUANTUM);
            round_robin_wait(&line, &members[i]);
        }
        for (uint32_t service = 0; service < 2000 * many; service++) serve_one(&random, longest);
        uint64_t least = UINT64_MAX, most = 0;
        for (uint32_t i = 0; i < many; i++) {
            least = sent[i] < least ? sent[i] : least;
            most = sent[i] > most ? sent[i] : most;
        }
        CHECK(most - least < 2 * QUANTUM);
        CHECK(line.waiting_most == many);
        CHECK(line.gap_most_bytes > 0 && line.gap_most_bytes < (uint64_t)(many - 1) * 2 * QUANTUM);
    }
}

static void a_newcomer_is_served_after_one_service_of_each_of_the_others(void) {
    struct random_state random;
    random_seed(&random, 2);
    uint32_t longest[MEMBERS];
    open_line();
    for (uint32_t i = 0; i < MEMBERS; i++) longest[i] = QUANTUM;
    for (uint32_t i = 0; i + 1 < MEMBERS; i++) round_robin_wait(&line, &members[i]);
    for (uint32_t service = 0; service < 1003; service++) serve_one(&random, longest);
    round_robin_wait(&line, &members[MEMBERS - 1]);
    uint64_t before = line.sent_bytes;
    for (uint32_t services = 0; serve_one(&random, longest) != MEMBERS - 1; services++) CHECK(services < MEMBERS - 1);
    CHECK(line.sent_bytes - before - sent[MEMBERS - 1] < (uint64_t)(MEMBERS - 1) * 2 * QUANTUM);
}

static void whoever_has_nothing_to_send_saves_nothing_up(void) {
    open_line();
    for (int i = 0; i < 10; i++) {
        round_robin_wait(&line, &members[0]);
        CHECK(round_robin_serve(&line) == &members[0] && members[0].credit_bytes == QUANTUM);
        round_robin_end_service(&members[0]);
        CHECK(members[0].credit_bytes == 0);
    }
    CHECK(!round_robin_serve(&line));
}

static void a_service_that_found_no_room_adds_nothing_to_the_next(void) {
    open_line();
    round_robin_wait(&line, &members[0]);
    for (int i = 0; i < 10; i++) {
        CHECK(round_robin_serve(&line) == &members[0]);
        round_robin_wait(&line, &members[0]);
        round_robin_end_service(&members[0]);
        CHECK(members[0].credit_bytes < 2 * QUANTUM);
    }
}

static void who_leaves_is_not_served(void) {
    open_line();
    for (uint32_t i = 0; i < 3; i++) round_robin_wait(&line, &members[i]);
    round_robin_wait(&line, &members[1]); /* it stands there already */
    CHECK(line.waiting == 3);
    round_robin_leave(&line, &members[1]);
    round_robin_leave(&line, &members[1]);
    CHECK(line.waiting == 2);
    CHECK(round_robin_serve(&line) == &members[0]);
    CHECK(round_robin_serve(&line) == &members[2]);
    CHECK(!round_robin_serve(&line) && line.waiting == 0);
}

int main(void) {
    RUN(shares_are_equal_whatever_the_lengths_of_messages);
    RUN(a_newcomer_is_served_after_one_service_of_each_of_the_others);
    RUN(whoever_has_nothing_to_send_saves_nothing_up);
    RUN(a_service_that_found_no_room_adds_nothing_to_the_next);
    RUN(who_leaves_is_not_served);
    return 0;
}
