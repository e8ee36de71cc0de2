/* cmd_slow_log: SLOWLOG and LATENCY: what took long. */
#include <inttypes.h>
#include <string.h>

#include "base/blob.h"
#include "server/admin/admin_subsystem.h"
#include "server/admin/slow_log.h"
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/server.h"
#include "server/redis/keys/keyspace.h"

/* ---- SLOWLOG ----------------------------------------------------------------------------------------- */

static void reply_slow_command(struct client *client, const struct slow_command *slow) {
    reply_array(client, 6);
    reply_integer(client, slow->id);
    reply_integer(client, slow->unix_s);
    reply_integer(client, (int64_t)slow->took_us);
    reply_array(client, slow->count);
    for (uint32_t i = 0; i < slow->count; i++) {
        const struct blob *argument = slow->arguments[i];
        reply_bulk(client, argument ? argument->data : (const uint8_t *)"", argument ? argument->length : 0);
    }
    reply_bulk_string(client, slow->peer ? slow->peer : "");
    reply_bulk_string(client, slow->name ? slow->name : "");
}

/* SLOWLOG GET [count]: −1 for all */
static void slowlog_get(struct client *client) {
    const struct slow_log *log = &client->server->admin->slow_log;
    int64_t wanted = 10;
    if (client->argc > 3) {
        reply_subcommand_syntax_error(client);
        return;
    }
    if (client->argc == 3 && (!argument_int64(&client->argv[2], &wanted) || wanted < -1)) {
        reply_error(client, "ERR count should be greater than or equal to -1");
        return;
    }
    int64_t count = wanted < 0 || wanted > log->length ? log->length : wanted;
    reply_array(client, (size_t)count);
    const struct slow_command *slow = log->newest;
    for (; count > 0; count--, slow = slow->next) reply_slow_command(client, slow);
}

static void slowlog_len(struct client *client) {
    reply_integer(client, client->server->admin->slow_log.length);
}

static void slowlog_reset(struct client *client) {
    slow_log_reset(&client->server->admin->slow_log);
    reply_status(client, "OK");
}

/* ---- LATENCY ----------------------------------------------------------------------------------------- */

static struct latency_event *event_named(struct client *client, uint32_t index) {
    for (int kind = 0; kind < LATENCY_KINDS; kind++) {
        struct latency_event *event = &client->server->admin->latency.events[kind];
        const char *name = latency_name(kind);
        const struct resp_argument *word = &client->argv[index];
        if (event->count > 0 && word->length == strlen(name) && memcmp(word->data, name, word->length) == 0)
            return event;
    }
    return NULL;
}

static void latency_latest(struct client *client) {
    const struct latency *latency = &client->server->admin->latency;
    size_t count = 0;
    for (int kind = 0; kind < LATENCY_KINDS; kind++) count += latency->events[kind].count > 0;
    reply_array(client, count);
    for (int kind = 0; kind < LATENCY_KINDS; kind++) {
        const struct latency_event *event = &latency->events[kind];
        if (event->count == 0) continue;
        const struct latency_sample *last = latency_at(event, event->count - 1);
        reply_array(client, 4);
        reply_bulk_string(client, latency_name(kind));
        reply_integer(client, last->unix_s);
        reply_integer(client, last->took_ms);
        reply_integer(client, event->most_ms);
    }
}

static void latency_history(struct client *client) {
    const struct latency_event *event = event_named(client, 2);
    reply_array(client, event ? event->count : 0);
    for (uint32_t i = 0; event && i < event->count; i++) {
        const struct latency_sample *sample = latency_at(event, i);
        reply_array(client, 2);
        reply_integer(client, sample->unix_s);
        reply_integer(client, sample->took_ms);
    }
}

/* Forgets the named events, or all; replies how many there were. */
static void latency_reset(struct client *client) {
    int64_t count = 0;
    for (uint32_t i = 2; i < client->argc; i++) {
        struct latency_event *event = event_named(client, i);
        if (!event) continue;
        *event = (struct latency_event){0};
        count++;
    }
    for (int kind = 0; client->argc == 2 && kind < LATENCY_KINDS; kind++) {
        struct latency_event *event = &client->server->admin->latency.events[kind];
        count += event->count > 0;
        *event = (struct latency_event){0};
    }
    reply_integer(client, count);
}

