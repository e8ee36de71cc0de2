/* undo: a count of bytes, and a range. */
#include "net/lwip/undo.h"

static bool is_before(uint32_t left, uint32_t right) {
    return (int32_t)(left - right) < 0;
}

/* Bytes of the range that lie in [from, until). */
static uint32_t overlap(struct scoreboard_range range, uint32_t from, uint32_t until) {
    uint32_t left = is_before(range.left, from) ? from : range.left;
    uint32_t right = is_before(until, range.right) ? until : range.right;
    return is_before(left, right) ? right - left : 0;
}

void undo_begin(struct undo *undo, const struct cubic *cubic, uint32_t begin, uint32_t from, uint32_t until,
                uint32_t again_bytes) {
    *undo = (struct undo){
        .before = *cubic, .possible = true, .begin = begin, .from = from, .until = until, .again_bytes = again_bytes};
}

void undo_forget(struct undo *undo) {
    undo->possible = false;
}

void undo_sent_again(struct undo *undo, uint32_t first, uint32_t end) {
    undo->again_bytes += end - first;
    if (is_before(undo->from, end)) undo->from = end;
}

bool undo_take_twice(struct undo *undo, struct scoreboard_range twice) {
    /* The network doubles frames, too. */
    uint32_t bytes = overlap(twice, undo->begin, undo->from);
    if (bytes == 0 || undo->again_bytes == 0) return false;
    undo->again_bytes -= bytes < undo->again_bytes ? bytes : undo->again_bytes;
    return undo->possible && undo->again_bytes == 0;
}

bool undo_take(const struct undo *undo, struct scoreboard_range come) {
    return undo->possible && overlap(come, undo->from, undo->until) > 0;
}
