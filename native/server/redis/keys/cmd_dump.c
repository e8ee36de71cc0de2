/* cmd_dump: DUMP and RESTORE: a value as bytes that any Redis reads, and back. Order of checks and error texts follow Redis
 * 7.0; an error about a payload says where in it the damage is.
 *
 * Large values are written and read in slices, in which nothing of another client is run. */
#include "server/redis/keys/cmd_dump.h"

#include <string.h>

#include "persist/rdb_payload.h"
#include "server/core/command_table.h"
#include "server/core/exclusive_execution.h"
#include "server/core/propagate.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/pubsub/notify.h"
#include "server/redis/redis_rows.h"

#define RESTORED_AT_ONCE_BYTES (64u << 10) /* a longer payload is read in slices */

static bool rest(void *context) {
    return exclusive_goes_on(context);
}

/* ---- DUMP ------------------------------------------------------------------------------------------------------------ */

static void reply_payload(struct client *client, const struct piece_bytes *bytes) {
    if (bytes->length < STRING_BLOB_BYTES) {
        reply_bulk(client, bytes->data, bytes->length);
        return;
    }
    struct blob *blob = blob_new(bytes->length);
    if (!blob) {
        reply_out_of_memory(client);
        return;
    }
    memcpy(blob->data, bytes->data, bytes->length);
    reply_blob(client, blob);
    blob_release(blob);
}

bool dump_payload(struct client *client, const struct value *value, struct piece_bytes *bytes) {
    struct rdb_writer writer = {.compresses = client->server->config.rdbcompression != 0};
    bool goes_on = rdb_write_payload(&writer, value, &(struct rdb_rest){rest, client});
    *bytes = writer.bytes;
    return goes_on;
}

static void dump_value(struct client *client, const struct value *value) {
    struct piece_bytes bytes = {0};
    bool goes_on = dump_payload(client, value, &bytes);
    if (goes_on && bytes.failed)
        reply_out_of_memory(client);
    else if (goes_on)
        reply_payload(client, &bytes);
    piece_bytes_free(&bytes);
}

/* Within the slices: nothing has changed since the command began. */
static void dump_in_slices(struct client *client) {
    dump_value(client, client_state(client));
}

static void keep_nothing(struct client *client, void *value) {
    (void)client, (void)value;
}

static void dump_command(struct client *client) {
    struct dict_entry *entry = keyspace_find_read(client, 1);
    if (!entry) {
        reply_null(client);
        return;
    }
    struct value *value = store_value(entry);
    if (value_free_effort(value) > EXCLUSIVE_PARTS_AT_ONCE && !client->server->exclusive.inside) {
        client_set_state(client, value, keep_nothing);
        exclusive_run_command(client, dump_in_slices);
    } else {
        dump_value(client, value);
    }
}

/* ---- RESTORE --------------------------------------------------------------------------------------------------------- */

struct restoring {
    int64_t time_to_live; /* as given, or as Unix time */
    bool replaces, absolute;
    int64_t idle_s, frequency; /* −1: not said */
};

static bool parse_options(struct client *client, struct restoring *restoring) {
    for (uint32_t i = 4; i < client->argc; i++) {
        const struct resp_argument *word = &client->argv[i];
        bool has_value = i + 1 < client->argc;
        if (argument_is(word, "replace")) {
            restoring->replaces = true;
        } else if (argument_is(word, "absttl")) {
            restoring->absolute = true;
        } else if (argument_is(word, "idletime") && has_value && restoring->frequency == -1) {
            if (!integer_argument(client, ++i, &restoring->idle_s)) return false;
            if (restoring->idle_s < 0) {
                reply_error(client, "ERR Invalid IDLETIME value, must be >= 0");
                return false;
            }
        } else if (argument_is(word, "freq") && has_value && restoring->idle_s == -1) {
            if (!integer_argument(client, ++i, &restoring->frequency)) return false;
            if (restoring->frequency < 0 || restoring->frequency > 255) {
                reply_error(client, "ERR Invalid FREQ value, must be >= 0 and <= 255");
                return false;
            }
        } else {
            reply_syntax_error(client);
            return false;
        }
    }
    return true;
}

static bool parse(struct client *client, struct restoring *restoring) {
    if (!parse_options(client, restoring)) return false;
    if (!restoring->replaces && keyspace_find(client, 1)) {
        reply_error(client, "BUSYKEY Target key name already exists.");
        return false;
    }
    if (!integer_argument(client, 2, &restoring->time_to_live)) return false;
    if (restoring->time_to_live >= 0) return true;
    reply_error(client, "ERR Invalid TTL value, must be >= 0");
    return false;
}

