/* families_stores: weights, gradients, keys, and what is kept of all on the disk. */
#include <math.h>

#include "server/core/server.h"
#include "server/durability/append_log.h"
#include "server/durability/durability_subsystem.h"
#include "server/durability/snapshots.h"
#include "server/metrics/families.h"
#include "server/redis/pubsub/pubsub.h"
#include "server/redis/script/functions.h"
#include "server/redis/script/scripts.h"
#include "server/replay/gradients_registry.h"
#include "server/replay/weights_registry.h"
#include "store/store.h"

#define READ_OF(type, subject, name, expression)         \
    static double name(const struct metric_item *item) { \
        const type *subject = item->what;                \
        return (double)(expression);                     \
    }

READ_OF(struct weights_entry, weights, weights_version, weights->version)
READ_OF(struct weights_entry, weights, weights_bytes, weights->blob->length)

READ_OF(struct gradients_entry, key, gradients_waiting, key->queue->waiting.count)
READ_OF(struct gradients_entry, key, gradients_bytes, gradients_vector_bytes(key))
READ_OF(struct gradients_entry, key, gradients_takers, key->takers.length)
READ_OF(struct gradients_entry, key, gradients_pushed, key->queue->counters.pushed)
READ_OF(struct gradients_entry, key, gradients_duplicates, key->queue->counters.duplicates)
READ_OF(struct gradients_entry, key, gradients_applied, key->queue->counters.applied)
READ_OF(struct gradients_entry, key, gradients_dropped, key->queue->counters.dropped)
READ_OF(struct gradients_entry, key, gradients_forgotten, key->queue->counters.forgotten)
READ_OF(struct gradients_entry, key, gradients_oldest,
        key->queue->waiting.head ? (double)key->queue->waiting.head->version : NAN)

READ_OF(struct store_database, database, keys, dict_count(&database->keys))
READ_OF(struct store_database, database, expiring_keys, database->expiry.count)

#define READ(name, expression)                                            \
    static double name(const struct metric_item *item) {                  \
        struct server *server = (struct server *)(uintptr_t)item->server; \
        return (double)(expression);                                      \
    }

READ(key_hits, server->store->keyspace_hits)
READ(key_misses, server->store->keyspace_misses)
READ(expired_keys, server->store->expired_keys)
READ(evicted_keys, server->store->evicted_keys)
READ(script_bytes, scripts_memory_bytes(server) + functions_memory_bytes(server))
READ(channels, pubsub_topics(server, PUBSUB_CHANNEL) + pubsub_topics(server, PUBSUB_SHARD))
READ(patterns, pubsub_topics(server, PUBSUB_PATTERN))
READ(snapshots_saved, server->durability->snapshots->saved)
READ(snapshots_failed, server->durability->snapshots->failed)
READ(snapshot_running, server->durability->snapshots->running != NULL)
READ(snapshot_time, server->durability->snapshots->saved_unix_ms > 0
                        ? (double)server->durability->snapshots->saved_unix_ms / 1000
                        : NAN)
READ(snapshot_duration, (double)server->durability->snapshots->took_us / 1e6)
READ(snapshot_bytes, server->durability->snapshots->saved_bytes)
READ(unsaved_changes, server->store->changes - server->durability->snapshots->saved_changes)
READ(append_on, append_log_is_on(server->durability->append_log))
READ(append_bytes,
     append_log_is_on(server->durability->append_log) ? (double)append_log_bytes(server->durability->append_log) : NAN)
READ(append_failing, server->durability->append_log->failing ||
                         (server->durability->append_log->broken && !server->durability->append_log->beginning))
READ(append_held, server->clients.held.count)
READ(append_delayed, server->durability->append_log->delayed_fsyncs)
READ(append_rewrites, server->durability->append_log->rewrites)
READ(append_rewrites_failed, server->durability->append_log->rewrites_failed)

