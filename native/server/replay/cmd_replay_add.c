/* cmd_replay_add: REPLAY.ADD: its columns land in the slots they are for, it commits, or waits until it may. */
#include <inttypes.h>

#include "server/core/client.h"
#include "server/core/server.h"
#include "server/replay/cmd_replay.h"
#include "server/replay/replay_arguments.h"
#include "server/replay/replay_columns.h"

#define ADD_PRIORITIES 3

static int check(struct client *client, struct replay_request *request, const struct resp_argument *arguments,
                 struct error *error) {
    const struct table *table = request->entry->table;
    const struct table_config *config = table_config(table);
    if (table_has_windows(table)) {
        return error_set(error, ERROR_BADSCHEMA,
                         "table '%s' has windows: append steps with REPLAY.APPEND, and make items of them with "
                         "REPLAY.ITEM",
                         config->name);
    }
    request->expected = UINT64_MAX >> (64 - config->columns);
    return replay_check_priorities(client, request, &arguments[ADD_PRIORITIES], error);
}

int replay_reserve_items(struct replay_request *request, struct error *error) {
    struct table *table = request->entry->table;
    if (!request->partial && !table_can_add(table, request->n, error)) {
        if (error->code != ERROR_TIMEOUT) {
            return -1;
        }
        error->code = ERROR_NONE; /* it may have to wait, which is for the commit to find */
    }
    request->reservation = table_reserve(table, request->n, error);
    return request->reservation ? 0 : -1;
}

/* With PARTIAL the others are given up as soon as one is admitted: whoever sent them is told how many entered, and sends
 * the rest when he likes. */
static int commit(struct replay_request *request, const double *priorities, uint64_t *ids, struct error *error) {
    struct table *table = request->entry->table;
    if (request->partial) {
        uint32_t admitted = table_admits(table, request->n);
        if (admitted == 0) {
            if (!table_can_add(table, 1, error)) return -1;
            admitted = 1;
        }
        reservation_shorten(request->reservation, admitted);
        request->n = admitted;
    }
    return table_commit(table, request->reservation, priorities, ids, error);
}

/* Commits and replies; false when it must wait. */
static bool attempt(struct client *client) {
    struct replay_request *request = client_state(client);
    struct replay_entry *entry = request->entry;
    uint32_t n = request->n;
    struct error error = {.code = ERROR_NONE};
    double *priorities = NULL;
    uint8_t *spare = NULL;
    if (replay_entry_missing(entry, &error) ||
        replay_copy_priorities(client, &client->argv[request->priorities], n, n * sizeof(uint64_t), &spare, &priorities,
                               &error)) {
        reply_failure(client, &error);
        return true;
    }
    uint64_t *ids = (uint64_t *)(void *)spare;
    if (commit(request, priorities, ids, &error)) {
        if (error.code == ERROR_TIMEOUT && request->blocks) {
            return false;
        }
        reply_failure(client, &error);
        return true;
    }
    request->reservation = NULL;
    wait_queue_wake(client->server, &entry->samplers);
    wait_queue_wake(client->server, &entry->watchers);
    reply_bulk(client, ids, request->n * sizeof *ids);
    return true;
}

static void expired(struct client *client) {
    const struct replay_request *request = client_state(client);
    struct error error;
    uint32_t n = request->partial ? 1 : request->n;
    if (!replay_entry_missing(request->entry, &error) && table_can_add(request->entry->table, n, &error)) {
        error_set(&error, ERROR_TIMEOUT, "waits behind other ADDs of table '%s'",
                  table_config(request->entry->table)->name);
    }
    reply_failure(client, &error);
}

void replay_commit_or_wait(struct client *client, struct replay_request *request, uint32_t priorities) {
    request->priorities = priorities;
    struct wait_queue *queue = &request->entry->adders;
    if ((request->blocks && queue->length) || !attempt(client)) { /* those who wait already go first */
        client_block(client, queue, replay_block_deadline(request), attempt, expired);
    }
}

static const struct replay_form form = {
    .kind = REPLAY_REQUEST_ADD,
    .usage = "REPLAY.ADD table n priorities [BLOCK ms] [PARTIAL] [INCARNATION i] COLUMNS k name bytes …",
    .options = 4,
    .check = check,
    .reserve = replay_reserve_items,
};

void replay_add_land(void *context, const struct resp_argument *arguments, uint32_t index, uint32_t count,
                     size_t length, struct resp_landing *landing) {
    replay_columns_land(context, &form, arguments, index, count, length, landing);
}

void replay_add_command(struct client *client) {
    struct replay_request *request = replay_columns_or_reply(client, &form);
    if (request) {
        replay_commit_or_wait(client, request, ADD_PRIORITIES);
    }
}
