/* cmd_weights: WEIGHTS.*: publish and fetch versioned parameters; sent from the blob they came in, without a copy. */
#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "server/client.h"
#include "server/command/command_table.h"
#include "server/replay/weights_registry.h"
#include "server/server.h"
#include "store/store.h"

struct weights_registry *weights_registry_new(struct server *server) {
    (void)server;
    return memory_calloc(1, sizeof(struct weights_registry));
}

static void free_entry(struct weights_entry *entry) {
    blob_release(entry->blob);
    memory_free(entry);
}

void weights_registry_free(struct weights_registry *registry) {
    while (registry && registry->entries) {
        struct weights_entry *next = registry->entries->next;
        free_entry(registry->entries);
        registry->entries = next;
    }
    memory_free(registry);
}

/* The link that points to the key's entry, or the last link: keys are few, one or two for each job. */
static struct weights_entry **find(struct weights_registry *registry, const struct resp_argument *key) {
    struct weights_entry **link = &registry->entries;
    while (*link && ((*link)->key_length != key->length || memcmp((*link)->key, key->data, key->length) != 0)) {
        link = &(*link)->next;
    }
    return link;
}

static struct weights_entry *entry_new(const struct resp_argument *key) {
    struct weights_entry *entry = memory_calloc(1, sizeof *entry + key->length);
    if (entry) {
        memcpy(entry->key, key->data, key->length);
        entry->key_length = key->length;
    }
    return entry;
}

bool weights_registry_adopt(struct weights_registry *registry, const void *key, size_t length, int64_t version,
                            struct blob *blob) {
    struct resp_argument name = {.data = (uint8_t *)(uintptr_t)key, .length = length};
    struct weights_entry **link = find(registry, &name), *entry = *link ? *link : entry_new(&name);
    if (!entry) return false;
    if (!*link) {
        *link = entry;
        registry->count++;
    }
    blob_retain(blob);
    blob_release(entry->blob);
    entry->blob = blob;
    entry->version = version;
    return true;
}

static struct blob *take_blob(const struct resp_argument *argument) {
    if (argument->blob) {
        return blob_retain(argument->blob);
    }
    struct blob *blob = blob_new(argument->length);
    if (blob && argument->length) {
        memcpy(blob->data, argument->data, argument->length);
    }
    return blob;
}

/* The version to publish as; -1 after replying an error. */
static int64_t version_or_reply(struct client *client, int64_t current) {
    int64_t version;
    if (argument_is(&client->argv[2], "*")) {
        if (current == INT64_MAX) {
            reply_error(client, "LIMIT the version cannot grow any further; use another key");
            return -1;
        }
        return current < 0 ? 1 : current + 1;
    }
    if (!argument_int64(&client->argv[2], &version) || version < 0) {
        reply_error(client, "ERR expected a version, an integer >= 0, or * for the next one");
        return -1;
    }
    if (version <= current) {
        reply_error(client, "STALEVERSION expected a version above %" PRId64 ", the current one, got %" PRId64, current,
                    version);
        return -1;
    }
    return version;
}

static void publish_command(struct client *client) {
    struct weights_registry *registry = client->server->weights;
    const struct resp_argument *key = &client->argv[1];
    if (key->length < 1 || key->length > WEIGHTS_MAX_KEY_BYTES) {
        reply_error(client, "LIMIT expected a key of 1 to %u bytes, got %zu", WEIGHTS_MAX_KEY_BYTES, key->length);
        return;
    }
    struct weights_entry **link = find(registry, key);
    int64_t version = version_or_reply(client, *link ? (*link)->version : -1);
    if (version < 0) {
        return;
    }
    if (!*link && registry->count == WEIGHTS_MAX_KEYS) {
        reply_error(client, "LIMIT there are %u keys of weights, the most a server holds; WEIGHTS.DEL removes one",
                    WEIGHTS_MAX_KEYS);
        return;
    }
    struct blob *blob = take_blob(&client->argv[3]);
    struct weights_entry *entry = *link ? *link : blob ? entry_new(key) : NULL;
    if (!blob || !entry) {
        blob_release(blob);
        reply_error(client, "ERR out of memory for %zu bytes of weights", client->argv[3].length);
        return;
    }
    if (!*link) {
        *link = entry;
        registry->count++;
    }
    blob_release(entry->blob);
    entry->blob = blob;
    entry->version = version;
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
    const struct weights_entry *entry = *find(client->server->weights, &client->argv[1]);
    if (!entry || entry->version <= newer_than) {
        reply_null_array(client);
        return;
    }
    reply_array(client, 2);
    reply_integer(client, entry->version);
    reply_blob(client, entry->blob);
}

static void list_command(struct client *client) {
    const struct weights_registry *registry = client->server->weights;
    reply_array(client, registry->count);
    for (const struct weights_entry *entry = registry->entries; entry; entry = entry->next) {
        reply_bulk(client, entry->key, entry->key_length);
    }
}

static void del_command(struct client *client) {
    struct weights_registry *registry = client->server->weights;
    int64_t removed = 0;
    for (uint32_t i = 1; i < client->argc; i++) {
        struct weights_entry **link = find(registry, &client->argv[i]);
        if (*link) {
            struct weights_entry *entry = *link;
            *link = entry->next;
            registry->count--;
            free_entry(entry);
            client->server->store->changes++;
            removed++;
        }
    }
    reply_integer(client, removed);
}

const struct command commands_weights[] = {
    {"weights.publish", publish_command, 4, COMMAND_WRITE | COMMAND_DENYOOM, 1, 1, 1, "weights",
     "Publishes a blob as a version, or with * as the next one.", NULL},
    {"weights.get", get_command, -2, COMMAND_READONLY, 1, 1, 1, "weights",
     "Returns version and blob, or null when there is nothing newer.", NULL},
    {"weights.list", list_command, 1, COMMAND_READONLY, 0, 0, 0, "weights", "Returns all keys.", NULL},
    {"weights.del", del_command, -2, COMMAND_WRITE, 1, -1, 1, "weights",
     "Removes keys and returns how many there were.", NULL},
    {0},
};
