/* replay_registry: tables by name, their life after a drop, and pooled request state. */
#include "server/replay/replay_registry.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "server/core/client.h"
#include "server/core/server.h"
#include "server/replay/replay_cold.h"
#include "server/replay/replay_large_batch.h"
#include "server/replay/replay_log.h"
#include "server/replay/replay_streams.h"
#include "server/replay/replay_subsystem.h"

struct replay_registry *replay_registry_new(struct server *server) {
    struct replay_registry *registry = memory_calloc(1, sizeof *registry);
    if (registry) registry->server = server;
    return registry;
}

#define STEPS_LET_GO 256u /* in one piece of work */

/* ---- freeing ------------------------------------------------------------------------------------------------------- */

/* The server may still hold a woken queue in its list: such an entry waits for a later sweep. */
bool replay_registry_sweep_dropped(struct replay_registry *registry) {
    struct replay_entry **link = &registry->dropped;
    while (*link) {
        struct replay_entry *entry = *link;
        if (entry->references || entry->adders.woken || entry->samplers.woken || entry->changers.woken ||
            entry->watchers.woken || entry->watchers.length || entry->adders.length || entry->samplers.length ||
            entry->changers.length) {
            link = &entry->next;
            continue;
        }
        if (table_let_go_some(entry->table, STEPS_LET_GO)) return true;
        *link = entry->next;
        table_free(entry->table);
        memory_free(entry);
    }
    return false;
}

static void free_entries(struct replay_entry *entry) {
    while (entry) {
        struct replay_entry *next = entry->next;
        assert(entry->references == 0);
        table_free(entry->table);
        memory_free(entry);
        entry = next;
    }
}

void replay_registry_free(struct replay_registry *registry) {
    if (!registry) return;
    replay_streams_step(registry, CLOCK_NEVER);
    memory_free(registry->closed);
    free_entries(registry->entries);
    free_entries(registry->dropped);
    while (registry->requests) {
        struct replay_request *next = registry->requests->next;
        memory_free(registry->requests);
        registry->requests = next;
    }
    while (registry->batches) {
        struct replay_batch *next = registry->batches->next;
        memory_free(registry->batches->memory);
        memory_free(registry->batches->extra);
        memory_free(registry->batches);
        registry->batches = next;
    }
    memory_free(registry->scratch);
    memory_free(registry);
}

/* ---- tables -------------------------------------------------------------------------------------------------------- */

static struct replay_entry *find(struct replay_registry *registry, const void *name, size_t length) {
    for (struct replay_entry *entry = registry->entries; entry; entry = entry->next) {
        const char *entry_name = table_config(entry->table)->name;
        if (strlen(entry_name) == length && memcmp(entry_name, name, length) == 0) return entry;
    }
    return NULL;
}

struct replay_entry *replay_registry_named(struct replay_registry *registry, const char *name) {
    return find(registry, name, strlen(name));
}

struct replay_entry *replay_registry_find(struct replay_registry *registry, const void *name, size_t length,
                                          struct error *error) {
    struct replay_entry *entry = length ? find(registry, name, length) : NULL;
    if (!entry) {
        int shown = length < 64 ? (int)length : 64;
        error_set(error, ERROR_NOTABLE, "no table '%.*s'; REPLAY.LIST names those there are, REPLAY.CREATE makes one",
                  shown, (const char *)name);
    }
    return entry;
}

/* A table asked for again is success if nothing about it differs. */
static int check_same(const struct table_config *there, const struct table_config *asked, struct error *error) {
    bool same;
    if (table_config_compare(there, asked, &same, error)) return -1;
    return same ? 0
                : error_set(error, ERROR_EXISTS,
                            "table '%s' exists with another spec (REPLAY.SPEC shows it); drop it first, or "
                            "choose another name",
                            there->name);
}

/* With maxmemory set a table is let in only if it would fit when full, beside the others when they are full: items are
 * never lost to memory later. */
int replay_registry_check_memory(const struct replay_registry *registry, const struct table_config *config,
                                 uint64_t beside_bytes, struct error *error) {
    uint64_t bytes =
        beside_bytes + table_full_memory_bytes(config); /* below 2^60; tables that are there are below 2^46 */
    for (const struct replay_entry *entry = registry->entries; entry; entry = entry->next)
        bytes += table_full_memory_bytes(table_config(entry->table));
    if (!server_memory_exceeded(registry->server, bytes)) return 0;
    return error_set(error, ERROR_LIMIT,
                     "table '%s' would hold up to %" PRIu64
                     " bytes of items, which do not fit in maxmemory beside the other "
                     "tables and keys; lower capacity, set max_bytes, or raise maxmemory",
                     config->name, table_full_memory_bytes(config));
}

