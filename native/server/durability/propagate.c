/* propagate: what commands changed in the store, into the append-only file's buffer. */
#include "server/core/propagate.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "server/core/server.h"
#include "server/durability/append_log.h"
#include "server/durability/durability_part.h"

/* The log that takes down what happens now; NULL: none. */
static struct append_log *log_of(const struct server *server) {
    struct append_log *log = server->durability->append_log;
    return log && append_log_takes(log) && !server->loading ? log : NULL;
}

static void check(struct append_log *log, bool added) {
    if (!added) append_log_break(log, "out of memory for a change");
}

static bool add_text(struct append_buffer *buffer, const char *text) {
    return append_buffer_add(buffer, text, strlen(text));
}

/* What comes before a command: the transaction that it is part of, and its database. */
static bool add_preamble(struct append_log *log, int database) {
    struct append_buffer *buffer = &log->writer->open;
    if (log->depth > 0 && !log->in_transaction) {
        if (!add_text(buffer, "*1\r\n$5\r\nMULTI\r\n")) return false;
        log->in_transaction = true;
    }
    if (log->database == database) return true;
    char number[16];
    int length = snprintf(number, sizeof number, "%d", database);
    log->database = database;
    return append_buffer_add_head(buffer, 2) && append_buffer_add_word(buffer, "SELECT", 6, NULL) &&
           append_buffer_add_word(buffer, number, (size_t)length, NULL);
}

static bool add_command(struct append_buffer *buffer, uint32_t argc, const struct resp_argument *argv) {
    bool added = append_buffer_add_head(buffer, argc);
    for (uint32_t i = 0; i < argc && added; i++)
        added = append_buffer_add_word(buffer, argv[i].data, argv[i].length, argv[i].blob);
    return added;
}

static bool add_replacement(struct append_log *log) {
    struct append_buffer *buffer = &log->writer->open;
    bool wraps = log->instead_count > 1 && log->depth == 0;
    return (!wraps || add_text(buffer, "*1\r\n$5\r\nMULTI\r\n")) && append_buffer_take(buffer, &log->instead) &&
           (!wraps || add_text(buffer, "*1\r\n$4\r\nEXEC\r\n"));
}

void propagate_instead(struct client *client, uint32_t argc, const struct resp_argument *argv) {
    struct append_log *log = log_of(client->server);
    if (!log) return;
    check(log, add_command(&log->instead, argc, argv));
    log->instead_count++;
}

void propagate_key_words(struct client *client, const char *name, uint32_t key_index, ...) {
    struct append_log *log = log_of(client->server);
    if (!log) return;
    const struct resp_argument *key = &client->argv[key_index];
    va_list words, again;
    va_start(words, key_index);
    va_copy(again, words);
    uint32_t argc = 2;
    while (va_arg(again, const char *)) argc++;
    va_end(again);
    bool added = append_buffer_add_head(&log->instead, argc) &&
                 append_buffer_add_word(&log->instead, name, strlen(name), NULL) &&
                 append_buffer_add_word(&log->instead, key->data, key->length, key->blob);
    for (const char *word; added && (word = va_arg(words, const char *));)
        added = append_buffer_add_word(&log->instead, word, strlen(word), NULL);
    va_end(words);
    check(log, added);
    log->instead_count++;
}

void propagate_nothing(struct client *client) {
    struct append_log *log = log_of(client->server);
    if (log) log->nothing = true;
}

static void take_down(struct append_log *log, const struct client *client) {
    check(log, add_preamble(log, client->database) &&
                   (log->instead_count > 0 ? add_replacement(log)
                                           : add_command(&log->writer->open, client->argc, client->argv)));
    if (append_log_takes(log)) append_log_added(log);
}

void propagate_call(struct client *client, bool changed) {
    struct append_log *log = log_of(client->server);
    if (!log) return;
    if (changed && !log->nothing) take_down(log, client);
    if (log->instead_count > 0) {
        append_buffer_clear(&log->instead);
        log->instead_count = 0;
    }
    log->nothing = false;
    append_log_replied(log, client);
}

void propagate_removed(struct server *server, unsigned database, const uint8_t *key, size_t length) {
    struct append_log *log = log_of(server);
    if (!log) return;
    struct append_buffer *buffer = &log->writer->open;
    check(log, add_preamble(log, (int)database) && append_buffer_add_head(buffer, 2) &&
                   append_buffer_add_word(buffer, "DEL", 3, NULL) && append_buffer_add_word(buffer, key, length, NULL));
    if (append_log_takes(log)) append_log_added(log);
}

void propagate_begin(struct server *server) {
    struct append_log *log = server->durability->append_log;
    if (log) log->depth++;
}

void propagate_end(struct server *server) {
    struct append_log *log = server->durability->append_log;
    if (!log || --log->depth > 0 || !log->in_transaction) return;
    log->in_transaction = false;
    if (!append_log_takes(log)) return;
    check(log, add_text(&log->writer->open, "*1\r\n$4\r\nEXEC\r\n"));
    if (append_log_takes(log)) append_log_added(log);
}
