/* cmd_stream_claim: XPENDING, XCLAIM, XAUTOCLAIM: entries that were delivered and not acknowledged. Order of checks and
 * error texts follow Redis 7.0. */
#include <string.h>

#include "base/memory.h"
#include "server/core/exclusive_execution.h"
#include "server/redis/keys/cmd_stream.h"
#include "server/redis/redis_rows.h"

/* ---- found ids ---------------------------------------------------------------------------------------------------- */

/* Ids that grow in number as they are found. */
struct found_ids {
    struct xstream_id *ids;
    size_t count;
    uint32_t capacity;
};

static bool add_id(struct found_ids *found, struct xstream_id id) {
    struct xstream_id *ids = memory_grow(found->ids, found->count, &found->capacity, 16, sizeof *ids);
    if (!ids) return false;
    found->ids = ids;
    found->ids[found->count++] = id;
    return true;
}

/* ---- XPENDING ---------------------------------------------------------------------------------------------------- */

struct pending_range {
    int64_t least_idle_ms, count;
    struct xstream_id from, until;
    uint32_t consumer; /* the argument; 0: any */
};

static bool parse_pending_range(struct client *client, struct pending_range *range) {
    uint32_t at = 3;
    *range = (struct pending_range){0};
    if (argument_is(&client->argv[3], "idle")) {
        if (!integer_argument(client, 4, &range->least_idle_ms)) return false;
        if (client->argc < 8) {
            reply_syntax_error(client);
            return false;
        }
        at = 5;
    }
    if (!integer_argument(client, at + 2, &range->count)) return false;
    if (range->count < 0) range->count = 0;
    if (!stream_bound_argument(client, at, false, &range->from) ||
        !stream_bound_argument(client, at + 1, true, &range->until))
        return false;
    range->consumer = at + 3 < client->argc ? at + 3 : 0;
    return true;
}

static void reply_pending_summary(struct client *client, const struct xstream_group *group) {
    reply_array(client, 4);
    reply_integer(client, (int64_t)group->pending.count);
    if (group->pending.count == 0) {
        reply_null(client);
        reply_null(client);
        reply_null_array(client);
        return;
    }
    reply_stream_id(client, id_index_slot(id_index_first(&group->pending))->id);
    reply_stream_id(client, id_index_slot(id_index_last(&group->pending))->id);
    size_t mark = reply_array_deferred(client), count = 0;
    for (uint32_t i = 0; i < group->consumers.count; i++) {
        const struct xstream_consumer *consumer = xstream_consumer_at(group, i);
        if (consumer->pending.count == 0) continue;
        reply_array(client, 2);
        reply_bulk(client, consumer->name.bytes, consumer->name.length);
        reply_bulk_format(client, "%llu", (unsigned long long)consumer->pending.count);
        count++;
    }
    reply_set_array_length(client, mark, count);
}

/* Looks for the next entry in range from *position on, which stays there. False: there is none, or the client was lost. */
static bool find_pending(struct client *client, const struct pending_range *range, struct id_position *position,
                         uint64_t *looked) {
    int64_t now_ms = stream_now_ms(client);
    for (; position->leaf; *position = id_index_next(*position)) {
        const struct xstream_pending *pending = id_index_slot(*position)->value;
        if (xstream_id_compare(id_index_slot(*position)->id, range->until) > 0) return false;
        if (++*looked % EXCLUSIVE_PARTS_TO_REST == 0 && !exclusive_goes_on(client)) return false;
        if (range->least_idle_ms == 0 || now_ms - pending->delivered_ms >= range->least_idle_ms) return true;
    }
    return false;
}

static void reply_pending(struct client *client, struct id_position position) {
    const struct xstream_pending *pending = id_index_slot(position)->value;
    int64_t idle_ms = stream_now_ms(client) - pending->delivered_ms;
    reply_array(client, 4);
    reply_stream_id(client, id_index_slot(position)->id);
    reply_bulk(client, pending->consumer->name.bytes, pending->consumer->name.length);
    reply_integer(client, idle_ms < 0 ? 0 : idle_ms);
    reply_integer(client, (int64_t)pending->deliveries);
}

/* What is replied is sent between two slices: so the entries are counted first, and no later one is taken for one that has
 * become idle for long enough meanwhile. */