/* A bar for each sample, as long as it took beside the longest. */
static void latency_graph(struct client *client) {
    const struct latency_event *event = event_named(client, 2);
    if (!event) {
        const struct resp_argument *name = &client->argv[2];
        reply_error(client, "ERR No samples available for event '%.*s'", name->length < 128 ? (int)name->length : 128,
                    (const char *)name->data);
        return;
    }
    struct text text = {0};
    int64_t now_s = clock_unix_ms() / 1000;
    for (uint32_t i = 0; i < event->count; i++) {
        static const char bar[] = "################################################################";
        const struct latency_sample *sample = latency_at(event, i);
        int length = event->most_ms > 0 ? (int)((uint64_t)sample->took_ms * 64 / event->most_ms) : 0;
        text_append(&text, "%8" PRId64 " s ago %8u ms %.*s\n", now_s - sample->unix_s, sample->took_ms, length, bar);
    }
    reply_verbatim_text(client, &text);
}

static void latency_doctor(struct client *client) {
    const struct server *server = client->server;
    struct text text = {0};
    if (server->config.latency_monitor_threshold_ms == 0)
        text_append(&text, "Nothing is measured: CONFIG SET latency-monitor-threshold <milliseconds> first.\n");
    for (int kind = 0; kind < LATENCY_KINDS; kind++) {
        const struct latency_event *event = &server->admin->latency.events[kind];
        if (event->count == 0) continue;
        uint64_t sum = 0;
        for (uint32_t i = 0; i < event->count; i++) sum += latency_at(event, i)->took_ms;
        text_append(&text, "%s: %u times too long, %.0f ms on average, %u ms at worst.\n", latency_name(kind),
                    event->count, (double)sum / event->count, event->most_ms);
    }
    if (server->config.latency_monitor_threshold_ms > 0 && !text.data)
        text_append(&text, "Nothing took as long as %" PRId64 " ms.\n", server->config.latency_monitor_threshold_ms);
    else if (server->config.latency_monitor_threshold_ms > 0)
        text_append(&text,
                    "SLOWLOG GET names the commands, INFO stats the longest turn of the loop (loop_turn_us_max).\n");
    reply_verbatim_text(client, &text);
}

/* Where a row ends: 1, 2, 4, 8, 16, 33, 66, 132, ... microseconds, as Redis' histograms of two significant digits have it. */
static uint64_t row_end_ns(uint32_t row) {
    return (1024ull << row) + (8ull << row) - 1;
}

/* Calls by duration: for each row how many took at most so long, until all did. */
static void reply_histogram(struct client *client, const struct command_entry *entry) {
    const struct histogram *histogram = &entry->stats.latency_ns;
    reply_bulk_string(client, entry->command->name);
    reply_map(client, 2);
    reply_bulk_string(client, "calls");
    reply_integer(client, (int64_t)histogram->count);
    reply_bulk_string(client, "histogram_usec");
    uint64_t before = 0;
    size_t rows = 0;
    for (uint32_t row = 0; row < 32; row++) {
        uint64_t count = histogram_count_to(histogram, row_end_ns(row));
        rows += count > before;
        before = count;
    }
    reply_map(client, rows);
    before = 0;
    for (uint32_t row = 0; row < 32; row++) {
        uint64_t count = histogram_count_to(histogram, row_end_ns(row));
        if (count > before) {
            reply_integer(client, (int64_t)(row_end_ns(row) / 1000));
            reply_integer(client, (int64_t)count);
        }
        before = count;
    }
}

typedef void (*visit_entry)(struct client *client, const struct command_entry *entry);

/* The entry and its subcommands, if they were called; NULL only counts them. */
static size_t visit_called(struct client *client, const struct command_entry *entry, visit_entry visit) {
    size_t count = 0;
    for (size_t part = 0; part <= entry->subcommand_count; part++) {
        const struct command_entry *each = part == 0 ? entry : &entry->subcommands[part - 1];
        if (each->stats.latency_ns.count == 0) continue;
        if (visit) visit(client, each);
        count++;
    }
    return count;
}

