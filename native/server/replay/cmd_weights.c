/* cmd_weights: WEIGHTS.*: publish and fetch versioned parameters; sent from the blob they came in, without a copy. */
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/server.h"
#include "server/core/upcalls.h"
#include "server/replay/replay_arguments.h"
#include "server/replay/replay_rows.h"
#include "server/replay/replay_subsystem.h"
#include "server/replay/weights_registry.h"
#include "store/store.h"

/* The version to publish as; -1 with `error` set. */
static int64_t version_of(struct client *client, struct error *error) {
    struct weights_registry *registry = client->server->replay->weights;
    const struct weights_entry *entry = weights_registry_find(registry, &client->argv[1]);
    int64_t current = entry ? entry->version : -1, version;
    if (argument_is(&client->argv[2], "*")) {
        if (current == INT64_MAX)
            return error_set(error, ERROR_LIMIT, "the version cannot grow any further; use another key");
        return current < 0 ? 1 : current + 1;
    }
    if (!argument_int64(&client->argv[2], &version) || version < 0)
        return error_set(error, ERROR_GENERIC, "expected a version, an integer >= 0, or * for the next one");
    return weights_check_version(registry, &client->argv[1], version, error) ? -1 : version;
}

/* Whether these very weights are the published ones: then a request whose answer was lost has come again. Comparing is
 * one pass over a blob that has just been received. */
static bool is_published(const struct client *client) {
    const struct weights_entry *entry = weights_registry_find(client->server->replay->weights, &client->argv[1]);
    const struct resp_argument *blob = &client->argv[3];
    int64_t version;
    return entry && argument_int64(&client->argv[2], &version) && version == entry->version &&
           blob->length == entry->blob->length && memcmp(blob->data, entry->blob->data, blob->length) == 0;
}

static void publish_command(struct client *client) {
    struct weights_registry *registry = client->server->replay->weights;
    struct weights_staged staged;
    if (is_published(client)) {
        reply_integer(client, weights_registry_find(registry, &client->argv[1])->version);
        return;
    }
    struct error error;
    int64_t version = version_of(client, &error);
    if (version < 0 || weights_stage(registry, &client->argv[1], &client->argv[3], 0, &staged, &error)) {
        reply_failure(client, &error);
        return;
    }
    weights_install(registry, &staged, version);
    client->server->store->changes++;
    reply_integer(client, version);
}

static void get_command(struct client *client) {
    int64_t newer_than = -1;
    if (client->argc == 4 && argument_is(&client->argv[2], "newer")) {
        if (!argument_int64(&client->argv[3], &newer_than)) {
            reply_error(client, "ERR expected NEWER with a version, an integer");
            return;
        }
    } else if (client->argc != 2) {
        reply_syntax_error(client);
        return;
    }
    const struct weights_entry *entry = weights_registry_find(client->server->replay->weights, &client->argv[1]);
    if (!entry || entry->version <= newer_than) {
        reply_null_array(client);
        return;
    }
    reply_array(client, 2);
    reply_integer(client, entry->version);
    reply_blob(client, entry->blob);
}

static void list_command(struct client *client) {
    const struct weights_registry *registry = client->server->replay->weights;
    size_t mark = reply_array_deferred(client), count = 0;
    for (const struct weights_entry *entry = registry->entries; entry; entry = entry->next) {
        const struct resp_argument key = {.data = (const uint8_t *)entry->key, .length = entry->key_length};
        if (!upcalls.acl_may_access_key(client, &key, KEY_READ | KEY_WRITE)) continue;
        reply_bulk(client, entry->key, entry->key_length);
        count++;
    }
    reply_set_array_length(client, mark, count);
}

/* Of weights that are not there: version and age -1. */
static void info_command(struct client *client) {
    const struct weights_entry *entry = weights_registry_find(client->server->replay->weights, &client->argv[1]);
    uint64_t now = clock_monotonic_us();
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"version", entry ? entry->version : -1},
        {"bytes", entry ? (int64_t)entry->blob->length : 0},
        {"age_ms", entry ? (int64_t)((now - entry->published_us) / 1000) : -1},
    };
    const size_t count = sizeof numbers / sizeof *numbers;
    reply_map(client, count);
    for (size_t i = 0; i < count; i++) {
        reply_bulk_string(client, numbers[i].name);
        reply_integer(client, numbers[i].value);
    }
}

static void del_command(struct client *client) {
    int64_t removed = 0;
    if (!names_within_or_reply(client, 1, WEIGHTS_MAX_KEYS, "keys of weights")) return;
    for (uint32_t i = 1; i < client->argc; i++)
        removed += weights_registry_remove(client->server->replay->weights, &client->argv[i]);
    client->server->store->changes += (uint64_t)removed;
    reply_integer(client, removed);
}

const struct command commands_weights[] = {
    {"weights.publish", publish_command, 4, COMMAND_WRITE | COMMAND_DENYOOM | COMMAND_TIMED, &group_weights,
     "Publishes a blob as a version, or with * as the next one.", .keys = name_written},
    {"weights.get", get_command, -2, COMMAND_READONLY | COMMAND_TIMED, &group_weights,
     "Returns version and blob, or null when there is nothing newer.", .keys = name_read},
    {"weights.info", info_command, 2, COMMAND_READONLY | COMMAND_FAST, &group_weights,
     "Returns version, bytes and age of weights.", .keys = name_read},
    {"weights.list", list_command, 1, COMMAND_READONLY, &group_weights, "Returns all keys that one has any right to."},
    {"weights.del", del_command, -2, COMMAND_WRITE, &group_weights, "Removes keys and returns how many there were.",
     .keys = names_written},
    {0},
};
