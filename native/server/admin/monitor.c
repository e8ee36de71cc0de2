/* monitor: MONITOR, and the line that it shows of each command. */
#include "server/admin/monitor.h"

#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "base/text.h"
#include "server/admin/admin_subsystem.h"
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/secret_arguments.h"
#include "server/core/server.h"
#include "server/redis/keys/keyspace.h"

#define LINE_MOST_BYTES (1u << 20) /* what is longer is cut, so that large values are not sent to monitors whole */

/* The bytes in quotes, as a line that is typed would have them. */
static void append_quoted(struct text *line, const uint8_t *data, size_t length) {
    text_append_bytes(line, "\"", 1);
    for (size_t i = 0; i < length && line->length < LINE_MOST_BYTES; i++) {
        uint8_t byte = data[i];
        static const char *const named = "\n\r\t\a\b";
        static const char letters[] = "nrtab";
        const char *special = byte ? strchr(named, byte) : NULL;
        if (byte == '"' || byte == '\\')
            text_append(line, "\\%c", byte);
        else if (special)
            text_append(line, "\\%c", letters[special - named]);
        else if (byte >= ' ' && byte <= '~')
            text_append_bytes(line, &byte, 1);
        else
            text_append(line, "\\x%02x", byte);
    }
    text_append_bytes(line, "\"", 1);
}

static void append_source(struct text *line, const struct client *client) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    text_append(line, "+%lld.%06ld ", (long long)now.tv_sec, now.tv_nsec / 1000);
    if (!client->connection)
        text_append(line, "[%d lua]", client->database);
    else if (client->connection->is_unix)
        text_append(line, "[%d unix:%s]", client->database, client->server->config.unixsocket);
    else
        text_append(line, "[%d %s]", client->database, client->connection->peer);
}

static void show(struct client *client, const struct command *command) {
    struct text line = {0};
    append_source(&line, client);
    for (uint32_t i = 0; i < client->argc && line.length < LINE_MOST_BYTES; i++) {
        const struct resp_argument *argument = &client->argv[i];
        text_append_bytes(&line, " ", 1);
        if (command_argument_is_secret(command, client->argc, client->argv, i))
            text_append(&line, "\"" SECRET_SHOWN_AS "\"");
        else
            append_quoted(&line, argument->data, argument->data ? argument->length : 0);
    }
    if (line.length >= LINE_MOST_BYTES) text_append(&line, " ...");
    text_append_bytes(&line, "\r\n", 2);
    struct monitors *monitors = &client->server->admin->monitors;
    for (uint32_t i = 0; !line.failed && i < monitors->count; i++)
        reply_raw(monitors->clients[i], line.data, line.length);
    text_free(&line);
}

void monitor_feed(struct client *client, const struct command *command) {
    if (!(command->flags & (COMMAND_SKIP_MONITOR | COMMAND_ADMIN)) && client->argv) show(client, command);
}

void monitor_feed_script(struct client *client) {
    if (client->server->admin->monitors.count > 0) show(client, client->command);
}

static void monitor_command(struct client *client) {
    struct monitors *monitors = &client->server->admin->monitors;
    if (client->deny_blocking) {
        reply_error(client, "ERR MONITOR isn't allowed for DENY BLOCKING client");
        return;
    }
    if (client->is_monitor) return; /* nothing is said the second time, as in Redis */
    struct client **clients = memory_grow(monitors->clients, monitors->count, &monitors->capacity, 4, sizeof *clients);
    if (!clients) {
        reply_out_of_memory(client);
        return;
    }
    monitors->clients = clients;
    monitors->clients[monitors->count++] = client;
    client->is_monitor = true;
    reply_status(client, "OK");
}

void monitor_client_gone(struct client *client) {
    struct monitors *monitors = &client->server->admin->monitors;
    if (!client->is_monitor) return;
    client->is_monitor = false;
    for (uint32_t i = 0; i < monitors->count; i++) {
        if (monitors->clients[i] != client) continue;
        memmove(&monitors->clients[i], &monitors->clients[i + 1],
                (monitors->count - i - 1) * sizeof *monitors->clients);
        monitors->count--;
        return;
    }
}

const struct command commands_monitor[] = {
    {"monitor", monitor_command, 1, COMMAND_ADMIN | COMMAND_NOSCRIPT | COMMAND_LOADING | COMMAND_STALE, &group_server,
     "Shows every command that the server runs.", "1.0.0"},
    {0},
};
