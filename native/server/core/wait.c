/* wait: blocked clients: queues first in first out, and a heap of their deadlines. */
#include <assert.h>

#include "base/heap.h"
#include "base/list.h"
#include "base/memory.h"
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/exclusive_execution.h"
#include "server/core/server.h"
#include "server/core/slices.h"
#include "server/core/subsystem.h"
#include "store/store.h"

/* ---- deadlines: a heap, each client knowing its place ------------------------------------------------- */

static bool ends_before(const void *left, const void *right, const void *context) {
    (void)context;
    return (*(struct client *const *)left)->deadline_us < (*(struct client *const *)right)->deadline_us;
}

static void placed(const void *client, uint32_t at, void *context) {
    (void)context;
    (*(struct client *const *)client)->deadline_index = at;
}

static void settle(struct server *server, uint32_t at, struct client *client) {
    const struct heap heap = {
        server->clients.deadlines.heap, sizeof client, server->clients.deadlines.count, ends_before, placed, NULL};
    heap_settle(heap, at, &client);
}

static bool deadline_add(struct server *server, struct client *client) {
    struct client **heap = memory_grow(server->clients.deadlines.heap, server->clients.deadlines.count,
                                       &server->clients.deadlines.capacity, 64, sizeof *heap);
    if (!heap) return false;
    server->clients.deadlines.heap = heap;
    server->clients.deadlines.count++;
    settle(server, server->clients.deadlines.count - 1, client);
    return true;
}

static void deadline_remove(struct server *server, struct client *client) {
    uint32_t index = client->deadline_index;
    if (index == UINT32_MAX) return;
    client->deadline_index = UINT32_MAX;
    struct client *last = server->clients.deadlines.heap[--server->clients.deadlines.count];
    if (last != client) settle(server, index, last);
}

/* ---- blocking and waking ----------------------------------------------------------------------------- */

bool client_may_block(const struct client *client) {
    return !client->deny_blocking;
}

void client_block(struct client *client, struct wait_queue *queue, uint64_t deadline_us, bool (*retry)(struct client *),
                  void (*expired)(struct client *)) {
    struct server *server = client->server;
    assert(queue || client->leave_wait || deadline_us != CLOCK_NEVER);
    if (!client_may_block(client)) { /* a transaction of several turns itself waits for its next one */
        expired(client);
        return;
    }
    assert(!client->blocked);
    client->deadline_us = deadline_us;
    /* Without memory for the deadline the wait is over at once: better than one that never ends. */
    if (deadline_us != CLOCK_NEVER && !deadline_add(server, client)) {
        expired(client);
        return;
    }
    client->blocked = true;
    client->retry = retry;
    client->expired = expired;
    client->queue = queue;
    server->clients.blocked++;
    if (!queue) return;
    LIST_APPEND(queue->head, queue->tail, client, wait_next, wait_previous);
    queue->length++;
}

/* Returns the queue if the client stood at its head and others stood behind it. */
static struct wait_queue *leave(struct client *client) {
    struct wait_queue *queue = client->queue;
    client->blocked = false;
    client->server->clients.blocked--;
    deadline_remove(client->server, client);
    if (client->leave_wait) client->leave_wait(client);
    if (!queue) return NULL;
    bool was_head = !client->wait_previous;
    LIST_REMOVE(queue->head, queue->tail, client, wait_next, wait_previous);
    queue->length--;
    client->queue = NULL;
    return was_head && queue->length > 0 ? queue : NULL;
}

void client_block_next(struct client *client, struct wait_queue *queue, uint64_t deadline_us,
                       bool (*retry)(struct client *), void (*expired)(struct client *)) {
    if (client->blocked && client_may_block(client))
        leave(client); /* who stood behind it is tried by the caller of the retry */
    client_block(client, queue, deadline_us, retry, expired);
}

void client_block_elsewhere(struct client *client, struct wait_queue *queue) {
    uint64_t deadline_us = client->deadline_us;
    assert(client->blocked && client_may_block(client) && client->queue != queue);
    leave(client);
    client_block(client, queue, deadline_us, client->retry, client->expired); /* the deadline's place is there */
}

/* Whoever stood behind it may want less than it did: the next is tried although nothing has come. */
void client_unblock(struct client *client) {
    if (!client->blocked) return;
    struct wait_queue *queue = leave(client);
    if (queue && !queue->each) wait_queue_wake(client->server, queue);
}

static void put_with_woken(struct server *server, struct wait_queue *queue) {
    if (queue->woken || queue->length == 0) return;
    queue->woken = true;
    queue->next_woken = NULL;
    struct wait_queue **end = &server->woken;
    while (*end) end = &(*end)->next_woken;
    *end = queue;
}

