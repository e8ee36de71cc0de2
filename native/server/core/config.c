/* config: the settings by their CONFIG names: one literal table, from which GET, SET and the command line work. */
#include "server/core/config.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "server/core/client.h"
#include "server/core/config_table.h"
#include "server/core/make_room.h"
#include "server/core/notify_classes.h"
#include "server/core/percentiles.h"
#include "server/core/subsystem.h"
#include "server/core/upcalls.h"
#include "store/store.h"

_Static_assert(STORE_DATABASES == 16, "the setting databases shows this number");

#define NUMBER(name, kind, live, field, minimum, maximum) \
    {name, kind, live, offsetof(struct server_config, field), 0, minimum, maximum, NULL, NULL}
#define TEXT(name, live, field)                                                                                    \
    {name, SETTING_TEXT, live, offsetof(struct server_config, field), sizeof((struct server_config *)0)->field, 0, \
     0,    NULL,         NULL}
#define FLAG(name, live, field) {name, SETTING_FLAG, live, offsetof(struct server_config, field), 0, 0, 1, NULL, NULL}
#define CHOICE(name, live, field, choices) \
    {name, SETTING_CHOICE, live, offsetof(struct server_config, field), 0, 0, 0, NULL, choices}
#define FIXED(name, value) {name, SETTING_FIXED, false, 0, 0, 0, 0, value, NULL}
#define BY_COMMAND(name, field)                \
    {name,                                     \
     SETTING_TEXT,                             \
     false,                                    \
     offsetof(struct server_config, field),    \
     sizeof((struct server_config *)0)->field, \
     .by_command = true}
