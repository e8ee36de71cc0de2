/* replay_coded: finds the distinct steps of a batch, and sends them from where they lie. */
#include "server/replay/replay_coded.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "server/core/client.h"
#include "server/core/server.h"
#include "server/replay/replay_source.h"

#define HEAD_WORDS 2u /* how many steps, and their codec; index and sizes follow */
#define NO_STEP UINT32_MAX

/* ---- what is asked for --------------------------------------------------------------------------------------------- */

/* The windows over one column of steps. */
struct coded_plan {
    uint32_t source;
    uint32_t windows;
    uint8_t window[TABLE_MAX_COLUMNS];
    uint64_t places; /* steps that they show of one item */
};

/* Ragged windows go as ragged columns. */
static bool goes_coded(const struct column *column) {
    return column->kind == COLUMN_WINDOW && !column_is_ragged(column);
}

/* The columns that windows look at, in the order in which they come up; returns how many. */
static uint32_t sources_of(const struct table_config *config, const uint8_t *columns, uint32_t column_count,
                           uint8_t *sources) {
    uint32_t count = 0;
    struct column_set seen = {{0}};
    for (uint32_t i = 0; i < column_count; i++) {
        const struct column *column = &config->column[columns[i]];
        if (goes_coded(column) && !column_set_has(&seen, column->source)) {
            column_set_add(&seen, column->source);
            sources[count++] = (uint8_t)column->source;
        }
    }
    return count;
}

static struct coded_plan plan_of(const struct table_config *config, const uint8_t *columns, uint32_t column_count,
                                 uint32_t source) {
    struct coded_plan plan = {.source = source};
    for (uint32_t i = 0; i < column_count; i++) {
        const struct column *column = &config->column[columns[i]];
        if (goes_coded(column) && column->source == source) {
            plan.window[plan.windows++] = columns[i];
            plan.places += column_steps(column);
        }
    }
    return plan;
}

bool replay_coded_allowed(const struct replay_entry *entry, uint32_t n, const uint8_t *columns, uint32_t column_count,
                          struct error *error) {
    const struct table_config *config = table_config(entry->table);
    uint8_t sources[TABLE_MAX_COLUMNS];
    uint32_t count = sources_of(config, columns, column_count, sources);
    for (uint32_t i = 0; i < count; i++) {
        struct coded_plan plan = plan_of(config, columns, column_count, sources[i]);
        if (plan.places * n > REPLAY_CODED_PLACES) {
            return error_because(error, ERROR_LIMIT,
                                 "the windows over '%s' show %" PRIu64 " steps of each item, %" PRIu64 " of %" PRIu32
                                 " items: expected at most %u with CODED; ask for fewer items, or without CODED",
                                 config->column[sources[i]].name, plan.places, plan.places * n, n, REPLAY_CODED_PLACES);
        }
    }
    return true;
}

/* ---- finding the steps --------------------------------------------------------------------------------------------- */

/* Steps by their numbers: open addressing, at most half full. */
struct step_index {
    uint32_t mask;
    struct {
        uint32_t number, place;
    } *entries;
};

static bool index_init(struct step_index *index, struct replay_registry *registry, uint64_t places) {
    uint32_t size = 64;
    while (size < 2 * places) size *= 2;
    index->mask = size - 1;
    index->entries = replay_registry_scratch(registry, size * sizeof *index->entries);
    if (index->entries) memset(index->entries, 0xff, size * sizeof *index->entries);
    return index->entries;
}

/* The place of a step that was seen before, or `next`, which is its place from now on. */
static uint32_t index_place(struct step_index *index, uint32_t number, uint32_t next) {
    uint32_t at = (uint32_t)((number * 0x9e3779b97f4a7c15ull) >> 32) & index->mask;
    while (index->entries[at].number != number) {
        if (index->entries[at].number == NO_STEP) {
            index->entries[at].number = number;
            index->entries[at].place = next;
            return next;
        }
        at = (at + 1) & index->mask;
    }
    return index->entries[at].place;
}

/* Extra memory of a column: its head, where its blocks lie, and a bounce buffer for small ones. */
static size_t head_bytes(uint64_t places) {
    return (HEAD_WORDS + 2 * places) * sizeof(uint32_t);
}

static size_t extra_bytes(const struct replay_batch *batch, const struct coded_plan *plan) {
    uint64_t places = plan->places * batch->n;
    return head_bytes(places) + places * sizeof(uint8_t *) + REPLAY_BOUNCE_BYTES;
}

