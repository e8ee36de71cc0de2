/* table_replication: reads such PINGs of the primary and applies them; decides from where on replicas are sent such. */
#include "server/replication/table_replication.h"

#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/server.h"
#include "server/replay/cmd_replay.h"
#include "server/replay/gradients_registry.h"
#include "server/replay/replay_follow.h"
#include "server/replay/replay_log.h"
#include "server/replay/replay_subsystem.h"
#include "server/replay/weights_registry.h"
#include "server/replication/replication_subsystem.h"

/* ---- taking apart ---------------------------------------------------------------------------------------------------- */

struct bytes {
    const uint8_t *at, *end;
};

/* A word that a zero byte follows, if it is this one. */
static bool take_word(struct bytes *bytes, const char *word, size_t size) {
    if ((size_t)(bytes->end - bytes->at) < size || memcmp(bytes->at, word, size) != 0) return false;
    bytes->at += size;
    return true;
}

/* "*3\r\n", "$17\r\n" */
static bool take_number(struct bytes *bytes, uint8_t kind, size_t *number) {
    if (bytes->at == bytes->end || *bytes->at != kind) return false;
    *number = 0;
    for (bytes->at++; bytes->at < bytes->end && *bytes->at >= '0' && *bytes->at <= '9'; bytes->at++) {
        if (*number > SIZE_MAX / 16) return false;
        *number = *number * 10 + (size_t)(*bytes->at - '0');
    }
    return take_word(bytes, "\r\n", 2);
}

/* NULL: it is no request of at least one word, or memory is exhausted. */
static struct resp_argument *take_request(struct bytes *bytes, uint32_t *argc) {
    size_t count, length;
    if (!take_number(bytes, '*', &count) || count == 0 || count > (size_t)(bytes->end - bytes->at)) return NULL;
    struct resp_argument *argv = count <= LIMIT_ARGUMENTS ? memory_calloc(count, sizeof *argv) : NULL;
    for (size_t i = 0; argv && i < count; i++) {
        bool is_whole = take_number(bytes, '$', &length) && length <= (size_t)(bytes->end - bytes->at);
        if (is_whole) argv[i] = (struct resp_argument){.data = (uint8_t *)(uintptr_t)bytes->at, .length = length};
        if (is_whole) bytes->at += length;
        if (is_whole && take_word(bytes, "\r\n", 2)) continue;
        memory_free(argv);
        return NULL;
    }
    *argc = (uint32_t)count;
    return argv;
}

/* ---- running --------------------------------------------------------------------------------------------------------- */

static struct command_entry *find(struct client *client, uint32_t argc, const struct resp_argument *argv) {
    struct command_entry *entry = command_table_find(client->server->commands, argv[0].data, argv[0].length);
    bool fits = entry && entry->command->group->data == DATA_BESIDE_KEYS && command_arity_holds(entry->command, argc);
    return fits ? entry : NULL;
}

/* As a script or a transaction runs one: the client's request is another, so this one ends here, and waits for nothing. */
static bool run_request(struct client *client, struct bytes *bytes) {
    struct command_entry *entry = client->entry, *carried = NULL;
    bool denied = client->deny_blocking;
    struct resp_argument *argv = client->argv, *words;
    uint32_t argc = client->argc, count = 0;
    words = take_request(bytes, &count);
    if (words) carried = find(client, count, words);
    if (carried) {
        client->argc = count;
        client->argv = words;
        client->entry = carried;
        client->command = carried->command;
        client->deny_blocking = true;
        command_call(client, carried);
        client->deny_blocking = denied;
        client_command_done(client);
    }
    memory_free(words);
    client->argc = argc;
    client->argv = argv;
    client->entry = entry;
    client->command = entry->command;
    return carried;
}

static void run_requests(struct client *client, struct bytes bytes) {
    bool failed = false;
    while (bytes.at < bytes.end) {
        if (!run_request(client, &bytes)) {
            link_diverged(client->server, "it sends changes of weights or gradients that are not understood");
            return;
        }
        failed |= client->error_replied;
    }
    client->error_replied = failed;
}

