#include "server/replay/replay_subsystem.h"

#include <inttypes.h>

#include "base/memory.h"
#include "server/replay/cmd_replay.h"
#include "server/replay/gradients_registry.h"
#include "server/replay/replay_cold.h"
#include "server/replay/replay_registry.h"
#include "server/replay/replay_rows.h"
#include "server/replay/replay_streams.h"
#include "server/replay/weights_registry.h"

static bool create(struct server *server) {
    struct replay_subsystem *replay = server->replay = memory_calloc(1, sizeof *replay);
    if (!replay) return false;
    replay->tables = replay_registry_new(server);
    replay->weights = weights_registry_new();
    replay->gradients = gradients_registry_new(server);
    replay->cold = cold_readers_new();
    return replay->tables && replay->weights && replay->gradients && replay->cold;
}

static void free_subsystem(struct server *server) {
    struct replay_subsystem *replay = server->replay;
    if (!replay) return;
    share_free_left(server);
    if (replay->weights) weights_registry_free(replay->weights);
    gradients_registry_free(replay->gradients);
    cold_readers_free(replay->cold); /* before the tables that they read */
    if (replay->tables) replay_registry_free(replay->tables);
    memory_free(replay);
}

static uint32_t descriptors(struct server *server, bool let_go) {
    if (let_go) share_forget_let_go(server);
    return server->replay->shares.watches;
}

static uint64_t streams_work(struct server *server) {
    struct replay_registry *tables = server->replay->tables;
    return tables->closed_count && replay_streams_step(tables, long_work_until(server)) ? 0 : CLOCK_NEVER;
}

static uint64_t dropped_work(struct server *server) {
    struct replay_registry *tables = server->replay->tables;
    while (tables->dropped && replay_registry_sweep_dropped(tables))
        if (clock_monotonic_us() >= long_work_until(server)) return 0;
    return CLOCK_NEVER;
}

static uint64_t adders_work(struct server *server) {
    return replay_adders_step(server) ? 0 : CLOCK_NEVER;
}

static uint64_t change_work(struct server *server) {
    return replay_change_step(server) ? 0 : CLOCK_NEVER;
}

static void memory_info(const struct client *client, struct text *out) {
    struct server *server = client->server;
    const struct share_totals *shares = &server->replay->shares;
    text_append(out, "used_memory_tables_mapped:%zu\r\nused_memory_replies:%zu\r\n",
                memory_mapped_bytes() - shares->bytes, server->output_pool.inline_bytes);
    share_forget_let_go(server);
    text_append(out,
                "used_memory_shared:%zu\r\nused_memory_shared_left:%zu\r\nshared_memory_clients:%u\r\n"
                "shared_memory_leases:%u\r\n",
                shares->bytes, shares->left_bytes, shares->arenas, shares->leases);
}

static void stats_info(const struct client *client, struct text *out) {
    const struct share_totals *shares = &client->server->replay->shares;
    text_append(out, "shared_batches:%" PRIu64 "\r\nshared_batches_without_room:%" PRIu64 "\r\n", shares->batches,
                shares->refused);
}

static void limits_info(const struct client *client, struct text *out) {
    (void)client;
    text_append(out, "shared_memory_client_leases:%u\r\n", SHARE_LEASES);
}

static const struct info_section info[] = {
    {"memory", 41, memory_info},  {"stats", 61, stats_info},          {"limits", 91, limits_info},
    {"replay", 100, replay_info}, {"gradients", 110, gradients_info}, {0},
};

static const struct long_task tasks[] = {
    {streams_work}, {dropped_work},      {adders_work, .waits_for_exclusive = true},
    {change_work},  {cold_readers_step}, {.run = NULL}};

static const struct command *const commands[] = {commands_gradients, commands_replay, commands_share, commands_weights,
                                                 NULL};

const struct subsystem replay_subsystem = {
    .name = "replay",
    .commands = commands,
    .info = info,
    .tasks = tasks,
    .create = create,
    .free = free_subsystem,
    .client_left = replay_streams_client_gone,
    .client_closed = share_close,
    .has_stalled = replay_holds_back_others,
    .descriptors = descriptors,
};
