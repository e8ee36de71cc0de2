/* replay_reply: answers a batch of items: small columns copied, large ones sent from the slots they lie in. */
#include <assert.h>
#include <inttypes.h>

#include "base/arithmetic.h"
#include "base/memory.h"
#include "server/core/client.h"
#include "server/core/server.h"
#include "server/replay/replay_coded.h"
#include "server/replay/replay_registry.h"
#include "server/replay/replay_source.h"
#include "server/replay/replay_subsystem.h"
#include "server/replay/shared_memory.h"

/* ---- batches ------------------------------------------------------------------------------------------------------- */

static size_t sources_bytes(const struct replay_request *request) {
    return request->column_count * sizeof(struct replay_column_source);
}

static size_t batch_bytes(const struct replay_request *request) {
    size_t item_bytes = sizeof(uint64_t) + 2 * sizeof(double) + sizeof(float) + sizeof(uint32_t);
    size_t n = request->n < 512 ? 512 : request->n;
    return sources_bytes(request) + n * (item_bytes + (request->detailed ? sizeof(struct table_detail) : 0));
}

static void batch_free(struct replay_batch *batch) {
    memory_free(batch->memory);
    memory_free(batch->extra);
    memory_free(batch);
}

static struct replay_batch *batch_take(struct replay_registry *registry, size_t bytes) {
    struct replay_batch *batch = registry->batches;
    if (batch) {
        registry->batches = batch->next;
        registry->batches_pooled--;
        registry->batch_bytes_pooled -= batch->memory_bytes + batch->extra_bytes;
    } else if (!(batch = memory_calloc(1, sizeof *batch))) {
        return NULL;
    }
    if (batch->memory_bytes < bytes) {
        memory_free(batch->memory);
        batch->memory_bytes = bytes;
        batch->memory = memory_alloc(batch->memory_bytes);
        if (!batch->memory) {
            batch_free(batch);
            return NULL;
        }
    }
    return batch;
}

static void batch_give(struct replay_registry *registry, struct replay_batch *batch) {
    size_t bytes = batch->memory_bytes + batch->extra_bytes;
    if (registry->batches_pooled == REPLAY_POOLED_OBJECTS ||
        registry->batch_bytes_pooled + bytes > REPLAY_POOLED_BYTES) {
        batch_free(batch);
        return;
    }
    batch->next = registry->batches;
    registry->batches = batch;
    registry->batches_pooled++;
    registry->batch_bytes_pooled += bytes;
}

bool replay_batch_reserve(struct replay_batch *batch, size_t bytes) {
    if (batch->extra_bytes < bytes) {
        memory_free(batch->extra);
        batch->extra = memory_alloc(bytes);
        batch->extra_bytes = batch->extra ? bytes : 0;
    }
    return batch->extra_bytes >= bytes;
}

struct replay_batch *replay_batch_new(const struct replay_request *request, struct client *client) {
    struct replay_entry *entry = request->entry;
    uint32_t n = request->n;
    struct replay_batch *batch = batch_take(entry->registry, batch_bytes(request));
    if (!batch) return NULL;
    batch->registry = entry->registry;
    batch->entry = entry;
    batch->client = client;
    batch->n = n;
    batch->pinned = 0;
    batch->timed = false;
    batch->references = 1;
    uint8_t *at = batch->memory;
    batch->sources = (struct replay_column_source *)(void *)at;
    at += sources_bytes(request);
    batch->ids = (uint64_t *)(void *)at;
    at += n * sizeof(uint64_t);
    batch->probabilities = (double *)(void *)at;
    at += n * sizeof(double);
    batch->times = (double *)(void *)at;
    at += n * sizeof(double);
    batch->details = request->detailed ? (struct table_detail *)(void *)at : NULL;
    at += request->detailed ? n * sizeof(struct table_detail) : 0;
    batch->weights = (float *)(void *)at;
    at += n * sizeof(float);
    batch->slots = (uint32_t *)(void *)at;
    replay_entry_retain(entry);
    return batch;
}

