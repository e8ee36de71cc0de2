/* append_load: loads the append-only file into the store, before any client is served. */
#ifndef REPLAY_SERVER_APPEND_LOAD_H
#define REPLAY_SERVER_APPEND_LOAD_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"
#include "persist/append_manifest.h"
#include "persist/append_reader.h"

struct server;

/* The last increment, to which more is written. */
struct append_loaded {
    char name[NAME_MAX + 1];
    struct append_end end;
    uint64_t base_bytes, earlier_bytes; /* of the base, of the increments before the last */
    uint64_t commands;
};

/* Opens the folder, which is made if it is not there; returns its descriptor, or -1. */
int append_load_folder(const char *name, struct error *error);
bool append_load_exists(const char *name, const char *stem); /* there are files to load, whole or not */
bool append_load_holds_something(const struct server *server); /* keys, libraries, weights or gradients */
enum append_load_what { APPEND_LOAD_ALL, APPEND_LOAD_KEYS }; /* weights and gradients too; or not */
/* 1: loaded; 0: there is nothing; -1: refused, and the store holds part of it. A tail that was cut off is removed, where
 * the configuration has it so. */
int append_load(struct server *server, int folder, const char *stem, enum append_load_what what,
                struct append_manifest *manifest, struct append_loaded *loaded, struct text *said, struct error *error);

#endif
