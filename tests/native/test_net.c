/* test_net: checksums of pieces against the plain definition; faults injected into a stream of frames. */
#include <arpa/inet.h>
#include <stdbool.h>
#include <string.h>

#include "base/random.h"
#include "check.h"
#include "net/checksum.h"
#include "net/faults.h"

/* ---- checksum ---------------------------------------------------------------------------------------------------- */

/* RFC 1071, word by word, in network order. */
static uint16_t reference(const uint8_t *data, size_t length) {
    uint32_t sum = 0;
    for (size_t at = 0; at < length; at++) {
        sum += at % 2 == 0 ? (uint32_t)data[at] << 8 : data[at];
        sum = (sum & 0xffff) + (sum >> 16);
    }
    return htons((uint16_t)sum);
}

#define AREA_BYTES 20000u

static uint8_t area[AREA_BYTES + 64];
static uint8_t copied[AREA_BYTES + 64];

static void fill(struct random_state *random, int kind) {
    for (size_t at = 0; at < sizeof area; at++)
        area[at] = kind == 0 ? 0 : kind == 1 ? 0xff : (uint8_t)random_next(random);
}

static void a_sum_is_that_of_the_definition(void) {
    struct random_state random;
    random_seed(&random, 1);
    for (int kind = 0; kind < 3; kind++) {
        fill(&random, kind);
        for (size_t offset = 0; offset < 64; offset += 1 + offset / 9) {
            for (size_t length = 0; length < 2100; length += 1 + length / 300) {
                uint16_t wanted = reference(area + offset, length);
                CHECK(checksum_sum(area + offset, length) == wanted);
                CHECK(checksum_sum_portable(area + offset, length) == wanted);
            }
        }
        CHECK(checksum_sum(area + 3, AREA_BYTES) == reference(area + 3, AREA_BYTES));
    }
}

static void a_copy_is_exact_and_gives_the_same_sum(void) {
    struct random_state random;
    random_seed(&random, 2);
    fill(&random, 2);
    for (int round = 0; round < 4000; round++) {
        size_t from = random_below(&random, 64), to = random_below(&random, 64);
        size_t length = random_below(&random, round % 2 ? 300 : 9100);
        uint16_t (*copy)(void *restrict, const void *restrict, size_t) =
            round % 3 ? checksum_copy : checksum_copy_portable;
        memset(copied, 0xa5, sizeof copied);
        CHECK(copy(copied + to, area + from, length) == reference(area + from, length));
        CHECK(memcmp(copied + to, area + from, length) == 0);
        for (size_t at = 0; at < 64; at++) CHECK((at >= to || copied[at] == 0xa5) && copied[to + length + at] == 0xa5);
    }
}

static void pieces_of_any_length_join(void) {
    struct random_state random;
    random_seed(&random, 3);
    for (int round = 0; round < 2000; round++) {
        fill(&random, round < 2 ? round : 2);
        struct checksum checksum = {0};
        size_t total = 0;
        int pieces = 1 + (int)random_below(&random, 12);
        for (int piece = 0; piece < pieces; piece++) {
            size_t length = random_below(&random, round % 2 ? 20 : 1600);
            if (piece % 2)
                checksum_add(&checksum, area + total, length);
            else
                checksum_add_copy(&checksum, copied, area + total, length);
            total += length;
        }
        CHECK(checksum_total(&checksum) == reference(area, total));
    }
}

