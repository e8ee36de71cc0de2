/* keyspace_events: what follows from changes of keys, whoever made them. */
#include "server/durability/keyspace_events.h"

#include "persist/store_cut.h"
#include "server/core/propagate.h"
#include "server/durability/durability_subsystem.h"
#include "server/durability/snapshots.h"
#include "server/redis/keys/key_wait.h"
#include "server/redis/pubsub/notify.h"
#include "server/redis/redis_subsystem.h"
#include "server/redis/tracking/tracking.h"
#include "server/redis/transaction/watch.h"
#include "store/store.h"

static struct store_cut *cut_of(const struct server *server) {
    return server->durability->snapshots->cut;
}

static void will_change(void *context, unsigned database, struct dict_entry *entry) {
    store_cut_will_change(cut_of(context), database, entry);
}

static void changed(void *context, unsigned database, const uint8_t *key, size_t length) {
    store_cut_changed(cut_of(context), database, key, length);
    key_wait_changed(context, database, key, length);
    watch_changed(context, database, key, length);
    tracking_changed(context, database, key, length);
    struct server *server = context;
    if (server->redis->notify.flags) notify_changed(server, database, key, length);
}

static void will_add(void *context) {
    notify_will_add(context);
}

static void expired(void *context, unsigned database, const uint8_t *key, size_t length) {
    propagate_removed(context, database, key, length);
    notify_gone(context, NOTIFY_EXPIRED, "expired", database, key, length);
}

static void evicted(void *context, unsigned database, const uint8_t *key, size_t length) {
    propagate_removed(context, database, key, length);
    notify_gone(context, NOTIFY_EVICTED, "evicted", database, key, length);
}

static void will_flush(void *context, unsigned database) {
    store_cut_will_flush(cut_of(context), database);
    watch_will_flush(context, database);
    tracking_flushed(context);
    key_wait_exchanged(context, database);
}

static void will_exchange(void *context, unsigned first, unsigned second) {
    store_cut_will_exchange(cut_of(context), first, second);
    watch_will_flush(context, first);
    watch_will_flush(context, second);
    tracking_flushed(context);
}

void keyspace_listen(struct server *server) {
    server->store->events = (struct store_events){
        .context = server,
        .will_change = will_change,
        .changed = changed,
        .will_add = will_add,
        .will_flush = will_flush,
        .will_exchange = will_exchange,
        .expired = expired,
        .evicted = evicted,
    };
}
