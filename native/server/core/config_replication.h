/* config_replication: settings of a server that has replicas, by Redis's names: one row each. */
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
    ROW("repl-timeout", NUMBER, timeout_s, 60, 1, INT32_MAX)

/* The same fields by the names that they had before. */
#define REPLICATION_FORMER_NAMES(ROW)                                           \
    ROW("min-slaves-max-lag", NUMBER, min_replicas_max_lag_s, 10, 0, INT32_MAX) \
    ROW("min-slaves-to-write", NUMBER, min_replicas_to_write, 0, 0, INT32_MAX)  \
    ROW("repl-ping-slave-period", NUMBER, ping_period_s, 10, 1, INT32_MAX)

#define REPLICATION_FIELD(name, kind, field, normally, minimum, maximum) int64_t field;
struct replication_settings {
    REPLICATION_SETTINGS(REPLICATION_FIELD)
};
#undef REPLICATION_FIELD

#endif