static size_t visit_histograms(struct client *client, visit_entry visit) {
    struct command_table *table = client->server->commands;
    size_t count = 0;
    for (size_t i = 0; client->argc == 2 && i < command_table_count(table); i++)
        count += visit_called(client, command_table_at(table, i), visit);
    for (uint32_t i = 2; i < client->argc; i++) {
        const struct command_entry *entry = command_table_find(table, client->argv[i].data, client->argv[i].length);
        if (entry) count += visit_called(client, entry, visit);
    }
    return count;
}

/* LATENCY HISTOGRAM [command …] */
static void latency_histogram(struct client *client) {
    reply_map(client, visit_histograms(client, NULL));
    visit_histograms(client, reply_histogram);
}

#define ASK (COMMAND_ADMIN | COMMAND_LOADING | COMMAND_STALE)

static const struct command slowlog_subcommands[] = {
    {"slowlog|get", slowlog_get, -2, ASK, &group_server, "Returns the newest slow commands.", "2.2.12",
     .tips = "request_policy:all_nodes\nnondeterministic_output", .usage = "[<count>]"},
    {"slowlog|help", reply_help, 2, COMMAND_LOADING | COMMAND_STALE, &group_server, "Lists the subcommands.", "6.2.0"},
    {"slowlog|len", slowlog_len, 2, ASK, &group_server, "Counts the slow commands that are kept.", "2.2.12",
     .tips = "request_policy:all_nodes\nresponse_policy:agg_sum\nnondeterministic_output"},
    {"slowlog|reset", slowlog_reset, 2, ASK, &group_server, "Forgets the slow commands.", "2.2.12",
     .tips = "request_policy:all_nodes\nresponse_policy:all_succeeded"},
    {0},
};

static const struct command latency_subcommands[] = {
    {"latency|doctor", latency_doctor, 2, ASK | COMMAND_NOSCRIPT, &group_server, "Tells in words what took long.",
     "2.8.13", .tips = "nondeterministic_output\nrequest_policy:all_nodes\nresponse_policy:special"},
    {"latency|graph", latency_graph, 3, ASK | COMMAND_NOSCRIPT, &group_server, "Draws the samples of an event.",
     "2.8.13", .tips = "nondeterministic_output\nrequest_policy:all_nodes\nresponse_policy:special",
     .usage = "<event>"},
    {"latency|help", reply_help, 2, COMMAND_LOADING | COMMAND_STALE, &group_server, "Lists the subcommands.", "2.8.13"},
    {"latency|histogram", latency_histogram, -2, ASK | COMMAND_NOSCRIPT, &group_server,
     "Returns how long calls of commands took.", "7.0.0",
     .tips = "nondeterministic_output\nrequest_policy:all_nodes\nresponse_policy:special", .usage = "[COMMAND ...]"},
    {"latency|history", latency_history, 3, ASK | COMMAND_NOSCRIPT, &group_server, "Returns the samples of an event.",
     "2.8.13", .tips = "nondeterministic_output\nrequest_policy:all_nodes\nresponse_policy:special",
     .usage = "<event>"},
    {"latency|latest", latency_latest, 2, ASK | COMMAND_NOSCRIPT, &group_server,
     "Returns the newest sample of each event.", "2.8.13",
     .tips = "nondeterministic_output\nrequest_policy:all_nodes\nresponse_policy:special"},
    {"latency|reset", latency_reset, -2, ASK | COMMAND_NOSCRIPT, &group_server, "Forgets the samples of events.",
     "2.8.13", .tips = "request_policy:all_nodes\nresponse_policy:all_succeeded", .usage = "[<event> ...]"},
    {0},
};

const struct command commands_slow_log[] = {
    {"latency", command_container, -2, 0, &group_server, "Tells what took long.", "2.8.13",
     .subcommands = latency_subcommands},
    {"slowlog", command_container, -2, 0, &group_server, "Tells which commands took long.", "2.2.12",
     .subcommands = slowlog_subcommands},
    {0},
};
