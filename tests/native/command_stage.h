/* command_stage: a server with files and secrets for its clients, what is checked when they have gone, what a restart has
 * to keep, and what becomes of damaged files. */
#ifndef REPLAY_TESTS_COMMAND_STAGE_H
#define REPLAY_TESTS_COMMAND_STAGE_H

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "command_peers.h"
#include "server/admin/admin_subsystem.h"
#include "server/admin/info_more.h"
#include "server/durability/append_log.h"
#include "server/durability/durability_subsystem.h"
#include "server/durability/snapshots.h"
#include "server/redis/pubsub/pubsub.h"
#include "server/redis/script/scripts.h"
#include "server/replay/gradients_registry.h"
#include "server/replay/replay_subsystem.h"
#include "server/replay/weights_registry.h"
#include "store/digest.h"
#include "store/store.h"

#define IDLE_US 60000000u /* how long threads may take to end what they are at */
#define POOLS_BYTES (4u << 20) /* that an empty server may keep, those that it counts apart */

/* Of the server's files: below $TMPDIR or /tmp, so that nothing is left in a checkout where the fuzzer is ended. */
static char folder[PATH_MAX - 256];
static char folder_before[PATH_MAX]; /* the current one, where an input that fails is kept */
static size_t bytes_before; /* of heap, before the server was made */
static bool has_damaged; /* a file was damaged, and the server may not read all of them any more */

/* ---- files ----------------------------------------------------------------------------------------------------------- */

/* Of the folder and those in it, the one that is chosen; false: there is none. */
static bool choose_file(struct maker *maker, const char *name, char *path, size_t size) {
    DIR *directory = opendir(name);
    uint32_t count = 0;
    path[0] = '\0';
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        char inner[PATH_MAX], at[PATH_MAX];
        struct stat status;
        if (entry->d_name[0] == '.' || snprintf(at, sizeof at, "%s/%s", name, entry->d_name) >= (int)sizeof at ||
            stat(at, &status) < 0)
            continue;
        if (S_ISDIR(status.st_mode)) {
            if (!choose_file(maker, at, inner, sizeof inner)) continue;
            strcpy(at, inner);
        }
        if (one_in(maker, ++count)) snprintf(path, size, "%s", at);
    }
    if (directory) closedir(directory);
    return count > 0;
}

/* Some bits turned over, or the end cut off. The users' file is left alone: it keeps those who are looked at. */
static void damage_file(struct maker *maker) {
    char path[PATH_MAX];
    uint8_t bytes[64];
    if (!choose_file(maker, folder, path, sizeof path) || strstr(path, "users.acl")) return;
    has_damaged = true;
    int file = open(path, O_RDWR);
    off_t length = file < 0 ? 0 : lseek(file, 0, SEEK_END);
    if (length > 0 && one_in(maker, 3)) {
        CHECK(ftruncate(file, (off_t)below(maker, (uint32_t)length)) == 0);
    } else if (length > 0) {
        for (uint32_t turns = 1 + below(maker, 3); turns > 0; turns--) {
            off_t at = (off_t)below(maker, (uint32_t)length);
            ssize_t got = pread(file, bytes, one_in(maker, 8) ? sizeof bytes : 1, at);
            for (ssize_t i = 0; i < got; i++) bytes[i] = (uint8_t)(bytes[i] ^ 1u << below(maker, 8));
            CHECK(pwrite(file, bytes, (size_t)got, at) == got);
        }
    }
    if (file >= 0) close(file);
    if (tracing) fprintf(stderr, "damaged %s\n", path);
}

static void remove_files(const char *name) {
    DIR *directory = opendir(name);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        char at[PATH_MAX];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (snprintf(at, sizeof at, "%s/%s", name, entry->d_name) < (int)sizeof at && unlink(at) < 0) remove_files(at);
    }
    if (directory) closedir(directory);
    rmdir(name);
}

static void name_folder(void) {
    const char *above = getenv("TMPDIR");
    if (!above || above[0] != '/') above = "/tmp";
    int length = snprintf(folder, sizeof folder, "%s/replay-fuzz-%ld", above, (long)getpid());
    CHECK(length > 0 && (size_t)length < sizeof folder && getcwd(folder_before, sizeof folder_before));
}

/* ---- the stage ------------------------------------------------------------------------------------------------------- */

static uint32_t settings; /* of the server, as bits */

