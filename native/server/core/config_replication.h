/* config_replication: settings of replicas, and of a server that has some, by Redis's names: one row each. */
#ifndef REPLAY_SERVER_CONFIG_REPLICATION_H
#define REPLAY_SERVER_CONFIG_REPLICATION_H

#include <stdint.h>

/* ROW(name, kind, field, default, minimum, maximum) */
#define REPLICATION_SETTINGS(ROW)                                                 \
    ROW("min-replicas-max-lag", NUMBER, min_replicas_max_lag_s, 10, 0, INT32_MAX) \
    ROW("min-replicas-to-write", NUMBER, min_replicas_to_write, 0, 0, INT32_MAX)  \
    ROW("repl-backlog-size", BYTES, backlog_bytes, 1 << 20, 1, INT64_MAX)         \
    ROW("repl-backlog-ttl", NUMBER, backlog_ttl_s, 3600, 0, INT32_MAX)            \
    ROW("repl-ping-replica-period", NUMBER, ping_period_s, 10, 1, INT32_MAX)      \
    ROW("repl-timeout", NUMBER, timeout_s, 60, 1, INT32_MAX)                      \
    ROW("replica-announce-port", NUMBER, announce_port, 0, 0, 65535)              \
    ROW("replica-announced", FLAG, announced, 1, 0, 1)                            \
    ROW("replica-ignore-maxmemory", FLAG, ignores_maxmemory, 1, 0, 1)             \
    ROW("replica-priority", NUMBER, priority, 100, 0, INT32_MAX)                  \
    ROW("replica-read-only", FLAG, is_read_only, 1, 0, 1)                         \
    ROW("replica-serve-stale-data", FLAG, serves_stale_data, 1, 0, 1)             \
    ROW("tls-replication", FLAG, uses_tls, 0, 0, 1)

/* The same fields by the names that they had before. */
#define REPLICATION_FORMER_NAMES(ROW)                                           \
    ROW("min-slaves-max-lag", NUMBER, min_replicas_max_lag_s, 10, 0, INT32_MAX) \
    ROW("min-slaves-to-write", NUMBER, min_replicas_to_write, 0, 0, INT32_MAX)  \
    ROW("repl-ping-slave-period", NUMBER, ping_period_s, 10, 1, INT32_MAX)      \
    ROW("slave-announce-port", NUMBER, announce_port, 0, 0, 65535)              \
    ROW("slave-ignore-maxmemory", FLAG, ignores_maxmemory, 1, 0, 1)             \
    ROW("slave-priority", NUMBER, priority, 100, 0, INT32_MAX)                  \
    ROW("slave-read-only", FLAG, is_read_only, 1, 0, 1)                         \
    ROW("slave-serve-stale-data", FLAG, serves_stale_data, 1, 0, 1)

#define REPLICATION_FIELD(name, kind, field, normally, minimum, maximum) int64_t field;
struct replication_settings {
    REPLICATION_SETTINGS(REPLICATION_FIELD)
    char primary_user[256], primary_password[512]; /* "": none */
    char announce_host[256];                       /* "": the address that the connection comes from */
    char follows[300];                             /* "host port": the server that this one follows; "": none */
};
#undef REPLICATION_FIELD

#endif
