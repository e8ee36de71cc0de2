/* Tests of expand: coded replies become windows, and bytes that are none are refused without reading beyond them. */
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "check.h"
#include "replay/coded_reply_windows.h"

#define ITEMS 5u
#define STEP 3u

static struct error error;

/* Two windows, of 2 steps and of 1, over 4 distinct steps. Freed by the caller; exactly as long as its bytes. */
static uint8_t *make_coded(size_t *length) {
    uint32_t head[2] = {4, 0}, index[ITEMS * 3], sizes[4] = {STEP, STEP, STEP, STEP};
    for (uint32_t i = 0; i < ITEMS * 3; i++) index[i] = i % 4;
    uint8_t blocks[4 * STEP];
    for (uint32_t i = 0; i < sizeof blocks; i++) blocks[i] = (uint8_t)(10 * (i / STEP) + i % STEP);
    *length = sizeof head + sizeof index + sizeof sizes + sizeof blocks;
    uint8_t *coded = malloc(*length), *to = coded;
    memcpy(to, head, sizeof head);
    memcpy(to += sizeof head, index, sizeof index);
    memcpy(to += sizeof index, sizes, sizeof sizes);
    memcpy(to + sizeof sizes, blocks, sizeof blocks);
    return coded;
}

static int expand(const uint8_t *coded, size_t length) {
    static const uint32_t steps[2] = {2, 1};
    uint8_t *first = malloc(ITEMS * 2 * STEP), *second = malloc(ITEMS * STEP);
    uint8_t *const out[2] = {first, second};
    int refused = expand_windows(coded, length, ITEMS, 2, steps, out, STEP, &error);
    for (uint32_t i = 0; !refused && i < ITEMS * 3; i++) {
        uint32_t which;
        memcpy(&which, coded + 8 + 4 * i, sizeof which);
        const uint8_t *shown = i % 3 == 2 ? second + i / 3 * STEP : first + (i / 3 * 2 + i % 3) * STEP;
        const uint8_t *block = coded + length - (size_t)(*(const uint32_t *)(const void *)coded - which) * STEP;
        CHECK(memcmp(shown, block, STEP) == 0);
    }
    free(first);
    free(second);
    return refused;
}

static void windows_show_the_steps_of_their_places(void) {
    size_t length;
    uint8_t *coded = make_coded(&length);
    CHECK(expand(coded, length) == 0);
    free(coded);
}

static void other_bytes_are_refused(void) {
    size_t length;
    uint8_t *coded = make_coded(&length);
    for (size_t cut = 0; cut < length; cut++) {
        uint8_t *piece = malloc(cut ? cut : 1); /* so that a read beyond is seen */
        memcpy(piece, coded, cut);
        CHECK(expand(piece, cut) == -1 && error.code == ERROR_BADSHAPE);
        free(piece);
    }
    free(coded);
}

/* Any change is refused, or shows other bytes; the sanitizers see to the rest. */
static void changed_bytes_are_never_read_beyond(void) {
    struct random_state random;
    random_seed(&random, 1);
    for (int round = 0; round < 20000; round++) {
        size_t length;
        uint8_t *coded = make_coded(&length);
        for (uint64_t changes = 1 + random_below(&random, 3); changes > 0; changes--) {
            size_t at = random_below(&random, length - 4 * STEP);
            coded[at] = (uint8_t)random_next(&random);
        }
        expand(coded, length);
        free(coded);
    }
}

int main(void) {
    RUN(windows_show_the_steps_of_their_places);
    RUN(other_bytes_are_refused);
    RUN(changed_bytes_are_never_read_beyond);
    return 0;
}
