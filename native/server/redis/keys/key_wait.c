/* key_wait: clients that wait until one of some keys changes. Each key that is waited for has a queue, first in first
 * out; a client stands in the queues of all its keys at once, and leaves all of them when one has served it. */
#include "server/redis/keys/key_wait.h"

#include <assert.h>
#include <math.h>

#include "base/list.h"
#include "base/memory.h"
#include "server/core/server.h"
#include "server/redis/redis_subsystem.h"
#include "store/number.h"
#include "store/store.h"

struct key_waiter {
    struct client *client;
    struct key_queue *queue;
    struct key_waiter *next, *previous;
    uint32_t index; /* of the argument with the key */
};

/* What one client waits for. */
struct key_wait {
    uint32_t count;
    uint32_t changed; /* the argument whose key is why the client is tried */
    bool also_when_gone;
    struct key_waiter waiters[];
};

struct key_queue {
    struct dict_entry *entry; /* under its key */
    struct key_waiter *head, *tail;
    struct key_queue *next_ready;
    uint32_t also_when_gone; /* so many waiters are tried where the key is not there */
    unsigned database;
    bool ready;   /* the key has changed: on the list */
    bool serving; /* it may not be freed yet */
};

struct key_waits {
    struct dict keys[STORE_DATABASES]; /* of struct key_queue */
    struct key_queue *ready, *last_ready; /* in the order in which their keys changed */
    uint64_t queues;
};

static struct key_waits *waits_of(struct server *server) {
    if (!server->redis->key_waits) server->redis->key_waits = memory_calloc(1, sizeof *server->redis->key_waits);
    return server->redis->key_waits;
}

static struct key_queue *find_queue(struct key_waits *waits, unsigned database, const uint8_t *key, size_t length) {
    struct dict_entry *entry = dict_find(&waits->keys[database], dict_hash(key, length), key, length);
    return entry ? entry->value : NULL;
}

static struct key_queue *queue_new(struct key_waits *waits, unsigned database, const struct resp_argument *key) {
    struct key_queue *queue = memory_calloc(1, sizeof *queue);
    struct dict_entry *entry = NULL;
    if (queue) entry = dict_add(&waits->keys[database], dict_hash(key->data, key->length), key->data, key->length);
    if (!entry) {
        memory_free(queue);
        return NULL;
    }
    entry->value = queue;
    queue->entry = entry;
    queue->database = database;
    waits->queues++;
    return queue;
}

static void free_if_unused(struct key_waits *waits, struct key_queue *queue) {
    if (queue->head || queue->ready || queue->serving) return;
    dict_unlink(&waits->keys[queue->database], queue->entry);
    dict_entry_free(queue->entry);
    memory_free(queue);
    waits->queues--;
}

/* False: memory is exhausted. A key that is named twice counts once. */
static bool enter(struct key_waits *waits, struct client *client, uint32_t index) {
    const struct resp_argument *key = &client->argv[index];
    unsigned database = (unsigned)client->database;
    struct key_queue *queue = find_queue(waits, database, key->data, key->length);
    if (!queue) queue = queue_new(waits, database, key);
    if (!queue) return false;
    if (queue->tail && queue->tail->client == client) return true;
    struct key_waiter *waiter = &client->key_wait->waiters[client->key_wait->count++];
    *waiter = (struct key_waiter){.client = client, .queue = queue, .index = index};
    LIST_APPEND(queue->head, queue->tail, waiter, next, previous);
    return true;
}

void client_block_on_keys(struct client *client, const uint32_t *indexes, uint32_t count, uint64_t deadline_us,
                          bool (*retry)(struct client *), void (*expired)(struct client *)) {
    assert(count > 0);
    if (!client_may_block(client)) {
        expired(client);
        return;
    }
    assert(!client->blocked && !client->key_wait);
    struct key_waits *waits = waits_of(client->server);
    if (waits) client->key_wait = memory_calloc(1, sizeof *client->key_wait + count * sizeof(struct key_waiter));
    client->leave_wait = key_wait_forget;
    bool entered = client->key_wait;
    for (uint32_t i = 0; i < count && entered; i++) entered = enter(waits, client, indexes[i]);
    if (!entered) {
        key_wait_forget(client);
        reply_error(client, "OOM no memory to wait for %u keys", (unsigned)count);
        return;
    }
    client_block(client, NULL, deadline_us, retry, expired);
    if (!client->blocked) key_wait_forget(client);
}

void key_wait_on_range(struct client *client, uint32_t first, uint32_t count, uint64_t deadline_us,
                       bool (*retry)(struct client *), void (*expired)(struct client *)) {
    uint32_t *indexes = memory_alloc(count * sizeof *indexes);
    if (!indexes) {
        reply_error(client, "OOM no memory to wait for %u keys", (unsigned)count);
        return;
    }
    for (uint32_t i = 0; i < count; i++) indexes[i] = first + i;
    client_block_on_keys(client, indexes, count, deadline_us, retry, expired);
    memory_free(indexes);
}

