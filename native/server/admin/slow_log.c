#include "server/admin/slow_log.h"

#include <stdio.h>
#include <string.h>

#include "base/blob.h"
#include "base/clock.h"
#include "base/memory.h"
#include "server/admin/admin_subsystem.h"
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/secret_arguments.h"
#include "server/core/server.h"

/* ---- slow commands ----------------------------------------------------------------------------------- */

static void drop(struct slow_command *command) {
    for (uint32_t i = 0; i < command->count; i++) blob_release(command->arguments[i]);
    memory_free(command->peer);
    memory_free(command->name);
    memory_free(command);
}

static void slow_log_trim(struct slow_log *log, uint32_t length) {
    struct slow_command **link = &log->newest;
    for (uint32_t kept = 0; *link && kept < length; kept++) link = &(*link)->next;
    while (*link) {
        struct slow_command *oldest = *link;
        *link = oldest->next;
        drop(oldest);
        log->length--;
    }
}

void slow_log_reset(struct slow_log *log) {
    slow_log_trim(log, 0);
}

static struct blob *text_blob(const void *bytes, size_t length, const char *more) {
    struct blob *blob = blob_new(length + strlen(more));
    if (!blob) return NULL;
    memcpy(blob->data, bytes, length);
    memcpy(blob->data + length, more, strlen(more));
    return blob;
}

static struct blob *shorten(const struct resp_argument *argument) {
    char more[64] = "";
    size_t length = argument->length;
    if (length > SLOW_LOG_ARGUMENT_BYTES) {
        snprintf(more, sizeof more, "... (%zu more bytes)", length - SLOW_LOG_ARGUMENT_BYTES);
        length = SLOW_LOG_ARGUMENT_BYTES;
    }
    /* Where a large argument landed elsewhere there are no bytes to show. */
    return argument->data || length == 0
               ? text_blob(argument->data ? argument->data : (const uint8_t *)"", length, more)
               : text_blob("", 0, "(landed)");
}

static void keep_arguments(struct slow_command *slow, const struct command *command, uint32_t argc,
                           const struct resp_argument *argv) {
    slow->count = argc < SLOW_LOG_ARGUMENTS ? argc : SLOW_LOG_ARGUMENTS;
    for (uint32_t i = 0; i < slow->count; i++) {
        if (argc > SLOW_LOG_ARGUMENTS && i == SLOW_LOG_ARGUMENTS - 1) {
            char more[64];
            int length = snprintf(more, sizeof more, "... (%u more arguments)", argc - SLOW_LOG_ARGUMENTS + 1);
            slow->arguments[i] = text_blob(more, (size_t)length, "");
        } else if (command_argument_is_secret(command, argc, argv, i)) {
            slow->arguments[i] = text_blob(SECRET_SHOWN_AS, strlen(SECRET_SHOWN_AS), "");
        } else {
            slow->arguments[i] = shorten(&argv[i]);
        }
    }
}

static char *copy_text(const char *text) {
    size_t length = strlen(text) + 1;
    char *copy = memory_alloc(length);
    if (copy) memcpy(copy, text, length);
    return copy;
}

static void push(struct client *client, const struct command_entry *entry, uint64_t took_us) {
    struct server *server = client->server;
    struct slow_log *log = &server->admin->slow_log;
    if ((entry->command->flags & COMMAND_SKIP_SLOWLOG) || server->config.slowlog_max_len == 0) return;
    struct slow_command *slow = memory_calloc(1, sizeof *slow);
    if (!slow) return;
    slow->id = log->next_id++;
    slow->unix_s = clock_unix_ms() / 1000;
    slow->took_us = took_us;
    slow->peer = copy_text(client->connection ? client->connection->peer : "");
    slow->name = copy_text(client->name ? client->name : "");
    keep_arguments(slow, entry->command, client->argc, client->argv);
    slow->next = log->newest;
    log->newest = slow;
    log->length++;
    slow_log_trim(log, (uint32_t)server->config.slowlog_max_len);
}

static void look_at(struct client *client, const struct command_entry *entry, uint64_t took_ns, bool is_over) {
    const struct server_config *config = &client->server->config;
    uint64_t took_us = took_ns / 1000;
    bool fast = entry->command->flags & COMMAND_FAST;
    latency_add(client->server, fast ? LATENCY_FAST_COMMAND : LATENCY_COMMAND, took_us / 1000);
    bool slow = config->slowlog_log_slower_than >= 0 && took_us >= (uint64_t)config->slowlog_log_slower_than;
    if (slow && client->argv && is_over) push(client, entry, took_us);
}

void slow_log_command(struct client *client, const struct command_entry *entry, uint64_t took_ns) {
    /* What runs inside a transaction or a script is over, though its client waits for the rest. */
    look_at(client, entry, took_ns, !client->blocked || client->server->exclusive.inside);
}

void slow_log_took(struct client *client, const struct command_entry *entry, uint64_t took_ns) {
    look_at(client, entry, took_ns, true);
}

void slow_log_configure(struct server *server) {
    const struct server_config *config = &server->config;
    int64_t slow_us = config->slowlog_log_slower_than, latency_ms = config->latency_monitor_threshold_ms;
    /* What is longer than any command can take means never. */
    uint64_t slow_ns = slow_us >= 0 && slow_us < INT64_MAX / 1000 ? (uint64_t)slow_us * 1000 : UINT64_MAX;
    uint64_t latency_ns =
        latency_ms > 0 && latency_ms < INT64_MAX / 1000000 ? (uint64_t)latency_ms * 1000000 : UINT64_MAX;
    server->slow_ns = slow_ns < latency_ns ? slow_ns : latency_ns;
    slow_log_trim(&server->admin->slow_log, (uint32_t)config->slowlog_max_len);
}

/* ---- delays ------------------------------------------------------------------------------------------ */

const char *latency_name(enum latency_kind kind) {
    static const char *const names[] = {"command", "fast-command", "loop-turn"};
    return names[kind];
}

const struct latency_sample *latency_at(const struct latency_event *event, uint32_t index) {
    return &event->samples[(event->next + LATENCY_SAMPLES - event->count + index) % LATENCY_SAMPLES];
}

void latency_add(struct server *server, enum latency_kind kind, uint64_t took_ms) {
    int64_t threshold_ms = server->config.latency_monitor_threshold_ms;
    if (threshold_ms == 0 || took_ms < (uint64_t)threshold_ms) return;
    struct latency_event *event = &server->admin->latency.events[kind];
    uint32_t shown = took_ms < UINT32_MAX ? (uint32_t)took_ms : UINT32_MAX;
    int64_t now_s = clock_unix_ms() / 1000;
    if (shown > event->most_ms) event->most_ms = shown;
    struct latency_sample *last = &event->samples[(event->next + LATENCY_SAMPLES - 1) % LATENCY_SAMPLES];
    if (event->count > 0 && last->unix_s == now_s) {
        if (shown > last->took_ms) last->took_ms = shown;
        return;
    }
    event->samples[event->next] = (struct latency_sample){now_s, shown};
    event->next = (event->next + 1) % LATENCY_SAMPLES;
    if (event->count < LATENCY_SAMPLES) event->count++;
}
