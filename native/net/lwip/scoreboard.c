/* scoreboard: a short sorted array of ranges. */
#include "net/lwip/scoreboard.h"

#include <string.h>

#define DUPLICATES 3u /* DupThresh */

static bool is_before(uint32_t left, uint32_t right) {
    return (int32_t)(left - right) < 0;
}

static uint32_t earlier(uint32_t left, uint32_t right) {
    return is_before(left, right) ? left : right;
}

static uint32_t later(uint32_t left, uint32_t right) {
    return is_before(left, right) ? right : left;
}

void scoreboard_clear(struct scoreboard *board) {
    board->count = board->bytes = 0;
}

/* Takes out `count` ranges from `at` on. */
static void take_out(struct scoreboard *board, uint32_t at, uint32_t count) {
    if (count == 0) return;
    memmove(board->ranges + at, board->ranges + at + count, (board->count - at - count) * sizeof *board->ranges);
    board->count -= count;
}

uint32_t scoreboard_add(struct scoreboard *board, struct scoreboard_range range) {
    if (!is_before(range.left, range.right)) return 0;
    uint32_t at = 0;
    while (at < board->count && is_before(board->ranges[at].right, range.left)) at++;
    uint32_t joined = at, known = 0; /* those that the new one touches become one with it */
    while (joined < board->count && !is_before(range.right, board->ranges[joined].left)) {
        const struct scoreboard_range *old = &board->ranges[joined++];
        known += old->right - old->left;
        range = (struct scoreboard_range){earlier(range.left, old->left), later(range.right, old->right)};
    }
    if (joined == at) {
        if (board->count == SCOREBOARD_RANGES) return 0;
        memmove(board->ranges + at + 1, board->ranges + at, (board->count - at) * sizeof *board->ranges);
        board->count++;
    } else {
        take_out(board, at + 1, joined - at - 1);
    }
    board->ranges[at] = range;
    uint32_t more = range.right - range.left - known;
    board->bytes += more;
    return more;
}

uint32_t scoreboard_advance(struct scoreboard *board, uint32_t acknowledged) {
    uint32_t before = board->bytes, gone = 0;
    while (gone < board->count && !is_before(acknowledged, board->ranges[gone].right)) {
        board->bytes -= board->ranges[gone].right - board->ranges[gone].left;
        gone++;
    }
    take_out(board, 0, gone);
    if (board->count > 0 && is_before(board->ranges[0].left, acknowledged)) {
        board->bytes -= acknowledged - board->ranges[0].left;
        board->ranges[0].left = acknowledged;
    }
    return before - board->bytes;
}

/* RFC 6675, IsLost: three ranges lie above, or more bytes than two segments have. */
uint32_t scoreboard_lost_until(const struct scoreboard *board, uint32_t acknowledged, uint32_t segment_bytes) {
    uint32_t bytes = 0;
    for (uint32_t above = 1; above <= board->count; above++) {
        const struct scoreboard_range *range = &board->ranges[board->count - above];
        bytes += range->right - range->left;
        if (above >= DUPLICATES || bytes > (DUPLICATES - 1) * segment_bytes) return range->left;
    }
    return acknowledged;
}

bool scoreboard_gap(const struct scoreboard *board, uint32_t from, uint32_t until, struct scoreboard_range *gap) {
    for (uint32_t i = 0; i < board->count && is_before(from, until); i++) {
        if (is_before(from, board->ranges[i].left)) {
            *gap = (struct scoreboard_range){from, earlier(board->ranges[i].left, until)};
            return true;
        }
        from = later(from, board->ranges[i].right);
    }
    *gap = (struct scoreboard_range){from, until};
    return is_before(from, until);
}

uint32_t scoreboard_missing(const struct scoreboard *board, uint32_t from, uint32_t until) {
    if (!is_before(from, until)) return 0;
    uint32_t missing = until - from;
    for (uint32_t i = 0; i < board->count; i++) {
        uint32_t left = later(board->ranges[i].left, from), right = earlier(board->ranges[i].right, until);
        if (is_before(left, right)) missing -= right - left;
    }
    return missing;
}

uint32_t scoreboard_reach(const struct scoreboard *board, uint32_t from, uint32_t bytes) {
    uint32_t end = from + bytes;
    for (uint32_t i = 0; i < board->count; i++) {
        const struct scoreboard_range *range = &board->ranges[i];
        if (!is_before(range->left, end)) break;
        if (is_before(from, range->right)) end += range->right - later(range->left, from);
    }
    return end;
}