static void reply_pending_range(struct client *client, const struct id_index *index,
                                const struct pending_range *range) {
    struct found_ids found = {0};
    uint64_t looked = 0;
    struct id_position position = id_index_from(index, range->from);
    bool kept = true;
    for (; kept && found.count < (uint64_t)range->count && find_pending(client, range, &position, &looked);
         position = id_index_next(position))
        kept = add_id(&found, id_index_slot(position)->id);
    bool lost = exclusive_is_lost(client);
    if (!kept) reply_out_of_memory(client);
    if (kept && !lost) reply_array(client, found.count);
    for (size_t i = 0; kept && !lost && i < found.count; i++) {
        reply_pending(client, id_index_from(index, found.ids[i]));
        if (i % EXCLUSIVE_PARTS_TO_REST == EXCLUSIVE_PARTS_TO_REST - 1) lost = !exclusive_goes_on(client);
    }
    memory_free(found.ids);
}

/* Within slices, or where there is little to look at. */
static void xpending_range(struct client *client) {
    struct pending_range range;
    struct stream_place place;
    if (!parse_pending_range(client, &range) || !stream_group_argument(client, 1, false, &place)) return;
    const struct id_index *index = &place.group->pending;
    if (range.consumer > 0) {
        const struct resp_argument *name = &client->argv[range.consumer];
        const struct xstream_consumer *consumer = xstream_consumer_find(place.group, name->data, name->length);
        if (!consumer) {
            reply_array(client, 0);
            return;
        }
        index = &consumer->pending;
    }
    reply_pending_range(client, index, &range);
}

static bool has_many_pending(struct client *client) {
    struct dict_entry *entry = keyspace_find(client, 1);
    if (!entry || store_value(entry)->type != VALUE_STREAM) return false;
    const struct xstream_group *group = stream_group_named(xstream_of(store_value(entry)), &client->argv[2]);
    return group && group->pending.count > EXCLUSIVE_PARTS_AT_ONCE && !client->server->exclusive.inside;
}

static void xpending_command(struct client *client) {
    struct stream_place place;
    if (client->argc != 3 && (client->argc < 6 || client->argc > 9)) {
        reply_syntax_error(client);
    } else if (client->argc == 3) {
        if (stream_group_argument(client, 1, false, &place)) reply_pending_summary(client, place.group);
    } else if (has_many_pending(client)) {
        exclusive_run_command(client, xpending_range);
    } else {
        xpending_range(client);
    }
}

/* ---- claims ------------------------------------------------------------------------------------------------------ */

static bool idle_argument(struct client *client, uint32_t index, const char *error, int64_t *ms) {
    if (number_parse_int64(client->argv[index].data, client->argv[index].length, ms)) return true;
    reply_error(client, "ERR %s", error);
    return false;
}

/* Both commands: key group consumer min-idle-time. */
struct claim {
    struct client *client;
    struct stream_place place;
    struct xstream_consumer *consumer; /* NULL: not looked for yet */
    int64_t least_idle_ms, delivered_ms, deliveries; /* deliveries −1: one more */
    bool only_ids;
};

/* Whoever claims nothing is not made a consumer. False: memory is exhausted. */
static bool find_consumer(struct claim *claim) {
    struct client *client = claim->client;
    bool created;
    if (claim->consumer) return true;
    claim->consumer = stream_consumer_named(client, 1, claim->place.group, &client->argv[3], &created);
    if (claim->consumer && created)
        stream_record_consumer(client, &client->argv[1], claim->place.group, claim->consumer);
    return claim->consumer;
}

static void record(const struct claim *claim, struct xstream_id id, const struct xstream_pending *pending) {
    stream_record_pending(claim->client, &claim->client->argv[1], claim->place.group, id, pending);
    stream_changed_aside(claim->client, NULL, 1);
}

/* An entry that the stream has no more is pending no more. */
static void forget(const struct claim *claim, struct xstream_id id) {
    const struct xstream_pending *pending = xstream_pending_find(claim->place.group, id);
    if (!pending) return;
    record(claim, id, pending);
    xstream_pending_remove(claim->place.group, id);
}

/* False: memory is exhausted, nothing has changed. */
static bool take(struct claim *claim, struct xstream_id id) {
    if (!find_consumer(claim)) return false;
    bool is_new = !xstream_pending_find(claim->place.group, id);
    struct xstream_pending *pending = xstream_pending_give(claim->place.group, claim->consumer, id);
    if (!pending) return false;
    if (is_new) pending->deliveries = 1;
    pending->delivered_ms = claim->delivered_ms;
    if (claim->deliveries >= 0)
        pending->deliveries = (uint64_t)claim->deliveries;
    else if (!claim->only_ids)
        xstream_pending_count_delivery(pending);
    record(claim, id, pending);
    return true;
}

