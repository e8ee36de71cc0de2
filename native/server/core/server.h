/* server: one shard: its configuration, its data, its clients, its transports, and the loop that serves them. */
#ifndef REPLAY_SERVER_SERVER_H
#define REPLAY_SERVER_SERVER_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/text.h"
#include "net/transport.h"
#include "resp/parse.h"
#include "server/admin/monitor.h"
#include "server/admin/slow_log.h"
#include "server/core/command.h"
#include "server/core/config_kept.h"
#include "server/core/error_stats.h"
#include "server/core/exclusive.h"
#include "server/core/make_room.h"
#include "server/core/output.h"
#include "server/core/output_limits.h"
#include "server/core/pause.h"
#include "server/durability/stop.h"
#include "server/redis/pubsub/notify.h"
#include "server/replay/share.h"

struct client;
struct key_waits;
struct store;
struct replay_registry;
struct weights_registry;
struct gradients_registry;
struct snapshots;
struct append_log;
struct pubsub;
struct command_table;
struct watched_keys;
struct acl;
struct scripts;
struct http;

#define SERVER_VERSION "0.1.0"
#define SERVER_REDIS_VERSION "7.0.15" /* the version whose behaviour the store follows; clients branch on it */
#define SERVER_MAX_TRANSPORTS 4

enum debug_allowed { DEBUG_REFUSED, DEBUG_ALLOWED, DEBUG_LOCAL };

struct server_config {
    char host[256];
    int64_t port;                         /* −1: no TCP; 0 before listening: any */
    char unixsocket[108];                 /* "": none */
    int64_t unixsocketperm;               /* e.g. 0700 */
    char dir[PATH_MAX];
    char requirepass[512];                /* "": no password */
    char aclfile[PATH_MAX];               /* of users; "": none */
    int64_t acl_all_channels;             /* for new users */
    int64_t acllog_max_len;
    int64_t maxmemory; /* bytes of heap: keys, weights, buffers; tables have capacities; 0 = no limit */
    int64_t maxmemory_policy; /* of enum eviction_policy: which keys go when there is more */
    int64_t maxmemory_samples, maxmemory_eviction_tenacity, lfu_log_factor, lfu_decay_time; /* as in Redis */
    struct kept_settings kept;            /* without effect */
    int64_t repl_diskless_load, sanitize_dump_payload; /* these too */
    int64_t min_replicas_to_write, min_replicas_max_lag_s; /* writes are refused with fewer; 0: of either, never */
    int64_t admin_port;                   /* of the kernel's loopback; −1: none; 0 before listening: any */
    int64_t metrics_port;                 /* of HTTP, over the kernel; −1: none; 0 before listening: any */
    char metrics_host[256];
    int64_t busy_poll_us;                 /* keeps looking for events so long after the last, before it sleeps */
    char dpdk_device[512], dpdk_address[64], dpdk_gateway[64], dpdk_eal[1024], dpdk_faults[128], dpdk_offloads[64];
    char fstack_config[PATH_MAX];
    int64_t dpdk_mtu, dpdk_lcore, dpdk_memory_bytes; /* as in struct transport_settings */
    int64_t tls_port;                     /* of the kernel's sockets; −1: none; 0 before listening: any */
    char tls_cert_file[PATH_MAX], tls_key_file[PATH_MAX], tls_ca_cert_file[PATH_MAX], tls_ca_cert_dir[PATH_MAX];
    char tls_key_file_pass[256], tls_protocols[64], tls_ciphers[1024], tls_ciphersuites[512];
    int64_t tls_auth_clients;             /* of enum tls_clients */
    int64_t tls_prefer_server_ciphers, tls_session_caching;
    int64_t tcp_keepalive_s;              /* 0: none */
    int64_t log_level, log_format;        /* of the enums of base/log.h */
    int64_t protected_mode;
    int64_t busy_reply_threshold_ms;   /* others are told that a script runs; 0 = never */
    int64_t script_memory_limit_bytes; /* of Lua, for all scripts */
    int64_t maxclients;
    int64_t timeout_s; /* closes idle clients; 0 = never */
    int64_t client_stall_timeout_s;
    struct output_limit output_limits[OUTPUT_CLASSES];
    char rename_commands[4096];           /* pairs of words; "": none */
    int64_t client_output_backlog_bytes;
    int64_t shared_memory_limit_bytes;        /* of all clients together; 0 = none is shared */
    int64_t shared_memory_client_limit_bytes; /* of one */
    char save[512]; /* rules: seconds and changes, in pairs; "": none */
    int64_t stop_writes_on_bgsave_error, auto_aof_rewrite_percentage, auto_aof_rewrite_min_size;
    int64_t appendonly, appendfsync, aof_load_truncated; /* places in their lists of words (config.c) */
    char appenddirname[256], appendfilename[128];
    int64_t snapshot_keep; /* files of snapshots that stay, the newest */
    int64_t snapshot_named_limit; /* files of snapshots that clients have named */
    int64_t slowlog_log_slower_than, slowlog_max_len; /* µs, −1: none; how many are kept */
    int64_t notify_keyspace_events; /* of enum notify_class */
    int64_t latency_monitor_threshold_ms; /* 0: nothing is kept for LATENCY */
    int64_t latency_tracking;       /* how long calls of commands take is counted */
    char latency_percentiles[256];  /* those that INFO tells, in percent, with blanks between them */
    int64_t enable_debug_command;   /* of enum debug_allowed */
    int64_t max_request_bytes;
    int64_t max_bulk_bytes;
    int64_t max_arguments;
};

