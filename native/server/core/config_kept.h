/* config_kept: settings of Redis that are accepted, checked and kept, and have no effect here: one row each. What they
 * tune in Redis does not exist in this server, or tunes itself. A setting that protects something is not among them. */
#ifndef REPLAY_SERVER_CONFIG_KEPT_H
#define REPLAY_SERVER_CONFIG_KEPT_H

#include <stdint.h>

/* ROW(name, kind, field, default, minimum, maximum) */
#define KEPT_SETTINGS(ROW)                                                                            \
    ROW("active-defrag-cycle-max", NUMBER, active_defrag_cycle_max, 25, 1, 99)                        \
    ROW("active-defrag-cycle-min", NUMBER, active_defrag_cycle_min, 1, 1, 99)                         \
    ROW("active-defrag-ignore-bytes", BYTES, active_defrag_ignore_bytes, 100 << 20, 1, INT64_MAX)     \
    ROW("active-defrag-max-scan-fields", NUMBER, active_defrag_max_scan_fields, 1000, 1, INT64_MAX)   \
    ROW("active-defrag-threshold-lower", NUMBER, active_defrag_threshold_lower, 10, 0, 1000)          \
    ROW("active-defrag-threshold-upper", NUMBER, active_defrag_threshold_upper, 100, 0, 1000)         \
    ROW("active-expire-effort", NUMBER, active_expire_effort, 1, 1, 10)                               \
    ROW("activerehashing", FLAG, activerehashing, 1, 0, 1)                                            \
    ROW("aof-disable-auto-gc", FLAG, aof_disable_auto_gc, 0, 0, 1)                                    \
    ROW("aof-rewrite-incremental-fsync", FLAG, aof_rewrite_incremental_fsync, 1, 0, 1)                \
    ROW("aof-timestamp-enabled", FLAG, aof_timestamp_enabled, 0, 0, 1)                                \
    ROW("aof-use-rdb-preamble", FLAG, aof_use_rdb_preamble, 1, 0, 1)                                  \
    ROW("cluster-allow-pubsubshard-when-down", FLAG, cluster_allow_pubsubshard_when_down, 1, 0, 1)    \
    ROW("cluster-allow-reads-when-down", FLAG, cluster_allow_reads_when_down, 0, 0, 1)                \
    ROW("cluster-allow-replica-migration", FLAG, cluster_allow_replica_migration, 1, 0, 1)            \
    ROW("cluster-migration-barrier", NUMBER, cluster_migration_barrier, 1, 0, INT32_MAX)              \
    ROW("cluster-node-timeout", NUMBER, cluster_node_timeout, 15000, 0, INT64_MAX)                    \
    ROW("cluster-replica-no-failover", FLAG, cluster_replica_no_failover, 0, 0, 1)                    \
    ROW("cluster-replica-validity-factor", NUMBER, cluster_replica_validity_factor, 10, 0, INT32_MAX) \
    ROW("cluster-require-full-coverage", FLAG, cluster_require_full_coverage, 1, 0, 1)                \
    ROW("crash-log-enabled", FLAG, crash_log_enabled, 1, 0, 1)                                        \
    ROW("crash-memcheck-enabled", FLAG, crash_memcheck_enabled, 1, 0, 1)                              \
    ROW("dynamic-hz", FLAG, dynamic_hz, 1, 0, 1)                                                      \
    ROW("hash-max-listpack-entries", NUMBER, hash_max_listpack_entries, 512, 0, INT64_MAX)            \
    ROW("hash-max-listpack-value", BYTES, hash_max_listpack_value, 64, 0, INT64_MAX)                  \
    ROW("hz", NUMBER, hz, 10, 0, INT32_MAX)                                                           \
    ROW("jemalloc-bg-thread", FLAG, jemalloc_bg_thread, 1, 0, 1)                                      \
    ROW("lazyfree-lazy-eviction", FLAG, lazyfree_lazy_eviction, 0, 0, 1)                              \
    ROW("lazyfree-lazy-expire", FLAG, lazyfree_lazy_expire, 0, 0, 1)                                  \
    ROW("lazyfree-lazy-server-del", FLAG, lazyfree_lazy_server_del, 0, 0, 1)                          \
    ROW("lazyfree-lazy-user-del", FLAG, lazyfree_lazy_user_del, 0, 0, 1)                              \
    ROW("lazyfree-lazy-user-flush", FLAG, lazyfree_lazy_user_flush, 0, 0, 1)                          \
    ROW("list-compress-depth", NUMBER, list_compress_depth, 0, 0, INT32_MAX)                          \
    ROW("list-max-listpack-size", NUMBER, list_max_listpack_size, -2, INT32_MIN, INT32_MAX)           \
    ROW("no-appendfsync-on-rewrite", FLAG, no_appendfsync_on_rewrite, 0, 0, 1)                        \
    ROW("rdb-del-sync-files", FLAG, rdb_del_sync_files, 0, 0, 1)                                      \
    ROW("rdb-save-incremental-fsync", FLAG, rdb_save_incremental_fsync, 1, 0, 1)                      \
    ROW("repl-disable-tcp-nodelay", FLAG, repl_disable_tcp_nodelay, 0, 0, 1)                          \
    ROW("repl-diskless-sync", FLAG, repl_diskless_sync, 1, 0, 1)                                      \
    ROW("repl-diskless-sync-delay", NUMBER, repl_diskless_sync_delay, 5, 0, INT32_MAX)                \
    ROW("repl-diskless-sync-max-replicas", NUMBER, repl_diskless_sync_max_replicas, 0, 0, INT32_MAX)  \
    ROW("replica-ignore-disk-write-errors", FLAG, replica_ignore_disk_write_errors, 0, 0, 1)          \
    ROW("replica-lazy-flush", FLAG, replica_lazy_flush, 0, 0, 1)                                      \
    ROW("set-max-intset-entries", NUMBER, set_max_intset_entries, 512, 0, INT64_MAX)                  \
    ROW("shutdown-timeout", NUMBER, shutdown_timeout, 10, 0, INT32_MAX)                               \
    ROW("zset-max-listpack-entries", NUMBER, zset_max_listpack_entries, 128, 0, INT64_MAX)            \
    ROW("zset-max-listpack-value", BYTES, zset_max_listpack_value, 64, 0, INT64_MAX)

/* The same fields by the names that they had before. */
#define KEPT_FORMER_NAMES(ROW)                                                                      \
    ROW("cluster-slave-no-failover", FLAG, cluster_replica_no_failover, 0, 0, 1)                    \
    ROW("cluster-slave-validity-factor", NUMBER, cluster_replica_validity_factor, 10, 0, INT32_MAX) \
    ROW("hash-max-ziplist-entries", NUMBER, hash_max_listpack_entries, 512, 0, INT64_MAX)           \
    ROW("hash-max-ziplist-value", BYTES, hash_max_listpack_value, 64, 0, INT64_MAX)                 \
    ROW("list-max-ziplist-size", NUMBER, list_max_listpack_size, -2, INT32_MIN, INT32_MAX)          \
    ROW("slave-lazy-flush", FLAG, replica_lazy_flush, 0, 0, 1)                                      \
    ROW("zset-max-ziplist-entries", NUMBER, zset_max_listpack_entries, 128, 0, INT64_MAX)           \
    ROW("zset-max-ziplist-value", BYTES, zset_max_listpack_value, 64, 0, INT64_MAX)

#define KEPT_FIELD(name, kind, field, normally, minimum, maximum) int64_t field;
struct kept_settings {
    KEPT_SETTINGS(KEPT_FIELD)
};
#undef KEPT_FIELD

#endif