static void reply_claimed(const struct claim *claim, struct xstream_id id) {
    if (claim->only_ids)
        reply_stream_id(claim->client, id);
    else
        reply_stream_entry_of(claim->client, claim->place.stream, id);
}

/* ---- XCLAIM ------------------------------------------------------------------------------------------------------ */

struct claim_options {
    bool force, has_time;
    struct xstream_id last_id;
    uint32_t ids_end; /* the argument behind the last id */
};

static bool parse_claim_word(struct client *client, uint32_t *at, struct claim *claim, struct claim_options *options) {
    const struct resp_argument *word = &client->argv[*at];
    bool more = *at + 1 < client->argc;
    if (argument_is(word, "force")) {
        options->force = true;
    } else if (argument_is(word, "justid")) {
        claim->only_ids = true;
    } else if (more && argument_is(word, "idle")) {
        int64_t idle_ms;
        if (!idle_argument(client, *at += 1, "Invalid IDLE option argument for XCLAIM", &idle_ms)) return false;
        claim->delivered_ms = (int64_t)((uint64_t)stream_now_ms(client) - (uint64_t)idle_ms);
        options->has_time = true;
    } else if (more && argument_is(word, "time")) {
        options->has_time = true;
        return idle_argument(client, *at += 1, "Invalid TIME option argument for XCLAIM", &claim->delivered_ms);
    } else if (more && argument_is(word, "retrycount")) {
        return idle_argument(client, *at += 1, "Invalid RETRYCOUNT option argument for XCLAIM", &claim->deliveries);
    } else if (more && argument_is(word, "lastid")) {
        return stream_id_argument(client, *at += 1, 0, &options->last_id);
    } else {
        reply_error(client, "ERR Unrecognized XCLAIM option '%.*s'", word->length < 256 ? (int)word->length : 256,
                    (const char *)word->data);
        return false;
    }
    return true;
}

static bool parse_claim(struct client *client, struct claim *claim, struct claim_options *options) {
    int64_t now_ms = stream_now_ms(client);
    struct xstream_id id;
    *options = (struct claim_options){.ids_end = 5};
    if (!idle_argument(client, 4, "Invalid min-idle-time argument for XCLAIM", &claim->least_idle_ms)) return false;
    while (options->ids_end < client->argc && stream_id_parse(&client->argv[options->ids_end], 0, &id))
        options->ids_end++;
    for (uint32_t i = options->ids_end; i < client->argc; i++)
        if (!parse_claim_word(client, &i, claim, options)) return false;
    /* A clock that is a little ahead of this one is no reason to refuse. */
    bool makes_sense = options->has_time && claim->delivered_ms >= 0 && claim->delivered_ms <= now_ms;
    if (!makes_sense) claim->delivered_ms = now_ms;
    return true;
}

/* Whether the entry is pending and has been idle for long enough, or is to be made pending. */
static bool may_claim(const struct claim *claim, struct xstream_id id, bool force) {
    const struct xstream_pending *pending = xstream_pending_find(claim->place.group, id);
    if (!pending) return force;
    int64_t idle_ms = stream_now_ms(claim->client) - pending->delivered_ms;
    return claim->least_idle_ms <= 0 || idle_ms >= claim->least_idle_ms;
}

static void xclaim_command(struct client *client) {
    struct claim claim = {.client = client, .deliveries = -1};
    struct claim_options options;
    if (!stream_group_argument(client, 1, true, &claim.place) || !parse_claim(client, &claim, &options)) return;
    struct xstream_group *group = claim.place.group;
    if (xstream_id_compare(options.last_id, group->last_id) > 0) {
        group->last_id = options.last_id;
        stream_record_group(client, &client->argv[1], group);
        stream_changed_aside(client, NULL, 1);
    }
    size_t mark = reply_array_deferred(client), count = 0;
    for (uint32_t i = 5; i < options.ids_end; i++) {
        struct xstream_id id;
        stream_id_parse(&client->argv[i], 0, &id);
        if (!xstream_has(claim.place.stream, id)) {
            forget(&claim, id);
        } else if (may_claim(&claim, id, options.force) && take(&claim, id)) {
            reply_claimed(&claim, id);
            count++;
        }
    }
    reply_set_array_length(client, mark, count);
}