struct stats {
    uint64_t connections, connections_rejected, commands, errors, protocol_errors;
    uint64_t input_bytes, output_bytes;
    uint64_t reads, writes; /* of transports, that moved something */
    uint64_t output_limit_closes, stall_closes;
    uint64_t started_us; /* monotonic */
    uint64_t turns; /* of the loop */
    uint64_t turn_us_max; /* longest time the loop was held, waiting excluded */
    double commands_per_s; /* over the last second or so */
    double input_kb_per_s, output_kb_per_s;
    uint64_t sample_commands, sample_input, sample_output, sample_us; /* for the rates */
};

/* Of the configuration file, at SIGHUP. */
struct reloads {
    uint64_t count;
    bool failed; /* the last one */
};

struct client_list {
    struct client *head, *tail;
    uint32_t count;
};

/* Looking for events once more before the loop sleeps. */
struct second_look {
    bool on;
    uint32_t credit; /* how well it has paid of late */
    uint32_t sleeps; /* without, since it paid */
};

struct server {
    struct server_config config;
    struct stats stats;
    struct store *store;
    struct replay_registry *replay;
    struct weights_registry *weights;
    struct gradients_registry *gradients;
    struct snapshots *snapshots;
    struct append_log *append_log;
    bool loading; /* the store is being read from files: keys whose time is over stay, nothing is written down */
    struct pubsub *pubsub;
    struct command_table *commands;
    struct acl *acl;
    struct http *metrics; /* NULL: nobody asked for them */
    int64_t started_unix_ms;
    struct rewrite *rewrite; /* NULL: there is no configuration file */

    struct transport *transports[SERVER_MAX_TRANSPORTS];
    int transport_count;
    struct transport_events events;

    struct client_list clients; /* in the order they came */
    struct client *ready_head; /* have unparsed input that may be run now */
    struct client *unsent_head; /* have replies to write at the end of this turn */
    struct client **deadlines; /* binary heap of blocked clients, nearest deadline first */
    uint32_t deadline_count, deadline_capacity;
    struct wait_queue *woken; /* queues to retry after the current command */
    struct key_waits *key_waits; /* clients that wait for keys; NULL: there was none yet */
    uint32_t blocked_clients;
    struct exclusive exclusive;        /* a script or a transaction that takes several turns */
    struct scripts *scripts;           /* NULL: none were yet */
    struct watched_keys *watched_keys; /* NULL: none were yet */
    struct pause pause; /* of clients' commands */
    struct stop stop; /* after a snapshot */
    struct monitors monitors;
    struct slow_log slow_log;
    struct reloads reloads;
    struct latency latency;
    struct notify notify;
    struct error_stats error_stats;
    size_t startup_bytes; /* of heap, before there was anything to keep */
    uint64_t slow_ns; /* commands that take so long are looked at by slow_log_command */
    uint64_t next_client_id;
    struct client *sweep; /* where the next look for stalled clients begins */

