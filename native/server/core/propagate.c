/* propagate: what commands changed in the store, into the buffer of whoever keeps it. */
#include "server/core/propagate.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "server/core/client.h"
#include "server/core/server.h"
#include "server/core/upcalls.h"

static void check(struct server *server, bool added) {
    if (!added) upcalls.append_log_lost(server);
}

static void tell_added(struct server *server) {
    if (upcalls.append_log_buffer(server)) upcalls.append_log_added(server); /* unless that failed */
}

static bool add_text(struct append_buffer *buffer, const char *text) {
    return append_buffer_add(buffer, text, strlen(text));
}

/* What comes before a command: the transaction that it is part of, and its database. */
static bool add_preamble(struct changes *changes, struct append_buffer *buffer, int database) {
    if (changes->depth > 0 && !changes->in_transaction) {
        if (!add_text(buffer, "*1\r\n$5\r\nMULTI\r\n")) return false;
        changes->in_transaction = true;
    }
    if (changes->database == database) return true;
    char number[16];
    int length = snprintf(number, sizeof number, "%d", database);
    changes->database = database;
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
    return (!wraps || add_text(buffer, "*1\r\n$5\r\nMULTI\r\n")) && append_buffer_take(buffer, &changes->instead) &&
           (!wraps || add_text(buffer, "*1\r\n$4\r\nEXEC\r\n"));
}

void propagate_instead(struct client *client, uint32_t argc, const struct resp_argument *argv) {
    struct changes *changes = &client->server->changes;
    if (!upcalls.append_log_buffer(client->server)) return;
    check(client->server, add_command(&changes->instead, argc, argv));
    changes->instead_count++;
}

void propagate_key_words(struct client *client, const char *name, uint32_t key_index, ...) {
    struct changes *changes = &client->server->changes;
    if (!upcalls.append_log_buffer(client->server)) return;
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
    check(client->server, added);
    changes->instead_count++;
}

void propagate_nothing(struct client *client) {
    if (upcalls.append_log_buffer(client->server)) client->server->changes.nothing = true;
}

static void take_down(struct changes *changes, struct append_buffer *buffer, const struct client *client) {
    check(client->server, add_preamble(changes, buffer, client->database) &&
                              (changes->instead_count > 0 ? add_replacement(changes, buffer)
                                                          : add_command(buffer, client->argc, client->argv)));
    tell_added(client->server);
}

void propagate_call(struct client *client, bool changed) {
    struct changes *changes = &client->server->changes;
    struct append_buffer *buffer = upcalls.append_log_buffer(client->server);
    if (!buffer) return;
    if (changed && !changes->nothing) take_down(changes, buffer, client);
    if (changes->instead_count > 0) {
        append_buffer_clear(&changes->instead);
        changes->instead_count = 0;
    }
    changes->nothing = false;
    upcalls.append_log_replied(client);
}

void propagate_removed(struct server *server, unsigned database, const uint8_t *key, size_t length) {
    struct append_buffer *buffer = upcalls.append_log_buffer(server);
    if (!buffer) return;
    check(server, add_preamble(&server->changes, buffer, (int)database) && append_buffer_add_head(buffer, 2) &&
                      append_buffer_add_word(buffer, "DEL", 3, NULL) &&
                      append_buffer_add_word(buffer, key, length, NULL));
    tell_added(server);
}

void propagate_begin(struct server *server) {
    server->changes.depth++;
}

void propagate_end(struct server *server) {
    struct changes *changes = &server->changes;
    if (--changes->depth > 0 || !changes->in_transaction) return;
    changes->in_transaction = false;
    struct append_buffer *buffer = upcalls.append_log_buffer(server);
    if (!buffer) return;
    check(server, add_text(buffer, "*1\r\n$4\r\nEXEC\r\n"));
    tell_added(server);
}
