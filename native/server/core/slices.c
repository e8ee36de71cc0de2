/* slices: replies that are made in slices. */
#include "server/core/slices.h"

#include "base/clock.h"
#include "server/core/server.h"

/* Half a reply cannot be taken back. */
static void give_up(struct client *client) {
    client_close(client);
}

void slices_begin(struct client *client, bool (*go_on)(struct client *client)) {
    client_block_next(client, &client->server->slices.waiting, go_on, give_up);
}

static bool has_room(const struct client *client) {
    return client->output.unsent_bytes < LIMIT_SLICES_BACKLOG_BYTES;
}

bool slices_have_time(const struct client *client) {
    return has_room(client) && clock_monotonic_us() < client->server->slices.until_us;
}

bool slices_is_going_on(const struct client *client) {
    return client->blocked && client->queue == &client->server->slices.waiting;
}

bool slices_step(struct server *server) {
    struct client *client = server->slices.waiting.head, *next;
    if (!client) return false;
    server->slices.until_us = clock_monotonic_us() + LIMIT_TURN_SLICES_US;
    bool any = false;
    for (; client; client = next) {
        next = client->wait_next;
        if (!has_room(client)) continue;
        any = true;
        client_retry(client);
    }
    return any;
}
