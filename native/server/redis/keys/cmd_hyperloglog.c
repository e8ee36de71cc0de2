/* cmd_hyperloglog: PFADD, PFCOUNT, PFMERGE, and what tests ask of sketches. Order of checks and error texts follow Redis
 * 7.0. */
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "server/core/command_table.h"
#include "server/core/exclusive_execution.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/pubsub/notify.h"
#include "server/redis/redis_rows.h"
#include "store/hyperloglog.h"

static void reply_corrupt(struct client *client) {
    reply_error(client, "INVALIDOBJ Corrupted HLL object detected");
}

/* The bytes of the sketch in `entry`. False: it is none, and the error is replied. */
static bool view_sketch(struct client *client, const struct dict_entry *entry, struct string_view *view) {
    if (!keyspace_type_is(client, entry, VALUE_STRING)) return false;
    string_view(store_value(entry), view);
    if (hyperloglog_is_valid(view->data, view->length)) return true;
    reply_error(client, "WRONGTYPE Key is not a valid HyperLogLog string value.");
    return false;
}

/* A sketch to work on: that in `entry`, or an empty one where that is NULL. NULL: the error is replied. */
static struct hyperloglog *take_sketch(struct client *client, const struct dict_entry *entry) {
    struct string_view view = {.length = 0};
    if (entry && !view_sketch(client, entry, &view)) return NULL;
    struct hyperloglog *sketch = memory_alloc(sizeof *sketch);
    if (!sketch) {
        reply_out_of_memory(client);
        return NULL;
    }
    if (!entry) {
        hyperloglog_clear(sketch);
    } else if (!hyperloglog_take(sketch, view.data, view.length)) {
        memory_free(sketch);
        reply_corrupt(client);
        return NULL;
    }
    return sketch;
}

/* Stores the sketch, whose estimate is out of date. False: the error is replied. */
static bool put_sketch(struct client *client, uint32_t index, struct dict_entry *entry, struct hyperloglog *sketch) {
    hyperloglog_forget_estimate(sketch->bytes);
    return keyspace_set(client, index, entry, string_new(sketch->bytes, sketch->length, NULL)) != NULL;
}

/* ---- PFADD --------------------------------------------------------------------------------------------------------- */

/* In place: a dense sketch never changes its length. */
static void add_to_dense(struct client *client, struct dict_entry *entry) {
    uint8_t *bytes = keyspace_reserve(client, 1, entry, HYPERLOGLOG_DENSE_BYTES);
    if (!bytes) return;
    bool changed = false;
    for (uint32_t i = 2; i < client->argc && exclusive_goes_on_at(client, i); i++) {
        uint8_t value;
        uint32_t index = hyperloglog_register_of(client->argv[i].data, client->argv[i].length, &value);
        changed |= hyperloglog_raise_dense(bytes, index, value);
    }
    if (changed) {
        hyperloglog_forget_estimate(bytes);
        keyspace_changed(client, entry);
    }
    reply_integer(client, changed);
}

static enum hyperloglog_result add_elements(struct client *client, struct hyperloglog *sketch) {
    enum hyperloglog_result all = HYPERLOGLOG_SAME;
    for (uint32_t i = 2; i < client->argc && exclusive_goes_on_at(client, i); i++) {
        uint8_t value;
        uint32_t index = hyperloglog_register_of(client->argv[i].data, client->argv[i].length, &value);
        enum hyperloglog_result result =
            hyperloglog_raise(sketch, index, value, (size_t)client->server->config.hll_sparse_max_bytes);
        if (result == HYPERLOGLOG_CORRUPT) return result;
        if (result == HYPERLOGLOG_CHANGED) all = result;
    }
    return all;
}

static void pfadd_command(struct client *client) {
    struct dict_entry *entry = keyspace_find_write(client, 1);
    struct string_view view;
    if (entry && !view_sketch(client, entry, &view)) return;
    if (entry && hyperloglog_form(view.data) == HYPERLOGLOG_DENSE) {
        add_to_dense(client, entry);
        return;
    }
    struct hyperloglog *sketch = take_sketch(client, entry);
    if (!sketch) return;
    enum hyperloglog_result result = add_elements(client, sketch);
    bool changed = result == HYPERLOGLOG_CHANGED || !entry;
    if (result == HYPERLOGLOG_CORRUPT)
        reply_corrupt(client);
    else if (!changed || put_sketch(client, 1, entry, sketch))
        reply_integer(client, changed);
    memory_free(sketch);
}

/* ---- PFCOUNT and PFMERGE --------------------------------------------------------------------------------------------- */

/* Raises the registers to those of the sketches from argument `first` on; `*dense`: one of them is in that form. False: the
 * error is replied. */
