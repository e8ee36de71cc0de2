/* weights_registry: a list of entries in the order they were made, which files and metrics walk, and chains by hash, by
 * which a key is found. */
#include "server/replay/weights_registry.h"

#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/memory.h"
#include "server/core/command.h"
#include "store/dict.h"

struct weights_registry *weights_registry_new(void) {
    return memory_calloc(1, sizeof(struct weights_registry));
}

static void free_entry(struct weights_entry *entry) {
    blob_release(entry->blob);
    memory_free(entry);
}

static struct weights_entry **bucket_of(struct weights_registry *registry, const void *key, size_t length) {
    return &registry->buckets[dict_hash(key, length) % WEIGHTS_BUCKETS];
}

static void take_out(struct weights_registry *registry, struct weights_entry *entry) {
    struct weights_entry **link = bucket_of(registry, entry->key, entry->key_length);
    while (*link != entry) link = &(*link)->chain;
    *link = entry->chain;
    LIST_REMOVE(registry->entries, registry->newest, entry, next, previous);
    registry->count--;
    free_entry(entry);
}

void weights_registry_clear(struct weights_registry *registry) {
    while (registry->entries) take_out(registry, registry->entries);
}

void weights_registry_free(struct weights_registry *registry) {
    if (registry) weights_registry_clear(registry);
    memory_free(registry);
}

struct weights_entry *weights_registry_find(const struct weights_registry *registry, const struct resp_argument *key) {
    struct weights_entry *entry = registry->buckets[dict_hash(key->data, key->length) % WEIGHTS_BUCKETS];
    while (entry && (entry->key_length != key->length || memcmp(entry->key, key->data, key->length) != 0))
        entry = entry->chain;
    return entry;
}

static struct weights_entry *entry_new(const struct resp_argument *key) {
    struct weights_entry *entry = memory_calloc(1, sizeof *entry + key->length);
    if (entry) {
        memcpy(entry->key, key->data, key->length);
        entry->key_length = key->length;
    }
    return entry;
}

static void enter(struct weights_registry *registry, struct weights_entry *entry) {
    struct weights_entry **bucket = bucket_of(registry, entry->key, entry->key_length);
    entry->chain = *bucket;
    *bucket = entry;
    LIST_APPEND(registry->entries, registry->newest, entry, next, previous);
    entry->sequence = ++registry->entered;
    registry->count++;
}

bool weights_registry_adopt(struct weights_registry *registry, const void *key, size_t length, int64_t version,
                            struct blob *blob) {
    struct resp_argument name = {.data = (uint8_t *)(uintptr_t)key, .length = length};
    struct weights_entry *found = weights_registry_find(registry, &name), *entry = found ? found : entry_new(&name);
    if (!entry) return false;
    if (!found) enter(registry, entry);
    blob_retain(blob);
    blob_release(entry->blob);
    entry->blob = blob;
    entry->version = version;
    entry->published_us = clock_monotonic_us();
    return true;
}

bool weights_registry_remove(struct weights_registry *registry, const struct resp_argument *key) {
    struct weights_entry *entry = weights_registry_find(registry, key);
    if (!entry) return false;
    take_out(registry, entry);
    return true;
}

/* ---- publishing ----------------------------------------------------------------------------------------------------- */

int weights_refuse_version(int64_t current, int64_t version, struct error *error) {
    return error_set(error, ERROR_STALEVERSION, "expected a version above %" PRId64 ", the current one, got %" PRId64,
                     current, version);
}

int weights_check_version(struct weights_registry *registry, const struct resp_argument *key, int64_t version,
                          struct error *error) {
    const struct weights_entry *entry = weights_registry_find(registry, key);
    if (!entry || version > entry->version) return 0;
    return weights_refuse_version(entry->version, version, error);
}

int weights_stage(struct weights_registry *registry, const struct resp_argument *key, const struct resp_argument *blob,
                  uint32_t more, struct weights_staged *staged, struct error *error) {
    if (key->length < 1 || key->length > WEIGHTS_MAX_KEY_BYTES)
        return error_set(error, ERROR_LIMIT, "expected a key of 1 to %u bytes, got %zu", WEIGHTS_MAX_KEY_BYTES,
                         key->length);
    struct weights_entry *found = weights_registry_find(registry, key);
    if (!found && registry->count + more >= WEIGHTS_MAX_KEYS)
        return error_set(error, ERROR_LIMIT,
                         "there are %u keys of weights, the most a server holds; WEIGHTS.DEL removes one",
                         WEIGHTS_MAX_KEYS);
    *staged =
        (struct weights_staged){.entry = found ? found : entry_new(key), .blob = argument_blob(blob), .is_new = !found};
    if (staged->entry && staged->blob) return 0;
    weights_unstage(staged);
    return error_set(error, ERROR_GENERIC, "out of memory for %zu bytes of weights", blob->length);
}

void weights_install(struct weights_registry *registry, struct weights_staged *staged, int64_t version) {
    if (staged->is_new) enter(registry, staged->entry);
    blob_release(staged->entry->blob);
    staged->entry->blob = staged->blob;
    staged->entry->version = version;
    staged->entry->published_us = clock_monotonic_us();
}

void weights_unstage(struct weights_staged *staged) {
    blob_release(staged->blob);
    if (staged->is_new) memory_free(staged->entry);
}
