/* loop: the event loop. The table `steps` says what a turn runs, and why in this order. */

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/config.h"
#include "server/core/long_work.h"
#include "server/core/server.h"
#include "server/core/service_manager.h"
#include "server/core/subsystem.h"
#include "server/core/upcalls.h"
#include "store/store.h"

#define SWEEP_US 100000u /* how often some of the clients are looked at for stalls */
#define SWEEPS_PER_ROUND 10u /* all of them are looked at in so many sweeps */
#define SWEEP_LEAST 64u
#define RATE_US 1000000u
#define SECOND_LOOK_US 4u /* about what falling asleep and waking up take */
#define SECOND_LOOK_CREDIT 16u
#define SECOND_LOOK_TRIES 64u
#define UNIX_TIME_US 100u /* how old what is known of Unix time may be */
#define BESIDE_POLL_US 100u /* how often the others are polled beside a transport that owns the loop */

void server_tick(struct server *server) {
    server->now_ns = clock_monotonic_ns();
    server->now_us = server->now_ns / 1000;
    server->store->told_ms = ((int64_t)server->now_us + server->unix_time.ahead_us) / 1000;
}

/* Unix time may jump: it is looked at again and again, right after server_tick. */
static void look_at_unix_time(struct server *server) {
    int64_t unix_us = clock_unix_us();
    server->unix_time.ahead_us = unix_us - (int64_t)server->now_us;
    server->unix_time.looked_us = server->now_us;
    server->store->told_ms = unix_us / 1000;
}

static void name_run(struct server *server) {
    struct random_state random;
    random_seed(&random, random_entropy());
    for (int i = 0; i < 40; i++) server->start.run_id[i] = "0123456789abcdef"[random_below(&random, 16)];
}

struct server *server_new(const struct server_config *config, struct error *error) {
    struct server *server = memory_calloc(1, sizeof *server);
    if (!server) {
        error_set(error, ERROR_GENERIC, "no memory for the server");
        return NULL;
    }
    server->config = *config;
    server->read_buffer = memory_alloc(LIMIT_PENDING_INPUT_BYTES);
    server->commands = command_table_new();
    if (server->commands && command_table_rename(server->commands, config->rename_commands, error) < 0) {
        server_free(server);
        return NULL;
    }
    server->store = store_new();
    if (!server->read_buffer || !server->commands || !server->store || !subsystems_create(server)) {
        server_free(server);
        error_set(error, ERROR_GENERIC, "no memory for the server");
        return NULL;
    }
    config_apply(server);
    name_run(server);
    server->start.heap_bytes = memory_used_bytes();
    server_tick(server);
    look_at_unix_time(server);
    server->stats.started_us = server->stats.sample_us = server->now_us;
    server->start.unix_ms = clock_unix_ms();
    server->clients.next_sweep_us = server->now_us + SWEEP_US;
    server->events = (struct transport_events){
        .context = server,
        .opened = client_opened,
        .readable = client_readable,
        .writable = client_writable,
        .hung_up = client_hung_up,
        .released = client_released,
        .closed = client_closed,
    };
    return server;
}

/* Clients go first, since they hold reservations, pins and blobs of what is freed after them. */
void server_free(struct server *server) {
    while (server->clients.head) client_closed(server, server->clients.head);
    server->woken = NULL; /* nobody waits any more, and the queues go with their owners */
    EACH_SUBSYSTEM(disconnect, server);
    for (int i = 0; i < server->transports.count; i++)
        server->transports.all[i]->operations->free(server->transports.all[i]);
    exclusive_free(server);
    subsystems_free(server);
    append_buffer_free(&server->changes.instead);
    append_buffer_free(&server->changes.after);
    if (server->store) store_free(server->store);
    if (server->commands) command_table_free(server->commands);
    output_pool_free(&server->output_pool);
    memory_free(server->clients.deadlines.heap);
    memory_free(server->read_buffer);
    memory_free(server);
}

const struct transport_events *server_events(struct server *server) {
    return &server->events;
}

