/* request_times: how long requests of timed commands take, and what INFO tells of it. */
#include "server/core/request_times.h"

#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/server.h"

struct request_times *request_times_new(void) {
    return memory_calloc(1, sizeof(struct request_times));
}

void request_times_reset(struct request_times *times) {
    memset(times, 0, sizeof *times);
}

void request_timed_begin(struct client *client, struct command_entry *entry) {
    if (!entry->times || client->timed || !client->connection || client->transaction) return;
    client->timed = entry->times;
    client->timed_from_ns = client->server->now_ns;
    client->timed_until_byte = UINT64_MAX;
}

static void record(struct client *client) {
    uint64_t now_ns = clock_monotonic_ns(); /* a write of many bytes takes its time */
    uint64_t took_ns = now_ns > client->timed_from_ns ? now_ns - client->timed_from_ns : 0;
    recent_histogram_record(&client->timed->answers, took_ns, now_ns / 1000);
    histogram_record(&client->timed->all_answers, took_ns);
    client->timed = NULL;
}

void request_timed_answered(struct client *client) {
    if (!client->timed || client->timed_until_byte != UINT64_MAX) return;
    client->timed_until_byte = client->output_bytes + client->output.unsent_bytes;
    request_timed_sent(client); /* nothing may have been said (CLIENT REPLY) */
}

void request_timed_sent(struct client *client) {
    if (client->timed && client->output_bytes >= client->timed_until_byte) record(client);
}

static void describe(const struct histogram *histogram, const char *what, struct text *out) {
    text_append(out, ",%s_us_p50=%.3f,%s_us_p90=%.3f,%s_us_p99=%.3f,%s_us_max=%.3f", what,
                (double)histogram_quantile(histogram, 0.5) / 1000, what,
                (double)histogram_quantile(histogram, 0.9) / 1000, what,
                (double)histogram_quantile(histogram, 0.99) / 1000, what, (double)histogram->max / 1000);
}

void request_times_info(struct server *server, struct text *out) {
    text_append(out, "# Requests\r\n");
    for (size_t i = 0; i < command_table_count(server->commands); i++) {
        const struct command_entry *entry = command_table_at(server->commands, i);
        struct histogram sum;
        if (!entry->times) continue;
        uint64_t handlers_us = recent_histogram_read(&entry->times->handlers, server->now_us, &sum);
        if (handlers_us == 0) continue;
        text_append(out, "request_%s:calls=%" PRIu64 ",seconds=%.3f", entry->command->name, sum.count,
                    (double)handlers_us / 1e6);
        describe(&sum, "handler", out);
        recent_histogram_read(&entry->times->answers, server->now_us, &sum);
        text_append(out, ",answers=%" PRIu64, sum.count);
        describe(&sum, "answer", out);
        text_append(out, "\r\n");
    }
}
