/* propagate: copies recorded commands into the buffers of the append-only file and of the replicas. */
#include "server/core/propagate.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "server/core/client.h"
#include "server/core/server.h"
#include "server/core/upcalls.h"

/* NULL: this reader is told nothing now. */
static struct append_buffer *buffer_of(const struct server *server, enum changes_reader reader) {
    return reader == CHANGES_FOR_FILE ? upcalls.append_log_buffer(server) : upcalls.replication_buffer(server);
}

static bool anyone_reads(const struct server *server) {
    return buffer_of(server, CHANGES_FOR_FILE) || buffer_of(server, CHANGES_FOR_REPLICAS);
}

static void tell_lost(struct server *server, enum changes_reader reader) {
    if (reader == CHANGES_FOR_FILE)
        upcalls.append_log_lost(server);
    else
        upcalls.replication_lost(server);
}

static void tell_added(struct server *server, enum changes_reader reader, bool added) {
    if (!added) tell_lost(server, reader);
    if (!buffer_of(server, reader)) return; /* that failed */
    if (reader == CHANGES_FOR_FILE)
        upcalls.append_log_added(server);
    else
        upcalls.replication_added(server);
}

static bool add_text(struct append_buffer *buffer, const char *text) {
    return append_buffer_add(buffer, text, strlen(text));
}

/* The transaction that a command is part of comes before it. */
static bool add_transaction(const struct changes *changes, struct changes_told *told, struct append_buffer *buffer) {
    if (changes->depth == 0 || told->in_transaction) return true;
    if (!add_text(buffer, "*1\r\n$5\r\nMULTI\r\n")) return false;
    told->in_transaction = true;
    return true;
}

/* As does its database. */
static bool add_preamble(const struct changes *changes, struct changes_told *told, struct append_buffer *buffer,
                         int database) {
    if (!add_transaction(changes, told, buffer)) return false;
    if (told->database == database) return true;
    char number[16];
    int length = snprintf(number, sizeof number, "%d", database);
    told->database = database;
    return append_buffer_add_head(buffer, 2) && append_buffer_add_word(buffer, "SELECT", 6, NULL) &&
           append_buffer_add_word(buffer, number, (size_t)length, NULL);
}

static bool add_command(struct append_buffer *buffer, uint32_t argc, const struct resp_argument *argv) {
    bool added = append_buffer_add_head(buffer, argc);
    for (uint32_t i = 0; i < argc && added; i++)
        added = append_buffer_add_word(buffer, argv[i].data, argv[i].length, argv[i].blob);
    return added;
}

static bool add_replacement(struct changes *changes, struct append_buffer *buffer) {
    bool wraps = changes->instead_count > 1 && changes->depth == 0;
    return (!wraps || add_text(buffer, "*1\r\n$5\r\nMULTI\r\n")) && append_buffer_copy(buffer, &changes->instead) &&
           (!wraps || add_text(buffer, "*1\r\n$4\r\nEXEC\r\n"));
}

/* Whoever reads the recorded commands would miss a part of this one. */
static void lose(struct server *server) {
    for (int reader = 0; reader < CHANGES_READERS; reader++)
        if (buffer_of(server, reader)) tell_lost(server, reader);
}

void propagate_instead(struct client *client, uint32_t argc, const struct resp_argument *argv) {
    struct changes *changes = &client->server->changes;
    if (!anyone_reads(client->server)) return;
    if (!add_command(&changes->instead, argc, argv)) lose(client->server);
    changes->instead_count++;
}

void propagate_key_words(struct client *client, const char *name, uint32_t key_index, ...) {
    struct changes *changes = &client->server->changes;
    if (!anyone_reads(client->server)) return;
    const struct resp_argument *key = &client->argv[key_index];
    va_list words, again;
    va_start(words, key_index);
    va_copy(again, words);
    uint32_t argc = 2;
    while (va_arg(again, const char *)) argc++;
    va_end(again);
    bool added = append_buffer_add_head(&changes->instead, argc) &&
                 append_buffer_add_word(&changes->instead, name, strlen(name), NULL) &&
                 append_buffer_add_word(&changes->instead, key->data, key->length, key->blob);
    for (const char *word; added && (word = va_arg(words, const char *));)
        added = append_buffer_add_word(&changes->instead, word, strlen(word), NULL);
    va_end(words);
    if (!added) lose(client->server);
    changes->instead_count++;
}

void propagate_nothing(struct client *client) {
    if (anyone_reads(client->server)) client->server->changes.nothing = true;
}

