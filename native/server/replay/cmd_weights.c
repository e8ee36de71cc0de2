/* cmd_weights: WEIGHTS.*: publish and fetch versioned parameters; sent from the blob they came in, without a copy. */
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/server.h"
#include "server/core/slices.h"
#include "server/core/upcalls.h"
#include "server/replay/replay_arguments.h"
#include "server/replay/replay_rows.h"
#include "server/replay/replay_subsystem.h"
#include "server/replay/weights_registry.h"
#include "store/store.h"

#define COMPARED_AT_ONCE (64u << 10)

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

static void publish(struct client *client) {
    struct weights_registry *registry = client->server->replay->weights;
    struct weights_staged staged;
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

/* ---- a request that has come again ---------------------------------------------------------------------------------- */

/* The published weights have the request's version and length. If they are these very ones, the answer to an earlier
 * request was lost. They are compared in slices. The answer is what was true when the request began, whatever others do to
 * the key meanwhile. */
struct comparison {
    struct blob *published;
    int64_t version;
    size_t equal; /* so many bytes are */
};

static void end_comparison(struct client *client, void *state) {
    struct comparison *comparison = state;
    (void)client;
    blob_release(comparison->published);
    memory_free(comparison);
}

static size_t next_piece(const struct blob *published, size_t from) {
    size_t left = published->length - from;
    return left < COMPARED_AT_ONCE ? left : COMPARED_AT_ONCE;
}

static bool is_equal(const struct client *client, const struct blob *published, size_t from) {
    return memcmp(client->argv[3].data + from, published->data + from, next_piece(published, from)) == 0;
}

static bool go_on(struct client *client) {
    struct comparison *comparison = client_state(client);
    const struct blob *published = comparison->published;
    do {
        if (!is_equal(client, published, comparison->equal)) {
            struct error error;
            weights_refuse_version(comparison->version, comparison->version, &error);
            reply_failure(client, &error);
            return true;
        }
        comparison->equal += next_piece(published, comparison->equal);
        if (comparison->equal == published->length) {
            reply_integer(client, comparison->version);
            return true;
        }
    } while (slices_have_time(client));
    return false;
}

static void compare(struct client *client, const struct weights_entry *entry) {
    struct comparison *comparison = memory_calloc(1, sizeof *comparison);
    if (!comparison) {
        reply_error(client, "ERR out of memory");
        return;
    }
    comparison->published = blob_retain(entry->blob);
    comparison->version = entry->version;
    comparison->equal = next_piece(entry->blob, 0);
    client_set_state(client, comparison, end_comparison);
    slices_run(client, go_on);
}

static void publish_command(struct client *client) {
    const struct weights_entry *entry = weights_registry_find(client->server->replay->weights, &client->argv[1]);
    int64_t version;
    if (!entry || !argument_int64(&client->argv[2], &version) || version != entry->version ||
        client->argv[3].length != entry->blob->length || !is_equal(client, entry->blob, 0)) {
        publish(client);
    } else if (entry->blob->length <= COMPARED_AT_ONCE) {
        reply_integer(client, version);
    } else {
        compare(client, entry);
    }
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
