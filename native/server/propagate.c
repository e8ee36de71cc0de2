/* propagate: what commands changed in the store. There is no append-only file yet: nothing is kept. */
#include "server/propagate.h"

void propagate_instead(struct client *client, uint32_t argc, const struct resp_argument *argv) {
    (void)client;
    (void)argc;
    (void)argv;
}

void propagate_key_words(struct client *client, const char *name, uint32_t key_index, ...) {
    (void)client;
    (void)name;
    (void)key_index;
}

void propagate_nothing(struct client *client) {
    (void)client;
}

void propagate_call(struct client *client, bool changed) {
    (void)client;
    (void)changed;
}

void propagate_removed(struct server *server, unsigned database, const uint8_t *key, size_t length) {
    (void)server;
    (void)database;
    (void)key;
    (void)length;
}

void propagate_begin(struct server *server) {
    (void)server;
}

void propagate_end(struct server *server) {
    (void)server;
}