/* The next request comes after what a record has left to do. In a transaction that is done here, in the transaction's
 * slices. */
static void await_work(struct client *client) {
    struct replay_registry *tables = client->server->replay->tables;
    if (client_may_block(client)) {
        client->is_resting = replay_follow_step(tables);
        return;
    }
    while (replay_follow_step(tables)) exclusive_rest(client->server);
}

static void apply_record(struct client *client, struct bytes bytes) {
    struct server *server = client->server;
    struct error error;
    const char *name = (const char *)bytes.at;
    const uint8_t *end = memchr(bytes.at, '\0', (size_t)(bytes.end - bytes.at));
    if (!end || replay_follow_apply(server->replay->tables, name, end + 1, (size_t)(bytes.end - end) - 1, &error))
        link_diverged(server, end ? error.message : "it sends a change of a table without a name");
    else
        await_work(client);
}

bool table_replication_apply(struct client *client) {
    if (client->argc != 2) return false; /* a sign of life: behind its name lies what a request before it brought */
    const struct resp_argument *argument = &client->argv[1];
    struct bytes bytes = {argument->data, argument->data + argument->length};
    bool is_record = take_word(&bytes, PROPAGATE_RECORD, sizeof PROPAGATE_RECORD);
    if (!is_record && !take_word(&bytes, PROPAGATE_COMMANDS, sizeof PROPAGATE_COMMANDS)) return false;
    /* One that was sent keys alone, since a Redis stands between it and the primary, passes over them as that does. */
    if (!client->server->place.follows_tables) return true;
    if (is_record)
        apply_record(client, bytes);
    else
        run_requests(client, bytes);
    return true;
}

/* ---- from where to where --------------------------------------------------------------------------------------------- */

bool table_replication_has_data(const struct server *server) {
    const struct replay_subsystem *replay = server->replay;
    return replay_log_holds_something(replay->tables) || replay->weights->count > 0 ||
           gradients_registry_holds_something(replay->gradients);
}

void table_replication_begin(struct server *server) {
    if (server->place.streams_tables) return;
    server->place.streams_tables = true;
    server->replication->without_takers_us = server->now_us;
    server->replication->tables_from = change_stream_end(&server->replication->stream);
    replay_log_stream(server->replay->tables);
}

void table_replication_stop(struct server *server) {
    server->replication->tables_from = TABLES_NEVER;
    server->replication->has_stopped_tables |= server->place.streams_tables;
    server->place.streams_tables = false;
}

void table_replication_tidy(struct server *server) {
    struct replication_subsystem *replication = server->replication;
    if (replication->has_stopped_tables && !server->place.streams_tables) replay_log_end_stream(server->replay->tables);
    replication->has_stopped_tables = false;
}

void table_replication_become_own(struct server *server, bool streams) {
    if (!server->place.follows_tables) return;
    server->place.follows_tables = false;
    server->place.streams_tables = streams;
    server->replication->without_takers_us = server->now_us;
    if (!replay_follow_end(server->replay->tables, streams) && streams) replication_lost(server);
    if (!streams) table_replication_stop(server);
}

/* ---- INFO ------------------------------------------------------------------------------------------------------------- */

void table_replication_info(const struct client *client, struct text *out) {
    const struct server *server = client->server;
    unsigned number = 0;
    text_append(out, "tables_replicated:%d\r\n", server->place.streams_tables || server->place.follows_tables);
    for (const struct replay_entry *entry = server->replay->tables->entries; entry; entry = entry->next) {
        if (!replay_may_be_told(client, entry)) continue;
        bool is_replicated = entry->followed || (entry->streamed && server->place.streams_tables);
        text_append(out, "table%u:name=%s,replicated=%s\r\n", number++, table_config(entry->table)->name,
                    is_replicated ? "yes" : "no");
    }
}
