/* setup: what a parent hands to a new server on a descriptor: password, settings and tables, none of which belong on a
 * command line. */
#ifndef REPLAY_SERVER_SETUP_H
#define REPLAY_SERVER_SETUP_H

#include <stdbool.h>
#include <stdint.h>

#include "server/core/server.h"

/* A table's spec, where it lies in the setup. */
struct setup_table {
    const uint8_t *spec; /* NULL: before the first */
    size_t length;
};

struct setup {
    uint8_t *bytes;     /* the msgpack map as it came */
    size_t length;
};

/* Reads the descriptor to its end and closes it. */
int setup_read(struct setup *setup, int descriptor, struct error *error);
/* Takes password and settings over into the config, before the server is made. */
int setup_configure(const struct setup *setup, struct server_config *config, struct error *error);
/* Creates the tables. */
int setup_create_tables(const struct setup *setup, struct server *server, struct error *error);
/* The next table's spec; false: that was the last, or the setup is malformed, which setup_configure tells. */
bool setup_next_table(const struct setup *setup, struct setup_table *table);
/* The program, and its arguments, that writes the setup anew; ended by NULL, to be freed by memory_free in one piece. NULL:
 * there is none. */
int setup_reload_arguments(const struct setup *setup, char ***arguments, struct error *error);
void setup_free(struct setup *setup);

#endif
