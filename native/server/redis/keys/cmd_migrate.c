/* cmd_migrate: MIGRATE, which puts keys down at another server by RESTORE and removes them here. Order of checks and error
 * texts follow Redis 7.0.
 *
 * It runs in slices in which nothing of another client is run, so what is sent is what is removed. A key is removed when the
 * other server has said that it has it. Whatever fails, a key is at one of the two; if an answer is lost, at both. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "server/core/exclusive_execution.h"
#include "server/core/propagate.h"
#include "server/redis/keys/cmd_dump.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/keys/peer_link.h"
#include "server/redis/pubsub/notify.h"
#include "server/redis/redis_rows.h"

#define FIRST_OPTION 6
#define DEFAULT_TIMEOUT_MS 1000

struct options {
    bool copies, replaces;
    uint32_t login, login_words; /* where user and password stand, and how many of them; 0: there are none */
    uint32_t first_key, keys;
    int64_t database, timeout_ms;
};

struct migration {
    struct peer_link link; /* first */
    struct options options;
    uint32_t greetings; /* answers that come before those of keys */
    uint32_t found, sent, taken; /* keys: that are here, that RESTORE was sent of, that the other server has */
    char refusal[256]; /* the other server's first */
    bool is_refused; /* it takes no keys */
    struct resp_argument words[]; /* a place for DEL, then the keys, of which fewer and fewer count */
};

/* ---- arguments ------------------------------------------------------------------------------------------------------- */

/* How many words belong to an option beside itself. */
static uint32_t option_values(const struct resp_argument *word) {
    return argument_is(word, "auth") ? 1 : argument_is(word, "auth2") ? 2 : 0;
}

/* Where the word KEYS stands; argc: nowhere. */
static uint32_t keys_word(uint32_t argc, const struct resp_argument *argv) {
    for (uint32_t i = FIRST_OPTION; i < argc; i += 1 + option_values(&argv[i]))
        if (argument_is(&argv[i], "keys")) return i;
    return argc;
}

static bool parse_options(struct client *client, struct options *options) {
    uint32_t end = keys_word(client->argc, client->argv);
    for (uint32_t i = FIRST_OPTION; i < end; i++) {
        const struct resp_argument *word = &client->argv[i];
        uint32_t values = option_values(word);
        if (argument_is(word, "copy")) {
            options->copies = true;
        } else if (argument_is(word, "replace")) {
            options->replaces = true;
        } else if (values > 0 && i + values < client->argc) {
            options->login = i + 1;
            options->login_words = values;
            i += values;
        } else {
            reply_syntax_error(client);
            return false;
        }
    }
    options->first_key = 3;
    options->keys = 1;
    if (end == client->argc) return true;
    if (client->argv[3].length > 0) {
        reply_error(client, "ERR When using MIGRATE KEYS option, the key argument must be set to the empty string");
        return false;
    }
    options->first_key = end + 1;
    options->keys = client->argc - options->first_key;
    return true;
}

static bool parse(struct client *client, struct options *options) {
    *options = (struct options){0};
    if (!parse_options(client, options) || !integer_argument(client, 5, &options->timeout_ms) ||
        !integer_argument(client, 4, &options->database)) {
        return false;
    }
    if (options->timeout_ms <= 0) options->timeout_ms = DEFAULT_TIMEOUT_MS;
    return true;
}

static int migrate_keys(uint32_t argc, const struct resp_argument *argv, struct key_place *places, int max) {
    uint32_t word = keys_word(argc, argv), first = word == argc ? 3 : word + 1;
    uint32_t count = word == argc ? 1 : argv[3].length > 0 ? 0 : argc - first;
    for (uint32_t i = 0; i < count && (int)i < max; i++)
        places[i] = (struct key_place){first + i, KEY_READ | KEY_WRITE, "RW access delete"};
    return (int)count;
}

static bool migrate_is_secret(uint32_t argc, const struct resp_argument *argv, uint32_t index) {
    uint32_t end = keys_word(argc, argv);
    for (uint32_t i = FIRST_OPTION; i < end; i += 1 + option_values(&argv[i]))
        if (index > i && index <= i + option_values(&argv[i])) return true;
    return false;
}

/* ---- sending --------------------------------------------------------------------------------------------------------- */

