/* cmd_zset_span: members of a sorted set by rank, replied or stored, in slices where they are many. */
#include "server/core/exclusive_execution.h"
#include "server/redis/keys/cmd_zset.h"

struct span {
    const struct zset *zset;
    uint64_t first, last;
    bool backwards, with_scores; /* where it is replied */
    uint32_t index;              /* where it is stored */
};

static void reply_span(struct client *client, const struct span *span) {
    uint64_t left = span->last - span->first;
    reply_items_head(client, left, span->with_scores);
    struct zset_position position;
    struct zset_item item;
    zset_seek(span->zset, span->backwards ? span->last : span->first, &position);
    for (; left > 0; left--) {
        if (span->backwards)
            zset_previous(span->zset, &position, &item);
        else
            zset_next(span->zset, &position, &item);
        reply_item(client, &item, span->with_scores);
        if (left % EXCLUSIVE_PARTS_TO_REST == 0 && !exclusive_goes_on(client)) return;
    }
}

void reply_items_here(struct client *client, const struct zset *zset, bool with_scores) {
    reply_span(client, &(struct span){.zset = zset, .last = zset_count(zset), .with_scores = with_scores});
}

static bool append(struct zset *result, const struct zset_item *item) {
    struct zset_place place;
    zset_find(result, item->member, item->length, &place);
    return zset_put(result, &place, item->member, item->length, item->score);
}

static void store_span(struct client *client, const struct span *span) {
    struct store *store = client->server->store;
    struct zset *result = zset_new();
    struct zset_position position;
    struct zset_item item;
    if (span->zset) zset_seek(span->zset, span->first, &position);
    for (uint64_t left = span->last - span->first; left > 0 && result; left--) {
        zset_next(span->zset, &position, &item);
        bool stored = append(result, &item), lost = left % EXCLUSIVE_PARTS_TO_REST == 0 && !exclusive_goes_on(client);
        if (stored && !lost) continue;
        store_discard(store, &result->head);
        if (lost) return;
        result = NULL;
    }
    zset_store_result(client, span->index, result);
}

/* Within the slices. The client's state goes with the client: the span is needed longer. */
static void reply_in_slices(struct client *client) {
    struct span span = *(struct span *)client_state(client);
    reply_span(client, &span);
}

static void store_in_slices(struct client *client) {
    struct span span = *(struct span *)client_state(client);
    store_span(client, &span);
}

/* False: there is not much to do, it is done in slices already, or there is no memory for that: do it here. */
static bool do_in_slices(struct client *client, const struct span *span, void (*body)(struct client *client)) {
    return span->last - span->first > EXCLUSIVE_PARTS_AT_ONCE && exclusive_run_with(client, span, sizeof *span, body);
}

void reply_items(struct client *client, const struct zset *zset, uint64_t first, uint64_t last, bool backwards,
                 bool with_scores) {
    struct span span = {.zset = zset, .first = first, .last = last, .backwards = backwards, .with_scores = with_scores};
    if (!do_in_slices(client, &span, reply_in_slices)) reply_span(client, &span);
}

void zset_store_items(struct client *client, uint32_t index, const struct zset *zset, uint64_t first, uint64_t last) {
    struct span span = {.zset = zset, .first = first, .last = last, .index = index};
    if (!do_in_slices(client, &span, store_in_slices)) store_span(client, &span);
}