const struct family families_stores[] = {
    {"replay_server_weights_version", METRIC_GAUGE, EACH_WEIGHTS, "The newest published version.", weights_version},
    {"replay_server_weights_bytes", METRIC_GAUGE, EACH_WEIGHTS, "Size of the newest published weights.", weights_bytes},
    {"replay_server_gradients_waiting", METRIC_GAUGE, EACH_GRADIENTS, "Gradients that wait to be applied.",
     gradients_waiting},
    {"replay_server_gradients_bytes", METRIC_GAUGE, EACH_GRADIENTS, "Bytes of the waiting gradients.", gradients_bytes},
    {"replay_server_gradients_oldest_version", METRIC_GAUGE, EACH_GRADIENTS,
     "Version of weights that the oldest of them was computed at.", gradients_oldest},
    {"replay_server_gradients_takers", METRIC_GAUGE, EACH_GRADIENTS, "Clients that wait for gradients.",
     gradients_takers},
    {"replay_server_gradients_pushed_total", METRIC_COUNTER, EACH_GRADIENTS, "Gradients pushed.", gradients_pushed},
    {"replay_server_gradients_duplicates_total", METRIC_COUNTER, EACH_GRADIENTS,
     "Gradients pushed again, which were not counted twice.", gradients_duplicates},
    {"replay_server_gradients_applied_total", METRIC_COUNTER, EACH_GRADIENTS, "Gradients applied to weights.",
     gradients_applied},
    {"replay_server_gradients_dropped_total", METRIC_COUNTER, EACH_GRADIENTS,
     "Gradients taken out without being applied.", gradients_dropped},
    {"replay_server_gradients_forgotten_total", METRIC_COUNTER, EACH_GRADIENTS,
     "Remembered names of gradients that were dropped for newer ones.", gradients_forgotten},
    {"replay_server_keys", METRIC_GAUGE, EACH_DATABASE, "Keys of the key-value store.", keys},
    {"replay_server_expiring_keys", METRIC_GAUGE, EACH_DATABASE, "Keys with a time to live.", expiring_keys},
    {"replay_server_key_hits_total", METRIC_COUNTER, EACH_SERVER, "Look-ups that found their key.", key_hits},
    {"replay_server_key_misses_total", METRIC_COUNTER, EACH_SERVER, "Look-ups that found none.", key_misses},
    {"replay_server_expired_keys_total", METRIC_COUNTER, EACH_SERVER, "Keys whose time was over.", expired_keys},
    {"replay_server_evicted_keys_total", METRIC_COUNTER, EACH_SERVER, "Keys evicted to make room (maxmemory-policy).",
     evicted_keys},
    {"replay_server_script_bytes", METRIC_GAUGE, EACH_SERVER, "Memory of Lua scripts and functions.", script_bytes},
    {"replay_server_pubsub_channels", METRIC_GAUGE, EACH_SERVER, "Channels that somebody has subscribed to.", channels},
    {"replay_server_pubsub_patterns", METRIC_GAUGE, EACH_SERVER, "Patterns that somebody has subscribed to.", patterns},
    {"replay_server_snapshots_saved_total", METRIC_COUNTER, EACH_SERVER, "Snapshots written.", snapshots_saved},
    {"replay_server_snapshots_failed_total", METRIC_COUNTER, EACH_SERVER, "Snapshots that could not be written.",
     snapshots_failed},
    {"replay_server_snapshot_running", METRIC_GAUGE, EACH_SERVER, "1 while a snapshot is being written.",
     snapshot_running},
    {"replay_server_snapshot_last_time_seconds", METRIC_GAUGE, EACH_SERVER,
     "When the last snapshot was taken, in seconds since 1970.", snapshot_time},
    {"replay_server_snapshot_last_duration_seconds", METRIC_GAUGE, EACH_SERVER,
     "How long it took to write the last snapshot.", snapshot_duration},
    {"replay_server_snapshot_last_bytes", METRIC_GAUGE, EACH_SERVER, "Size of the last snapshot.", snapshot_bytes},
    {"replay_server_unsaved_changes", METRIC_GAUGE, EACH_SERVER,
     "Changes of the key-value store since the last snapshot.", unsaved_changes},
    {"replay_server_append_only_enabled", METRIC_GAUGE, EACH_SERVER, "1 with an append-only file.", append_on},
    {"replay_server_append_only_bytes", METRIC_GAUGE, EACH_SERVER, "Size of the append-only file's parts.",
     append_bytes},
    {"replay_server_append_only_failing", METRIC_GAUGE, EACH_SERVER, "1 while the append-only file cannot be written.",
     append_failing},
    {"replay_server_append_only_held_clients", METRIC_GAUGE, EACH_SERVER, "Clients whose replies wait for the disk.",
     append_held},
    {"replay_server_append_only_delays_total", METRIC_COUNTER, EACH_SERVER,
     "Times that replies were held because the disk was late.", append_delayed},
    {"replay_server_append_only_rewrites_total", METRIC_COUNTER, EACH_SERVER,
     "Rewrites of the append-only file that succeeded.", append_rewrites},
    {"replay_server_append_only_rewrites_failed_total", METRIC_COUNTER, EACH_SERVER,
     "Rewrites of the append-only file that failed.", append_rewrites_failed},
    {0},
};

const struct family *const families_all[4] = {families_server, families_replication, families_tables, families_stores};