static bool join_keys(struct client *client, uint32_t first, uint8_t registers[HYPERLOGLOG_REGISTERS], bool *dense) {
    for (uint32_t i = first; i < client->argc; i++) {
        const struct dict_entry *entry = keyspace_find_read(client, i);
        struct string_view view;
        if (!entry) continue;
        if (!view_sketch(client, entry, &view)) return false;
        *dense |= hyperloglog_form(view.data) == HYPERLOGLOG_DENSE;
        if (!hyperloglog_join(view.data, view.length, registers)) {
            reply_corrupt(client);
            return false;
        }
    }
    return true;
}

/* Of one key, whose sketch keeps the estimate. No log records that: an estimate can always be made again. */
static void count_one(struct client *client) {
    struct dict_entry *entry = keyspace_find_read(client, 1);
    struct string_view view;
    uint64_t estimate = 0;
    if (entry && !view_sketch(client, entry, &view)) return;
    if (entry && !hyperloglog_kept_estimate(view.data, &estimate)) {
        uint8_t registers[HYPERLOGLOG_REGISTERS] = {0};
        if (!hyperloglog_join(view.data, view.length, registers)) {
            reply_corrupt(client);
            return;
        }
        estimate = hyperloglog_estimate(registers);
        store_will_change(client->server->store, (unsigned)client->database, entry);
        uint8_t *bytes = keyspace_reserve(client, 1, entry, view.length);
        if (!bytes) return;
        hyperloglog_keep_estimate(bytes, estimate);
        keyspace_changed(client, entry);
    }
    reply_integer(client, (int64_t)estimate);
}

static void pfcount_command(struct client *client) {
    if (client->argc == 2) {
        count_one(client);
        return;
    }
    uint8_t registers[HYPERLOGLOG_REGISTERS] = {0};
    bool dense = false;
    if (join_keys(client, 1, registers, &dense)) reply_integer(client, (int64_t)hyperloglog_estimate(registers));
}

static void pfmerge_command(struct client *client) {
    uint8_t registers[HYPERLOGLOG_REGISTERS] = {0};
    bool dense = false;
    if (!join_keys(client, 1, registers, &dense)) return;
    struct dict_entry *entry = keyspace_find_write(client, 1);
    struct hyperloglog *sketch = take_sketch(client, entry);
    if (!sketch) return;
    size_t sparse_bytes = (size_t)client->server->config.hll_sparse_max_bytes;
    if ((dense && !hyperloglog_make_dense(sketch)) ||
        hyperloglog_raise_all(sketch, registers, sparse_bytes) == HYPERLOGLOG_CORRUPT)
        reply_corrupt(client);
    else if (put_sketch(client, 1, entry, sketch))
        reply_status(client, "OK");
    memory_free(sketch);
}

/* ---- PFDEBUG and PFSELFTEST ------------------------------------------------------------------------------------------ */

static void reply_runs(struct client *client, const struct string_view *view) {
    struct text text = {0};
    struct hyperloglog_run run;
    for (size_t offset = HYPERLOGLOG_HEADER_BYTES; offset < view->length; offset += run.bytes) {
        if (!hyperloglog_run_at(view->data, view->length, offset, &run)) break;
        if (run.value > 0)
            text_append(&text, "v:%u,%u ", run.value, run.length);
        else
            text_append(&text, "%c:%u ", run.bytes == 1 ? 'z' : 'Z', run.length);
    }
    if (text.failed)
        reply_out_of_memory(client);
    else
        reply_bulk(client, text.data ? text.data : "", text.length > 0 ? text.length - 1 : 0);
    text_free(&text);
}

/* Makes the sketch of the key dense. False: the error is replied. */
static bool make_dense(struct client *client, struct dict_entry *entry) {
    struct hyperloglog *sketch = take_sketch(client, entry);
    if (!sketch) return false;
    bool made = hyperloglog_make_dense(sketch);
    if (!made) reply_corrupt(client);
    if (made) made = keyspace_set(client, 2, entry, string_new(sketch->bytes, sketch->length, NULL)) != NULL;
    memory_free(sketch);
    return made;
}

static void reply_registers(struct client *client, const struct dict_entry *entry) {
    uint8_t registers[HYPERLOGLOG_REGISTERS] = {0};
    struct string_view view;
    string_view(store_value(entry), &view);
    hyperloglog_join(view.data, view.length, registers);
    reply_array(client, HYPERLOGLOG_REGISTERS);
    for (uint32_t i = 0; i < HYPERLOGLOG_REGISTERS; i++) reply_integer(client, registers[i]);
}