int server_add_transport(struct server *server, struct transport *transport, struct error *error) {
    if (server->transports.count == SERVER_MAX_TRANSPORTS)
        return error_set(error, ERROR_LIMIT, "more than %d transports", SERVER_MAX_TRANSPORTS);
    server->transports.all[server->transports.count++] = transport;
    return 0;
}

bool server_memory_exceeded(const struct server *server, size_t more_bytes) {
    return server->config.maxmemory > 0 && memory_live_bytes() + more_bytes > (size_t)server->config.maxmemory;
}

struct client *server_client_by_id(const struct server *server, uint64_t id) {
    for (struct client *client = server->clients.head; client; client = client->next)
        if (client->id == id) return client;
    return NULL;
}

/* ---- one turn ---------------------------------------------------------------------------------------- */

static void run_ready(struct server *server) {
    struct client *client = server->clients.ready_head;
    server->clients.ready_head = NULL; /* who becomes ready now waits for the next turn */
    while (client) {
        struct client *next = client->ready_next;
        client->in_ready = false;
        client_run_pending(client);
        client = next;
    }
}

static void write_unsent(struct server *server) {
    while (server->clients.unsent_head) {
        struct client *client = server->clients.unsent_head;
        server->clients.unsent_head = client->unsent_next;
        client->in_unsent = false;
        if (!client->writing || client->output_failed) /* else the transport says when there is room again */
            client_write(client);
    }
}

static bool has_stalled(const struct client *client, uint64_t now_us) {
    uint64_t limit_us = (uint64_t)client->server->config.client_stall_timeout_s * 1000000u;
    if (client->writing && now_us > client->output_us + limit_us) return true;
    if (subsystems_have_stalled(client)) return true;
    /* However busily: nobody has shown who they are yet, and each holds tens of kilobytes. */
    if (client->connection->is_shaking_hands && now_us > client->created_us + limit_us) return true;
    /* A request half sent holds a reservation or a large buffer; a line half typed may stand. */
    const struct resp_parser *parser = &client->parser;
    bool holds = client->state || parser->state == RESP_STATE_LANDING || parser->arena_capacity > 4096 ||
                 parser->capacity > 256; /* arguments, which may all be empty */
    return !client->blocked && client->reading && holds && resp_parser_midway(parser) &&
           now_us > client->input_us + limit_us;
}

static bool is_idle(const struct client *client, uint64_t now_us) {
    uint64_t limit_us = (uint64_t)client->server->config.timeout_s * 1000000u;
    return limit_us > 0 && !client->blocked && !client->is_primary && !upcalls.pubsub_is_subscriber(client) &&
           !client->writing && now_us > client->active_us + limit_us && now_us > client->input_us + limit_us;
}

static void sweep(struct server *server) {
    uint32_t count = server->clients.count / SWEEPS_PER_ROUND + SWEEP_LEAST;
    if (count > server->clients.count) count = server->clients.count;
    for (; count > 0; count--) {
        struct client *client = server->clients.sweep ? server->clients.sweep : server->clients.head;
        server->clients.sweep = client->next;
        bool stalled = has_stalled(client, server->now_us);
        bool full = client->soft_limit_us != 0 && output_limit_is_exceeded(client, 0);
        if (!stalled && !full && !is_idle(client, server->now_us)) continue;
        if (stalled && !client->closing) server->stats.stall_closes++;
        if (full && !client->closing) server->stats.output_limit_closes++;
        if ((stalled || full) && !client->closing)
            client_say_closed(client, stalled ? "it stalled" : CLIENT_OUTPUT_WAITS);
        client_close(client);
    }
    struct stats *stats = &server->stats;
    if (server->now_us - stats->sample_us >= RATE_US) {
        stats->commands_per_s =
            (double)(stats->commands - stats->sample_commands) * 1e6 / (double)(server->now_us - stats->sample_us);
        double seconds = (double)(server->now_us - stats->sample_us) / 1e6;
        stats->input_kb_per_s = (double)(stats->input_bytes - stats->sample_input) / 1024 / seconds;
        stats->output_kb_per_s = (double)(stats->output_bytes - stats->sample_output) / 1024 / seconds;
        stats->sample_input = stats->input_bytes;
        stats->sample_output = stats->output_bytes;
        stats->sample_commands = stats->commands;
        stats->sample_us = server->now_us;
    }
    server->clients.next_sweep_us = server->now_us + SWEEP_US;
}