static void add_word(struct text *request, const void *bytes, size_t length) {
    text_append(request, "$%zu\r\n", length);
    text_append_bytes(request, bytes, length);
    text_append_bytes(request, "\r\n", 2);
}

static enum peer_result send_text(struct migration *migration, struct text *request) {
    enum peer_result result =
        request->failed ? PEER_FAILED : peer_link_send(&migration->link, request->data, request->length);
    text_free(request);
    return result;
}

static enum peer_result greet(struct client *client, struct migration *migration) {
    const struct options *options = &migration->options;
    struct text request = {0};
    char number[NUMBER_INT64_TEXT];
    if (options->login_words > 0) {
        text_append(&request, "*%u\r\n$4\r\nAUTH\r\n", 1 + options->login_words);
        for (uint32_t i = 0; i < options->login_words; i++) {
            const struct resp_argument *word = &client->argv[options->login + i];
            add_word(&request, word->data, word->length);
        }
    }
    text_append(&request, "*2\r\n$6\r\nSELECT\r\n");
    add_word(&request, number, number_format_int64(options->database, number));
    migration->greetings = options->login_words > 0 ? 2 : 1;
    return send_text(migration, &request);
}

static enum peer_result send_restore(struct client *client, struct migration *migration,
                                     const struct resp_argument *key, int64_t left_ms, const struct value *value) {
    struct piece_bytes payload = {0};
    struct text head = {0};
    char number[NUMBER_INT64_TEXT];
    bool replaces = migration->options.replaces;
    if (!dump_payload(client, value, &payload)) {
        piece_bytes_free(&payload);
        return PEER_CLIENT_LOST;
    }
    text_append(&head, "*%d\r\n$7\r\nRESTORE\r\n", replaces ? 5 : 4);
    add_word(&head, key->data, key->length);
    add_word(&head, number, number_format_int64(left_ms, number));
    text_append(&head, "$%zu\r\n", payload.length);
    head.failed |= payload.failed;
    enum peer_result result = send_text(migration, &head);
    if (result == PEER_DONE) result = peer_link_send(&migration->link, payload.data, payload.length);
    piece_bytes_free(&payload);
    if (result != PEER_DONE) return result;
    const char *tail = replaces ? "\r\n$7\r\nREPLACE\r\n" : "\r\n";
    return peer_link_send(&migration->link, tail, strlen(tail));
}

/* No key's time is over while the command runs, whatever the clock says. */
static struct dict_entry *find(const struct client *client, const struct resp_argument *key) {
    return store_find(client->server->store, (unsigned)client->database, key->data, key->length);
}

static enum peer_result send_keys(struct client *client, struct migration *migration) {
    struct resp_argument *keys = migration->words + 1;
    enum peer_result result = PEER_DONE;
    for (uint32_t i = 0; i < migration->found && result == PEER_DONE; i++) {
        struct dict_entry *entry = find(client, &keys[i]);
        int64_t at_ms, left_ms = 0;
        if (!entry) continue;
        if (store_expiry(client->server->store, (unsigned)client->database, entry, &at_ms)) {
            left_ms = at_ms - clock_unix_ms();
            if (left_ms < 0) continue;
            if (left_ms == 0) left_ms = 1;
        }
        keys[migration->sent++] = keys[i];
        result = send_restore(client, migration, &keys[migration->sent - 1], left_ms, store_value(entry));
    }
    return result;
}

/* Answers come in the order of what was asked for. */
static void take_answer(struct peer_link *link, const char *line) {
    struct migration *migration = (struct migration *)(void *)link;
    bool refuses = *line == '-';
    if (refuses && migration->refusal[0] == '\0')
        snprintf(migration->refusal, sizeof migration->refusal, "%s", line + 1);
    if (link->lines <= migration->greetings) {
        migration->is_refused |= refuses;
        return;
    }
    uint64_t index = link->lines - migration->greetings - 1;
    if (!refuses && !migration->is_refused && index < migration->sent)
        migration->words[1 + migration->taken++] = migration->words[1 + index];
}

/* ---- the whole ------------------------------------------------------------------------------------------------------- */

/* Looking up a key whose time is over would remove it, and nothing may change before the last slice. */
static void find_all(struct client *client, struct migration *migration) {
    const struct options *options = &migration->options;
    for (uint32_t i = options->first_key; i < options->first_key + options->keys; i++) {
        const struct resp_argument *key = &client->argv[i];
        if (store_is_over(client->server->store, (unsigned)client->database, key->data, key->length)) continue;
        if (keyspace_find_read(client, i)) migration->words[1 + migration->found++] = *key;
    }
}

