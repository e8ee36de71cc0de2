/* slices: commands that work, or reply, in slices. */
#include "server/core/slices.h"

#include "base/clock.h"
#include "server/core/server.h"

/* Half a reply cannot be taken back, nor half of the work. */
static void give_up(struct client *client) {
    client_close(client);
}

void slices_begin(struct client *client, bool (*go_on)(struct client *client)) {
    client_block_next(client, &client->server->slices.waiting, CLOCK_NEVER, go_on, give_up);
}

void slices_run(struct client *client, bool (*go_on)(struct client *client)) {
    if (client_may_block(client)) {
        slices_begin(client, go_on);
        return;
    }
    while (!go_on(client)) exclusive_rest(client->server);
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

/* Who has had a slice stands behind those who have not, so that each has its turn however little time there is. */
bool slices_step(struct server *server) {
    struct wait_queue *waiting = &server->slices.waiting;
    if (!waiting->head) return false;
    server->slices.until_us = clock_monotonic_us() + LIMIT_TURN_SLICES_US;
    bool any = false;
    for (uint32_t left = waiting->length; left > 0 && waiting->head; left--) {
        struct client *client = waiting->head;
        if (any && clock_monotonic_us() >= server->slices.until_us) return true;
        bool room = has_room(client);
        any |= room;
        if ((!room || !client_retry(client)) && waiting->head == client) wait_queue_rotate(waiting, client);
    }
    return any;
}