    struct resp_limits limits; /* of requests; from config */
    struct resp_limits limits_unauthenticated;
    uint8_t *read_buffer; /* shared: input is parsed out of it at once */
    struct output_pool output_pool;
    size_t least_output_limit; /* of all classes */
    struct share_totals shares;
    struct wait_queue searching; /* clients whose KEYS is not done */
    struct wait_queue slices; /* clients whose reply is made in slices */
    uint64_t slices_until_us;
    struct wait_queue gathering; /* clients whose batch is being put into shared memory */
    char share_socket[64];       /* name of the abstract socket for clients of this host; "": none */

    uint64_t now_ns, now_us; /* monotonic, refreshed at each turn and after each command */
    int64_t unix_ahead_us; /* Unix time less monotonic time, */
    uint64_t unix_looked_us; /* as of then */
    uint64_t turn_began_us; /* 0: waiting for events */
    uint64_t next_sweep_us;
    uint32_t writers; /* clients whose output waits for room */
    uint32_t landings, landings_before; /* large arguments read from in this turn, and in the one before */
    uint64_t event_us;               /* when a polled transport last had an event */
    bool had_events; /* the last poll handled some */
    struct second_look second_look;
    uint64_t next_poll_us;           /* beside a transport that owns the loop: when to look at the others again */
    enum room room; /* that there was when it was last asked for */
    bool room_is_asked_for; /* the next turn looks whether keys must go (server/core/make_room.h) */
    bool scripts_may_debug; /* DEBUG SET-DISABLE-DENY-SCRIPTS */
    bool stop_asked; /* SHUTDOWN, SIGTERM, the lifeline */
    bool stopping;
    uint64_t stop_deadline_us;
    char run_id[41];
};

/* Opens store, tables, weights and command table. NULL with `error` set. */
struct server *server_new(const struct server_config *config, struct error *error);
void server_free(struct server *server);

void server_config_defaults(struct server_config *config);
/* Sets one setting by its CONFIG name; what may be changed only at start is refused when `live`. */
int server_config_set(struct server *server, const char *name, const char *value, bool live, struct error *error);

/* The events that a transport must be made with, to serve this server. */
const struct transport_events *server_events(struct server *server);
int server_add_transport(struct server *server, struct transport *transport, struct error *error);

/* Serves until asked to stop, then finishes pending replies (bounded in time) and returns. */
void server_run(struct server *server);
/* Asks server_run to return; callable from event handlers and commands. */
void server_ask_stop(struct server *server);
/* One turn without waiting for events: due work, wake-ups, writing. Returns microseconds to the next due work; for
 * transports that own the loop, and for tests. */
uint64_t server_step(void *server);

/* True if holding `more` bytes of heap would exceed maxmemory. */
bool server_memory_exceeded(const struct server *server, size_t more_bytes);

/* Retries the waiters of woken queues and of keys that have changed, for a bounded time. */
void server_run_woken(struct server *server);
/* Answers the blocked clients whose deadline has come; returns the nearest deadline left, or CLOCK_NEVER. */
uint64_t server_run_deadlines(struct server *server);
/* Called by the first event after waiting, and by each step: what the loop is held for counts from there. */
void server_begin_turn(struct server *server);
/* Reads the clock into now_ns and now_us. */
void server_tick(struct server *server);
/* INFO's text for the client: the named sections, or the default ones when count is 0. */
void server_info_text(const struct client *client, const struct resp_argument *sections, uint32_t count,
                      struct text *out);
size_t server_resident_bytes(void); /* of the process, as the system counts */
struct client *server_client_by_id(const struct server *server, uint64_t id);

/* Sections of INFO that other files write: "# Replay\r\n…" and "# Keyspace\r\n…". */
void replay_info(const struct client *client, struct text *out);
void gradients_info(struct server *server, struct text *out);
void keyspace_info(struct server *server, struct text *out);

#endif
