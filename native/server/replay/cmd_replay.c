/* cmd_replay: REPLAY.*: tables of experience. The protocol is written down in docs/protocol.md. ADD, SAMPLE with GET,
 * UPDATE with DEL, AWAIT, RESET with CONFIG, and INFO have files of their own; here is the rest, and the table of them all. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/msgpack.h"
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/server.h"
#include "server/core/upcalls.h"
#include "server/replay/cmd_replay.h"
#include "server/replay/replay_arguments.h"
#include "server/replay/replay_rows.h"
#include "server/replay/replay_subsystem.h"

/* ---- tables -------------------------------------------------------------------------------------------------------- */

/* A table is kept from being dropped by those that share its steps: that takes the right to write it. One that is there
 * was let in before. */
static int check_sharing(struct client *client, const struct table_config *config, struct error *error) {
    if (!*config->steps_of || replay_registry_named(client->server->replay->tables, config->name)) return 0;
    const struct resp_argument owner = {.data = (uint8_t *)(uintptr_t)config->steps_of,
                                        .length = strlen(config->steps_of)};
    return upcalls.acl_may_access_key(client, &owner, KEY_WRITE)
               ? 0
               : error_set(error, ERROR_NOPERM,
                           "this user has no permissions to write the table whose steps '%s' would share",
                           config->name);
}

static int create(struct client *client, const char *name, const struct resp_argument *spec, struct error *error) {
    struct table_config *config = memory_alloc(sizeof *config);
    if (!config) return error_set(error, ERROR_GENERIC, "out of memory for a table's spec");
    int failed = table_config_parse(config, name, spec->data, spec->length, error) ||
                 check_sharing(client, config, error) ||
                 replay_registry_create_parsed(client->server->replay->tables, config, error);
    memory_free(config);
    return failed ? -1 : 0;
}

static void create_command(struct client *client) {
    char name[TABLE_MAX_NAME + 1];
    struct error error;
    const struct resp_argument *argument = &client->argv[1], *spec = &client->argv[2];
    if (argument->length > TABLE_MAX_NAME || memchr(argument->data, 0, argument->length)) {
        reply_error(client,
                    "BADSCHEMA name: expected 1 to %d bytes without blanks or control characters, got %zu bytes%s",
                    TABLE_MAX_NAME, argument->length, argument->length > TABLE_MAX_NAME ? "" : ", one of them zero");
        return;
    }
    memcpy(name, argument->data, argument->length);
    name[argument->length] = 0;
    if (create(client, name, spec, &error)) {
        reply_failure(client, &error);
        return;
    }
    log_event(LOG_INFO, "table_created", LOG_FIELDS({"table", .text = name}), "table '%s' is there", name);
    reply_status(client, "OK");
}

static void drop_command(struct client *client) {
    struct replay_entry *entry = replay_entry_or_reply(client);
    const struct replay_registry *registry = client->server->replay->tables;
    const struct replay_entry *sharer = entry ? replay_registry_sharer(registry, entry) : NULL;
    if (sharer) {
        reply_error(client, "ERR table '%s' cannot be dropped while table '%s' shares its steps; drop that one first",
                    table_config(entry->table)->name, table_config(sharer->table)->name);
    } else if (entry) {
        const char *name = table_config(entry->table)->name;
        log_event(LOG_INFO, "table_dropped", LOG_FIELDS({"table", .text = name}), "table '%s' is dropped", name);
        replay_registry_drop(client->server->replay->tables, entry);
        reply_status(client, "OK");
    }
}

static void spec_command(struct client *client) {
    struct error error;
    struct replay_entry *entry = replay_entry_or_reply(client);
    if (!entry) return;
    uint8_t *spec;
    size_t length;
    if (table_config_write(table_config(entry->table), &spec, &length, &error)) {
        reply_failure(client, &error);
        return;
    }
    struct msgpack_writer writer = {.data = spec, .length = length, .capacity = length};
    assert(spec[0] >= 0x80 && spec[0] < 0x8f); /* a map short enough for its count to be in its first byte */
    spec[0]++;
    msgpack_write_string(&writer, "incarnation", strlen("incarnation"));
    msgpack_write_unsigned(&writer, entry->incarnation);
    if (writer.failed)
        reply_error(client, "ERR out of memory for the spec of table '%s'", table_config(entry->table)->name);
    else
        reply_bulk(client, writer.data, writer.length);
    memory_free(writer.data);
}

