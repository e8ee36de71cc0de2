/* functions: what the rest of the server knows of libraries of functions. */
#ifndef REPLAY_SERVER_FUNCTIONS_H
#define REPLAY_SERVER_FUNCTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/blob.h"
#include "server/core/server.h"

void functions_free(struct server *server);
/* For INFO. */
size_t functions_memory_bytes(const struct server *server); /* of Lua */
size_t functions_library_bytes(const struct server *server);
uint64_t functions_count(const struct server *server);
uint64_t functions_library_count(const struct server *server);

/* Gives each library's name and code to `add`, in the order in which they came. False: `add` was, once. */
bool functions_save(const struct server *server,
                    bool (*add)(void *context, const void *name, size_t length, struct blob *code), void *context);
/* Loads a library that was saved, at once; one of that name that is there is replaced. -1 with `error`. */
int functions_adopt(struct server *server, struct blob *code, struct error *error);
void functions_clear(struct server *server);

#endif