static void record(struct server *server, enum changes_reader reader, const struct client *client) {
    struct append_buffer *buffer = buffer_of(server, reader);
    struct changes *changes = &server->changes;
    bool added = add_preamble(changes, &changes->told[reader], buffer, client->database) &&
                 (changes->instead_count > 0 ? add_replacement(changes, buffer)
                                             : add_command(buffer, client->argc, client->argv));
    tell_added(server, reader, added);
}

/* "*2 PING $…", up to the first byte of what it carries, of which there are `bytes`. */
static bool add_carrier(struct server *server, struct append_buffer *buffer, size_t bytes) {
    struct changes *changes = &server->changes;
    char head[64];
    int length = snprintf(head, sizeof head, "*2\r\n$4\r\nPING\r\n$%zu\r\n", bytes);
    return add_transaction(changes, &changes->told[CHANGES_FOR_REPLICAS], buffer) &&
           append_buffer_add(buffer, head, (size_t)length);
}

/* Weights and gradients are in no database, and whatever is carried together is run together. */
static void record_carried(struct client *client) {
    struct server *server = client->server;
    struct append_buffer *buffer = buffer_of(server, CHANGES_FOR_REPLICAS), *carried = &server->changes.instead;
    bool added = true;
    if (server->changes.instead_count == 0) {
        added = add_command(carried, client->argc, client->argv);
        server->changes.instead_count = 1; /* so that it is cleared */
    }
    added = added && add_carrier(server, buffer, sizeof PROPAGATE_COMMANDS + carried->total) &&
            append_buffer_add(buffer, PROPAGATE_COMMANDS, sizeof PROPAGATE_COMMANDS) &&
            append_buffer_copy(buffer, carried) && append_buffer_add(buffer, "\r\n", 2);
    tell_added(server, CHANGES_FOR_REPLICAS, added);
}

static void record_for_replicas(struct client *client, bool changed) {
    const struct command *command = client->command;
    bool is_published = (command->flags & COMMAND_PUBSUB) && (command->flags & COMMAND_MAY_REPLICATE);
    if (command->group->data == DATA_BESIDE_KEYS) {
        if (changed && client->server->place.streams_tables) record_carried(client);
    } else if (changed || is_published) { /* although what is published changes nothing */
        record(client->server, CHANGES_FOR_REPLICAS, client);
    }
}

static void tell_replied(struct client *client, bool for_file, bool for_replicas) {
    if (for_replicas) upcalls.replication_replied(client);
    if (for_file || client->server->changes.lost) upcalls.append_log_replied(client);
}

/* It is said of one command alone, also where nobody reads any more since that has begun. */
static void forget_said(struct changes *changes) {
    if (changes->instead_count > 0) {
        append_buffer_clear(&changes->instead);
        changes->instead_count = 0;
    }
    changes->nothing = false;
}

void propagate_call(struct client *client, bool changed) {
    struct server *server = client->server;
    struct changes *changes = &server->changes;
    bool for_file = upcalls.append_log_buffer(server), for_replicas = upcalls.replication_buffer(server);
    if (exclusive_is_resting(server)) { /* what else was said is of the command that rests, and heard at its end */
        tell_replied(client, for_file, for_replicas);
        return;
    }
    bool in_part = changed && changes->out_of_memory;
    changes->out_of_memory = false;
    if (!for_file && !for_replicas && !changes->lost) {
        forget_said(changes);
        return;
    }
    if (in_part) lose(server);
    if (for_file && changed && !in_part && !changes->nothing) record(server, CHANGES_FOR_FILE, client);
    if (for_replicas && !in_part && !changes->nothing) record_for_replicas(client, changed);
    forget_said(changes);
    tell_replied(client, for_file, for_replicas);
}

void propagate_removed(struct server *server, unsigned database, const uint8_t *key, size_t length) {
    for (int reader = 0; reader < CHANGES_READERS; reader++) {
        struct append_buffer *buffer = buffer_of(server, reader);
        if (!buffer) continue;
        tell_added(server, reader,
                   add_preamble(&server->changes, &server->changes.told[reader], buffer, (int)database) &&
                       append_buffer_add_head(buffer, 2) && append_buffer_add_word(buffer, "DEL", 3, NULL) &&
                       append_buffer_add_word(buffer, key, length, NULL));
    }
}

static void record_own(struct server *server, enum changes_reader reader, uint32_t argc,
                       const struct resp_argument *argv) {
    struct append_buffer *buffer = buffer_of(server, reader);
    if (buffer) tell_added(server, reader, add_command(buffer, argc, argv));
}

