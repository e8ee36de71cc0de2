/* replay_coded: finds the distinct steps of a batch, some in each turn of the loop where there are many, and sends them from
 * where they lie.
 *
 * Why it may take several turns: the batch is pinned, and each pinned item holds the steps that it shows. So slots, numbers of
 * steps and blocks stay what they were when they were found. */
#include "server/replay/replay_coded.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "server/core/client.h"
#include "server/core/server.h"
#include "server/replay/replay_source.h"

#define HEAD_WORDS 2u /* how many steps, and their codec; index and sizes follow */
#define NO_STEP UINT32_MAX
#define CLEARED_AT_ONCE 8192u /* entries of the index */
#define PLACES_AT_ONCE 2048u /* that are looked at */

/* ---- what is asked for --------------------------------------------------------------------------------------------- */

/* Ragged windows go as ragged columns. */
bool replay_goes_coded(const struct column *column) {
    return column->kind == COLUMN_WINDOW && !column_is_ragged(column);
}

/* The columns that windows look at, in the order in which they come up; returns how many. */
static uint32_t sources_of(const struct table_config *config, const uint8_t *columns, uint32_t column_count,
                           uint8_t *sources) {
    uint32_t count = 0;
    struct column_set seen = {{0}};
    for (uint32_t i = 0; i < column_count; i++) {
        const struct column *column = &config->column[columns[i]];
        if (replay_goes_coded(column) && !column_set_has(&seen, column->source)) {
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
        if (replay_goes_coded(column) && column->source == source) {
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

uint64_t replay_coded_places(const struct replay_request *request) {
    const struct table_config *config = table_config(request->entry->table);
    uint64_t steps = 0;
    for (uint32_t i = 0; i < request->column_count; i++) {
        const struct column *column = &config->column[request->columns[i]];
        if (replay_goes_coded(column)) steps += column_steps(column);
    }
    return steps * request->n;
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

/* ---- finding the steps --------------------------------------------------------------------------------------------- */

/* Steps by their numbers: open addressing, at most half full. */
static uint32_t index_size(uint64_t places) {
    uint32_t size = 64;
    while (size < 2 * places) size *= 2;
    return size;
}

/* The place of a step that was seen before, or `next`, which is its place from now on. */
static uint32_t index_place(struct replay_coded *coded, uint32_t number, uint32_t next) {
    struct coded_step *entries = coded->index;
    uint32_t mask = coded->index_size - 1, at = (uint32_t)((number * 0x9e3779b97f4a7c15ull) >> 32) & mask;
    while (entries[at].number != number) {
        if (entries[at].number == NO_STEP) {
            entries[at] = (struct coded_step){number, next};
            return next;
        }
        at = (at + 1) & mask;
    }
    return entries[at].place;
}

/* Extra memory of a column: where its blocks lie, its head, and a bounce buffer for small ones. */
static size_t head_bytes(uint64_t places) {
    return (HEAD_WORDS + 2 * places) * sizeof(uint32_t);
}

static size_t extra_bytes(const struct replay_batch *batch, const struct coded_plan *plan) {
    uint64_t places = plan->places * batch->n;
    return head_bytes(places) + places * sizeof(uint8_t *) + REPLAY_BOUNCE_BYTES;
}

static const struct table_config *config_of(const struct replay_coded *coded) {
    return table_config(coded->batch->entry->table);
}

static struct replay_column_source *source_of(const struct replay_coded *coded, uint32_t place) {
    return &coded->batch->sources[coded->items + place];
}

/* Goes on to the column of steps `coded->at`, whose extra memory this is. */
static void begin_column(struct replay_coded *coded, uint8_t *extra) {
    struct replay_column_source *source = source_of(coded, coded->at);
    coded->plan = plan_of(config_of(coded), coded->columns, coded->column_count, coded->source[coded->at]);
    uint64_t places = coded->plan.places * coded->batch->n;
    coded->extra = extra;
    coded->index_size = index_size(places);
    coded->cleared = coded->looked = coded->steps = 0;
    *source = (struct replay_column_source){.batch = coded->batch, .source = {.vectors = coded_vectors}};
    source->blocks = (const uint8_t **)(void *)extra;
    source->head = extra + places * sizeof(uint8_t *);
    source->block_sizes = (uint32_t *)(void *)source->head + HEAD_WORDS + places;
    if (client_releases_at_write(coded->batch->client)) source->bounce = source->head + head_bytes(places);
}

/* Writes which steps an item shows, and where those lie that no item before has shown. */
static void look_at_item(struct replay_coded *coded, struct replay_column_source *source) {
    const struct replay_batch *batch = coded->batch;
    const struct table *table = batch->entry->table;
    const struct coded_plan *plan = &coded->plan;
    uint32_t *place = (uint32_t *)(void *)source->head + HEAD_WORDS + coded->looked * plan->places;
    uint32_t *sizes = (uint32_t *)(void *)source->head + HEAD_WORDS + batch->n * plan->places;
    uint32_t slot = batch->slots[coded->looked++];
    for (uint32_t j = 0; j < plan->windows; j++) {
        uint32_t window = plan->window[j], length = column_steps(&config_of(coded)->column[window]);
        for (uint32_t k = 0; k < length; k++) {
            uint32_t found = index_place(coded, table_window_step_number(table, window, slot, k), coded->steps);
            if (found == coded->steps) {
                size_t size_bytes;
                source->blocks[found] = table_window_step(table, window, slot, k, &size_bytes);
                sizes[coded->steps++] = (uint32_t)size_bytes;
                source->source.length_bytes += size_bytes;
            }
            *place++ = found;
        }
    }
}

static void end_column(struct replay_coded *coded, struct replay_column_source *source) {
    uint32_t *head = (uint32_t *)(void *)source->head;
    head[0] = coded->steps;
    head[1] = (uint32_t)config_of(coded)->codec;
    source->head_bytes = (HEAD_WORDS + coded->plan.places * coded->batch->n + coded->steps) * sizeof(uint32_t);
    source->source.length_bytes += source->head_bytes;
    uint8_t *next = coded->extra + extra_bytes(coded->batch, &coded->plan);
    if (++coded->at < coded->sources) begin_column(coded, next);
}

bool replay_coded_find_some(struct replay_coded *coded) {
    if (coded->at == coded->sources) return false;
    if (coded->cleared < coded->index_size) {
        uint32_t left = coded->index_size - coded->cleared, count = left < CLEARED_AT_ONCE ? left : CLEARED_AT_ONCE;
        memset(coded->index + coded->cleared, 0xff, count * sizeof *coded->index);
        coded->cleared += count;
        return true;
    }
    struct replay_column_source *source = source_of(coded, coded->at);
    uint64_t items = PLACES_AT_ONCE / coded->plan.places + 1;
    for (; items > 0 && coded->looked < coded->batch->n; items--) look_at_item(coded, source);
    if (coded->looked == coded->batch->n) end_column(coded, source);
    return coded->at < coded->sources;
}

bool replay_coded_begin(struct replay_coded *coded, struct replay_batch *batch, const uint8_t *columns,
                        uint32_t column_count) {
    const struct table_config *config = table_config(batch->entry->table);
    uint64_t most_places = 0;
    size_t bytes = 0;
    *coded = (struct replay_coded){.batch = batch, .column_count = column_count};
    memcpy(coded->columns, columns, column_count * sizeof *columns);
    coded->sources = sources_of(config, columns, column_count, coded->source);
    for (uint32_t i = 0; i < column_count; i++)
        if (!replay_goes_coded(&config->column[columns[i]])) coded->item[coded->items++] = columns[i];
    for (uint32_t i = 0; i < coded->sources; i++) {
        struct coded_plan plan = plan_of(config, columns, column_count, coded->source[i]);
        bytes += extra_bytes(batch, &plan);
        most_places = plan.places * batch->n > most_places ? plan.places * batch->n : most_places;
    }
    size_t index_bytes = index_size(most_places) * sizeof *coded->index;
    if (!replay_batch_reserve(batch,
                              index_bytes + bytes + replay_columns_extra(batch, coded->item, coded->items, NULL)))
        return false;
    coded->index = (struct coded_step *)(void *)batch->extra; /* first, since what it holds must be aligned */
    coded->item_extra = batch->extra + index_bytes + bytes;
    if (coded->sources) begin_column(coded, batch->extra + index_bytes);
    return true;
}

/* ---- sending them -------------------------------------------------------------------------------------------------- */

void replay_coded_reply(struct client *client, const struct replay_coded *coded, struct blob *const *copied) {
    struct replay_batch *batch = coded->batch;
    assert(coded->at == coded->sources);
    replay_batch_pin(batch);
    reply_array(client, replay_batch_heads(batch) + 2 * (size_t)(coded->items + coded->sources));
    replay_columns_reply(client, batch, coded->item, coded->items, NULL, copied, coded->item_extra);
    for (uint32_t i = 0; i < coded->sources; i++) {
        reply_bulk_string(client, config_of(coded)->column[coded->source[i]].name);
        replay_source_send(client, source_of(coded, i));
    }
}