static void configure(struct server_config *config) {
    config->maxmemory = settings & 4 ? 64 << 20 : 0;
    config->appendonly = settings & 2 ? 1 : 0;
    config->appendfsync = 2;
    config->notify_keyspace_events = settings & 8 ? -1 : 0;
    config->slowlog_log_slower_than = settings & 16 ? 0 : 10000;
    config->busy_reply_threshold_ms = settings & 32 ? 1 : 5000;
    config->shared_memory_client_limit_bytes = 2 << 20;
    config->script_memory_limit_bytes = 8 << 20;
    config->max_bulk_bytes = 4 << 20;
    config->enable_debug_command = DEBUG_ALLOWED;
    config->log_level = LOG_ERROR;
    strcpy(config->dir, folder);
    strcpy(config->aclfile, "users.acl");
}

/* What some clients may not see, those clients' users, and something for commands to change. */
static void fill_stage(void) {
    static const char *const lines[] = {
        "acl setuser confined on >pass +@all -@admin -@dangerous ~s? ~l? ~h? ~z? ~e? ~w? ~g? ~t? ~k? &*",
        "acl setuser mute on >pass",
        "set private:s " SECRET,
        "set private:k " SECRET,
        "rpush private:l " SECRET " " SECRET,
        "hset private:h f " SECRET " m1 " SECRET,
        "zadd private:z 1 " SECRET,
        "sadd private:e " SECRET,
        "weights.publish private:w * " SECRET,
        "grad.push private:g 1 n0 float32 " SECRET,
        "set s0 10",
        "rpush l0 a b c d e",
        "hset h0 f 1 m1 2.5 m2 zz",
        "sadd e0 a b c m1 m2 m3",
        "sadd e1 1 2 3 4 5 6",
        "zadd z0 1 a 2 b 3 m1 4 m2",
    };
    static const char *const tables[] = {"replay.create t0 $spec", "replay.create t1 $spec", "replay.create t2 $spec",
                                         "replay.create t3 $spec", NULL};
    struct maker maker = {.out = &made};
    if (!find_peer(PLAIN)) return;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) send_line(PLAIN, lines[i]);
    request_clear(&made);
    make_from_line(&maker, "replay.create private:t");
    put_packed(&maker, "{capacity:8,signature:{x:[uint8,[16]]}}");
    send_request(&peers[PLAIN], &made);
    request_clear(&made);
    make_from_line(&maker, "replay.add private:t 1");
    put(&maker, "");
    make_from_line(&maker, "COLUMNS 1 x " SECRET);
    send_request(&peers[PLAIN], &made);
    random_seed(&maker.random, settings);
    for (const char *const *line = tables; *line; line++) {
        request_clear(&made);
        make_from_line(&maker, *line);
        send_request(&peers[PLAIN], &made);
    }
    turn_and_look();
    memory_peer_vanish(peers[PLAIN].connection);
    turn_for_a_while();
    forget_peer(&peers[PLAIN]);
}

static void open_stage(uint32_t chosen) {
    settings = chosen;
    has_damaged = false;
    mkdir(folder, 0700);
    CHECK(chdir(folder) == 0);
    bytes_before = memory_used_bytes();
    open_server(settings & 1, configure);
    strcpy(server->replay->share_socket, "nowhere");
    struct text said = {0};
    struct error error;
    CHECK(append_log_start(server->durability->append_log, &said, &error) == 0);
    text_free(&said);
    fill_stage();
}

/* The commands that were ever answered without an error, found by where their rows are. */
#define MOST_COMMANDS 2048u
static const struct command *answered[MOST_COMMANDS];
static uint32_t answered_count;
static uint64_t commands_run, servers_run, restarts, restarts_compared;

static const struct command **answered_place(const struct command *command) {
    uint32_t place = (uint32_t)(((uintptr_t)command * 0x9e3779b97f4a7c15ull) >> 40) % MOST_COMMANDS;
    while (answered[place] && answered[place] != command) place = (place + 1) % MOST_COMMANDS;
    return &answered[place];
}

static bool is_answered(const struct command_entry *entry) {
    const struct command **place = answered_place(entry->command);
    if (*place || entry->stats.calls <= entry->stats.failed) return *place;
    *place = entry->command;
    CHECK(++answered_count < MOST_COMMANDS);
    return true;
}

static void note_answered(void) {
    for (size_t i = 0; i < command_table_count(server->commands); i++) {
        const struct command_entry *entry = command_table_at(server->commands, i);
        if (entry->subcommand_count == 0) is_answered(entry);
        for (size_t part = 0; part < entry->subcommand_count; part++) is_answered(&entry->subcommands[part]);
    }
    commands_run += server->stats.commands;
}

/* Of a line of INFO that begins so; 0 where there is none. */
static uint64_t info_number(const struct text *info, const char *line) {
    const char *found = strstr(info->data, line);
    return found ? strtoull(found + strlen(line), NULL, 10) : 0;
}

