/* tracking: the table of keys and their readers, and what they are told. */
#include "server/redis/tracking/tracking.h"

#include <string.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/memory.h"
#include "server/core/command_table.h"
#include "server/core/exclusive_execution.h"
#include "server/core/server.h"
#include "server/core/slices.h"
#include "server/redis/pubsub/pubsub.h"
#include "server/redis/redis_subsystem.h"

#define CHANNEL "__redis__:invalidate" /* of messages to clients that speak RESP2 */
#define KEYS_AT_ONCE 64 /* of a request, without asking for memory */
#define TIDIED_AT_ONCE 256
#define FIRST_READERS 2
#define MIDWAY_US 1000u /* when to look again whether a reply has become whole */

/* Of a key. Their ids are in ascending order: most of those that come are the newest. */
struct readers {
    struct dict_entry *entry; /* its key; once it has changed it is in no dict */
    struct readers *next_changed;
    uint64_t changed_by; /* id of the client; 0: none did */
    uint32_t count, capacity;
    uint64_t ids[];
};

/* ---- who tracks -------------------------------------------------------------------------------------------------------- */

struct tracking *tracking_new(void) {
    struct tracking *tracking = memory_calloc(1, sizeof *tracking);
    if (tracking) random_seed(&tracking->random, random_entropy());
    return tracking;
}

static void drop_readers(void *context, void *value) {
    (void)context;
    memory_free(value);
}

static void forget_changed(struct tracking *tracking) {
    while (tracking->first_changed) {
        struct readers *readers = tracking->first_changed;
        tracking->first_changed = readers->next_changed;
        dict_entry_free(readers->entry);
        memory_free(readers);
    }
    tracking->last_changed = NULL;
    tracking->changed_count = 0;
}

void tracking_free(struct tracking *tracking) {
    if (!tracking) return;
    forget_changed(tracking);
    dict_clear(&tracking->keys, drop_readers, NULL);
    dict_clear(&tracking->leaving, drop_readers, NULL);
    dict_clear(&tracking->trackers, drop_readers, NULL);
    dict_clear(&tracking->prefixes, drop_readers, NULL);
    memory_free(tracking);
}

static struct tracker *tracking_find(const struct tracking *tracking, uint64_t id) {
    const struct dict_entry *entry = dict_peek(&tracking->trackers, dict_hash(&id, sizeof id), &id, sizeof id);
    return entry ? entry->value : NULL;
}

static struct tracker *tracker_make(struct client *client) {
    struct tracking *tracking = client->server->redis->tracking;
    struct tracker *tracker = memory_calloc(1, sizeof *tracker);
    struct dict_entry *entry = NULL;
    uint64_t id = client->id;
    if (tracker) entry = dict_add(&tracking->trackers, dict_hash(&id, sizeof id), &id, sizeof id);
    if (!entry) {
        memory_free(tracker);
        return NULL;
    }
    entry->value = tracker;
    tracker->client = client;
    LIST_APPEND(tracking->head, tracking->tail, tracker, next, previous);
    client->tracker = tracker;
    return tracker;
}

bool tracking_begin(struct client *client, const struct tracking_wish *wish) {
    struct tracking *tracking = client->server->redis->tracking;
    bool is_new = !client->tracker;
    struct tracker *tracker = is_new ? tracker_make(client) : client->tracker;
    bool joined = tracker;
    static const struct resp_argument all = {.data = (uint8_t *)"", .length = 0};
    if (joined && wish->mode == TRACKING_BROADCAST && wish->prefix_count == 0)
        joined = tracking_prefixes_join(tracking, tracker, &all);
    for (uint32_t i = 0; joined && i < wish->prefix_count; i++)
        joined = tracking_prefixes_join(tracking, tracker, wish->prefixes[i]);
    if (!joined) {
        if (is_new) tracking_end(client);
        return false;
    }
    tracker->mode = wish->mode;
    tracker->no_loop = wish->no_loop;
    tracker->redirect_is_broken = false;
    tracker->caching = NULL;
    tracker->target = wish->target;
    tracker->redirect = wish->target ? wish->target->id : 0;
    if (wish->target) wish->target->is_tracking_target = true;
    return true;
}