static uint64_t earlier(uint64_t left, uint64_t right) {
    return left < right ? left : right;
}

void server_begin_turn(struct server *server) {
    if (server->turn.began_us != 0) return;
    server_tick(server);
    server->turn.began_us = server->now_us;
    access_tell_time(&server->store->access, server->turn.began_us);
    if (server->now_us - server->unix_time.looked_us >= UNIX_TIME_US) look_at_unix_time(server);
}

static void count_turn(struct server *server) {
    server_tick(server);
    server->stats.turns++;
    uint64_t took_us = server->now_us - server->turn.began_us;
    if (took_us > server->stats.turn_us_max) server->stats.turn_us_max = took_us;
    if (took_us * 1000 >= server->slow_ns) EACH_SUBSYSTEM(turn_took, server, took_us);
    server->turn.began_us = server->turn.work_until_us = 0;
    server->turn.landings_before = server->turn.landings;
    server->turn.landings = 0;
}

/* ---- what runs in a turn ------------------------------------------------------------------------------------------------ */

static uint64_t ready_work(struct server *server) {
    run_ready(server);
    return CLOCK_NEVER;
}

static uint64_t woken_work(struct server *server) {
    if (server->woken || server->retry_subsystems) server_run_woken(server);
    return CLOCK_NEVER;
}

static uint64_t sweep_work(struct server *server) {
    if (server->now_us >= server->clients.next_sweep_us) sweep(server);
    return CLOCK_NEVER;
}

static uint64_t write_work(struct server *server) {
    uint64_t again_us = subsystems_before_write(server);
    write_unsent(server);
    return again_us;
}

static uint64_t write_more_work(struct server *server) {
    return long_work_was_done(server) ? write_work(server) : CLOCK_NEVER;
}

/* A turn from its beginning to its end. */
static const struct {
    uint64_t (*run)(struct server *server);
    bool waits_for_exclusive;
} steps[] = {
    /* Requests that are here come first: all that follows may take the rest of the turn. */
    {ready_work},
    /* What they have changed may be what others wait for, who were here before the next requests. */
    {woken_work},
    /* Ends a pause, so that what it held back may be exclusive; this then runs at once. */
    {pause_step, .waits_for_exclusive = true},
    {exclusive_step},
    /* Whoever could be served has been: now those whose time is over are told so. */
    {server_run_deadlines},
    {sweep_work},
    /* Replies may have to wait until the changes that they tell of are on the disk. */
    {write_work},
    /* Once replies are on their way, the rest of the turn is for what takes many. It may reply as well. */
    {long_work_step},
    {write_more_work},
};

uint64_t server_step(void *context) {
    struct server *server = context;
    uint64_t next_us = CLOCK_NEVER;
    if (server->turn.began_us != 0) server_tick(server);
    server_begin_turn(server);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        if (steps[i].waits_for_exclusive && server->exclusive.on) continue;
        next_us = earlier(next_us, steps[i].run(server));
    }
    count_turn(server);
    if (server->clients.ready_head || server->woken || server->retry_subsystems ||
        server->ending.asked != server->ending.begun)
        return 0;
    if (server->clients.count > 0) next_us = earlier(next_us, server->clients.next_sweep_us);
    if (server->ending.begun) next_us = earlier(next_us, server->ending.deadline_us);
    if (next_us == CLOCK_NEVER) return UINT64_MAX;
    return next_us > server->now_us ? next_us - server->now_us : 0;
}

/* ---- running and stopping ---------------------------------------------------------------------------- */

void server_ask_stop(struct server *server) {
    server->ending.asked = true;
}