static void check_info(void) {
    struct text info = {0};
    struct client *client = client_new_own(server);
    const struct resp_argument everything = {.data = (const uint8_t *)"everything", .length = 10};
    CHECK(client);
    server_info_text(client, &everything, 1, &info);
    CHECK(!info.failed && info_number(&info, "\r\nconnected_clients:") == server->clients.count);
    CHECK(info_number(&info, "\r\nblocked_clients:") == server->clients.blocked);
    CHECK(info_number(&info, "\r\ntotal_commands_processed:") == server->stats.commands);
    CHECK(info_number(&info, "\r\ntables:") == server->replay->tables->count);
    for (unsigned database = 0; database < STORE_DATABASES; database++) {
        char line[32];
        sprintf(line, "\r\ndb%u:keys=", database);
        CHECK(info_number(&info, line) == dict_count(&server->store->databases[database].keys));
    }
    client_free_own(client);
    text_free(&info);
}

/* What INFO tells is what there is. */
static void check_counters(void) {
    uint64_t calls = 0;
    for (size_t i = 0; i < command_table_count(server->commands); i++) {
        const struct command_entry *entry = command_table_at(server->commands, i);
        calls += entry->stats.calls;
        for (size_t part = 0; part < entry->subcommand_count; part++) calls += entry->subcommands[part].stats.calls;
    }
    uint32_t clients = 0, blocked = 0;
    for (const struct client *client = server->clients.head; client; client = client->next) {
        clients++;
        blocked += client->blocked;
    }
    CHECK(clients == server->clients.count && blocked == server->clients.blocked);
    CHECK(server->clients.deadlines.count <= blocked);
    for (const struct replay_entry *entry = server->replay->tables->entries; entry; entry = entry->next) {
        struct table_info info;
        table_info(entry->table, &info);
        CHECK(info.size <= info.capacity && info.size <= info.added && info.added - info.size <= info.removed);
    }
    CHECK(calls == server->stats.commands);
    check_info();
}

static bool is_idle_now(void) {
    const struct snapshots *snapshots = server->durability->snapshots;
    return server->clients.count == 0 && !server->exclusive.on && !snapshots->running && !snapshots->restoring &&
           !snapshots->wanted && !server->store->discarded_count && !server->durability->append_log->rewrite &&
           !server->durability->append_log->rewrite_wanted;
}

/* Until nothing goes on in the server any more. What goes on beside it, in threads, needs time. */
static void wait_for_idleness(void) {
    uint64_t until_us = clock_monotonic_us() + IDLE_US;
    while (!(turn_for_a_while() && is_idle_now())) {
        CHECK(clock_monotonic_us() < until_us);
        usleep(100);
    }
}

static void run_own(const char *line) {
    struct maker maker = {.out = &made};
    struct resp_argument argv[16] = {{0}};
    request_clear(&made);
    make_from_line(&maker, line);
    for (uint32_t i = 0; i < made.count; i++) argv[i].data = request_word(&made, i, &argv[i].length);
    struct client *client = client_new_own(server);
    struct command_entry *entry = command_table_find_request(server->commands, made.count, argv);
    CHECK(client && entry);
    client->argc = made.count;
    client->argv = argv;
    client->command = entry->command;
    command_call(client, entry);
    CHECK(!client->error_replied);
    client_free_own(client);
}

/* With nobody there nothing is held for anybody. */
static void check_nobody_holds_anything(void) {
    CHECK(server->clients.blocked == 0 && server->clients.deadlines.count == 0 && server->clients.writers == 0);
    CHECK(server->replay->shares.bytes == 0 && server->replay->shares.leases == 0 &&
          server->replay->shares.arenas == 0);
    CHECK(server->output_pool.inline_bytes == 0 && server->admin->monitors.count == 0);
    CHECK(pubsub_topics(server, PUBSUB_CHANNEL) == 0 && pubsub_topics(server, PUBSUB_PATTERN) == 0);
    CHECK(pubsub_topics(server, PUBSUB_SHARD) == 0);
    CHECK(!server->replay->tables->dropped && server->replay->tables->closed_count == 0);
    for (const struct replay_entry *entry = server->replay->tables->entries; entry; entry = entry->next) {
        struct table_info info;
        table_info(entry->table, &info);
        CHECK(info.pinned_slots == 0 && info.reserved_slots == 0 && info.streams == 0);
        CHECK(entry->references <= 1);
    }
}