void key_wait_also_when_gone(struct client *client) {
    struct key_wait *wait = client->key_wait;
    if (!wait) return;
    wait->also_when_gone = true;
    for (uint32_t i = 0; i < wait->count; i++) wait->waiters[i].queue->also_when_gone++;
}

bool key_wait_deadline(struct client *client, uint32_t index, uint64_t *deadline_us) {
    long double seconds;
    if (!number_parse_long_double(client->argv[index].data, client->argv[index].length, &seconds)) {
        reply_error(client, "ERR timeout is not a float or out of range");
        return false;
    }
    long double ms = ceill(seconds * 1000);
    if (ms < 0 || ms > (long double)INT64_MAX) {
        reply_error(client, "ERR timeout is negative"); /* what Redis says also to one that is too large */
        return false;
    }
    const uint64_t longest_ms = (UINT64_MAX - client->server->now_us) / 1000 - 1;
    uint64_t wait_ms = (uint64_t)ms;
    *deadline_us = wait_ms == 0 || wait_ms > longest_ms ? CLOCK_NEVER : client->server->now_us + wait_ms * 1000;
    return true;
}

void key_wait_forget(struct client *client) {
    struct key_wait *wait = client->key_wait;
    client->leave_wait = NULL;
    if (!wait) return;
    for (uint32_t i = 0; i < wait->count; i++) {
        struct key_waiter *waiter = &wait->waiters[i];
        struct key_queue *queue = waiter->queue;
        queue->also_when_gone -= wait->also_when_gone;
        LIST_REMOVE(queue->head, queue->tail, waiter, next, previous);
        free_if_unused(client->server->redis->key_waits, queue);
    }
    memory_free(wait);
    client->key_wait = NULL;
}

uint32_t key_wait_index(const struct client *client) {
    return client->key_wait->changed;
}

/* ---- waking ------------------------------------------------------------------------------------------------------ */

static void make_ready(struct server *server, struct key_queue *queue) {
    struct key_waits *waits = server->redis->key_waits;
    if (queue->ready) return;
    queue->ready = server->retry_subsystems = true;
    queue->next_ready = NULL;
    *(waits->ready ? &waits->last_ready->next_ready : &waits->ready) = queue;
    waits->last_ready = queue;
}

void key_wait_changed(struct server *server, unsigned database, const uint8_t *key, size_t length) {
    struct key_waits *waits = server->redis->key_waits;
    if (!waits || waits->queues == 0) return;
    struct key_queue *queue = find_queue(waits, database, key, length);
    if (queue) make_ready(server, queue);
}

void key_wait_exchanged(struct server *server, unsigned database) {
    struct key_waits *waits = server->redis->key_waits;
    if (!waits) return;
    struct dict_position position = {0};
    const struct dict_entry *entry;
    while ((entry = dict_next(&waits->keys[database], &position))) make_ready(server, entry->value);
}

/* Tries who waits for the key, in their order, while the key is there; others only where they wait for its going. False: the time is over before all were tried. */
static bool serve(struct server *server, struct key_queue *queue, uint64_t until_us) {
    const struct dict_entry *key = queue->entry;
    struct key_waiter *next;
    for (struct key_waiter *waiter = queue->head; waiter; waiter = next) {
        /* Of all waiters only this one leaves while it is tried. */
        next = waiter->next;
        struct client *client = waiter->client;
        if (!store_find(server->store, queue->database, key->key, key->key_length)) {
            if (queue->also_when_gone == 0) return true;
            if (!client->key_wait->also_when_gone) continue;
        }
        client->key_wait->changed = waiter->index;
        if (!client_retry(client)) continue; /* it waits for a value of another type */
        server_tick(server);
        if (next && server->now_us >= until_us) return false;
    }
    return true;
}

bool key_wait_run(struct server *server, uint64_t until_us) {
    struct key_waits *waits = server->redis->key_waits;
    bool in_time = true;
    while (waits && waits->ready && in_time) {
        struct key_queue *queue = waits->ready;
        waits->ready = queue->next_ready;
        queue->ready = false;
        queue->serving = true;
        in_time = serve(server, queue, until_us);
        if (!in_time) make_ready(server, queue);
        queue->serving = false;
        free_if_unused(waits, queue);
    }
    server->retry_subsystems = waits && waits->ready;
    return in_time;
}

void key_waits_free(struct server *server) {
    struct key_waits *waits = server->redis->key_waits;
    if (!waits) return;
    /* No client is left: what remains are queues whose keys had changed. */
    while (waits->ready) {
        struct key_queue *queue = waits->ready;
        waits->ready = queue->next_ready;
        queue->ready = false;
        free_if_unused(waits, queue);
    }
    for (unsigned d = 0; d < STORE_DATABASES; d++) dict_clear(&waits->keys[d], NULL, NULL);
    memory_free(waits);
    server->redis->key_waits = NULL;
}