static void forget_all(struct tracking *tracking) {
    forget_changed(tracking);
    if (dict_count(&tracking->keys) == 0) return;
    dict_clear(&tracking->leaving, drop_readers, NULL);
    tracking->leaving = tracking->keys;
    dict_init(&tracking->keys);
    tracking->items = 0;
}

/* Its id may stand in the table still: nobody is found by it, and no other client ever gets it. The last one takes the table
 * with it. */
void tracking_end(struct client *client) {
    struct tracking *tracking = client->server->redis->tracking;
    struct tracker *tracker = client->tracker;
    if (!tracker) return;
    uint64_t id = client->id;
    struct dict_entry *entry = dict_find(&tracking->trackers, dict_hash(&id, sizeof id), &id, sizeof id);
    dict_unlink(&tracking->trackers, entry);
    dict_entry_free(entry);
    LIST_REMOVE(tracking->head, tracking->tail, tracker, next, previous);
    tracking_prefixes_leave(tracking, tracker);
    memory_free(tracker);
    client->tracker = NULL;
    if (!tracking->head) forget_all(tracking);
}

void tracking_client_left(struct client *client) {
    tracking_end(client);
    if (!client->is_tracking_target) return;
    client->is_tracking_target = false;
    for (struct tracker *other = client->server->redis->tracking->head; other; other = other->next)
        if (other->target == client) other->target = NULL;
}

/* ---- what is read ------------------------------------------------------------------------------------------------------ */

