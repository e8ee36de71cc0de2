/* keyspace_events: what follows from changes of keys, whoever made them. */
#include "server/keyspace_events.h"

#include "server/key_wait.h"
#include "server/notify.h"
#include "server/propagate.h"
#include "server/watch.h"
#include "store/store.h"

static void changed(void *context, unsigned database, const uint8_t *key, size_t length) {
    key_wait_changed(context, database, key, length);
    watch_changed(context, database, key, length);
    struct server *server = context;
    if (server->notify.flags) notify_changed(server, database, key, length);
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
    watch_will_flush(context, database);
}

void keyspace_listen(struct server *server) {
    server->store->events = (struct store_events){
        .context = server,
        .changed = changed,
        .will_flush = will_flush,
        .expired = expired,
        .evicted = evicted,
    };
}