/* From 5·10^18 up to 9·10^18: an integer of RESP, and always of the same length, in decimal and in msgpack. */
static uint64_t new_incarnation(void) {
    return 5000000000000000000u + random_entropy() % 4000000000000000000u;
}

struct replay_entry *replay_registry_entry_new(struct replay_registry *registry, struct table *table) {
    struct replay_entry *entry = memory_calloc(1, sizeof *entry);
    if (entry) {
        entry->table = table;
        table_set_shard(table, (uint8_t)registry->server->config.shard);
        entry->registry = registry;
        entry->incarnation = new_incarnation();
        entry->watchers.each = true;
    }
    return entry;
}

void replay_registry_enter(struct replay_registry *registry, struct replay_entry *entry) {
    struct replay_entry **link = &registry->entries;
    while (*link) link = &(*link)->next;
    *link = entry;
    entry->sequence = ++registry->entered;
    registry->count++;
    replay_registry_sweep_dropped(registry);
}

struct replay_entry *replay_registry_sharer(const struct replay_registry *registry, const struct replay_entry *owner) {
    struct replay_entry *entry = registry->entries;
    while (entry && (entry == owner || table_owner_of_steps(entry->table) != owner->table)) entry = entry->next;
    return entry;
}

int replay_registry_share_steps(struct replay_registry *registry, struct table *table, struct error *error) {
    const struct table_config *config = table_config(table);
    if (!*config->steps_of) return 0;
    const struct replay_entry *owner = replay_registry_named(registry, config->steps_of);
    if (!owner)
        return error_set(error, ERROR_NOTABLE,
                         "table '%s' shares the steps of table '%s', which is not there; create that one first",
                         config->name, config->steps_of);
    int failed = table_share_steps(table, owner->table, error);
    if (!failed || error->code != ERROR_LIMIT) return failed;
    /* Whoever has dropped a table may create it again at once. */
    while (replay_registry_sweep_dropped(registry)) continue;
    return table_share_steps(table, owner->table, error);
}

int replay_registry_create_parsed(struct replay_registry *registry, const struct table_config *config,
                                  struct error *error) {
    if (registry->server->place.follows_tables)
        return error_set(
            error, ERROR_GENERIC,
            "this replica has its primary's tables: create the table there, or send REPLICAOF NO ONE first");
    struct replay_entry *entry = replay_registry_named(registry, config->name);
    if (entry && registry->adopting) return replay_registry_adopt(entry->table, config, registry->adopting, error);
    if (entry) return check_same(table_config(entry->table), config, error);
    if (registry->count == REPLAY_MAX_TABLES)
        return error_set(error, ERROR_LIMIT, "there are %u tables, the most a server holds; drop one first",
                         REPLAY_MAX_TABLES);
    if (replay_registry_check_memory(registry, config, 0, error)) return -1;
    struct table *table = table_new(config, error);
    if (!table) return -1;
    if (replay_registry_share_steps(registry, table, error)) {
        table_free(table);
        return -1;
    }
    entry = replay_registry_entry_new(registry, table);
    if (!entry || replay_log_begin(entry, error)) {
        if (!entry) error_set(error, ERROR_GENERIC, "out of memory for a table");
        table_free(table);
        memory_free(entry);
        return -1;
    }
    replay_registry_enter(registry, entry);
    replay_log_created(entry);
    return 0;
}

int replay_registry_create(struct replay_registry *registry, const uint8_t *spec, size_t length, struct error *error) {
    struct table_config *config = memory_alloc(sizeof *config);
    if (!config) return error_set(error, ERROR_GENERIC, "out of memory for a table's spec");
    int failed =
        table_config_parse(config, NULL, spec, length, error) || replay_registry_create_parsed(registry, config, error);
    memory_free(config);
    return failed ? -1 : 0;
}

void replay_registry_drop(struct replay_registry *registry, struct replay_entry *entry) {
    struct replay_entry *sharer, **link = &registry->entries;
    while ((sharer = replay_registry_sharer(registry, entry))) {
        sharer->replaced = entry->replaced;
        replay_registry_drop(registry, sharer);
    }
    while (*link != entry) link = &(*link)->next;
    *link = entry->next;
    registry->count--;
    replay_entry_retain(entry); /* while clients let go of it: a log without memory closes some */
    entry->next = registry->dropped;
    registry->dropped = entry;
    entry->dropped = true;
    table_share_leave(entry->table);
    replay_log_dropped(entry);
    wait_queue_expire_all(registry->server, &entry->adders);
    wait_queue_expire_all(registry->server, &entry->samplers);
    wait_queue_expire_all(registry->server, &entry->changers);
    wait_queue_expire_all(registry->server, &entry->watchers);
    replay_streams_table_gone(entry);
    replay_entry_release(entry);
}