static void list_command(struct client *client) {
    const struct replay_registry *registry = client->server->replay->tables;
    size_t mark = reply_array_deferred(client), count = 0;
    for (const struct replay_entry *entry = registry->entries; entry; entry = entry->next) {
        if (replay_may_be_told(client, entry)) {
            reply_bulk_string(client, table_config(entry->table)->name);
            count++;
        }
    }
    reply_set_array_length(client, mark, count);
}

const struct command commands_replay[] = {
    {"replay.create", create_command, 3, COMMAND_WRITE | COMMAND_DENYOOM, &group_replay,
     "Creates a table from a msgpack spec; an identical one that exists is success.", .keys = name_written},
    {"replay.add", replay_add_command, -8, COMMAND_WRITE | COMMAND_BLOCKING | COMMAND_NO_MULTI | COMMAND_TIMED,
     &group_replay, "Adds items column by column and returns their ids.", .keys = name_written,
     .land = replay_add_land},
    {"replay.append", replay_append_command, -7, COMMAND_WRITE | COMMAND_NO_MULTI | COMMAND_TIMED, &group_replay,
     "Appends steps to streams of this connection and returns how many.", .keys = name_written,
     .land = replay_append_land},
    {"replay.item", replay_item_command, -8, COMMAND_WRITE | COMMAND_BLOCKING | COMMAND_NO_MULTI | COMMAND_TIMED,
     &group_replay, "Makes items that see appended steps through windows, and returns their ids.", .keys = name_written,
     .land = replay_item_land},
    {"replay.end", replay_end_command, 3, COMMAND_WRITE | COMMAND_FAST, &group_replay,
     "Ends the open episodes of streams of this connection.", .keys = name_written},
    {"replay.close", replay_close_command, 3, COMMAND_WRITE | COMMAND_FAST, &group_replay,
     "Closes streams of this connection and returns how many were open.", .keys = name_written},
    {"replay.sample", replay_sample_command, -3, COMMAND_WRITE | COMMAND_BLOCKING | COMMAND_TIMED, &group_replay,
     "Draws items and returns ids, probabilities, weights and columns.", .keys = name_sampled},
    {"replay.update", replay_update_command, 4, COMMAND_WRITE | COMMAND_TIMED, &group_replay,
     "Sets priorities by id; returns how many were applied and how many ids had left.", .keys = name_written},
    {"replay.await", replay_await_command, -4, COMMAND_READONLY | COMMAND_BLOCKING, &group_replay,
     "Waits until items were added, or so many are there, and returns how many were added and are there.",
     .keys = name_known},
    {"replay.get", replay_get_command, -3, COMMAND_READONLY | COMMAND_TIMED, &group_replay,
     "Returns items by id, in the form of REPLAY.SAMPLE.", .keys = name_read},
    {"replay.del", replay_del_command, 3, COMMAND_WRITE | COMMAND_TIMED, &group_replay,
     "Removes items by id and returns how many there were.", .keys = name_written},
    {"replay.info", replay_info_command, 2, COMMAND_READONLY | COMMAND_FAST, &group_replay,
     "Returns a table's state and why a client would have to wait.", .keys = name_read},
    {"replay.spec", spec_command, 2, COMMAND_READONLY | COMMAND_FAST, &group_replay,
     "Returns a table's spec as msgpack.", .keys = name_read},
    {"replay.list", list_command, 1, COMMAND_READONLY | COMMAND_FAST, &group_replay,
     "Returns the names of all tables that one has any right to."},
    {"replay.config", replay_config_command, 3, COMMAND_WRITE | COMMAND_BLOCKING, &group_replay,
     "Changes sampler, remover, rate_limiter or limits of a table.", .keys = name_written},
    {"replay.reset", replay_reset_command, 2, COMMAND_WRITE | COMMAND_BLOCKING, &group_replay,
     "Removes all items of a table.", .keys = name_written},
    {"replay.closetable", replay_close_table_command, -2, COMMAND_WRITE | COMMAND_FAST, &group_replay,
     "Lets nothing more into a table; clients that wait to add, or for items, are told so.", .keys = name_written},
    {"replay.opentable", replay_open_table_command, 2, COMMAND_WRITE | COMMAND_FAST, &group_replay,
     "Opens a closed table again.", .keys = name_written},
    {"replay.drop", drop_command, 2, COMMAND_WRITE, &group_replay, "Removes a table; its waiters are told so.",
     .keys = name_written},
    {0},
};