/* The same command with a time that does not depend on when it is run. */
static void propagate_absolute(struct client *client, const struct restoring *restoring) {
    char at[NUMBER_INT64_TEXT];
    struct resp_argument words[10];
    uint32_t argc = client->argc;
    if (restoring->time_to_live == 0 || restoring->absolute || argc + 1 > sizeof words / sizeof *words) return;
    memcpy(words, client->argv, argc * sizeof *words);
    words[2] =
        (struct resp_argument){.data = (uint8_t *)at, .length = number_format_int64(restoring->time_to_live, at)};
    words[argc] = (struct resp_argument){.data = (uint8_t *)"ABSTTL", .length = 6};
    propagate_instead(client, argc + 1, words);
}

/* The key's time is over already: it is as if it had been there and gone. */
static void restore_to_nothing(struct client *client, struct value *value) {
    struct dict_entry *entry = keyspace_find(client, 1);
    store_discard(client->server->store, value);
    if (entry) {
        keyspace_remove(client, entry);
        propagate_key_words(client, "DEL", 1, NULL);
    }
    reply_status(client, "OK");
}

static void put_restored(struct client *client, struct restoring *restoring, struct value *value) {
    struct store *store = client->server->store;
    int64_t now_ms = clock_unix_ms();
    bool ends = restoring->time_to_live > 0;
    if (ends && !restoring->absolute &&
        __builtin_add_overflow(restoring->time_to_live, now_ms, &restoring->time_to_live))
        restoring->time_to_live = INT64_MAX;
    if (ends && restoring->time_to_live <= now_ms && !store->keeps_expired) {
        restore_to_nothing(client, value);
        return;
    }
    struct dict_entry *entry = keyspace_put(client, 1, value, false);
    if (!entry) return;
    if (ends && !store_expire_at(store, (unsigned)client->database, entry, restoring->time_to_live)) {
        keyspace_remove(client, entry);
        reply_out_of_memory(client);
        return;
    }
    if (restoring->frequency >= 0) access_set_frequency(&store->access, value, (uint32_t)restoring->frequency);
    if (restoring->idle_s >= 0) access_set_idle(&store->access, value, restoring->idle_s);
    propagate_absolute(client, restoring);
    reply_status(client, "OK");
}

static void restore_value(struct client *client, struct restoring *restoring) {
    const struct resp_argument *payload = &client->argv[3];
    struct store *store = client->server->store;
    struct value *value, *part;
    struct error error;
    enum rdb_payload_result result =
        rdb_read_payload(payload->data, payload->length, &(struct rdb_rest){rest, client}, &value, &part, &error);
    if (part) store_discard(store, part);
    if (exclusive_is_lost(client)) {
        if (value) store_discard(store, value);
        return;
    }
    switch (result) {
    case RDB_PAYLOAD_READ: put_restored(client, restoring, value); break;
    case RDB_PAYLOAD_FOREIGN: reply_error(client, "ERR DUMP payload version or checksum are wrong"); break;
    case RDB_PAYLOAD_DAMAGED: reply_error(client, "ERR Bad data format: %s", error.message); break;
    case RDB_PAYLOAD_GIVEN_UP: break;
    }
}

static void restore_in_slices(struct client *client) {
    struct restoring restoring = *(struct restoring *)client_state(client);
    restore_value(client, &restoring);
}

static void restore_command(struct client *client) {
    struct restoring restoring = {.idle_s = -1, .frequency = -1};
    if (!parse(client, &restoring)) return;
    if (client->argv[3].length <= RESTORED_AT_ONCE_BYTES ||
        !exclusive_run_with(client, &restoring, sizeof restoring, restore_in_slices))
        restore_value(client, &restoring);
}

#define RESTORES (COMMAND_WRITE | COMMAND_DENYOOM | COMMAND_DANGEROUS)

const struct command commands_dump[] = {
    {"dump", dump_command, 2, COMMAND_READONLY, &group_generic, "Returns the value of a key as bytes for RESTORE.",
     "2.6.0", .tips = "nondeterministic_output", .keys = key_read},
    {"restore", restore_command, -4, RESTORES, &group_generic, "Creates a key from the bytes that DUMP gave.", "2.6.0",
     .keys = key_set, .event = KEY_EVENT(GENERIC, "restore", STORES)},
    {0},
};
