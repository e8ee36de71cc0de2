#include "server/core/slices.h"

#include "base/clock.h"
#include "server/core/long_work.h"
#include "server/core/server.h"

#define A_LITTLE_LATER_US 1000u

/* Half a reply cannot be taken back, nor half of the work. */
static void give_up(struct client *client) {
    client_close(client);
}

void slices_begin(struct client *client, bool (*go_on)(struct client *client), void (*expired)(struct client *client)) {
    client_block_next(client, &client->server->slices.working, CLOCK_NEVER, go_on, expired ? expired : give_up);
}

void slices_begin_reply(struct client *client, bool (*go_on)(struct client *client)) {
    client_block_next(client, &client->server->slices.replying, CLOCK_NEVER, go_on, give_up);
}

void slices_run(struct client *client, bool (*go_on)(struct client *client)) {
    if (client_may_block(client)) {
        slices_begin(client, go_on, NULL);
        return;
    }
    while (!go_on(client)) exclusive_rest(client->server);
}

static bool has_room(const struct client *client) {
    return client->output.unsent_bytes < LIMIT_SLICES_BACKLOG_BYTES;
}

static bool is_replying(const struct client *client) {
    return client->queue == &client->server->slices.replying;
}

bool slices_have_time(const struct client *client) {
    if (is_replying(client) && !has_room(client)) return false;
    return clock_monotonic_us() < client->server->turn.work_until_us;
}

void slices_not_now(struct client *client) {
    client->server->slices.not_now = true;
}

bool slices_is_going_on(const struct client *client) {
    return client->blocked && (client->queue == &client->server->slices.working || is_replying(client));
}

/* Who has had a slice stands behind those who have not, so that each has its turn however little time there is. */
static uint64_t step(struct server *server, struct wait_queue *queue) {
    uint64_t next_us = CLOCK_NEVER;
    for (uint32_t left = queue->length; left > 0 && queue->head; left--) {
        struct client *client = queue->head;
        if (next_us == 0 && clock_monotonic_us() >= server->turn.work_until_us) return 0;
        bool waits = is_replying(client) && !has_room(client);
        server->slices.not_now = false;
        if ((waits || !client_retry(client)) && queue->head == client) wait_queue_rotate(queue, client);
        if (waits) continue;
        if (!server->slices.not_now)
            next_us = 0;
        else if (next_us != 0)
            next_us = server->now_us + A_LITTLE_LATER_US;
    }
    return next_us;
}

uint64_t slices_step(struct server *server) {
    struct slices *slices = &server->slices;
    if (!slices->working.head && !slices->replying.head) return CLOCK_NEVER;
    (void)long_work_until(server);
    uint64_t replying_us = step(server, &slices->replying), working_us = step(server, &slices->working);
    return replying_us < working_us ? replying_us : working_us;
}