#define KEPT(name, kind, field, normally, minimum, maximum) \
    {name, SETTING_##kind, true, offsetof(struct server_config, kept.field), 0, minimum, maximum, .no_effect = true},
#define REPLICATION(name, kind, field, normally, minimum, maximum) \
    {name, SETTING_##kind, true, offsetof(struct server_config, replication.field), 0, minimum, maximum, NULL, NULL},
#define KEPT_CHOICE(name, field, words) \
    {name, SETTING_CHOICE, true, offsetof(struct server_config, field), .choices = words, .no_effect = true}

static const char *const tls_client_words[] = {"yes", "no", "optional", NULL}; /* as enum tls_clients */
static const char *const acl_channel_words[] = {"resetchannels", "allchannels", NULL};
static const char *const redis_log_levels[] = {"debug", "verbose", "notice", "warning", "error", NULL};
static const char *const local_words[] = {"no", "yes", "local", NULL}; /* as enum debug_allowed */
static const char *const diskless_load_words[] = {"disabled", "on-empty-db", "swapdb", NULL};
static const char *const sanitize_words[] = {"no", "yes", "clients", NULL};
static const char *const sync_policies[] = {"always", "everysec", "no", NULL}; /* as enum append_policy */

static const struct setting settings[] = {
    CHOICE("acl-pubsub-default", true, acl_all_channels, acl_channel_words),
    TEXT("aclfile", false, aclfile),
    NUMBER("acllog-max-len", SETTING_NUMBER, true, acllog_max_len, 0, INT64_MAX / 2),
    NUMBER("admin-port", SETTING_NUMBER, false, admin_port, -1, 65535),
    FLAG("aof-load-truncated", true, aof_load_truncated),
    TEXT("appenddirname", false, appenddirname),
    TEXT("appendfilename", false, appendfilename),
    CHOICE("appendfsync", true, appendfsync, sync_policies),
    FLAG("appendonly", true, appendonly),
    NUMBER("auto-aof-rewrite-min-size", SETTING_BYTES, true, auto_aof_rewrite_min_size, 0, INT64_MAX),
    NUMBER("auto-aof-rewrite-percentage", SETTING_NUMBER, true, auto_aof_rewrite_percentage, 0, INT32_MAX),
    TEXT("bind", false, host),
    NUMBER("busy-reply-threshold", SETTING_NUMBER, true, busy_reply_threshold_ms, 0, INT64_MAX / 1000),
    NUMBER("busy-poll-us", SETTING_NUMBER, true, busy_poll_us, 0, INT32_MAX),
    NUMBER("client-output-backlog", SETTING_BYTES, true, client_output_backlog_bytes, 1 << 20, INT64_MAX),
    {"client-output-buffer-limit", SETTING_OUTPUT_LIMITS, true, offsetof(struct server_config, output_limits)},
    NUMBER("client-stall-timeout", SETTING_NUMBER, true, client_stall_timeout_s, 1, 86400),
    FLAG("cluster-enabled", false, cluster_enabled),
    FIXED("databases", "16"),
    TEXT("dir", false, dir),
    TEXT("dpdk-address", false, dpdk_address),
    TEXT("dpdk-device", false, dpdk_device),
    TEXT("dpdk-eal", false, dpdk_eal),
    TEXT("dpdk-faults", false, dpdk_faults),
    TEXT("dpdk-gateway", false, dpdk_gateway),
    NUMBER("dpdk-lcore", SETTING_NUMBER, false, dpdk_lcore, -1, 1023),
    NUMBER("dpdk-memory", SETTING_BYTES, false, dpdk_memory_bytes, 0, INT64_MAX / 2),
    NUMBER("dpdk-mtu", SETTING_NUMBER, false, dpdk_mtu, 0, 9600),
    TEXT("dpdk-offloads", false, dpdk_offloads),
    NUMBER("dpdk-queue", SETTING_NUMBER, false, dpdk_queue, 0, 15),
    NUMBER("dpdk-queues", SETTING_NUMBER, false, dpdk_queues, 1, 16),
    CHOICE("enable-debug-command", false, enable_debug_command, local_words),
    TEXT("fstack-config", false, fstack_config),
    NUMBER("hll-sparse-max-bytes", SETTING_BYTES, true, hll_sparse_max_bytes, 0, INT64_MAX),
    NUMBER("latency-monitor-threshold", SETTING_NUMBER, true, latency_monitor_threshold_ms, 0, INT64_MAX),
    FLAG("latency-tracking", true, latency_tracking),
    TEXT("latency-tracking-info-percentiles", true, latency_percentiles),
    NUMBER("lfu-decay-time", SETTING_NUMBER, true, lfu_decay_time, 0, INT32_MAX),
    NUMBER("lfu-log-factor", SETTING_NUMBER, true, lfu_log_factor, 0, INT32_MAX),
    CHOICE("log-format", true, log_format, log_format_names),
    CHOICE("log-level", true, log_level, log_level_names),
    CHOICE("loglevel", true, log_level, redis_log_levels),
    NUMBER("lua-time-limit", SETTING_NUMBER, true, busy_reply_threshold_ms, 0, INT64_MAX / 1000),
    NUMBER("max-arguments", SETTING_NUMBER, true, max_arguments, 16, LIMIT_ARGUMENTS),
    NUMBER("max-request-bytes", SETTING_BYTES, true, max_request_bytes, 1 << 20, INT64_MAX / 2),
    NUMBER("maxclients", SETTING_NUMBER, true, maxclients, 1, 1000000),
    NUMBER("maxmemory", SETTING_BYTES, true, maxmemory, 0, INT64_MAX),
    NUMBER("maxmemory-eviction-tenacity", SETTING_NUMBER, true, maxmemory_eviction_tenacity, 0, 100),
    CHOICE("maxmemory-policy", true, maxmemory_policy, eviction_policy_names),
    NUMBER("maxmemory-samples", SETTING_NUMBER, true, maxmemory_samples, 1, INT32_MAX),
    TEXT("masterauth", true, replication.primary_password),
    TEXT("masteruser", true, replication.primary_user),
    TEXT("metrics-host", false, metrics_host),
    NUMBER("metrics-port", SETTING_NUMBER, false, metrics_port, -1, 65535),
    NUMBER("notify-keyspace-events", SETTING_EVENTS, true, notify_keyspace_events, 0, 0),
    NUMBER("port", SETTING_NUMBER, false, port, -1, 65535),
    NUMBER("proto-max-bulk-len", SETTING_BYTES, true, max_bulk_bytes, 1 << 20, LIMIT_BULK_MOST_BYTES),
    FLAG("protected-mode", true, protected_mode),
    FLAG("rdbcompression", true, rdbcompression),
    TEXT("rename-command", false, rename_commands),
    TEXT("replica-announce-ip", true, replication.announce_host),
    BY_COMMAND("replicaof", replication.follows),
    TEXT("requirepass", true, requirepass),
    TEXT("save", true, save),
    NUMBER("script-memory-limit", SETTING_BYTES, true, script_memory_limit_bytes, 1 << 20, INT64_MAX / 2),
    NUMBER("shard", SETTING_NUMBER, false, shard, 0, 255),
    NUMBER("shared-memory-client-limit", SETTING_BYTES, true, shared_memory_client_limit_bytes, 1 << 20, INT64_MAX / 2),
    NUMBER("shared-memory-limit", SETTING_BYTES, true, shared_memory_limit_bytes, 0, INT64_MAX / 2),
    TEXT("slave-announce-ip", true, replication.announce_host),
    BY_COMMAND("slaveof", replication.follows),
    NUMBER("slowlog-log-slower-than", SETTING_NUMBER, true, slowlog_log_slower_than, -1, INT64_MAX),
    NUMBER("slowlog-max-len", SETTING_NUMBER, true, slowlog_max_len, 0, INT32_MAX),
    NUMBER("snapshot-keep", SETTING_NUMBER, true, snapshot_keep, 1, 1000),
    NUMBER("snapshot-named-limit", SETTING_NUMBER, true, snapshot_named_limit, 1, 100000),
    FLAG("stop-writes-on-bgsave-error", true, stop_writes_on_bgsave_error),
    NUMBER("stream-node-max-bytes", SETTING_BYTES, true, stream_node_max_bytes, 0, INT64_MAX),
    NUMBER("stream-node-max-entries", SETTING_NUMBER, true, stream_node_max_entries, 0, INT64_MAX),
    NUMBER("tcp-keepalive", SETTING_NUMBER, true, tcp_keepalive_s, 0, 32767),
    NUMBER("timeout", SETTING_NUMBER, true, timeout_s, 0, INT32_MAX),
    CHOICE("tls-auth-clients", false, tls_auth_clients, tls_client_words),
    TEXT("tls-ca-cert-dir", false, tls_ca_cert_dir),
    TEXT("tls-ca-cert-file", false, tls_ca_cert_file),
    TEXT("tls-cert-file", false, tls_cert_file),
    TEXT("tls-ciphers", false, tls_ciphers),
    TEXT("tls-ciphersuites", false, tls_ciphersuites),
    TEXT("tls-key-file", false, tls_key_file),
    TEXT("tls-key-file-pass", false, tls_key_file_pass),
    NUMBER("tls-port", SETTING_NUMBER, false, tls_port, -1, 65535),
    FLAG("tls-prefer-server-ciphers", false, tls_prefer_server_ciphers),
    TEXT("tls-protocols", false, tls_protocols),
    FLAG("tls-session-caching", false, tls_session_caching),
    NUMBER("tracking-table-max-keys", SETTING_NUMBER, true, tracking_table_max_keys, 0, INT64_MAX),
    TEXT("unixsocket", false, unixsocket),
    NUMBER("unixsocketperm", SETTING_OCTAL, false, unixsocketperm, 0, 0777),
    REPLICATION_SETTINGS(REPLICATION) REPLICATION_FORMER_NAMES(REPLICATION)
    /* Without effect. */
    KEPT_CHOICE("repl-diskless-load", repl_diskless_load, diskless_load_words),
    KEPT_CHOICE("sanitize-dump-payload", sanitize_dump_payload, sanitize_words),
    /* Settings of Redis that cannot be changed here: what is true of this server. */
    FIXED("activedefrag", "no"),
    FIXED("always-show-logo", "no"),
    FIXED("aof_rewrite_cpulist", ""),
    FIXED("bgsave_cpulist", ""),
    FIXED("bind-source-addr", ""),
    FIXED("bio_cpulist", ""),
    FIXED("client-query-buffer-limit", "1073741824"),
    FIXED("cluster-announce-bus-port", "0"),
    FIXED("cluster-announce-hostname", ""),
    FIXED("cluster-announce-ip", ""),
    FIXED("cluster-announce-port", "0"),
    FIXED("cluster-announce-tls-port", "0"),
    FIXED("cluster-config-file", ""),
    FIXED("cluster-link-sendbuf-limit", "0"),
    FIXED("cluster-port", "0"),
    FIXED("cluster-preferred-endpoint-type", "ip"),
    FIXED("daemonize", "no"),
    FIXED("dbfilename", ""),
    FIXED("disable-thp", "no"),
    FIXED("enable-module-command", "no"),
    FIXED("enable-protected-configs", "no"),
    FIXED("ignore-warnings", ""),
    FIXED("io-threads", "1"),
    FIXED("io-threads-do-reads", "no"),
    FIXED("logfile", ""),
    FIXED("maxmemory-clients", "0"),
    FIXED("oom-score-adj", "no"),
    FIXED("oom-score-adj-values", "0 200 800"),
    FIXED("pidfile", ""),
    FIXED("proc-title-template", ""),
    FIXED("propagation-error-behavior", "ignore"),
    FIXED("rdbchecksum", "yes"),
    FIXED("server_cpulist", ""),
    FIXED("set-proc-title", "no"),
    FIXED("shutdown-on-sigint", "default"),
    FIXED("shutdown-on-sigterm", "default"),
    FIXED("socket-mark-id", "0"),
    FIXED("supervised", "no"),
    FIXED("syslog-enabled", "no"),
    FIXED("syslog-facility", "local0"),
    FIXED("syslog-ident", ""),
    FIXED("tcp-backlog", "511"),
    FIXED("tls-client-cert-file", ""),
    FIXED("tls-client-key-file", ""),
    FIXED("tls-client-key-file-pass", ""),
    FIXED("tls-cluster", "no"),
    FIXED("tls-dh-params-file", ""),
    FIXED("tls-session-cache-size", "20480"),
    FIXED("tls-session-cache-timeout", "7200"),
    KEPT_SETTINGS(KEPT) KEPT_FORMER_NAMES(KEPT)};

#define DEFAULT(name, kind, field, normally, minimum, maximum) .field = normally,
#define SETTINGS (sizeof settings / sizeof *settings)

void server_config_defaults(struct server_config *config) {
    *config = (struct server_config){
        .host = "127.0.0.1",
        .port = 6379,
        .admin_port = -1,
        .metrics_port = -1,
        .log_level = LOG_NOTICE,
        .metrics_host = "127.0.0.1",
        .dpdk_lcore = -1,
        .dpdk_offloads = "auto",
        .dpdk_queues = 1,
        .unixsocketperm = 0700,
        .dir = ".",
        .maxclients = LIMIT_CLIENTS,
        .acllog_max_len = 128,
        .protected_mode = 1,
        .tcp_keepalive_s = 300,
        .tls_port = -1,
        .tls_session_caching = 1,
        .busy_reply_threshold_ms = LIMIT_BUSY_REPLY_MS,
        .script_memory_limit_bytes = LIMIT_SCRIPT_BYTES,
        .maxmemory_eviction_tenacity = 10,
        .maxmemory_policy = EVICTION_NONE,
        .maxmemory_samples = 5,
        .lfu_decay_time = 1,
        .lfu_log_factor = 10,
        .stream_node_max_bytes = 4096,
        .stream_node_max_entries = 100,
        .client_stall_timeout_s = LIMIT_CLIENT_STALL_TIMEOUT_S,
        .output_limits = {{.hard_bytes = LIMIT_OUTPUT_INLINE_BYTES},
                          {.hard_bytes = 256 << 20, .soft_bytes = 64 << 20, .soft_s = 60},
                          {.hard_bytes = 32 << 20, .soft_bytes = 8 << 20, .soft_s = 60}},
        .client_output_backlog_bytes = LIMIT_OUTPUT_BACKLOG_BYTES,
        .shared_memory_limit_bytes = LIMIT_SHARED_BYTES,
        .shared_memory_client_limit_bytes = LIMIT_SHARED_CLIENT_BYTES,
        .appendfsync = APPEND_SYNC_EVERYSEC,
        .aof_load_truncated = 1,
        .stop_writes_on_bgsave_error = 1,
        .auto_aof_rewrite_percentage = 100,
        .auto_aof_rewrite_min_size = 64 << 20,
        .appenddirname = "appendonlydir",
        .appendfilename = "appendonly.aof",
        .snapshot_keep = LIMIT_SNAPSHOT_KEEP,
        .snapshot_named_limit = LIMIT_SNAPSHOT_NAMED,
        .hll_sparse_max_bytes = 3000,
        .rdbcompression = 1,
        .latency_tracking = 1,
        .latency_percentiles = "50 99 99.9",
        .kept = {KEPT_SETTINGS(DEFAULT)},
        .replication = {REPLICATION_SETTINGS(DEFAULT)},
        .slowlog_log_slower_than = 10000,
        .tracking_table_max_keys = LIMIT_TRACKING_KEYS,
        .slowlog_max_len = 128,
        .max_request_bytes = LIMIT_REQUEST_BYTES,
        .max_bulk_bytes = LIMIT_BULK_BYTES,
        .max_arguments = LIMIT_ARGUMENTS,
    };
}

int config_find(const char *name) {
    for (size_t i = 0; i < SETTINGS; i++)
        if (strcasecmp(settings[i].name, name) == 0) return (int)i;
    return -1;
}

size_t config_count(void) {
    return SETTINGS;
}

const char *config_name(size_t index) {
    return settings[index].name;
}

const struct setting *config_setting(size_t index) {
    return &settings[index];
}

static int64_t *number_of(struct server_config *config, const struct setting *setting) {
    return (int64_t *)((char *)config + setting->offset);
}

void config_value(const struct server_config *config, size_t index, char value[CONFIG_VALUE_BYTES]) {
    const struct setting *setting = &settings[index];
    const char *field = (const char *)config + setting->offset;
    switch (setting->kind) {
    case SETTING_NUMBER:
    case SETTING_BYTES: snprintf(value, CONFIG_VALUE_BYTES, "%" PRId64, *(const int64_t *)field); break;
    case SETTING_OCTAL: snprintf(value, CONFIG_VALUE_BYTES, "%" PRIo64, (uint64_t)*(const int64_t *)field); break;
    case SETTING_FLAG: snprintf(value, CONFIG_VALUE_BYTES, "%s", *(const int64_t *)field ? "yes" : "no"); break;
    case SETTING_EVENTS: notify_text((int)*(const int64_t *)field, value); break;
    case SETTING_CHOICE: snprintf(value, CONFIG_VALUE_BYTES, "%s", setting->choices[*(const int64_t *)field]); break;
    case SETTING_TEXT: snprintf(value, CONFIG_VALUE_BYTES, "%s", field); break;
    case SETTING_OUTPUT_LIMITS: output_limits_write(config->output_limits, value, CONFIG_VALUE_BYTES); break;
    case SETTING_FIXED: snprintf(value, CONFIG_VALUE_BYTES, "%s", setting->fixed); break;
    }
}

bool config_parse_bytes(const char *text, int64_t *value) {
    static const struct {
        const char *suffix;
        int64_t factor;
    } units[] = {{"", 1},        {"b", 1},        {"k", 1000},       {"kb", 1024},
                 {"m", 1000000}, {"mb", 1 << 20}, {"g", 1000000000}, {"gb", 1 << 30}};
    char *end;
    if (*text < '0' || *text > '9') return false;
    long long number = strtoll(text, &end, 10);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcasecmp(end, units[i].suffix) == 0)
            return !__builtin_mul_overflow((int64_t)number, units[i].factor, value);
    return false;
}

static bool parse_plain(const char *text, int base, int64_t *value) {
    char *end;
    if (*text == '\0' || *text == ' ') return false;
    *value = strtoll(text, &end, base);
    return *end == '\0';
}

static int assign_number(struct server_config *config, const struct setting *setting, const char *value,
                         struct error *error) {
    int64_t number;
    bool parsed = setting->kind == SETTING_BYTES ? config_parse_bytes(value, &number)
                                                 : parse_plain(value, setting->kind == SETTING_OCTAL ? 8 : 10, &number);
    if (!parsed)
        return error_set(error, ERROR_GENERIC, "%s",
                         setting->kind == SETTING_BYTES ? "argument must be a memory value"
                                                        : "argument couldn't be parsed into an integer");
    if (number < setting->minimum || number > setting->maximum) {
        char message[128];
        if (setting->kind == SETTING_OCTAL)
            snprintf(message, sizeof message, "argument must be between 0 and 777 inclusive");
        else
            snprintf(message, sizeof message, "argument must be between %" PRId64 " and %" PRId64 " inclusive",
                     setting->minimum, setting->maximum);
        return error_set(error, ERROR_GENERIC, "%s", message);
    }
    *number_of(config, setting) = number;
    return 0;
}

static int assign_text(struct server_config *config, const struct setting *setting, const char *value,
                       struct error *error) {
    size_t length = strlen(value);
    if (length >= setting->size)
        return error_set(error, ERROR_GENERIC, "argument is %zu bytes, at most %zu are possible", length,
                         setting->size - 1);
    memcpy((char *)config + setting->offset, value, length + 1);
    return 0;
}

static int assign_flag(struct server_config *config, const struct setting *setting, const char *value,
                       struct error *error) {
    bool yes = strcasecmp(value, "yes") == 0;
    if (!yes && strcasecmp(value, "no") != 0) return error_set(error, ERROR_GENERIC, "argument must be 'yes' or 'no'");
    *number_of(config, setting) = yes;
    return 0;
}

static int assign_choice(struct server_config *config, const struct setting *setting, const char *value,
                         struct error *error) {
    char words[256] = "";
    size_t length = 0;
    for (int64_t i = 0; setting->choices[i]; i++) {
        if (strcasecmp(setting->choices[i], value) == 0) {
            *number_of(config, setting) = i;
            return 0;
        }
        int more = snprintf(words + length, sizeof words - length, "%s%s", i > 0 ? ", " : "", setting->choices[i]);
        if (more > 0 && length + (size_t)more < sizeof words) length += (size_t)more;
    }
    return error_set(error, ERROR_GENERIC, "argument(s) must be one of the following: %s", words);
}

static int assign_events(struct server_config *config, const struct setting *setting, const char *value,
                         struct error *error) {
    int flags = notify_parse(value);
    if (flags < 0) return error_set(error, ERROR_GENERIC, "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.");
    *number_of(config, setting) = flags;
    return 0;
}

int config_assign(struct server_config *config, const char *name, const char *value, bool live, struct error *error) {
    for (size_t i = 0; i < SETTINGS; i++) {
        const struct setting *setting = &settings[i];
        if (strcasecmp(setting->name, name) != 0) continue;
        if (setting->kind == SETTING_FIXED && strcasecmp(value, setting->fixed) == 0) return 0;
        if (setting->kind == SETTING_FIXED || (live && !setting->live))
            return error_set(error, ERROR_GENERIC, "can't set immutable config");
        if (setting->kind == SETTING_FLAG) return assign_flag(config, setting, value, error);
        if (setting->kind == SETTING_EVENTS) return assign_events(config, setting, value, error);
        if (setting->kind == SETTING_CHOICE) return assign_choice(config, setting, value, error);
        if (strcmp(setting->name, "save") == 0 && !upcalls.snapshots_rules_are_valid(value))
            return error_set(error, ERROR_GENERIC, "Invalid save parameters");
        if (strcmp(setting->name, "latency-tracking-info-percentiles") == 0)
            return percentiles_tidy(value, config->latency_percentiles, sizeof config->latency_percentiles, error);
        if (setting->kind == SETTING_OUTPUT_LIMITS) return output_limits_parse(config->output_limits, value, error);
        if (setting->kind == SETTING_TEXT) return assign_text(config, setting, value, error);
        return assign_number(config, setting, value, error);
    }
    return error_set(error, ERROR_NOTABLE, "Unknown option '%s'", name);
}

bool config_follows(const struct server_config *config, char host[256], int *port) {
    return sscanf(config->replication.follows, "%255s %d", host, port) == 2;
}

void config_apply(struct server *server) {
    const struct server_config *config = &server->config;
    log_configure((enum log_level)config->log_level, (enum log_format)config->log_format);
    server->limits.known = (struct resp_limits){
        .max_request_bytes = (size_t)config->max_request_bytes,
        .max_bulk_bytes = (size_t)config->max_bulk_bytes,
        .max_arguments = (uint32_t)config->max_arguments,
        .max_inline_bytes = LIMIT_INLINE_BYTES,
    };
    server->limits.strangers = (struct resp_limits){
        .max_request_bytes = LIMIT_UNAUTHENTICATED_BULK_BYTES * LIMIT_UNAUTHENTICATED_ARGUMENTS,
        .max_bulk_bytes = LIMIT_UNAUTHENTICATED_BULK_BYTES,
        .max_arguments = LIMIT_UNAUTHENTICATED_ARGUMENTS,
        .max_inline_bytes = LIMIT_UNAUTHENTICATED_BULK_BYTES,
        .unauthenticated = true,
    };
    if (server->store) {
        server->store->access.log_factor = (uint32_t)config->lfu_log_factor;
        server->store->access.decay_minutes = (uint32_t)config->lfu_decay_time;
        eviction_use(server->store, (enum eviction_policy)config->maxmemory_policy,
                     (uint32_t)config->maxmemory_samples);
        make_room_soon(server);
    }
    for (int i = 0; i < server->transports.count; i++) {
        struct transport *transport = server->transports.all[i];
        if (strcmp(transport->operations->name, "kernel") == 0)
            transport_kernel_keepalive(transport, config->tcp_keepalive_s);
    }
    server->least_output_limit = output_limits_least(config->output_limits);
    EACH_SUBSYSTEM(configure, server);
}
