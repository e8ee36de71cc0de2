/* replicated_content: two hosts, of which one follows the other: what their clients ask and are promised, what a primary held at
 * each offset, and what therefore must be held by a replica, by a promoted one, and after a restart. */
#ifndef REPLAY_TESTS_REPLICATED_CONTENT_H
#define REPLAY_TESTS_REPLICATED_CONTENT_H

#include <stdatomic.h>

#include "many_seeds.h"
#include "server/durability/append_log.h"
#include "server/durability/durability_subsystem.h"
#include "server/replication/replication_subsystem.h"
#include "simulated_network.h"
#include "simulated_requests.h"

#define CLIENTS 2u
#define MOMENTS 4096u
#define RECORDS 16384u
#define LAST_WORD "00000" /* echoed after WAIT */

static int64_t fsync_policy;

/* ---- what is known --------------------------------------------------------------------------------------------------- */

/* What a primary held at an offset of its history. */
struct record {
    uint64_t id, former; /* of the history, and of the one that it goes on with */
    uint64_t offset;
    uint32_t change; /* how many changes there were in the history */
    struct content content;
};

static struct record records[RECORDS];
static uint32_t record_count;
static uint64_t confirmed_id; /* of a history … */
static uint32_t confirmed_change; /* … of which WAIT 1 has told that the replica has so many changes */

struct asker {
    struct client_of_test client;
    bool is_noted, is_done, promises, waits; /* waits: WAIT comes behind the question */
    uint32_t moment, change; /* after it was done; change: of the history */
    uint64_t id;
    long counted; /* what the last WAIT said; -1: nothing yet */
};

/* Of a host: its server, and what it left. */
struct life {
    struct content moments[MOMENTS]; /* what it held after turns in which that changed */
    uint32_t moment_count;
    uint64_t changes, counters, id, offset; /* as of the last moment */
    uint32_t promised; /* the first moment that a restart may go back to */
    uint64_t promised_epoch; /* that it has heard of */
    bool was_replica; /* in the turn before */
    bool has_followed; /* since it started */
    bool is_ordered; /* to be the primary */
    bool follows; /* the other, from its next start on */
    struct asker askers[CLIENTS];
    struct memory_peer *orders;
};

static struct life lives[HOSTS], *life;
static uint32_t questions;

/* Over all seeds: shared by the processes. */
static struct tally {
    atomic_uint_fast64_t starts, kills, losses_of_power, breaks, partial, full, promotions, failovers, fenced, checked,
        confirmed, bytes;
} *tally;

static inline void tally_add(atomic_uint_fast64_t *sum, uint64_t more) {
    atomic_fetch_add(sum, more);
}

static inline void go_to(uint32_t number) {
    enter_host(&hosts[number]);
    life = &lives[number];
}

/* Of two hosts. */
static inline uint32_t other_than(uint32_t number) {
    return 1 - number;
}

static inline bool lives_on(uint32_t number) {
    return hosts[number].server && !hosts[number].disk->is_gone;
}

static inline bool is_primary(uint32_t number) {
    return lives_on(number) && !hosts[number].server->place.is_replica && !server_is_fenced(hosts[number].server);
}

static inline bool is_replica(uint32_t number) {
    return lives_on(number) && hosts[number].server->place.is_replica;
}

static inline bool is_same(const struct content *left, const struct content *right) {
    return memcmp(&left->keys, &right->keys, sizeof left->keys) == 0 && left->blobs == right->blobs &&
           left->tables == right->tables;
}

static inline uint64_t number_of(const char *id) {
    char digits[17] = "";
    memcpy(digits, id, 16);
    return strtoull(digits, NULL, 16);
}

static inline uint64_t own_id(void) {
    return number_of(server->replication->id);
}

static inline uint64_t own_offset(void) {
    return change_stream_end(&server->replication->stream);
}

static inline const struct content *own_content(void) {
    return &life->moments[life->moment_count - 1];
}

/* ---- records --------------------------------------------------------------------------------------------------------- */

static inline const struct record *newest_until(uint64_t id, uint64_t offset) {
    for (uint32_t i = record_count; i > 0; i--)
        if (records[i - 1].id == id && records[i - 1].offset <= offset) return &records[i - 1];
    return NULL;
}

static inline const struct record *oldest_after(uint64_t id, uint64_t offset) {
    const struct record *found = NULL;
    for (uint32_t i = record_count; i > 0; i--)
        if (records[i - 1].id == id && records[i - 1].offset > offset) found = &records[i - 1];
    return found;
}

/* A replica without a primary that is asked for its history makes one up, which no primary has. */
static inline bool is_known(uint64_t id) {
    return newest_until(id, UINT64_MAX);
}

static inline void note_record(void) {
    const struct replication_subsystem *replication = server->replication;
    if (!change_stream_is_kept(&replication->stream)) return;
    struct record now = {.id = own_id(), .former = number_of(replication->former_id), .offset = own_offset()};
    struct record *last = (struct record *)(uintptr_t)newest_until(now.id, UINT64_MAX);
    now.content = *own_content();
    if (last) now.change = last->change + !is_same(&last->content, &now.content);
    if (last && last->offset == now.offset) {
        *last = now;
    } else {
        CHECK(record_count < RECORDS && (!last || last->offset < now.offset));
        records[record_count++] = now;
    }
}

