/* cmd_gradients_await: GRAD.AWAIT: a learner waits until its gradients were taken, so that it does not run too far ahead. */
#include <inttypes.h>

#include "base/memory.h"
#include "server/core/client.h"
#include "server/core/server.h"
#include "server/replay/gradients_registry.h"
#include "server/replay/replay_subsystem.h"

static const char usage[] = "syntax error; expected how many may wait, a count of 1 to %u names, the names, [BLOCK ms]";

/* What is asked for, across a wait. */
struct await {
    struct gradients_entry *entry; /* NULL: there is no such key */
    uint32_t most, n; /* of the n names behind argument 3 */
    bool blocks;
    int64_t block_ms;
};

static int parse(const struct client *client, struct await *await, struct error *error) {
    const struct resp_argument *argv = client->argv;
    int64_t most, n;
    if (!argument_int64(&argv[2], &most) || most < 0 || most > GRADIENT_MOST_WAITING || !argument_int64(&argv[3], &n) ||
        n < 1 || n > GRADIENT_MOST_WAITING || (client->argc != 4 + n && client->argc != 6 + n))
        return error_set(error, ERROR_GENERIC, usage, GRADIENT_MOST_WAITING);
    await->most = (uint32_t)most;
    await->n = (uint32_t)n;
    if (client->argc == 4 + n) return 0;
    await->blocks = true;
    if (argument_is(&argv[4 + n], "block") && argument_int64(&argv[5 + n], &await->block_ms) && await->block_ms >= 0 &&
        await->block_ms <= INT64_MAX / 1000000)
        return 0;
    return error_set(error, ERROR_GENERIC, usage, GRADIENT_MOST_WAITING);
}

static uint32_t count_waiting(const struct client *client, const struct await *await) {
    const struct gradient_queue *queue = await->entry ? await->entry->queue : NULL;
    uint32_t waiting = 0;
    for (uint32_t i = 0; queue && i < await->n; i++) {
        const struct resp_argument *name = &client->argv[4 + i];
        const struct gradient *gradient =
            name->length <= GRADIENT_NAME_BYTES ? gradient_queue_find(queue, name->data, name->length) : NULL;
        waiting += gradient && gradient->state == GRADIENT_WAITING;
    }
    return waiting;
}

static void reply_timeout(struct client *client, const struct await *await, uint32_t waiting) {
    reply_error(client, "TIMEOUT %" PRIu32 " of %" PRIu32 " gradients wait, at most %" PRIu32 " are to", waiting,
                await->n, await->most);
}

/* Replies; false when it must wait. */
static bool attempt(struct client *client) {
    const struct await *await = client_state(client);
    uint32_t waiting = count_waiting(client, await);
    if (waiting > await->most && await->blocks) return false;
    if (waiting > await->most)
        reply_timeout(client, await, waiting);
    else
        reply_integer(client, waiting);
    return true;
}

static void expired(struct client *client) {
    const struct await *await = client_state(client);
    reply_timeout(client, await, count_waiting(client, await));
}

void gradients_await_command(struct client *client) {
    const struct resp_argument *key = &client->argv[1];
    struct await *await = memory_calloc(1, sizeof *await);
    struct error error;
    if (!await) {
        reply_error(client, "ERR out of memory");
        return;
    }
    client_set_state(client, await, client_free_state);
    if (parse(client, await, &error)) {
        reply_failure(client, &error);
        return;
    }
    await->entry = gradients_registry_find(client->server->replay->gradients, key->data, key->length);
    if (attempt(client)) return;
    uint64_t deadline_us = await->block_ms ? clock_monotonic_us() + (uint64_t)await->block_ms * 1000 : CLOCK_NEVER;
    client_block(client, &await->entry->takers, deadline_us, attempt, expired);
}
