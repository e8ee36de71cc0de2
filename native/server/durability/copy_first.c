/* copy_first: requests that wait until a snapshot has copied what they change.
 *
 * Values change through the store, which tells the snapshot before; it then copies what it has not copied yet, however long
 * that takes. So this need not catch every change. It catches those that clients ask for by the names of keys: commands,
 * scripts that are given them, and transactions. */
#include "server/durability/copy_first.h"

#include "persist/store_cut.h"
#include "server/core/command_table.h"
#include "server/core/server.h"
#include "server/durability/durability_subsystem.h"
#include "server/durability/snapshots.h"
#include "server/redis/transaction/transaction.h"

#define MOST_KEYS 64 /* looked at, of one request */

static struct store_cut *cut_of(const struct server *server) {
    return server->durability->snapshots->cut;
}

static bool changes_uncopied(const struct client *client, const struct command *command, uint32_t argc,
                             const struct resp_argument *argv, void *context) {
    (void)context;
    struct key_place places[MOST_KEYS];
    int count = command_keys(command, argc, argv, places, MOST_KEYS);
    bool found = false;
    for (int i = 0; i < count && i < MOST_KEYS; i++) {
        const struct resp_argument *key = &argv[places[i].index];
        if ((places[i].access & KEY_WRITE) || (command->flags & COMMAND_WRITE))
            found |= store_cut_copies_first(cut_of(client->server), (unsigned)client->database, key->data, key->length);
    }
    return found;
}

static bool must_wait(const struct client *client) {
    return changes_uncopied(client, client->command, client->argc, client->argv, NULL) ||
           transaction_has(client, client->command, changes_uncopied, NULL);
}

static void give_up(struct client *client) {
    reply_error(client,
                "ERR the server is stopping; the command was waiting for a snapshot to copy its key, and was not run");
}

bool durability_holds(struct client *client) {
    struct server *server = client->server;
    server->copying = store_cut_hands_out(cut_of(server));
    if (client->deny_blocking || !client->connection || !must_wait(client)) return false;
    client_block(client, &server->durability->copying, CLOCK_NEVER, NULL, give_up);
    return true;
}

bool copy_first_is_waiting(const struct client *client) {
    return client->blocked && client->queue == &client->server->durability->copying;
}

void copy_first_step(struct server *server) {
    server->copying = store_cut_hands_out(cut_of(server));
    wait_queue_run_held(server, &server->durability->copying, must_wait);
}