/* Unpinned slots may be what an ADD waits for only through the limiter, which counts draws: it is not woken here. */
void replay_batch_release(struct replay_batch *batch) {
    assert(batch->references > 0);
    if (--batch->references) return;
    if (batch->pinned) {
        table_unpin(batch->entry->table, batch->slots, batch->n);
        batch->client->pinned_items -= batch->pinned;
        if (batch->entry->lacks_pins) {
            batch->entry->lacks_pins = false;
            wait_queue_wake(batch->registry->server, &batch->entry->samplers);
        }
    }
    struct replay_registry *registry = batch->registry;
    replay_entry_release(batch->entry);
    batch_give(registry, batch);
}

/* The last quarter is for small replies. */
static uint64_t most_pinned(uint32_t n) {
    return n > REPLAY_SMALL_REPLY_ITEMS ? REPLAY_TABLE_PINNED_LIMIT / 4 * 3 : REPLAY_TABLE_PINNED_LIMIT;
}

bool replay_may_stay_pinned(const struct replay_request *request, const struct client *client) {
    struct table_info info;
    table_info(request->entry->table, &info);
    return info.pinned_slots <= most_pinned(request->n) &&
           client->pinned_items + request->n <= REPLAY_CLIENT_PINNED_LIMIT;
}

bool replay_batch_allowed(const struct replay_request *request, const struct client *client, struct error *error) {
    struct replay_entry *entry = request->entry;
    uint32_t n = request->n;
    const struct table_config *config = table_config(entry->table);
    /* Items of a table on disk stay pinned while what they lack is read. */
    bool from_slots = config->storage == STORAGE_DISK && n <= REPLAY_CLIENT_PINNED_LIMIT;
    for (uint32_t i = 0; i < request->column_count; i++) {
        const struct column *column = &config->column[request->columns[i]];
        from_slots |= replay_column_is_sent_from_slots(column, n) || (request->coded && column->kind == COLUMN_WINDOW);
    }
    if (request->coded && !replay_coded_allowed(entry, n, request->columns, request->column_count, error)) return false;
    if (!from_slots) return true;
    if (n > REPLAY_CLIENT_PINNED_LIMIT) {
        return error_because(error, ERROR_LIMIT,
                             "expected at most %u items at once of columns this large, got %" PRIu32
                             "; ask for fewer items or columns",
                             REPLAY_CLIENT_PINNED_LIMIT, n);
    }
    struct table_info info;
    table_info(entry->table, &info);
    uint64_t mine = client->pinned_items;
    uint64_t most = most_pinned(n);
    if (info.pinned_slots + n <= most && mine + n <= REPLAY_CLIENT_PINNED_LIMIT) return true;
    entry->lacks_pins = true;
    entry->registry->pins_lacked_us = entry->registry->server->now_us;
    return error_because(error, ERROR_TIMEOUT,
                         "replies in flight hold %" PRIu64 " items of table '%s' (at most %" PRIu64 ") and %" PRIu64
                         " of this client (at most %u); read replies before asking for more",
                         info.pinned_slots, config->name, most, mine, REPLAY_CLIENT_PINNED_LIMIT);
}

bool replay_holds_back_others(const struct client *client) {
    const struct server *server = client->server;
    uint64_t lacked_us = server->replay->tables->pins_lacked_us;
    if (client->pinned_items == 0 || lacked_us == 0 || server->now_us > lacked_us + LIMIT_PINS_LACKED_US) return false;
    return (client->writing && server->now_us > client->output_us + LIMIT_PINNED_STALL_US) ||
           server->now_us > client->pinned_us + LIMIT_PINNED_US;
}

/* ---- replying ------------------------------------------------------------------------------------------------------ */

/* Short columns are copied into the reply; longer ones into a blob, which the reply then sends without a second copy. */
static void reply_column_copied(struct client *client, struct replay_batch *batch, uint32_t column) {
    size_t bytes = table_config(batch->entry->table)->column[column].item_bytes * batch->n;
    if (bytes <= 65536) {
        void *scratch = replay_registry_scratch(batch->registry, bytes);
        if (scratch) {
            table_gather(batch->entry->table, column, batch->slots, batch->n, scratch);
            reply_bulk(client, scratch, bytes);
            return;
        }
    }
    struct blob *blob = blob_new(bytes);
    if (!blob) {
        client_close(client); /* the array was announced: an error can no longer stand in its place */
        return;
    }
    table_gather(batch->entry->table, column, batch->slots, batch->n, blob->data);
    reply_blob(client, blob);
    blob_release(blob);
}