/* What the other server has goes here. */
static void remove_taken(struct client *client, struct migration *migration) {
    if (migration->options.copies || migration->taken == 0) return;
    migration->words[0] = (struct resp_argument){.data = (const uint8_t *)"DEL", .length = 3};
    for (uint32_t i = 1; i <= migration->taken; i++) {
        struct dict_entry *entry = find(client, &migration->words[i]);
        if (entry) keyspace_remove(client, entry);
    }
    propagate_instead(client, 1 + migration->taken, migration->words);
}

static enum peer_result send_all(struct client *client, struct migration *migration) {
    enum peer_result result = greet(client, migration);
    return result == PEER_DONE ? send_keys(client, migration) : result;
}

static int64_t port_of(const struct resp_argument *argument) {
    int64_t port;
    return argument_int64(argument, &port) && port >= 0 && port <= UINT16_MAX ? port : 0;
}

static void migrate_to(struct client *client, struct migration *migration, const char *host) {
    enum peer_result result = peer_link_connect(&migration->link, host, port_of(&client->argv[2]));
    if (result == PEER_CLIENT_LOST) return;
    if (result == PEER_FAILED) {
        reply_error(client, "IOERR error or timeout connecting to the client");
        return;
    }
    result = send_all(client, migration);
    bool all_sent = result == PEER_DONE;
    if (all_sent) result = peer_link_await(&migration->link, migration->greetings + migration->sent);
    if (result == PEER_CLIENT_LOST) return;
    remove_taken(client, migration);
    if (migration->refusal[0] != '\0')
        reply_error(client, "ERR Target instance replied with error: %s", migration->refusal);
    else if (result == PEER_FAILED)
        reply_error(client, "IOERR error or timeout %s to target instance", all_sent ? "reading" : "writing");
    else
        reply_status(client, "OK");
}

static void migrate(struct client *client) {
    struct migration *migration = client_state(client);
    const struct resp_argument *word = &client->argv[1];
    char host[256];
    find_all(client, migration);
    if (migration->found == 0) {
        reply_status(client, "NOKEY");
        return;
    }
    size_t length = word->length < sizeof host ? word->length : sizeof host - 1;
    memcpy(host, word->data, length);
    host[length] = '\0';
    migrate_to(client, migration, host);
}

static void drop_migration(struct client *client, void *state) {
    (void)client;
    struct migration *migration = state;
    peer_link_free(&migration->link);
    memory_free(migration);
}

static void migrate_command(struct client *client) {
    struct options options;
    if (!parse(client, &options)) return;
    if (client->deny_blocking) {
        reply_error(client, "ERR MIGRATE waits for another server; a transaction or a script cannot");
        return;
    }
    struct migration *migration = memory_calloc(1, sizeof *migration + (1 + options.keys) * sizeof *migration->words);
    if (!migration) {
        reply_out_of_memory(client);
        return;
    }
    uint64_t timeout_us =
        (uint64_t)options.timeout_ms < UINT64_MAX / 4000 ? (uint64_t)options.timeout_ms * 1000 : UINT64_MAX / 4;
    peer_link_init(&migration->link, client, timeout_us, take_answer);
    migration->options = options;
    client_set_state(client, migration, drop_migration);
    exclusive_run_command(client, migrate);
}

static const struct key_specification keys_migrated[] = {
    {"RW access delete", KEY_READ | KEY_WRITE, KEY_RANGE, 3, {0, 1}},
    {"RW access delete incomplete", KEY_READ | KEY_WRITE, KEY_AFTER_WORD, -2, {-1, 1}, "KEYS"},
    {0},
};

const struct command commands_migrate[] = {
    {"migrate", migrate_command, -6, COMMAND_WRITE | COMMAND_DANGEROUS | COMMAND_MOVABLEKEYS, &group_generic,
     "Moves keys to another server.", "2.6.0", .tips = "nondeterministic_output", .keys = keys_migrated,
     .find_keys = migrate_keys, .is_secret = migrate_is_secret, .event = KEY_EVENT(GENERIC, "del", REMOVES)},
    {0},
};