static void pfdebug_command(struct client *client) {
    struct dict_entry *entry = keyspace_find_write(client, 2);
    struct string_view view;
    if (!entry) {
        reply_error(client, "ERR The specified key does not exist");
        return;
    }
    if (!view_sketch(client, entry, &view)) return;
    const struct resp_argument *word = &client->argv[1];
    bool sparse = hyperloglog_form(view.data) == HYPERLOGLOG_SPARSE;
    if (argument_is(word, "getreg")) {
        if (!sparse || make_dense(client, entry)) reply_registers(client, entry);
    } else if (argument_is(word, "decode")) {
        if (sparse)
            reply_runs(client, &view);
        else
            reply_error(client, "ERR HLL encoding is not sparse");
    } else if (argument_is(word, "encoding")) {
        reply_status(client, sparse ? "sparse" : "dense");
    } else if (argument_is(word, "todense")) {
        if (!sparse || make_dense(client, entry)) reply_integer(client, sparse);
    } else {
        reply_error(client, "ERR Unknown PFDEBUG subcommand '%.*s'", word->length < 128 ? (int)word->length : 128,
                    (const char *)word->data);
    }
}

#define SELF_TEST_ELEMENTS 512

/* Adds the same elements to a sparse and a dense sketch: their registers must be the same. */
static bool forms_agree(struct hyperloglog *sparse, struct hyperloglog *dense) {
    uint8_t of_sparse[HYPERLOGLOG_REGISTERS] = {0}, of_dense[HYPERLOGLOG_REGISTERS] = {0};
    hyperloglog_clear(sparse);
    hyperloglog_clear(dense);
    if (!hyperloglog_make_dense(dense)) return false;
    for (uint32_t i = 0; i < SELF_TEST_ELEMENTS; i++) {
        uint8_t value;
        uint32_t index = hyperloglog_register_of((const uint8_t *)&i, sizeof i, &value);
        if (hyperloglog_raise(sparse, index, value, HYPERLOGLOG_MOST_BYTES) == HYPERLOGLOG_CORRUPT) return false;
        hyperloglog_raise_dense(dense->bytes, index, value);
    }
    return hyperloglog_join(sparse->bytes, sparse->length, of_sparse) &&
           hyperloglog_join(dense->bytes, dense->length, of_dense) && memcmp(of_sparse, of_dense, sizeof of_dense) == 0;
}

static void pfselftest_command(struct client *client) {
    struct hyperloglog *sketches = memory_alloc(2 * sizeof *sketches);
    if (!sketches)
        reply_out_of_memory(client);
    else if (forms_agree(&sketches[0], &sketches[1]))
        reply_status(client, "OK");
    else
        reply_error(client, "ERR the sparse and the dense form of a sketch hold different registers");
    memory_free(sketches);
}

#define WRITE (COMMAND_WRITE | COMMAND_DENYOOM)

static const struct key_specification sketches_counted[] = {
    {"RW access", KEY_READ, KEY_RANGE, 1, {-1, 1}},
    {0},
};
static const struct key_specification sketches_merged[] = {
    {"RW access insert", KEY_READ | KEY_WRITE, KEY_RANGE, 1, {0, 1}},
    {"RO access", KEY_READ, KEY_RANGE, 2, {-1, 1}},
    {0},
};
static const struct key_specification sketch_debugged[] = {
    {"RW access", KEY_READ, KEY_RANGE, 2, {0, 1}},
    {0},
};

const struct command commands_hyperloglog[] = {
    {"pfadd", pfadd_command, -2, WRITE | COMMAND_FAST | COMMAND_RESTS, &group_hyperloglog,
     "Adds elements to a HyperLogLog. Creates the key if needed.", "2.8.9", .keys = key_added_to,
     .event = KEY_EVENT(STRING, "pfadd", IN_PLACE)},
    {"pfcount", pfcount_command, -2, COMMAND_READONLY | COMMAND_MAY_REPLICATE, &group_hyperloglog,
     "Estimates how many different elements HyperLogLogs hold together.", "2.8.9", .keys = sketches_counted},
    {"pfdebug", pfdebug_command, 3, WRITE | COMMAND_ADMIN, &group_hyperloglog,
     "Shows how a HyperLogLog is stored, for tests.", "2.8.9", .keys = sketch_debugged},
    {"pfmerge", pfmerge_command, -2, WRITE, &group_hyperloglog, "Merges HyperLogLogs into one.", "2.8.9",
     .keys = sketches_merged, .event = KEY_EVENT(STRING, "pfadd", IN_PLACE)},
    {"pfselftest", pfselftest_command, 1, COMMAND_ADMIN, &group_hyperloglog,
     "Checks that both forms of a HyperLogLog hold the same.", "2.8.9"},
    {0},
};
