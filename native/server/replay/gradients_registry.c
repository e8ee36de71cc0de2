/* gradients_registry: a list of entries, since keys are few: one for each job. */
#include "server/replay/gradients_registry.h"

#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "server/core/client.h"
#include "server/core/server.h"

struct gradients_registry *gradients_registry_new(struct server *server) {
    struct gradients_registry *registry = memory_calloc(1, sizeof *registry);
    if (!registry) return NULL;
    registry->server = server;
    registry->absent.each = true;
    return registry;
}

static void free_entry(struct gradients_registry *registry, struct gradients_entry **link) {
    struct gradients_entry *entry = *link;
    *link = entry->next;
    registry->queues -= entry->queue != NULL;
    wait_queue_expire_all(registry->server, &entry->takers); /* nobody waits, but it may have been woken */
    gradient_queue_free(entry->queue);
    memory_free(entry);
}

void gradients_registry_free(struct gradients_registry *registry) {
    while (registry && registry->entries) free_entry(registry, &registry->entries);
    if (registry) wait_queue_expire_all(registry->server, &registry->absent);
    memory_free(registry);
}

static struct gradients_entry **find_link(struct gradients_registry *registry, const void *key, size_t length) {
    struct gradients_entry **link = &registry->entries;
    while (*link && ((*link)->key_length != length || memcmp((*link)->key, key, length) != 0)) link = &(*link)->next;
    return link;
}

struct gradients_entry *gradients_registry_find(const struct gradients_registry *registry, const void *key,
                                                size_t length) {
    struct gradients_entry *entry = registry->entries;
    while (entry && (entry->key_length != length || memcmp(entry->key, key, length) != 0)) entry = entry->next;
    return entry;
}

/* Keys that were deleted while somebody waited, and nobody does any more. */
static void sweep(struct gradients_registry *registry) {
    for (struct gradients_entry **link = &registry->entries; *link;)
        if (!(*link)->queue && (*link)->takers.length == 0)
            free_entry(registry, link);
        else
            link = &(*link)->next;
}

static struct gradients_entry *entry_new(struct gradients_registry *registry, const void *key, size_t length,
                                         struct error *error) {
    if (length < 1 || length > GRADIENTS_MAX_KEY_BYTES) {
        error_set(error, ERROR_LIMIT, "expected a key of 1 to %u bytes, got %zu", GRADIENTS_MAX_KEY_BYTES, length);
        return NULL;
    }
    sweep(registry);
    struct gradients_entry *entry = memory_calloc(1, sizeof *entry + length);
    if (!entry) {
        error_set(error, ERROR_GENERIC, "out of memory for a key of gradients");
        return NULL;
    }
    memcpy(entry->key, key, length);
    entry->key_length = length;
    entry->takers.each = true; /* taking leaves everything where it is */
    struct gradients_entry **link = &registry->entries;
    while (*link) link = &(*link)->next;
    *link = entry;
    entry->sequence = ++registry->entered;
    return entry;
}

struct gradients_entry *gradients_registry_open(struct gradients_registry *registry, const void *key, size_t length,
                                                struct error *error) {
    struct gradients_entry *entry = gradients_registry_find(registry, key, length);
    if (entry && entry->queue) return entry;
    if (registry->queues == GRADIENTS_MAX_KEYS) {
        error_set(error, ERROR_LIMIT, "there are %u keys of gradients, the most a server holds; GRAD.DEL removes one",
                  GRADIENTS_MAX_KEYS);
        return NULL;
    }
    if (!entry) entry = entry_new(registry, key, length, error);
    if (!entry) return NULL;
    const uint64_t hash_key[2] = {random_entropy(), random_entropy()};
    entry->queue = gradient_queue_new(hash_key);
    if (!entry->queue) {
        error_set(error, ERROR_GENERIC, "out of memory for a queue of gradients");
        return NULL;
    }
    registry->queues++;
    wait_queue_wake(registry->server, &registry->absent);
    return entry;
}

struct wait_queue *gradients_registry_takers(struct gradients_registry *registry, const void *key, size_t length) {
    struct gradients_entry *entry = gradients_registry_find(registry, key, length);
    return entry && entry->queue ? &entry->takers : &registry->absent;
}

uint32_t gradients_registry_count_takers(const struct gradients_registry *registry, const void *key, size_t length) {
    const struct gradients_entry *entry = gradients_registry_find(registry, key, length);
    if (entry && entry->queue) return entry->takers.length;
    uint32_t count = entry ? entry->takers.length : 0;
    for (const struct client *client = registry->absent.head; client; client = client->wait_next)
        count += client->argv[1].length == length && memcmp(client->argv[1].data, key, length) == 0;
    return count;
}