/* Of the history at the offset, or next to it, and like what the server holds. NULL: there is none. */
static inline const struct record *find_record(uint64_t id, uint64_t offset) {
    const struct record *after = oldest_after(id, offset), *before = newest_until(id, offset);
    if (!before && after) before = newest_until(after->former, offset);
    if (before && is_same(&before->content, own_content())) return before;
    bool is_between = after && (!before || before->offset < offset);
    return is_between && is_same(&after->content, own_content()) ? after : NULL;
}

static inline const struct record *check_at(uint64_t id, uint64_t offset) {
    const struct record *found = find_record(id, offset);
    if (!found)
        fprintf(stderr, "port %u at offset %llu of history %016llx holds something else\n", port_of(host),
                (unsigned long long)offset, (unsigned long long)id);
    CHECK(found);
    tally_add(&tally->checked, 1);
    return found;
}

/* ---- asking ---------------------------------------------------------------------------------------------------------- */

static inline void send_new_table(struct memory_peer *peer) {
    static const char *const names[] = {"t", "u", "w", "r"};
    uint32_t which = below(4);
    if (which < 2)
        send_table(peer, names[which], true);
    else
        send_other_table(peer, names[which]);
}

/* With WAIT behind it, unless that is to wait for 0 ms. */
static inline void ask(struct asker *asker, uint32_t wait_ms) {
    struct client_of_test *client = &asker->client;
    char line[32];
    if (!client->peer) client->peer = connect_peer();
    memory_peer_forget_received(client->peer);
    if (one_in(5))
        send_transaction(client);
    else if (questions < 12 && !only_keys && one_in(3))
        send_new_table(client->peer);
    else if (one_in(60))
        send_words(client->peer, "BGREWRITEAOF");
    else if (!only_keys && one_in(2))
        send_to_table(client);
    else
        send_to_store(client->peer);
    client->waits_for = ++questions;
    sprintf(line, "ECHO %05u", client->waits_for);
    send_words(client->peer, line);
    asker->is_noted = asker->is_done = asker->promises = false;
    asker->waits = wait_ms > 0;
    asker->counted = -1;
    if (!asker->waits) return;
    sprintf(line, "WAIT 1 %u", wait_ms);
    send_words(client->peer, line);
    send_words(client->peer, "ECHO " LAST_WORD);
}

/* The question itself has not been answered yet. */
static inline bool is_asking(const struct life *of) {
    for (uint32_t i = 0; i < CLIENTS; i++)
        if (of->askers[i].client.waits_for && !of->askers[i].is_done) return true;
    return false;
}

static inline void ask_someone(void) {
    struct asker *asker = &life->askers[below(CLIENTS)];
    if (asker->client.waits_for == 0 && !is_asking(life)) ask(asker, one_in(3) ? 1 + below(2000) : 0);
}

static inline void order(const char *line) {
    if (!life->orders || memory_peer_is_closed(life->orders)) life->orders = connect_peer();
    memory_peer_forget_received(life->orders);
    if (tracing) fprintf(stderr, "port %u is told:\n", port_of(host));
    send_words(life->orders, line);
}

static inline void order_promotion(void) {
    life->is_ordered = true;
    order("REPLICAOF NO ONE");
}

static inline void order_to_follow(uint32_t primary) {
    char line[64];
    sprintf(line, "REPLICAOF 127.0.0.1 %u", port_of(&hosts[primary]));
    order(line);
}

static inline void order_failover(uint32_t to) {
    char line[64];
    uint32_t timeout_ms = 1 + below(5000);
    if (one_in(2))
        sprintf(line, "FAILOVER TIMEOUT %u", timeout_ms);
    else
        sprintf(line, "FAILOVER TO 127.0.0.1 %u TIMEOUT %u", port_of(&hosts[to]), timeout_ms);
    order(line);
}

static inline void order_fence(const struct server *newer) {
    char line[96];
    sprintf(line, "FENCE %llu %016llx", (unsigned long long)newer->place.epoch,
            (unsigned long long)newer->place.origin);
    order(line);
}

/* ---- answers --------------------------------------------------------------------------------------------------------- */

static inline bool is_kept_by_log(void) {
    return fsync_policy == APPEND_SYNC_ALWAYS && !server->durability->append_log->broken;
}

/* Behind the echo, or NULL: it has not come. */
static inline const uint8_t *find_echo(const uint8_t *bytes, size_t length, uint32_t question) {
    char echo[32];
    size_t echo_length = (size_t)sprintf(echo, "$5\r\n%05u\r\n", question);
    const uint8_t *found = length > 0 ? memmem(bytes, length, echo, echo_length) : NULL;
    return found ? found + echo_length : NULL;
}

static inline bool is_refused(const uint8_t *bytes, size_t length) {
    return bytes[0] == '-' || memmem(bytes, length, "-EXECABORT", 10) || memmem(bytes, length, "-READONLY", 9) ||
           memmem(bytes, length, "-MISCONF", 8) || memmem(bytes, length, "+Background", 11);
}