bool replay_entry_missing(const struct replay_entry *entry, struct error *error) {
    const char *name = table_config(entry->table)->name;
    if (entry->replaced)
        error_set(error, ERROR_BADSCHEMA,
                  "table '%s' was replaced meanwhile, by a restore or a primary's; read REPLAY.SPEC again", name);
    else if (entry->dropped)
        error_set(error, ERROR_NOTABLE, "table '%s' was dropped meanwhile", name);
    return entry->replaced || entry->dropped;
}

void replay_entry_retain(struct replay_entry *entry) {
    entry->references++;
}

void replay_entry_release(struct replay_entry *entry) {
    assert(entry->references > 0);
    if (--entry->references == 0 && entry->dropped) replay_registry_sweep_dropped(entry->registry);
}

void *replay_registry_scratch(struct replay_registry *registry, size_t bytes) {
    if (bytes > registry->scratch_bytes || !registry->scratch) {
        memory_free(registry->scratch);
        registry->scratch_bytes = bytes < 65536 ? 65536 : bytes;
        registry->scratch = memory_alloc(registry->scratch_bytes);
        if (!registry->scratch) registry->scratch_bytes = 0;
    }
    return registry->scratch;
}

/* ---- requests ------------------------------------------------------------------------------------------------------ */

void replay_request_release(struct replay_request *request) {
    if (!request->reservation) return;
    reservation_release(request->reservation);
    request->reservation = NULL;
}

void replay_request_begin_parts(struct replay_request *request) {
    if (request->amid) return;
    request->amid = true;
    request->entry->amid++;
}

bool replay_request_is_held_back(const struct client *client) {
    bool is_held = client->blocked && client_may_block(client) && pause_holds_writes(client->server);
    if (is_held) client->server->replay->tables->held_back = true;
    return is_held;
}

void replay_request_say_wait(struct client *client, const char *others, struct error *error) {
    const struct replay_request *request = client_state(client);
    if (pause_holds_writes(client->server))
        error_set(error, ERROR_TIMEOUT, REPLAY_HELD_BACK);
    else
        error_set(error, ERROR_TIMEOUT, "waits behind other %s of table '%s'", others,
                  table_config(request->entry->table)->name);
}

bool replay_registry_is_amid(const struct replay_registry *registry) {
    const struct replay_entry *entry = registry->entries;
    while (entry && entry->amid == 0) entry = entry->next;
    return entry;
}

/* What was done, or given up, in its midst may be what others wait for; so may a change that was not made. */
static void wake_others(const struct replay_request *request) {
    struct replay_entry *entry = request->entry;
    struct server *server = entry->registry->server;
    bool is_change = request->kind == REPLAY_REQUEST_RESET || request->kind == REPLAY_REQUEST_CONFIG;
    if (!request->amid && !is_change) return;
    if (entry->changers.length && entry->amid == 0) wait_queue_wake(server, &entry->changers);
    wait_queue_wake(server, &entry->adders);
    wait_queue_wake(server, &entry->samplers);
}

/* The command has replied, or its client went: a reservation that was not committed goes back. */
static void drop_request(struct client *client, void *state) {
    struct replay_request *request = state;
    struct replay_registry *registry = client->server->replay->tables;
    replay_cold_drop(request);
    replay_share_drop(client, request);
    replay_parts_drop(request);
    replay_request_release(request);
    blob_release(request->ids);
    if (request->entry) {
        request->entry->amid -= request->amid;
        wake_others(request);
        replay_entry_release(request->entry);
    }
    if (registry->requests_pooled == REPLAY_POOLED_OBJECTS) {
        memory_free(request);
        return;
    }
    request->next = registry->requests;
    registry->requests = request;
    registry->requests_pooled++;
}

struct replay_request *replay_request_new(struct client *client, struct replay_registry *registry,
                                          enum replay_request_kind kind) {
    struct replay_request *request = registry->requests;
    if (request) {
        registry->requests = request->next;
        registry->requests_pooled--;
        memset(request, 0, sizeof *request);
    } else {
        request = memory_calloc(1, sizeof *request);
    }
    if (request) {
        request->kind = kind;
        client_set_state(client, request, drop_request);
    }
    return request;
}

void replay_request_set_entry(struct replay_request *request, struct replay_entry *entry) {
    assert(!request->entry);
    request->entry = entry;
    replay_entry_retain(entry);
}
