/* server: one shard: its configuration, its data, its clients, its transports, and the loop that serves them. */
#ifndef REPLAY_SERVER_SERVER_H
#define REPLAY_SERVER_SERVER_H

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/text.h"
#include "net/transport.h"
#include "resp/parse.h"
#include "server/core/command.h"
#include "server/core/config_kept.h"
#include "server/core/config_replication.h"
#include "server/core/error_stats.h"
#include "server/core/exclusive_execution.h"
#include "server/core/make_room.h"
#include "server/core/output.h"
#include "server/core/output_limits.h"
#include "server/core/pause.h"
#include "server/core/propagate.h"

struct client;
struct command_table;
struct store;

/* What the subsystems above the core keep: each its own. */
struct admin_subsystem;
struct cluster_subsystem;
struct durability_subsystem;
struct http;
struct redis_subsystem;
struct replay_subsystem;
struct replication_subsystem;

#define SERVER_VERSION "0.1.0"
#define SERVER_REDIS_VERSION "7.0.15" /* the version whose behaviour the store follows; clients branch on it */
#define SERVER_MAX_TRANSPORTS 4

enum debug_allowed { DEBUG_REFUSED, DEBUG_ALLOWED, DEBUG_LOCAL };
enum append_policy { APPEND_SYNC_ALWAYS, APPEND_SYNC_EVERYSEC, APPEND_SYNC_NO };

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
    int64_t stream_node_max_bytes, stream_node_max_entries; /* of a block of entries; 0: no bound */
    struct kept_settings kept;            /* without effect */
    int64_t repl_diskless_load, sanitize_dump_payload; /* these too */
    struct replication_settings replication;
    int64_t admin_port;                   /* of the kernel's loopback; −1: none; 0 before listening: any */
    int64_t metrics_port;                 /* of HTTP, over the kernel; −1: none; 0 before listening: any */
    char metrics_host[256];
    int64_t busy_poll_us;                 /* keeps looking for events so long after the last, before it sleeps */
    char dpdk_device[512], dpdk_address[64], dpdk_gateway[64], dpdk_eal[1024], dpdk_faults[128], dpdk_offloads[64];
    char fstack_config[PATH_MAX];
    int64_t dpdk_mtu, dpdk_lcore, dpdk_memory_bytes, dpdk_queues, dpdk_queue; /* as in struct transport_settings */
    int64_t tls_port;                     /* of the kernel's sockets; −1: none; 0 before listening: any */
    char tls_cert_file[PATH_MAX], tls_key_file[PATH_MAX], tls_ca_cert_file[PATH_MAX], tls_ca_cert_dir[PATH_MAX];
    char tls_key_file_pass[256], tls_protocols[64], tls_ciphers[1024], tls_ciphersuites[512];
    int64_t tls_auth_clients;             /* of enum tls_clients */
    int64_t tls_prefer_server_ciphers, tls_session_caching;
    int64_t tcp_keepalive_s;              /* 0: none */
    int64_t log_level, log_format;        /* of the enums of base/log.h */
    int64_t protected_mode;
    int64_t busy_reply_threshold_ms;   /* others are told that a script runs; 0 = never */
    int64_t script_memory_limit_bytes; /* of each Lua state: scripts have one, functions another */
    int64_t maxclients;
    int64_t cluster_enabled; /* is a shard, and serves the slots that its supervisor gives it */
    int64_t timeout_s; /* closes idle clients; 0 = never */
    int64_t client_stall_timeout_s;
    struct output_limit output_limits[OUTPUT_CLASSES];
    char rename_commands[4096];           /* pairs of words; "": none */
    int64_t client_output_backlog_bytes;
    int64_t shard; /* its number among the servers that hold one replay; in every id */
    int64_t shared_memory_limit_bytes;        /* of all clients together; 0 = none is shared */
    int64_t shared_memory_client_limit_bytes; /* of one */
    char save[512]; /* rules: seconds and changes, in pairs; "": none */
    int64_t stop_writes_on_bgsave_error, auto_aof_rewrite_percentage, auto_aof_rewrite_min_size;
    int64_t appendonly, appendfsync, aof_load_truncated; /* places in their lists of words (config.c) */
    char appenddirname[256], appendfilename[128];
    int64_t snapshot_keep; /* files of snapshots that stay, the newest */
    int64_t snapshot_named_limit; /* files of snapshots that clients have named */
    int64_t slowlog_log_slower_than, slowlog_max_len; /* µs, −1: none; how many are kept */
    int64_t rdbcompression;         /* DUMP and files for Redis compress strings */
    int64_t hll_sparse_max_bytes;   /* a HyperLogLog that would take more becomes dense */
    int64_t notify_keyspace_events; /* of enum notify_class */
    int64_t tracking_table_max_keys; /* 0: no limit */
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

/* Clients whose replies wait until a file has come so far. */
struct held_clients {
    struct client *head;
    uint32_t count;
};

/* Of blocked clients: a binary heap, the nearest first. */
struct deadlines {
    struct client **heap;
    uint32_t count, capacity;
};

struct client_list {
    struct client *head, *tail; /* in the order they came */
    uint32_t count;
    uint64_t last_id;
    struct client *ready_head; /* have unparsed input that may be run now */
    struct client *unsent_head; /* have replies to write at the end of this turn */
    struct held_clients held;
    uint32_t blocked;
    struct deadlines deadlines;
    uint32_t writers; /* whose output waits for room */
    struct client *sweep; /* where the next look for stalled clients begins */
    uint64_t next_sweep_us; /* and when */
};

/* Of requests; from config. */
struct request_limits {
    struct resp_limits known, strangers; /* the second before AUTH */
};