/* Where the id stands, or would stand. */
static uint32_t place_of(const struct readers *readers, uint64_t id) {
    uint32_t low = 0, high = readers->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (readers->ids[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Those that track no more. */
static void drop_gone(struct tracking *tracking, struct readers *readers) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < readers->count; i++)
        if (tracking_find(tracking, readers->ids[i])) readers->ids[kept++] = readers->ids[i];
    tracking->items -= readers->count - kept;
    readers->count = kept;
}

static struct readers *grow(struct dict_entry *entry, uint32_t capacity) {
    struct readers *readers = memory_realloc(entry->value, sizeof *readers + capacity * sizeof *readers->ids);
    if (!readers) return NULL;
    if (!entry->value) *readers = (struct readers){.entry = entry};
    readers->capacity = capacity;
    entry->value = readers;
    return readers;
}

/* False: memory is exhausted. */
static bool remember(struct tracking *tracking, uint64_t id, const struct resp_argument *key) {
    uint32_t hash = dict_hash(key->data, key->length);
    struct dict_entry *entry = dict_find(&tracking->keys, hash, key->data, key->length);
    if (!entry) entry = dict_add(&tracking->keys, hash, key->data, key->length);
    if (!entry) return false;
    struct readers *readers = entry->value ? entry->value : grow(entry, FIRST_READERS);
    if (!readers) {
        dict_unlink(&tracking->keys, entry);
        dict_entry_free(entry);
        return false;
    }
    uint32_t place = place_of(readers, id);
    if (place < readers->count && readers->ids[place] == id) return true;
    if (readers->count == readers->capacity) {
        drop_gone(tracking, readers);
        if (readers->count > readers->capacity / 2) readers = grow(entry, readers->capacity * 2);
        if (!readers) return false;
        place = place_of(readers, id);
    }
    memmove(readers->ids + place + 1, readers->ids + place, (readers->count - place) * sizeof *readers->ids);
    readers->ids[place] = id;
    readers->count++;
    tracking->items++;
    return true;
}

/* Takes the key out of the table: its readers are told at the end of the turn. */
static void leave_table(struct server *server, struct dict_entry *entry, uint64_t changed_by) {
    struct tracking *tracking = server->redis->tracking;
    struct readers *readers = entry->value;
    dict_unlink(&tracking->keys, entry);
    tracking->items -= readers->count;
    readers->changed_by = changed_by;
    readers->next_changed = NULL;
    if (tracking->last_changed)
        tracking->last_changed->next_changed = readers;
    else
        tracking->first_changed = readers;
    tracking->last_changed = readers;
    tracking->changed_count++;
    server->acting.tracking_is_due = true;
}

static bool is_too_full(const struct tracking *tracking) {
    return tracking->most_keys > 0 && dict_count(&tracking->keys) > tracking->most_keys;
}

static void keep_to_limit(struct server *server, int most) {
    struct tracking *tracking = server->redis->tracking;
    for (; most > 0 && is_too_full(tracking); most--)
        leave_table(server, dict_random(&tracking->keys, &tracking->random), 0);
}

static bool is_remembered(const struct tracker *tracker) {
    switch (tracker->mode) {
    case TRACKING_READ: return true;
    case TRACKING_OPTIN: return tracker->caching;
    case TRACKING_OPTOUT: return !tracker->caching;
    case TRACKING_BROADCAST: break;
    }
    return false;
}

void tracking_read(const struct client *client) {
    struct tracking *tracking = client->server->redis->tracking;
    struct tracker *tracker = client->tracker;
    if (!is_remembered(tracker)) return;
    struct key_place few[KEYS_AT_ONCE], *places = few;
    int count = command_keys(client->command, client->argc, client->argv, few, KEYS_AT_ONCE);
    if (count > KEYS_AT_ONCE) {
        places = memory_alloc((size_t)count * sizeof *places);
        if (places) command_keys(client->command, client->argc, client->argv, places, count);
    }
    bool kept = places;
    for (int i = 0; kept && i < count; i++) kept = remember(tracking, client->id, &client->argv[places[i].index]);
    if (places != few) memory_free(places);
    if (!kept) tracking_tell_all_changed(tracking, tracker); /* it must not keep what nobody tells it of */
    keep_to_limit(client->server, 2 * (count > 0 ? count : 1));
}

void tracking_request_done(struct client *client) {
    struct tracker *tracker = client->tracker;
    if (!tracker->caching || client->transaction) return;
    if (!client->entry || client->entry->container != tracker->caching) tracker->caching = NULL;
}

/* ---- what changes ------------------------------------------------------------------------------------------------------ */

void tracking_tell_all_changed(struct tracking *tracking, struct tracker *tracker) {
    tracker->all_changed = true;
    tracking->some_all_changed = true;
}

void tracking_changed(struct server *server, unsigned database, const uint8_t *key, size_t length) {
    (void)database; /* clients keep keys by their names alone */
    struct tracking *tracking = server->redis->tracking;
    if (!tracking->head) return;
    const struct client *acting = server->acting.client;
    if (dict_count(&tracking->prefixes) > 0) tracking_prefixes_changed(tracking, acting, key, length);
    if (dict_count(&tracking->keys) == 0) return;
    struct dict_entry *entry = dict_find(&tracking->keys, dict_hash(key, length), key, length);
    if (!entry) return;
    leave_table(server, entry, acting ? acting->id : 0);
    if (tracking->changed_count > LIMIT_TRACKING_CHANGED) tracking_flushed(server);
}

void tracking_flushed(struct server *server) {
    struct tracking *tracking = server->redis->tracking;
    for (struct tracker *tracker = tracking->head; tracker; tracker = tracker->next)
        tracking_tell_all_changed(tracking, tracker);
    forget_all(tracking); /* what has changed before is among all that changes now */
    server->acting.tracking_is_due |= tracking->some_all_changed;
}

/* ---- messages ---------------------------------------------------------------------------------------------------------- */

/* Its reply is not whole yet. */
static bool is_midway(const struct client *client) {
    return exclusive_is_run_for(client) || slices_is_going_on(client);
}

static void speak_to(struct client *to, struct tracking_message *message) {
    *message = (struct tracking_message){to, to->reply_mode};
    to->reply_mode = CLIENT_REPLY_ON;
}

void tracking_message_end(const struct tracking_message *message) {
    message->to->reply_mode = message->mode;
}

static void tell_of_broken_redirect(struct tracker *tracker) {
    struct client *client = tracker->client;
    struct tracking_message message;
    tracker->redirect_is_broken = true;
    if (client->resp < 3 || is_midway(client)) return;
    speak_to(client, &message);
    reply_push(client, 2);
    reply_bulk_string(client, "tracking-redir-broken");
    reply_integer(client, (int64_t)tracker->redirect);
    tracking_message_end(&message);
}

bool tracking_message_begin(struct tracker *tracker, struct tracking_message *message) {
    if (tracker->redirect != 0 && !tracker->target) {
        tell_of_broken_redirect(tracker);
        return false;
    }
    struct client *to = tracker->target ? tracker->target : tracker->client;
    if (to->resp < 3 && (!tracker->target || !pubsub_is_subscriber(to))) return false; /* it cannot be told */
    if (is_midway(to)) {
        tracking_tell_all_changed(to->server->redis->tracking, tracker);
        return false;
    }
    speak_to(to, message);
    reply_push(to, to->resp < 3 ? 3 : 2);
    if (to->resp < 3) {
        reply_bulk_string(to, "message");
        reply_bulk_string(to, CHANNEL);
    } else {
        reply_bulk_string(to, "invalidate");
    }
    return true;
}

static void tell_all_changed(struct tracking *tracking) {
    tracking->some_all_changed = false;
    for (struct tracker *tracker = tracking->head; tracker; tracker = tracker->next) {
        struct tracking_message message;
        if (!tracker->all_changed) continue;
        tracker->all_changed = false;
        if (!tracking_message_begin(tracker, &message)) continue;
        reply_null(message.to);
        tracking_message_end(&message);
    }
}

static void tell_readers(struct tracking *tracking, const struct readers *readers) {
    for (uint32_t i = 0; i < readers->count; i++) {
        struct tracker *tracker = tracking_find(tracking, readers->ids[i]);
        struct tracking_message message;
        if (!tracker || tracker->mode == TRACKING_BROADCAST) continue;
        if (tracker->no_loop && readers->changed_by == tracker->client->id) continue;
        if (!tracking_message_begin(tracker, &message)) continue;
        reply_array(message.to, 1);
        reply_bulk(message.to, readers->entry->key, readers->entry->key_length);
        tracking_message_end(&message);
    }
}

static bool send_changed(struct tracking *tracking, uint64_t until_us) {
    while (tracking->first_changed) {
        struct readers *readers = tracking->first_changed;
        tell_readers(tracking, readers);
        tracking->first_changed = readers->next_changed;
        if (!tracking->first_changed) tracking->last_changed = NULL;
        tracking->changed_count--;
        dict_entry_free(readers->entry);
        memory_free(readers);
        if (tracking->first_changed && clock_monotonic_us() >= until_us) return false;
    }
    return true;
}

void tracking_tell_readers(struct server *server) {
    struct tracking *tracking = server->redis->tracking;
    if (tracking->some_all_changed) tell_all_changed(tracking);
    server->acting.tracking_is_due = !send_changed(tracking, clock_monotonic_us() + LIMIT_TURN_TRACKING_US);
}

uint64_t tracking_send(struct server *server) {
    struct tracking *tracking = server->redis->tracking;
    if (server->acting.tracking_is_due || tracking->some_all_changed) tracking_tell_readers(server);
    bool done = dict_count(&tracking->prefixes) == 0 ||
                tracking_prefixes_send(server, clock_monotonic_us() + LIMIT_TURN_TRACKING_US);
    if (!done || server->acting.tracking_is_due) return 0;
    return tracking->some_all_changed ? server->now_us + MIDWAY_US : CLOCK_NEVER;
}

void tracking_configure(struct server *server) {
    server->redis->tracking->most_keys = (uint64_t)server->config.tracking_table_max_keys;
}

uint64_t tracking_tidy(struct server *server) {
    struct tracking *tracking = server->redis->tracking;
    size_t steps = TIDIED_AT_ONCE;
    bool freed = dict_count(&tracking->leaving) == 0 || dict_release(&tracking->leaving, &steps, drop_readers, NULL);
    keep_to_limit(server, TIDIED_AT_ONCE);
    return freed && !is_too_full(tracking) ? CLOCK_NEVER : 0;
}