static void empty_stage(void) {
    struct error error;
    if (append_log_is_on(server->durability->append_log))
        append_log_configure(server->durability->append_log, false, &error);
    for (unsigned database = 0; database < STORE_DATABASES; database++) store_flush(server->store, database);
    while (server->replay->tables->entries)
        replay_registry_drop(server->replay->tables, server->replay->tables->entries);
    while (server->replay->weights->entries) {
        const struct weights_entry *entry = server->replay->weights->entries;
        struct resp_argument key = {.data = (const uint8_t *)entry->key, .length = entry->key_length};
        CHECK(weights_registry_remove(server->replay->weights, &key));
    }
    for (const struct gradients_entry *entry = server->replay->gradients->entries, *next; entry; entry = next) {
        next = entry->next; /* one that was deleted while somebody waited is there until another is made */
        if (entry->queue) CHECK(gradients_registry_remove(server->replay->gradients, entry->key, entry->key_length));
    }
    run_own("script flush");
    run_own("slowlog reset");
    run_own("latency reset");
    run_own("acl log reset");
    wait_for_idleness();
    size_t pooled = server->replay->tables->batch_bytes_pooled + server->replay->tables->scratch_bytes +
                    scripts_memory_bytes(server);
    CHECK(memory_used_bytes() <= server->start.heap_bytes + pooled + POOLS_BYTES);
}

/* A reply for every request of those who are answered, and none waits. */
static void check_all_answered(void) {
    if (!turn_for_a_while()) return;
    for (uint32_t i = 0; i < PEERS; i++) {
        struct peer *peer = &peers[i];
        if (!peer->connection || memory_peer_is_closed(peer->connection) || peer->kept || peer->is_narrow) continue;
        if (memory_peer_held(peer->connection) > 0)
            memory_peer_release(peer->connection, memory_peer_held(peer->connection));
    }
    if (!turn_for_a_while()) return;
    for (uint32_t i = 0; i < PEERS; i++) {
        struct peer *peer = &peers[i];
        if (!peer->connection) continue;
        look_at_replies(i, true);
        const struct client *client = ((const struct connection *)peer->connection)->owner;
        if (memory_peer_is_closed(peer->connection) || peer->kept || peer->is_narrow || !peer->counts ||
            memory_peer_held(peer->connection) > 0 || client->blocked || client->held || client->closing ||
            client->output_failed || client->pending_length > 0 || resp_parser_midway(&client->parser))
            continue;
        CHECK(peer->sent == peer->received);
    }
}

static void close_stage(void) {
    check_all_answered();
    check_counters();
    note_answered();
    for (uint32_t i = 0; i < PEERS; i++) {
        if (peers[i].connection) memory_peer_vanish(peers[i].connection);
        forget_peer(&peers[i]);
    }
    wait_for_idleness();
    check_nobody_holds_anything();
    empty_stage();
    check_nobody_holds_anything();
    close_server();
    CHECK(memory_used_bytes() == bytes_before);
    CHECK(chdir(folder_before) == 0);
    servers_run++;
}

/* A server over the files that there are. False: it refuses them. */
static bool open_over_files(void) {
    struct text said = {0};
    struct error error = {0};
    open_server(settings & 1, configure);
    strcpy(server->replay->share_socket, "nowhere");
    bool read = snapshots_restore_at_start(server->durability->snapshots, "latest", &said, &error) == 0 &&
                append_log_start(server->durability->append_log, &said, &error) == 0;
    server->durability->snapshots->saved_changes = server->store->changes;
    if (tracing)
        fprintf(stderr, "restarted: %s %s\n", read ? "all is read" : error.message, said.data ? said.data : "");
    text_free(&said);
    return read;
}

/* The server goes, and another starts over its files with what they had to keep. It may refuse them only where they are
 * damaged, and starts over none then. */
static void restart(void) {
    struct content before, after;
    note_answered();
    for (uint32_t i = 0; i < PEERS; i++) {
        if (peers[i].connection) memory_peer_vanish(peers[i].connection);
        forget_peer(&peers[i]);
    }
    wait_for_idleness();
    const struct append_log *log = server->durability->append_log;
    bool kept = (settings & 2) && append_log_takes(log) && !log->failing && !log->broken && !has_damaged;
    take_content(&before);
    close_server();
    bool read = open_over_files();
    restarts++;
    CHECK(read || has_damaged);
    if (read && kept) {
        take_content(&after);
        restarts_compared++;
        CHECK(memcmp(&before.keys, &after.keys, sizeof before.keys) == 0 && before.blobs == after.blobs);
    }
    if (!read) {
        close_server();
        remove_files(".");
        has_damaged = false;
        CHECK(open_over_files());
    }
    fill_stage();
}

#endif
