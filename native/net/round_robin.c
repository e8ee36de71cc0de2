/* round_robin: the line, and what its members may send. */
#include "net/round_robin.h"

#include <assert.h>
#include <stddef.h>

#include "base/list.h"

void round_robin_wait(struct round_robin *line, struct round_robin_member *member) {
    if (member->waits) return;
    LIST_APPEND(line->first, line->last, member, next, previous);
    member->waits = true;
    member->since_bytes = line->sent_bytes;
    if (++line->waiting > line->waiting_most) line->waiting_most = line->waiting;
}

static void take_out(struct round_robin *line, struct round_robin_member *member) {
    LIST_REMOVE(line->first, line->last, member, next, previous);
    member->waits = false;
    line->waiting--;
}

struct round_robin_member *round_robin_serve(struct round_robin *line) {
    struct round_robin_member *member = line->first;
    if (!member) return NULL;
    take_out(line, member);
    uint64_t gap_bytes = line->sent_bytes - member->since_bytes;
    if (gap_bytes > line->gap_most_bytes) line->gap_most_bytes = gap_bytes;
    /* It may come here again without having sent anything, where there was no room: that must not add up. */
    if (member->credit_bytes < line->quantum_bytes) member->credit_bytes += line->quantum_bytes;
    return member;
}

void round_robin_spend(struct round_robin *line, struct round_robin_member *member, uint32_t bytes) {
    assert(bytes <= line->quantum_bytes && bytes <= member->credit_bytes);
    member->credit_bytes -= bytes;
    line->sent_bytes += bytes;
}

void round_robin_end_service(struct round_robin_member *member) {
    if (!member->waits) member->credit_bytes = 0;
}

void round_robin_leave(struct round_robin *line, struct round_robin_member *member) {
    if (member->waits) take_out(line, member);
    member->credit_bytes = 0;
}
