/* metrics: the pages /metrics and /healthz, written family by family, in slices of the loop. */
#include "server/metrics/metrics.h"

#include "base/clock.h"
#include "net/http.h"
#include "server/core/server.h"
#include "server/core/subsystem.h"
#include "server/metrics/families.h"

#define ITEMS_BETWEEN_LOOKS 16u /* at the clock */
#define FAMILIES_FILES (sizeof families_all / sizeof *families_all)

static const struct family *family_at(uint32_t section) {
    for (size_t file = 0; file < FAMILIES_FILES; file++) {
        for (const struct family *family = families_all[file]; family->name; family++)
            if (section-- == 0) return family;
    }
    return NULL;
}

static void write_item(struct exposition *exposition, const struct family *family, struct metric_item *item) {
    if (!family->value) {
        family->write(exposition, family, item);
        return;
    }
    double value = family->value(item);
    if (value == value) exposition_sample(exposition, family->name, item->labels, value);
}

/* True: the family is done. */
static bool write_family(const struct server *server, struct exposition *exposition, const struct family *family,
                         struct http_cursor *cursor, uint64_t deadline_us) {
    if (cursor->after == 0) {
        exposition_family(exposition, family->name, family->type, family->help);
        cursor->until = metric_items_until(server, family->each);
    }
    struct metric_item item = {.what = NULL};
    bool is_there;
    for (uint32_t looked = 1; metric_item_after(server, family->each, cursor->after, &item, &is_there); looked++) {
        if (item.sequence > cursor->until) break;
        if (is_there) write_item(exposition, family, &item);
        cursor->after = item.sequence;
        if (looked % ITEMS_BETWEEN_LOOKS == 0 && clock_monotonic_us() >= deadline_us) return false;
    }
    return true;
}

/* What comes while a family is written is not in it: a table that was dropped and is made again would be there twice. */
static bool write_metrics(void *context, struct http_cursor *cursor, struct text *body, uint64_t deadline_us) {
    struct exposition exposition = {.out = body, .openmetrics = cursor->openmetrics};
    const struct family *family;
    while ((family = family_at(cursor->section))) {
        if (!write_family(context, &exposition, family, cursor, deadline_us)) return false;
        cursor->section++;
        cursor->after = 0;
        if (clock_monotonic_us() >= deadline_us) return false;
    }
    exposition_end(&exposition);
    return true;
}

static bool write_health(void *context, struct http_cursor *cursor, struct text *body, uint64_t deadline_us) {
    const struct server *server = context;
    (void)deadline_us;
    if (server->ending.begun) cursor->status = 503;
    text_append(body, server->ending.begun ? "stopping\n" : "ok\n");
    return true;
}

static const struct http_page pages[] = {
    {"/metrics", "text/plain; version=0.0.4; charset=utf-8",
     "application/openmetrics-text; version=1.0.0; charset=utf-8", write_metrics},
    {"/healthz", "text/plain; charset=utf-8", NULL, write_health},
    {0},
};

int metrics_open(struct server *server, struct transport *kernel, struct error *error) {
    if (server->config.metrics_port < 0) return 0;
    uint16_t port = (uint16_t)server->config.metrics_port;
    server->metrics = http_new(kernel, server->config.metrics_host, &port, pages, server, error);
    if (!server->metrics) return -1;
    server->config.metrics_port = port;
    return 0;
}

static uint64_t step(struct server *server) {
    if (!server->metrics) return CLOCK_NEVER;
    uint64_t due_us = http_due(server->metrics, server->now_us);
    return due_us > server->now_us ? due_us : http_step(server->metrics, server->now_us, long_work_until(server));
}

static void stop(struct server *server) {
    if (server->metrics) http_stop_listening(server->metrics);
}

static void disconnect(struct server *server) {
    http_free(server->metrics);
}

static const struct long_task tasks[] = {{step}, {.run = NULL}};

const struct subsystem metrics_subsystem = {.name = "metrics", .tasks = tasks, .disconnect = disconnect, .stop = stop};