/* ---- XAUTOCLAIM -------------------------------------------------------------------------------------------------- */

#define LOOKS_PER_ENTRY 10 /* pending entries that are looked at for each that is asked for */

static bool parse_autoclaim(struct client *client, struct claim *claim, struct xstream_id *from, int64_t *count) {
    const int64_t most = INT64_MAX / 16;
    *count = 100;
    if (!idle_argument(client, 4, "Invalid min-idle-time argument for XAUTOCLAIM", &claim->least_idle_ms)) return false;
    if (!stream_bound_argument(client, 5, false, from)) return false;
    for (uint32_t i = 6; i < client->argc; i++) {
        const struct resp_argument *word = &client->argv[i];
        if (i + 1 < client->argc && argument_is(word, "count")) {
            i++;
            bool is_number = number_parse_int64(client->argv[i].data, client->argv[i].length, count);
            if (!is_number || *count < 1 || *count > most) {
                reply_error(client, "ERR COUNT must be > 0");
                return false;
            }
        } else if (argument_is(word, "justid")) {
            claim->only_ids = true;
        } else {
            reply_syntax_error(client);
            return false;
        }
    }
    return true;
}

/* Claims up to `count` entries, gone ones counted, from *from on, which moves behind the last one that was looked at: zeros
 * at the end. False: memory is exhausted; what is found so far is claimed. */
static bool claim_from(struct claim *claim, struct xstream_id *from, int64_t count, struct found_ids *taken,
                       struct found_ids *gone) {
    const struct id_index *index = &claim->place.group->pending;
    bool done = true;
    for (int64_t looks = count * LOOKS_PER_ENTRY; looks > 0 && count > 0 && done; looks--) {
        struct id_position position = id_index_from(index, *from);
        if (!position.leaf) break;
        struct xstream_id id = *from = id_index_slot(position)->id;
        const struct xstream_pending *pending = id_index_slot(position)->value;
        if (!xstream_has(claim->place.stream, id)) {
            done = add_id(gone, id);
            if (done) forget(claim, id);
            count--;
        } else if (claim->least_idle_ms <= 0 || claim->delivered_ms - pending->delivered_ms >= claim->least_idle_ms) {
            done = add_id(taken, id) && take(claim, id);
            count--;
        }
        if (done && !xstream_id_increment(from)) {
            *from = XSTREAM_ID_FIRST;
            return true;
        }
    }
    struct id_position next = id_index_from(index, *from);
    *from = next.leaf ? id_index_slot(next)->id : XSTREAM_ID_FIRST;
    return done;
}

static void xautoclaim_command(struct client *client) {
    struct claim claim = {.client = client, .deliveries = -1, .delivered_ms = stream_now_ms(client)};
    struct xstream_id from;
    int64_t count;
    struct found_ids taken = {0}, gone = {0};
    if (!parse_autoclaim(client, &claim, &from, &count) || !stream_group_argument(client, 1, true, &claim.place))
        return;
    if (claim_from(&claim, &from, count, &taken, &gone)) {
        reply_array(client, 3);
        reply_stream_id(client, from);
        reply_array(client, taken.count);
        for (size_t i = 0; i < taken.count; i++) reply_claimed(&claim, taken.ids[i]);
        reply_array(client, gone.count);
        for (size_t i = 0; i < gone.count; i++) reply_stream_id(client, gone.ids[i]);
    } else {
        reply_out_of_memory(client);
    }
    memory_free(taken.ids);
    memory_free(gone.ids);
}

#define CHANGES (COMMAND_WRITE | COMMAND_FAST)

const struct command commands_stream_claim[] = {
    {"xautoclaim", xautoclaim_command, -6, CHANGES, &group_stream,
     "Gives a consumer the pending entries that have been idle for so long, whoever had them.", "6.2.0",
     .tips = "nondeterministic_output", .keys = key_removed_from},
    {"xclaim", xclaim_command, -6, CHANGES, &group_stream, "Gives a consumer pending entries, whoever had them.",
     "5.0.0", .tips = "nondeterministic_output", .keys = key_updated},
    {"xpending", xpending_command, -3, COMMAND_READONLY, &group_stream,
     "Returns which entries were delivered to consumers of a group and not acknowledged.", "5.0.0",
     .tips = "nondeterministic_output", .keys = key_read},
    {0},
};