static inline void take_answer(struct asker *asker, const uint8_t *bytes, size_t length) {
    const uint8_t *echoed = find_echo(bytes, length, asker->client.waits_for);
    if (echoed && !asker->is_done) {
        asker->is_done = true;
        asker->promises = !is_refused(bytes, (size_t)(echoed - bytes));
        if (asker->promises && is_kept_by_log() && asker->moment > life->promised && !server->place.is_replica)
            life->promised = asker->moment;
    }
    if (!echoed || (asker->waits && !find_echo(echoed, length - (size_t)(echoed - bytes), 0))) return;
    asker->client.waits_for = 0;
    if (!asker->waits || *echoed != ':') return;
    asker->counted = strtol((const char *)echoed + 1, NULL, 10);
    if (asker->counted < 1 || !asker->promises) return;
    if (confirmed_id != asker->id) confirmed_change = 0;
    confirmed_id = asker->id;
    if (asker->change > confirmed_change) confirmed_change = asker->change;
    tally_add(&tally->confirmed, 1);
}

static inline void note_question(struct asker *asker) {
    const struct record *record = newest_until(own_id(), UINT64_MAX);
    asker->is_noted = true;
    asker->moment = life->moment_count - 1;
    asker->id = own_id();
    asker->change = record ? record->change : 0;
}

static inline void look_at_orders(void) {
    unsigned long long own, newest;
    size_t length = 0;
    const uint8_t *bytes = life->orders ? memory_peer_received(life->orders, &length) : NULL;
    char text[64] = "";
    if (length == 0 || length >= 200) return;
    memcpy(text, bytes, length < sizeof text ? length : sizeof text - 1);
    bool is_fence = sscanf(text, "*4\r\n$6\r\nmaster\r\n:%llu\r\n:%llu\r\n", &own, &newest) == 2;
    if (is_fence && is_kept_by_log() && newest > life->promised_epoch) life->promised_epoch = newest;
}

static inline void look_at_answers(void) {
    for (uint32_t i = 0; i < CLIENTS; i++) {
        struct asker *asker = &life->askers[i];
        size_t length;
        if (asker->client.waits_for == 0) continue;
        if (!asker->is_noted) note_question(asker);
        const uint8_t *bytes = memory_peer_received(asker->client.peer, &length);
        if (length > 0) take_answer(asker, bytes, length);
        if (memory_peer_is_closed(asker->client.peer)) *asker = (struct asker){.counted = -1};
    }
    look_at_orders();
}

/* ---- what is held ---------------------------------------------------------------------------------------------------- */

static inline void note_moment(void) {
    struct content content;
    uint64_t counters = sum_of_tables(sum_of_counters), id = own_id(), offset = own_offset();
    if (life->changes == server->store->changes && life->counters == counters && life->id == id &&
        life->offset == offset)
        return;
    life->changes = server->store->changes;
    life->counters = counters;
    life->id = id;
    life->offset = offset;
    take_content(&content);
    if (is_same(&content, own_content())) return;
    CHECK(life->moment_count < MOMENTS);
    life->moments[life->moment_count++] = content;
}

/* Some requests take several turns, or leave work for later ones. */
static inline bool is_amid_request(void) {
    const struct client *client = server->replication->link.client;
    return server->exclusive.on || (client && client->is_resting);
}

/* The history before, up to where it ended for this server, which clients have not changed yet. */
static inline void check_promotion(void) {
    const struct replication_subsystem *replication = server->replication;
    uint64_t former = number_of(replication->former_id);
    if (!change_stream_is_kept(&replication->stream) || replication->former_until < 1 || !is_known(former)) return;
    const struct record *found = check_at(former, (uint64_t)replication->former_until - 1);
    if (!life->is_ordered) {
        const struct record *last = newest_until(former, UINT64_MAX);
        CHECK(last && is_same(&last->content, own_content()));
        tally_add(&tally->failovers, 1);
    } else if (former == confirmed_id && found->id == former) {
        CHECK(found->change >= confirmed_change);
    }
    tally_add(&tally->promotions, 1);
}

static inline void check_followed(void) {
    if (is_known(own_id()))
        (void)check_at(own_id(), own_offset());
    else
        CHECK(server->replication->link.state != LINK_UP);
}

static inline void look(void) {
    if (server->durability->append_log->broken) life->promised_epoch = life->promised = 0;
    if (is_amid_request()) return;
    bool is_following = server->place.is_replica, is_same_history = life->id == own_id();
    note_moment();
    if (!is_following && life->was_replica) check_promotion();
    if (!is_following || (!life->was_replica && is_same_history)) note_record();
    if (is_following && life->was_replica && change_stream_is_kept(&server->replication->stream)) check_followed();
    if (is_following) life->promised_epoch = life->promised = 0; /* it takes over what its primary has */
    CHECK(server->replication->link.commands_failed == 0);
    life->has_followed |= is_following;
    life->was_replica = is_following;
    life->is_ordered &= is_following;
}

#endif