void propagate_to_replicas(struct server *server, uint32_t argc, const struct resp_argument *argv) {
    record_own(server, CHANGES_FOR_REPLICAS, argc, argv);
}

void propagate_to_file(struct server *server, uint32_t argc, const struct resp_argument *argv) {
    struct changes *changes = &server->changes;
    if (!changes->told[CHANGES_FOR_FILE].in_transaction)
        record_own(server, CHANGES_FOR_FILE, argc, argv);
    else if (!add_command(&changes->after, argc, argv))
        tell_lost(server, CHANGES_FOR_FILE);
}

static void record_after(struct server *server) {
    struct append_buffer *buffer = buffer_of(server, CHANGES_FOR_FILE), *after = &server->changes.after;
    if (after->total == 0) return;
    if (buffer) tell_added(server, CHANGES_FOR_FILE, append_buffer_copy(buffer, after));
    append_buffer_clear(after);
}

/* What stands before a record, and how long the argument is that it ends. */
static bool add_record_head(struct server *server, enum changes_reader reader, const char *table, size_t bytes) {
    struct append_buffer *buffer = buffer_of(server, reader);
    struct changes *changes = &server->changes;
    size_t name_length = strlen(table);
    char head[64];
    int length = snprintf(head, sizeof head, "$%zu\r\n", bytes);
    if (reader == CHANGES_FOR_REPLICAS)
        return add_carrier(server, buffer, sizeof PROPAGATE_RECORD + name_length + 1 + bytes) &&
               append_buffer_add(buffer, PROPAGATE_RECORD, sizeof PROPAGATE_RECORD) &&
               append_buffer_add(buffer, table, name_length + 1);
    return add_transaction(changes, &changes->told[reader], buffer) && append_buffer_add_head(buffer, 3) &&
           append_buffer_add_word(buffer, PROPAGATE_RECORD, strlen(PROPAGATE_RECORD), NULL) &&
           append_buffer_add_word(buffer, table, name_length, NULL) && append_buffer_add(buffer, head, (size_t)length);
}

/* Room that both readers share. */
static uint8_t *add_shared_record(struct server *server, const char *table, size_t bytes) {
    struct blob *blob = blob_new(bytes);
    for (int reader = 0; reader < CHANGES_READERS; reader++) {
        struct append_buffer *buffer = buffer_of(server, reader);
        bool added = blob && add_record_head(server, reader, table, bytes) && append_buffer_add_blob(buffer, blob) &&
                     append_buffer_add(buffer, "\r\n", 2);
        tell_added(server, reader, added);
    }
    uint8_t *room =
        blob && blob->references > 1 ? blob->data : NULL; /* else whoever was to have it is told that it is lost */
    blob_release(blob);
    return room;
}

static uint8_t *add_record_for(struct server *server, enum changes_reader reader, const char *table, size_t bytes) {
    struct append_buffer *buffer = buffer_of(server, reader);
    uint8_t *room = add_record_head(server, reader, table, bytes) ? append_buffer_room(buffer, bytes + 2) : NULL;
    tell_added(server, reader, room);
    if (room) memcpy(room + bytes, "\r\n", 2);
    return room;
}

uint8_t *propagate_record(struct server *server, const char *table, size_t bytes, unsigned readers) {
    bool for_file = readers & 1u << CHANGES_FOR_FILE && buffer_of(server, CHANGES_FOR_FILE);
    bool for_replicas =
        readers & 1u << CHANGES_FOR_REPLICAS && server->place.streams_tables && buffer_of(server, CHANGES_FOR_REPLICAS);
    if (for_file && for_replicas) return add_shared_record(server, table, bytes);
    if (for_file) return add_record_for(server, CHANGES_FOR_FILE, table, bytes);
    return for_replicas ? add_record_for(server, CHANGES_FOR_REPLICAS, table, bytes) : NULL;
}

void propagate_begin(struct server *server) {
    server->changes.depth++;
}

void propagate_end(struct server *server) {
    struct changes *changes = &server->changes;
    if (--changes->depth > 0) return;
    for (int reader = 0; reader < CHANGES_READERS; reader++) {
        if (!changes->told[reader].in_transaction) continue;
        changes->told[reader].in_transaction = false;
        struct append_buffer *buffer = buffer_of(server, reader);
        if (buffer) tell_added(server, reader, add_text(buffer, "*1\r\n$4\r\nEXEC\r\n"));
    }
    record_after(server);
}
