/* tracking_prefixes: clients that are told of all changes of keys that begin with a prefix. */
#include <string.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/memory.h"
#include "server/core/server.h"
#include "server/redis/redis_subsystem.h"
#include "server/redis/tracking/tracking.h"

#define KEYS_IN_MESSAGE 1024

/* ---- who is told of what ----------------------------------------------------------------------------------------------- */

static struct tracking_prefix *find(struct tracking *tracking, const struct resp_argument *name) {
    struct dict_entry *entry =
        dict_find(&tracking->prefixes, dict_hash(name->data, name->length), name->data, name->length);
    return entry ? entry->value : NULL;
}

static struct tracking_prefix *make(struct tracking *tracking, const struct resp_argument *name) {
    struct tracking_prefix *prefix = memory_calloc(1, sizeof *prefix);
    if (!prefix) return NULL;
    prefix->entry = dict_add(&tracking->prefixes, dict_hash(name->data, name->length), name->data, name->length);
    if (!prefix->entry) {
        memory_free(prefix);
        return NULL;
    }
    prefix->entry->value = prefix;
    return prefix;
}

static void drop_if_unused(struct tracking *tracking, struct tracking_prefix *prefix) {
    if (prefix->head) return;
    dict_clear(&prefix->changed, NULL, NULL);
    dict_unlink(&tracking->prefixes, prefix->entry);
    dict_entry_free(prefix->entry);
    memory_free(prefix);
}

static bool precedes(const struct dict_entry *first, const struct dict_entry *second) {
    size_t shorter = first->key_length < second->key_length ? first->key_length : second->key_length;
    int order = memcmp(first->key, second->key, shorter);
    return order < 0 || (order == 0 && first->key_length < second->key_length);
}

bool tracking_prefixes_join(struct tracking *tracking, struct tracker *tracker, const struct resp_argument *name) {
    struct tracking_prefix *prefix = find(tracking, name);
    for (const struct tracking_membership *each = tracker->prefixes; each; each = each->next_of_tracker)
        if (each->prefix == prefix) return true;
    if (!prefix) prefix = make(tracking, name);
    struct tracking_membership *member = prefix ? memory_calloc(1, sizeof *member) : NULL;
    if (!member) {
        if (prefix) drop_if_unused(tracking, prefix);
        return false;
    }
    member->tracker = tracker;
    member->prefix = prefix;
    struct tracking_membership **place = &tracker->prefixes; /* in alphabetical order, as they are shown */
    while (*place && precedes((*place)->prefix->entry, prefix->entry)) place = &(*place)->next_of_tracker;
    member->next_of_tracker = *place;
    *place = member;
    LIST_APPEND(prefix->head, prefix->tail, member, next, previous);
    return true;
}

void tracking_prefixes_leave(struct tracking *tracking, struct tracker *tracker) {
    while (tracker->prefixes) {
        struct tracking_membership *member = tracker->prefixes;
        tracker->prefixes = member->next_of_tracker;
        LIST_REMOVE(member->prefix->head, member->prefix->tail, member, next, previous);
        drop_if_unused(tracking, member->prefix);
        memory_free(member);
    }
}

/* ---- what changes ------------------------------------------------------------------------------------------------------ */

static void tell_everything(struct tracking *tracking, struct tracking_prefix *prefix) {
    dict_clear(&prefix->changed, NULL, NULL);
    for (struct tracking_membership *member = prefix->head; member; member = member->next)
        tracking_tell_all_changed(tracking, member->tracker);
}

static void note(struct tracking *tracking, struct tracking_prefix *prefix, uint64_t changed_by, const uint8_t *key,
                 size_t length) {
    uint32_t hash = dict_hash(key, length);
    struct dict_entry *entry = dict_find(&prefix->changed, hash, key, length);
    if (!entry && dict_count(&prefix->changed) < LIMIT_TRACKING_CHANGED)
        entry = dict_add(&prefix->changed, hash, key, length);
    if (entry)
        entry->value = (void *)(uintptr_t)changed_by;
    else
        tell_everything(tracking, prefix);
}

void tracking_prefixes_changed(struct tracking *tracking, const struct client *acting, const uint8_t *key,
                               size_t length) {
    struct dict_position position = {0};
    const struct dict_entry *entry;
    while ((entry = dict_next(&tracking->prefixes, &position))) {
        if (entry->key_length > length || memcmp(entry->key, key, entry->key_length) != 0) continue;
        note(tracking, entry->value, acting ? acting->id : 0, key, length);
    }
}

/* ---- messages ---------------------------------------------------------------------------------------------------------- */

struct batch {
    struct dict_entry *entries[KEYS_IN_MESSAGE]; /* taken out of the prefix's dict */
    size_t count;
};

static void take(struct tracking_prefix *prefix, struct batch *batch) {
    struct dict_position position = {0};
    struct dict_entry *entry;
    batch->count = 0;
    while (batch->count < KEYS_IN_MESSAGE && (entry = dict_next(&prefix->changed, &position)))
        batch->entries[batch->count++] = entry;
    for (size_t i = 0; i < batch->count; i++) dict_unlink(&prefix->changed, batch->entries[i]);
}

static bool is_changed_by(const struct dict_entry *entry, const struct client *client) {
    return (uintptr_t)entry->value == (uintptr_t)client->id;
}

static void tell(struct tracker *tracker, const struct batch *batch) {
    size_t count = batch->count;
    for (size_t i = 0; tracker->no_loop && i < batch->count; i++)
        if (is_changed_by(batch->entries[i], tracker->client)) count--;
    struct tracking_message message;
    if (count == 0 || !tracking_message_begin(tracker, &message)) return;
    reply_array(message.to, count);
    for (size_t i = 0; i < batch->count; i++) {
        const struct dict_entry *entry = batch->entries[i];
        if (tracker->no_loop && is_changed_by(entry, tracker->client)) continue;
        reply_bulk(message.to, entry->key, entry->key_length);
    }
    tracking_message_end(&message);
}

static void send_batch(struct tracking_prefix *prefix) {
    struct batch batch;
    take(prefix, &batch);
    for (struct tracking_membership *member = prefix->head; member; member = member->next)
        tell(member->tracker, &batch);
    for (size_t i = 0; i < batch.count; i++) dict_entry_free(batch.entries[i]);
}

bool tracking_prefixes_send(struct server *server, uint64_t until_us) {
    struct dict_position position = {0};
    const struct dict_entry *entry;
    while ((entry = dict_next(&server->redis->tracking->prefixes, &position))) {
        struct tracking_prefix *prefix = entry->value;
        while (dict_count(&prefix->changed) > 0) {
            if (clock_monotonic_us() >= until_us) return false;
            send_batch(prefix);
        }
    }
    return true;
}