/* Writes the head, and where the blocks lie. */
static void find_steps(struct replay_column_source *source, const struct coded_plan *plan, struct step_index *index) {
    const struct replay_batch *batch = source->batch;
    const struct table *table = batch->entry->table;
    const struct table_config *config = table_config(table);
    uint64_t places = plan->places * batch->n;
    uint32_t *head = (uint32_t *)(void *)source->head, *place = head + HEAD_WORDS, *sizes = place + places;
    uint32_t steps = 0;
    source->block_sizes = sizes;
    for (uint32_t i = 0; i < batch->n; i++) {
        for (uint32_t j = 0; j < plan->windows; j++) {
            uint32_t window = plan->window[j], length = column_steps(&config->column[window]);
            for (uint32_t k = 0; k < length; k++) {
                uint32_t found = index_place(index, table_window_step_number(table, window, batch->slots[i], k), steps);
                if (found == steps) {
                    size_t size_bytes;
                    source->blocks[steps] = table_window_step(table, window, batch->slots[i], k, &size_bytes);
                    sizes[steps++] = (uint32_t)size_bytes;
                    source->source.length_bytes += size_bytes;
                }
                *place++ = found;
            }
        }
    }
    head[0] = steps;
    head[1] = (uint32_t)config->codec;
    source->head_bytes = (HEAD_WORDS + places + steps) * sizeof(uint32_t);
    source->source.length_bytes += source->head_bytes;
}

/* ---- sending them -------------------------------------------------------------------------------------------------- */

static int coded_vectors(struct reply_source *reply, size_t offset, struct iovec *vectors, int max) {
    struct replay_column_source *source = (struct replay_column_source *)reply;
    size_t at, end = source->source.length_bytes - source->head_bytes;
    struct replay_vectors slice = replay_vectors_begin(source, offset, vectors, max, &at);
    while (at < end && at >= source->block_offset + source->block_sizes[source->block])
        source->block_offset += source->block_sizes[source->block++];
    uint32_t block = source->block;
    size_t within = at - source->block_offset;
    for (; at < end; block++, within = 0) {
        size_t size_bytes = source->block_sizes[block] - within;
        if (!replay_vectors_add(&slice, source->blocks[block] + within, size_bytes)) break;
        at += size_bytes;
    }
    return slice.filled;
}

static void reply_steps(struct client *client, struct replay_batch *batch, struct replay_column_source *source,
                        const struct coded_plan *plan, struct step_index *index, uint8_t *extra) {
    uint64_t places = plan->places * batch->n;
    *source = (struct replay_column_source){.batch = batch, .source = {.vectors = coded_vectors}};
    source->blocks = (const uint8_t **)(void *)extra;
    source->head = extra + places * sizeof(uint8_t *);
    if (client_releases_at_write(client)) source->bounce = source->head + head_bytes(places);
    find_steps(source, plan, index);
    replay_source_send(client, source);
}

void replay_coded_reply(struct client *client, struct replay_batch *batch, const uint8_t *columns,
                        uint32_t column_count) {
    const struct table_config *config = table_config(batch->entry->table);
    uint8_t items[TABLE_MAX_COLUMNS], sources[TABLE_MAX_COLUMNS];
    uint32_t item_count = 0, source_count = sources_of(config, columns, column_count, sources);
    size_t bytes = 0;
    uint64_t most_places = 0;
    for (uint32_t i = 0; i < column_count; i++)
        if (!goes_coded(&config->column[columns[i]])) items[item_count++] = columns[i];
    for (uint32_t i = 0; i < source_count; i++) {
        struct coded_plan plan = plan_of(config, columns, column_count, sources[i]);
        bytes += extra_bytes(batch, &plan);
        most_places = plan.places * batch->n > most_places ? plan.places * batch->n : most_places;
    }
    struct step_index index;
    replay_batch_pin(batch);
    if (!replay_batch_reserve(batch, bytes + replay_columns_extra(batch, items, item_count, NULL)) ||
        !index_init(&index, batch->registry, most_places)) {
        reply_error(client, "ERR out of memory for a batch of %" PRIu32, batch->n);
        return;
    }
    reply_array(client, replay_batch_heads(batch) + 2 * (size_t)(item_count + source_count));
    replay_columns_reply(client, batch, items, item_count, NULL, NULL, batch->extra + bytes);
    uint8_t *extra = batch->extra; /* first, since what it holds must be aligned */
    for (uint32_t i = 0; i < source_count; i++) {
        struct coded_plan plan = plan_of(config, columns, column_count, sources[i]);
        bool ready = index_init(&index, batch->registry, plan.places * batch->n);
        assert(ready); /* the scratch is large enough since the check above */
        reply_bulk_string(client, config->column[sources[i]].name);
        reply_steps(client, batch, &batch->sources[item_count + i], &plan, &index, extra);
        extra += extra_bytes(batch, &plan);
    }
}