/* Unix time less monotonic time, as of when it was last looked at. */
struct unix_time {
    int64_t ahead_us;
    uint64_t looked_us;
};

struct turn {
    uint64_t began_us; /* 0: waiting for events */
    uint32_t landings, landings_before; /* large arguments read from in this turn, and in the one before */
    uint64_t work_until_us; /* of long_work; 0: there was none in this turn */
    uint32_t first_task; /* of the next turn: those before it have had theirs */
};

/* For events, before the loop sleeps. */
struct looks {
    uint64_t event_us;     /* when a polled transport last had one */
    bool had_events;       /* the last poll handled some */
    uint64_t next_poll_us; /* beside a transport that owns the loop: when to look at the others again */
    struct second_look {   /* once more, instead of sleeping */
        bool on;
        uint32_t credit; /* how well it has paid of late */
        uint32_t sleeps; /* without, since it paid */
    } second;
};

/* Commands that work or reply in slices (slices.h). */
struct slices {
    struct wait_queue working;
    struct wait_queue replying; /* their replies are written as the clients take them */
    bool not_now; /* said by the one that is at it */
};

struct ending {
    bool asked; /* SHUTDOWN, SIGTERM, the lifeline */
    bool begun;
    uint64_t deadline_us;
};

/* As the server started. */
struct start {
    char run_id[41];
    int64_t unix_ms;
    size_t heap_bytes; /* before there was anything to keep */
};

/* Who changes keys, and who has to be told of it. */
struct acting {
    const struct client
        *client; /* on whose behalf commands run, a script's caller; NULL: nobody asked for what changes */
    bool tracking_is_due; /* tracking clients have still to be told of keys that they have read */
};

/* What a server is in replication. */
struct replication_place {
    bool is_replica;        /* follows another server */
    bool is_copy;           /* its data are those of a primary, and nobody has promoted it since */
    uint64_t origin;        /* of its data (replication/epoch.h); 0: nobody has asked for it yet */
    uint64_t epoch;         /* of it, or of the primary that it follows (replication/epoch.h) … */
    uint64_t newest_epoch;  /* … and the newest that it has heard of, which is never less */
    uint32_t good_replicas; /* that have acknowledged something within min-replicas-max-lag */
    bool streams_tables;    /* a primary's replicas are sent what happens to tables, weights and gradients … */
    bool follows_tables;    /* … and a replica applies it: nobody else may change them */
};

struct server {
    struct server_config config;
    struct stats stats;
    struct store *store;
    struct command_table *commands;
    struct error_stats error_stats;
    struct { /* each subsystem keeps its own */
        struct replay_subsystem *replay;
        struct redis_subsystem *redis;
        struct durability_subsystem *durability;
        struct replication_subsystem *replication;
        struct admin_subsystem *admin;
        struct cluster_subsystem *cluster;
        struct http *metrics; /* NULL: no port for them */
    };

    struct {
        struct transport *all[SERVER_MAX_TRANSPORTS];
        int count;
    } transports;
    struct transport_events events;

    struct client_list clients;
    struct wait_queue *woken; /* queues to retry after the current command */
    bool retry_subsystems; /* clients that wait in no queue, as for keys, may be served now */
    struct acting acting;
    struct replication_place place;
    struct exclusive exclusive; /* a script or a transaction that takes several turns */
    struct pause pause;         /* of clients' commands */
    struct slices slices;
    struct changes changes; /* that are recorded */
    bool loading;     /* the store is being read from files: keys whose time is over stay, nothing is recorded */
    bool copying;     /* a snapshot is: durability_holds is asked before a request runs */
    uint64_t slow_ns; /* commands and turns that take so long are told of */

    struct request_limits limits;
    uint8_t *read_buffer; /* shared: input is parsed out of it at once */
    struct output_pool output_pool;
    size_t least_output_limit; /* of all classes */
    struct room_kept room;

    uint64_t now_ns, now_us; /* monotonic, refreshed at each turn and after each command */
    struct unix_time unix_time;
    struct turn turn;
    struct looks looks;
    struct ending ending;
    struct start start;
};

/* Makes the store, the table of commands and all subsystems (server_subsystems). NULL with `error` set. */
struct server *server_new(const struct server_config *config, struct error *error);
void server_free(struct server *server);

void server_config_defaults(struct server_config *config);

/* The events that a transport must be made with, to serve this server. */
const struct transport_events *server_events(struct server *server);
int server_add_transport(struct server *server, struct transport *transport, struct error *error);

/* Serves until asked to stop, then finishes pending replies (bounded in time) and returns. -1: the device that it
 * served on was lost before. */
int server_run(struct server *server);
/* Asks server_run to return; callable from event handlers and commands. */
void server_ask_stop(struct server *server);
/* One turn without waiting for events: due work, wake-ups, writing. Returns microseconds to the next due work; for
 * transports that own the loop, and for tests. */
uint64_t server_step(void *server);

/* A newer primary has taken its place, or it was never made one: it takes no writes. */
static inline bool server_is_fenced(const struct server *server) {
    return !server->place.is_replica && (server->place.is_copy || server->place.newest_epoch > server->place.epoch);
}
#define SERVER_FENCED_REFUSAL                                                                                      \
    "READONLY this primary is of epoch %" PRIu64 ", and one of epoch %" PRIu64                                     \
    " has taken its place: write to that one, let this one follow it (REPLICAOF host port), or make this one the " \
    "newest (REPLICAOF NO ONE)"
#define SERVER_COPY_REFUSAL                                                                                       \
    "READONLY this server follows nobody, and its data are a replica's: make it the primary (REPLICAOF NO ONE), " \
    "or let it follow the primary (REPLICAOF host port)"

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
struct client *server_client_by_id(const struct server *server, uint64_t id);

#endif