void replay_batch_pin(struct replay_batch *batch) {
    batch->client->pinned_us = batch->client->server->now_us;
    batch->client->pinned_items += batch->n - batch->pinned;
    batch->pinned = batch->n;
}

/* With the padding behind it. */
static size_t region_bytes(size_t column_bytes) {
    return round_up(column_bytes, REPLAY_SHARE_ALIGNMENT);
}

static void reply_column_shared(struct client *client, size_t bytes, const struct replay_region *region,
                                size_t *offset) {
    reply_array(client, 3);
    reply_integer(client, (int64_t)region->lease);
    reply_integer(client, (int64_t)(region->offset + *offset));
    reply_integer(client, (int64_t)bytes);
    *offset += region_bytes(bytes);
}

size_t replay_columns_extra(const struct replay_batch *batch, const uint8_t *columns, uint32_t column_count,
                            const struct replay_region *region) {
    const struct table_config *config = table_config(batch->entry->table);
    size_t bytes = 0;
    for (uint32_t i = 0; i < column_count; i++) {
        const struct column *column = &config->column[columns[i]];
        if (!(region && replay_shared_column_bytes(batch, columns[i])) &&
            replay_column_is_sent_from_slots(column, batch->n)) {
            bytes += replay_source_extra(batch, columns[i]);
        }
    }
    return bytes;
}

size_t replay_batch_heads(const struct replay_batch *batch) {
    return (batch->timed ? 5u : 3u) + (batch->details ? 1u : 0u);
}

/* What comes before the columns. */
static void reply_heads(struct client *client, const struct replay_batch *batch) {
    reply_bulk(client, batch->ids, batch->n * sizeof *batch->ids);
    reply_bulk(client, batch->probabilities, batch->n * sizeof *batch->probabilities);
    if (batch->timed) {
        const struct table_arrivals *arrivals = &batch->arrivals;
        const double state[3] = {arrivals->until, arrivals->sum, (double)arrivals->size};
        reply_bulk(client, batch->times, batch->n * sizeof *batch->times);
        reply_bulk(client, state, sizeof state);
        reply_bulk_string(client, arrivals->limit.code == ERROR_NONE ? "" : arrivals->limit.message);
    } else {
        reply_bulk(client, batch->weights, batch->n * sizeof *batch->weights);
    }
    if (batch->details) reply_bulk(client, batch->details, batch->n * sizeof *batch->details);
}

void replay_columns_reply(struct client *client, struct replay_batch *batch, const uint8_t *columns,
                          uint32_t column_count, const struct replay_region *region, struct blob *const *copied,
                          uint8_t *extra) {
    const struct table_config *config = table_config(batch->entry->table);
    size_t offset = 0;
    reply_heads(client, batch);
    for (uint32_t i = 0; i < column_count; i++) {
        const struct column *column = &config->column[columns[i]];
        size_t shared = region ? replay_shared_column_bytes(batch, columns[i]) : 0;
        reply_bulk_string(client, column->name);
        if (copied && copied[i]) {
            reply_blob(client, copied[i]);
        } else if (shared) {
            reply_column_shared(client, shared, region, &offset);
        } else if (replay_column_is_sent_from_slots(column, batch->n)) {
            size_t used = replay_source_extra(batch, columns[i]);
            replay_source_reply(client, batch, &batch->sources[i], columns[i], extra);
            extra += used;
        } else {
            reply_column_copied(client, batch, columns[i]);
        }
    }
}

void replay_batch_reply(struct client *client, struct replay_batch *batch, const uint8_t *columns,
                        uint32_t column_count, const struct replay_region *region, struct blob *const *copied) {
    replay_batch_pin(batch);
    if (!replay_batch_reserve(batch, replay_columns_extra(batch, columns, column_count, region))) {
        if (region) share_end(client, region->lease);
        reply_error(client, "ERR out of memory for a batch of %" PRIu32, batch->n);
        return;
    }
    reply_array(client, replay_batch_heads(batch) + 2 * (size_t)column_count);
    replay_columns_reply(client, batch, columns, column_count, region, copied, batch->extra);
}