void wait_queue_wake(struct server *server, struct wait_queue *queue) {
    queue->untried = queue->length;
    put_with_woken(server, queue);
}

/* The wait is answered: what the client sent meanwhile comes next. */
static void resume(struct client *client) {
    client_request_done(client);
    if (client->pending_length > 0)
        client_make_ready(client);
    else if (client->input_ended && !client->blocked)
        client_close_after_reply(client); /* it hung up while it was served in slices */
    client_update_reading(client);
}

bool client_retry(struct client *client) {
    assert(client->blocked);
    if (!client->retry) return false;
    const struct wait_queue *queue = client->queue;
    struct server *server = client->server;
    uint64_t changes = exclusive_changes_before(client);
    const struct client *acting = server->acting.client;
    server->acting.client = client;
    client->error_replied = false;
    bool replied = client->retry(client);
    server->acting.client = acting;
    if (!replied) return false;
    if (client->error_replied && client->entry) client->entry->stats.failed++;
    bool changed = server->store->changes != changes;
    command_replied(client, changed);
    if (client->blocked && client->queue != queue) { /* it waits for something else now, unless it hung up meanwhile */
        if ((client->input_ended || client->hung_up) && !slices_is_going_on(client)) client_close(client);
        return true;
    }
    if (client->blocked)
        leave(client); /* a reply that cannot be held closes the client; the next is tried by the caller */
    resume(client);
    return true;
}

void client_expire(struct client *client) {
    client_unblock(client);
    client->expired(client);
    resume(client);
}

/* A client whose request is done in part, or goes on, must not be told that it was not done: its wait ends as by a stop. */
void client_interrupt(struct client *client, const char *error) {
    if (client->has_begun || slices_is_going_on(client)) {
        client_expire(client);
        return;
    }
    client_unblock(client);
    reply_error(client, "%s", error);
    resume(client);
}

void wait_queue_expire_all(struct server *server, struct wait_queue *queue) {
    while (queue->head) client_expire(queue->head);
    for (struct wait_queue **link = &server->woken; *link; link = &(*link)->next_woken) {
        if (*link == queue) {
            *link = queue->next_woken; /* its owner may be about to free it */
            break;
        }
    }
    queue->woken = false;
}

void wait_queue_rotate(struct wait_queue *queue, struct client *client) {
    assert(queue->head == client);
    if (queue->tail == client) return;
    queue->head = client->wait_next;
    queue->head->wait_previous = NULL;
    client->wait_previous = queue->tail;
    client->wait_next = NULL;
    queue->tail->wait_next = client;
    queue->tail = client;
}

void wait_queue_run_held(struct server *server, struct wait_queue *queue, bool (*must_stay)(const struct client *)) {
    for (uint32_t left = queue->length; left > 0 && queue->head && !server->exclusive.on; left--) {
        struct client *client = queue->head;
        if (must_stay && must_stay(client)) {
            wait_queue_rotate(queue, client);
            continue;
        }
        client_unblock(client);
        client_resume_request(client);
    }
}

/* Those that were tried go behind those that were not. Who comes meanwhile was tried by its command. False: the time is over
 * before all were tried. */
static bool retry_each(struct server *server, struct wait_queue *queue, uint64_t until_us) {
    while (queue->untried > 0 && queue->head) {
        if (server->now_us >= until_us) return false;
        queue->untried--;
        struct client *client = queue->head;
        if (!client_retry(client)) wait_queue_rotate(queue, client);
        server_tick(server);
    }
    return true;
}

static bool retry_in_turn(struct server *server, struct wait_queue *queue, uint64_t until_us) {
    while (queue->head && client_retry(queue->head)) {
        server_tick(server);
        if (server->now_us >= until_us) return false;
    }
    return true;
}

void server_run_woken(struct server *server) {
    uint64_t until_us = server->now_us + LIMIT_TURN_WAKE_US;
    if (server->exclusive.on) return; /* none of them may come in between */
    if (server->retry_subsystems && !subsystems_retry(server, until_us)) return;
    while (server->woken) {
        struct wait_queue *queue = server->woken;
        server->woken = queue->next_woken;
        queue->woken = false;
        if (!(queue->each ? retry_each : retry_in_turn)(server, queue, until_us)) {
            put_with_woken(server, queue); /* the rest in the next turn */
            return;
        }
    }
}

uint64_t server_run_deadlines(struct server *server) {
    while (server->clients.deadlines.count > 0 && server->clients.deadlines.heap[0]->deadline_us <= server->now_us)
        client_expire(server->clients.deadlines.heap[0]);
    return server->clients.deadlines.count > 0 ? server->clients.deadlines.heap[0]->deadline_us : CLOCK_NEVER;
}