bool gradients_registry_remove(struct gradients_registry *registry, const void *key, size_t length) {
    struct gradients_entry **link = find_link(registry, key, length), *entry = *link;
    if (!entry || !entry->queue) return false;
    gradient_queue_free(entry->queue);
    entry->queue = NULL;
    registry->queues--;
    if (entry->takers.length == 0)
        free_entry(registry, link);
    else
        wait_queue_wake(registry->server, &entry->takers);
    return true;
}

void gradients_registry_clear(struct gradients_registry *registry) {
    for (struct gradients_entry *entry = registry->entries, *next; entry; entry = next) {
        next = entry->next;
        gradients_registry_remove(registry, entry->key, entry->key_length);
    }
}

bool gradients_registry_holds_something(const struct gradients_registry *registry) {
    for (const struct gradients_entry *entry = registry->entries; entry; entry = entry->next)
        if (entry->queue) return true;
    return false;
}

uint64_t gradients_vector_bytes(const struct gradients_entry *entry) {
    return entry->queue ? (uint64_t)entry->queue->waiting.count * entry->queue->vector_bytes : 0;
}

/* ---- in files ------------------------------------------------------------------------------------------------------- */

enum saved_kind { SAVED_NAMES, SAVED_GRADIENT };

/* kind, dtype, length of the key, length of the name, key, name */
#define SAVED_HEAD_BYTES 4u
#define SAVED_KEY_BYTES (SAVED_HEAD_BYTES + GRADIENTS_MAX_KEY_BYTES + GRADIENT_NAME_BYTES)

static size_t write_saved_key(uint8_t *out, enum saved_kind kind, const struct gradients_entry *entry,
                              const struct gradient *gradient) {
    uint8_t type = gradient ? (uint8_t)entry->queue->type : 0, name_length = gradient ? gradient->name_length : 0;
    const uint8_t head[SAVED_HEAD_BYTES] = {(uint8_t)kind, type, (uint8_t)entry->key_length, name_length};
    memcpy(out, head, sizeof head);
    memcpy(out + sizeof head, entry->key, entry->key_length);
    if (name_length) memcpy(out + sizeof head + entry->key_length, gradient->name, name_length);
    return sizeof head + entry->key_length + name_length;
}

bool gradients_registry_save(const struct gradients_registry *registry,
                             bool (*add)(void *context, const void *key, size_t length, int64_t version,
                                         struct blob *blob),
                             void *context) {
    uint8_t key[SAVED_KEY_BYTES];
    for (const struct gradients_entry *entry = registry->entries; entry; entry = entry->next) {
        if (!entry->queue) continue;
        struct blob *names = gradient_queue_remembered(entry->queue);
        bool added = names && add(context, key, write_saved_key(key, SAVED_NAMES, entry, NULL), 0, names);
        blob_release(names);
        const struct gradient *gradient = entry->queue->waiting.head;
        for (; added && gradient; gradient = gradient->next)
            added = add(context, key, write_saved_key(key, SAVED_GRADIENT, entry, gradient), gradient->version,
                        gradient->blob);
        if (!added) return false;
    }
    return true;
}

static int adopt_gradient(struct gradient_queue *queue, const uint8_t *key, int64_t version, struct blob *blob,
                          struct error *error) {
    const uint8_t *name = key + SAVED_HEAD_BYTES + key[2];
    enum vector_type type = (enum vector_type)key[1];
    if (key[1] >= VECTOR_TYPES || key[3] == 0 || version < 0 || blob->length == 0 ||
        blob->length % vector_type_bytes(type) != 0)
        return error_set(error, ERROR_GENERIC, "a gradient is malformed");
    int pushed = gradient_queue_push(queue, name, key[3], version, type, blob, error);
    if (pushed < 0) return -1;
    return pushed ? 0 : error_set(error, ERROR_GENERIC, "a gradient is there twice");
}

int gradients_registry_adopt(struct gradients_registry *registry, const uint8_t *key, size_t length, int64_t version,
                             struct blob *blob, struct error *error) {
    bool whole = length > SAVED_HEAD_BYTES && key[2] > 0 && key[3] <= GRADIENT_NAME_BYTES &&
                 length == (size_t)SAVED_HEAD_BYTES + key[2] + key[3];
    if (!whole || (key[0] != SAVED_NAMES && key[0] != SAVED_GRADIENT))
        return error_set(error, ERROR_GENERIC, "gradients are malformed");
    struct gradients_entry *entry = gradients_registry_open(registry, key + SAVED_HEAD_BYTES, key[2], error);
    if (!entry) return -1;
    return key[0] == SAVED_NAMES ? gradient_queue_remember(entry->queue, blob, error)
                                 : adopt_gradient(entry->queue, key, version, blob, error);
}