/* No new connections, no new requests; who waits is answered as if its time had come. */
static void begin_stop(struct server *server) {
    server->ending.begun = true;
    /* Not before: a stop that saves first may fail, and a service manager that was told of it would kill the server. */
    service_manager_tell("STOPPING=1");
    log_event(LOG_INFO, "stopping", LOG_FIELDS({"clients", .number = server->clients.count}),
              "stopping, with %u clients", server->clients.count);
    server->ending.deadline_us = server->now_us + LIMIT_STOP_US;
    for (int i = 0; i < server->transports.count; i++)
        server->transports.all[i]->operations->stop_listening(server->transports.all[i]);
    EACH_SUBSYSTEM(stop, server);
    exclusive_end_change(server);
    for (struct client *client = server->clients.head; client; client = client->next) {
        if (client->blocked) client_expire(client);
        client_close_after_reply(client);
    }
}

static bool has_stopped(const struct server *server) {
    return server->ending.begun && (server->clients.count == 0 || server->now_us >= server->ending.deadline_us);
}

/* Begins to stop when asked to. True: there is more to do at once. */
static bool heed_stop(struct server *server) {
    if (!server->ending.asked || server->ending.begun) return false;
    begin_stop(server);
    return true;
}

/* Polls every polled transport, the last of which may wait. Returns the events handled. */
static int poll_transports(struct server *server, uint64_t wait_us) {
    struct transport *last = NULL;
    int handled = 0;
    for (int i = 0; i < server->transports.count; i++) {
        struct transport *transport = server->transports.all[i];
        if (transport->operations->run) continue;
        if (last) handled += last->operations->poll(last, 0);
        last = transport;
    }
    if (last) handled += last->operations->poll(last, wait_us);
    return handled;
}

/* Busy clients send again within microseconds, sooner than the loop would have fallen asleep and been woken, which costs
 * the client's processor as well. Whether these do is known from earlier second looks: while less than every second one
 * finds something, they are only tried now and then. */
static bool looks_again(struct server *server) {
    struct second_look *look = &server->looks.second;
    if (server->looks.had_events) {
        if (look->on && look->credit < SECOND_LOOK_CREDIT) look->credit++;
        look->on = look->credit > 0 || ++look->sleeps % SECOND_LOOK_TRIES == 0;
    } else if (look->on && server->now_us >= server->looks.event_us + SECOND_LOOK_US) {
        look->on = false;
        if (look->credit > 0) look->credit--;
    }
    return look->on;
}

static void turn(struct server *server) {
    uint64_t wait_us = server_step(server);
    if (heed_stop(server)) return;
    if (server->looks.had_events)
        server->looks.event_us = server->now_us; /* they came right before this step: no clock is asked */
    if (looks_again(server) || server->now_us < server->looks.event_us + (uint64_t)server->config.busy_poll_us)
        wait_us = 0;
    server->looks.had_events = poll_transports(server, wait_us) > 0;
}

/* For a transport that owns the loop: it calls this, and learns when to call again. The others are looked at after every
 * step while they have events, and now and then while they have none. */
static uint64_t step_beside(void *context) {
    struct server *server = context;
    uint64_t wait_us = server_step(server);
    if (heed_stop(server)) return 0;
    for (int i = 0; has_stopped(server) && i < server->transports.count; i++)
        server->transports.all[i]->operations->stop(server->transports.all[i]);
    if (server->now_us >= server->looks.next_poll_us) {
        if (poll_transports(server, 0) > 0) return 0;
        server->looks.next_poll_us = server->now_us + BESIDE_POLL_US;
    }
    return earlier(wait_us, server->looks.next_poll_us - server->now_us);
}

int server_run(struct server *server) {
    for (int i = 0; i < server->transports.count; i++) {
        struct transport *transport = server->transports.all[i];
        if (transport->operations->run) return transport->operations->run(transport, step_beside, server);
    }
    while (!has_stopped(server)) turn(server);
    return 0;
}