static void a_segment_with_its_checksum_and_pseudo_header_sums_to_all_ones(void) {
    static const uint8_t segment[20] = {0xd8, 0x3c, 0x18, 0xeb, 0x5f, 0x2a, 0x11, 0x01, 0, 0,
                                        0,    0,    0x50, 0x02, 0xfa, 0xf0, 0,    0,    0, 0};
    uint32_t source = inet_addr("10.0.0.1"), destination = inet_addr("10.0.0.2");
    uint8_t whole[12 + 20];
    memcpy(whole, &source, 4);
    memcpy(whole + 4, &destination, 4);
    memcpy(whole + 8, (const uint8_t[4]){0, 6, 0, 20}, 4);
    memcpy(whole + 12, segment, 20);
    CHECK(checksum_pseudo_ipv4(source, destination, 6, 20) == reference(whole, 12));
    struct checksum sent = {0};
    checksum_add_sum(&sent, checksum_pseudo_ipv4(source, destination, 6, 20), 12);
    checksum_add(&sent, segment, 20);
    uint16_t field = checksum_finish(checksum_total(&sent));
    CHECK(field == checksum_finish(reference(whole, sizeof whole)));
    uint8_t received[20];
    memcpy(received, segment, 20);
    memcpy(received + 16, &field, 2);
    struct checksum verified = {0};
    checksum_add_sum(&verified, checksum_pseudo_ipv4(source, destination, 6, 20), 12);
    checksum_add(&verified, received, 20);
    CHECK(checksum_total(&verified) == 0xffff);
    received[3] ^= 4;
    verified = (struct checksum){0};
    checksum_add_sum(&verified, checksum_pseudo_ipv4(source, destination, 6, 20), 12);
    checksum_add(&verified, received, 20);
    CHECK(checksum_total(&verified) != 0xffff);
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

#define FRAMES 20000

struct frame {
    int number;
    int live; /* how often it is held by somebody */
};

struct record {
    int passed[2 * FRAMES + 8];
    int count;
    int dropped, cut;
    bool no_memory;
};

static struct frame frames[FRAMES];

static void on_pass(void *context, enum fault_direction direction, void *frame) {
    struct record *record = (struct record *)context + direction;
    record->passed[record->count++] = ((struct frame *)frame)->number;
    ((struct frame *)frame)->live--;
}

static void on_drop(void *context, enum fault_direction direction, void *frame) {
    ((struct record *)context + direction)->dropped++;
    ((struct frame *)frame)->live--;
}

static void *on_copy(void *context, enum fault_direction direction, void *frame) {
    if (((struct record *)context + direction)->no_memory) return NULL;
    ((struct frame *)frame)->live++;
    return frame;
}

static void on_cut(void *context, enum fault_direction direction, void *frame, double share) {
    CHECK(share >= 0 && share < 1 && ((struct frame *)frame)->live > 0);
    ((struct record *)context + direction)->cut++;
}

static struct faults *injector(const char *text, struct record *records) {
    struct fault_settings settings;
    struct error error;
    CHECK(faults_parse(text, &settings, &error) == 0);
    memset(records, 0, FAULTS_DIRECTIONS * sizeof *records);
    struct fault_callbacks callbacks = {records, on_pass, on_drop, on_copy, on_cut};
    struct faults *faults = faults_new(&settings, &callbacks);
    CHECK(faults);
    for (int number = 0; number < FRAMES; number++) frames[number] = (struct frame){.number = number};
    return faults;
}

/* A frame every 10 us; the other direction sees every nth as well. */
static void send_all(struct faults *faults, int every) {
    for (int number = 0; number < FRAMES; number++) {
        uint64_t now_us = (uint64_t)number * 10;
        faults_poll(faults, now_us);
        frames[number].live++;
        faults_frame(faults, FAULTS_RECEIVE, &frames[number], now_us);
        if (every && number % every == 0) {
            frames[number].live++;
            faults_frame(faults, FAULTS_TRANSMIT, &frames[number], now_us);
        }
    }
    CHECK(faults_poll(faults, UINT64_MAX - 1) == UINT64_MAX);
}

static struct record records[FAULTS_DIRECTIONS], again[FAULTS_DIRECTIONS];

static void faults_hit_as_often_as_they_were_asked_for(void) {
    struct faults *faults = injector("loss=0.01,duplicate=0.02,reorder=0.03,cut=0.04,seed=7", records);
    send_all(faults, 1);
    for (int direction = 0; direction < FAULTS_DIRECTIONS; direction++) {
        struct fault_counters counters = faults_counters(faults, (enum fault_direction)direction);
        CHECK(counters.frames == FRAMES);
        CHECK(counters.lost > 140 && counters.lost < 260);
        CHECK(counters.duplicated > 320 && counters.duplicated < 480);
        CHECK(counters.reordered > 480 && counters.reordered < 720);
        CHECK(counters.cut > 680 && counters.cut < 920 && records[direction].cut == (int)counters.cut);
        CHECK(records[direction].count == FRAMES - (int)counters.lost + (int)counters.duplicated);
        CHECK(records[direction].dropped == (int)counters.lost);
    }
    for (int number = 0; number < FRAMES; number++) CHECK(frames[number].live == 0);
    faults_free(faults);
}

static void the_same_seed_repeats_whatever_the_other_direction_does(void) {
    const char *text = "loss=0.05,duplicate=0.05,reorder=0.05,seed=11";
    struct faults *faults = injector(text, records);
    send_all(faults, 0);
    faults_free(faults);
    faults = injector(text, again);
    send_all(faults, 3);
    faults_free(faults);
    CHECK(records[FAULTS_RECEIVE].count == again[FAULTS_RECEIVE].count);
    CHECK(memcmp(records[FAULTS_RECEIVE].passed, again[FAULTS_RECEIVE].passed, sizeof records[0].passed) == 0);
    faults = injector("loss=0.05,duplicate=0.05,reorder=0.05,seed=12", again);
    send_all(faults, 0);
    faults_free(faults);
    CHECK(memcmp(records[FAULTS_RECEIVE].passed, again[FAULTS_RECEIVE].passed, sizeof records[0].passed) != 0);
}

static void cuts_change_nothing_of_what_else_happens(void) {
    struct faults *faults = injector("loss=0.05,duplicate=0.05,reorder=0.05,seed=11", records);
    send_all(faults, 1);
    faults_free(faults);
    faults = injector("loss=0.05,duplicate=0.05,reorder=0.05,cut=0.5,seed=11", again);
    send_all(faults, 1);
    faults_free(faults);
    for (int direction = 0; direction < FAULTS_DIRECTIONS; direction++) {
        CHECK(records[direction].cut == 0 && again[direction].cut > 0);
        CHECK(records[direction].count == again[direction].count);
        CHECK(memcmp(records[direction].passed, again[direction].passed, sizeof records[0].passed) == 0);
    }
}

static void a_frame_held_back_is_overtaken_by_no_more_than_was_said(void) {
    struct faults *faults = injector("reorder=0.1,hold-frames=5,seed=3", records);
    send_all(faults, 0);
    int late = 0;
    for (int place = 0; place < FRAMES; place++) {
        int behind = place - records[0].passed[place], overtakers = 0;
        late += behind > 0;
        for (int before = place > 64 ? place - 64 : 0; before < place; before++)
            overtakers += records[0].passed[before] > records[0].passed[place];
        /* Among them others that were held for fewer. */
        CHECK(overtakers <= 10);
        CHECK(behind <= overtakers);
    }
    CHECK(late > FRAMES / 20);
    faults_free(faults);
}

static void a_frame_held_back_goes_on_when_no_other_comes(void) {
    struct faults *faults = injector("reorder=1,hold-us=300", records);
    frames[0].live = 1;
    faults_frame(faults, FAULTS_TRANSMIT, &frames[0], 1000);
    CHECK(faults_poll(faults, 1299) == 1300 && records[FAULTS_TRANSMIT].count == 0);
    CHECK(faults_poll(faults, 1300) == UINT64_MAX && records[FAULTS_TRANSMIT].count == 1);
    frames[1].live = 1;
    faults_frame(faults, FAULTS_TRANSMIT, &frames[1], 2000);
    faults_free(faults);
    CHECK(records[FAULTS_TRANSMIT].dropped == 1 && frames[1].live == 0);
}

static void extremes_work(void) {
    struct faults *faults = injector("loss=1", records);
    send_all(faults, 0);
    CHECK(records[0].count == 0 && records[0].dropped == FRAMES);
    faults_free(faults);
    faults = injector("duplicate=1", records);
    records[0].no_memory = true;
    send_all(faults, 1);
    CHECK(records[0].count == FRAMES && faults_counters(faults, FAULTS_RECEIVE).duplicated == 0);
    CHECK(records[1].count == 2 * FRAMES);
    faults_free(faults);
    faults = injector("seed=18446744073709551615", records);
    send_all(faults, 1);
    CHECK(records[0].count == FRAMES && records[1].count == FRAMES);
    for (int number = 0; number < FRAMES; number++)
        CHECK(records[0].passed[number] == number && records[1].passed[number] == number);
    faults_free(faults);
    faults = injector("reorder=1,hold-frames=1000,hold-us=1000000", records); /* more than can be held */
    for (int number = 0; number < 2000; number++) {
        frames[number].live = 1;
        faults_frame(faults, FAULTS_RECEIVE, &frames[number], 0);
    }
    CHECK(records[0].count > 2000 - 64 - 1 && records[0].count < 2000);
    faults_free(faults);
    for (int number = 0; number < 2000; number++) CHECK(frames[number].live == 0);
}

static void refused(const char *text, const char *why) {
    struct fault_settings settings;
    struct error error = {0};
    CHECK(faults_parse(text, &settings, &error) == -1 && error.code == ERROR_GENERIC);
    CHECK(strstr(error.message, why));
}

static void a_wrong_text_is_refused_with_what_was_expected(void) {
    struct fault_settings settings;
    struct error error;
    CHECK(faults_parse("reorder=0.25,seed=0,hold-us=5,hold-frames=2", &settings, &error) == 0);
    CHECK(settings.reorder == 0.25 && settings.loss == 0 && settings.seed == 0 && settings.hold_us == 5 &&
          settings.hold_frames == 2);
    refused("", "expected pairs");
    refused("loss", "got 'loss'");
    refused("loss=0.01,", "expected pairs");
    refused("loss=", "probability from 0 to 1 for loss, got ''");
    refused("loss=1.5", "got '1.5'");
    refused("reorder=nan", "got 'nan'");
    refused("duplicate=-0.1", "for duplicate");
    refused("cut=2", "for cut");
    refused("loss=0.1x", "got '0.1x'");
    refused("seed=-1", "for seed, got '-1'");
    refused("seed=18446744073709551616", "for seed");
    refused("hold-us=0", "from 1 to 1000000");
    refused("hold-frames=1001", "from 1 to 1000");
    refused("lose=0.1", "expected one of loss");
    char long_text[400];
    memset(long_text, 'a', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    refused(long_text, "255 characters");
}

int main(void) {
    RUN(a_sum_is_that_of_the_definition);
    RUN(a_copy_is_exact_and_gives_the_same_sum);
    RUN(pieces_of_any_length_join);
    RUN(a_segment_with_its_checksum_and_pseudo_header_sums_to_all_ones);
    RUN(faults_hit_as_often_as_they_were_asked_for);
    RUN(the_same_seed_repeats_whatever_the_other_direction_does);
    RUN(cuts_change_nothing_of_what_else_happens);
    RUN(a_frame_held_back_is_overtaken_by_no_more_than_was_said);
    RUN(a_frame_held_back_goes_on_when_no_other_comes);
    RUN(extremes_work);
    RUN(a_wrong_text_is_refused_with_what_was_expected);
    return 0;
}
