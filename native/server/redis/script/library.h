/* library: a library of functions: its code, and what it has registered when that was run. */
#ifndef REPLAY_SERVER_LIBRARY_H
#define REPLAY_SERVER_LIBRARY_H

#include "base/blob.h"
#include "base/error.h"
#include "server/redis/script/script_engine.h"
#include "store/dict.h"

struct function {
    struct function *next; /* of its library */
    const struct library *library;
    uint32_t flags; /* of enum script_flags */
    int reference; /* in Lua's registry */
    char *description; /* NULL: none */
    size_t description_length;
    size_t name_length;
    char name[]; /* and a zero */
};

struct library {
    struct library *next, *previous; /* of its set, in the order in which they came */
    struct blob *code; /* whole, with the line that names it */
    size_t header_bytes; /* of that line, without its end */
    struct function *functions, *last_function;
    uint32_t function_count;
    size_t name_length;
    char name[]; /* and a zero */
};

/* library_load.c: reads the first line. NULL with `error`: it makes no sense, or memory is exhausted. Takes its own
 * reference to the code. */
struct library *library_new(struct blob *code, struct error *error);
/* Runs the code, which registers functions: in slices within exclusive_run_command. `loader` is whose command it is, NULL:
 * nobody's. -1 with `error`: some of it may have been registered. It must run in `limit_us`. */
int library_run(struct script_engine *engine, struct library *library, struct client *loader, uint64_t limit_us,
                struct error *error);
void library_free(struct script_engine *engine, struct library *library); /* NULL is allowed */
/* Whether the library that is being loaded takes too long, or nobody waits for it any more. */
bool library_is_late(const struct script_engine *engine);
/* What a library finds in place of globals while it is loaded, for a new state. */
void library_open_globals(lua_State *lua);

/* ---- sets of libraries (library_set.c) -------------------------------------------------------------------------------- */

struct library_set {
    struct dict libraries; /* by name */
    struct dict functions; /* by name in lower case: of struct function */
    struct library *oldest, *newest;
    size_t bytes;
};

struct library *library_set_find(struct library_set *set, const void *name, size_t length);
struct function *library_set_function(struct library_set *set, const void *name, size_t length);
/* Whether the set has none of its functions: but for those of the library that it takes the place of, having its name,
 * and of those that libraries of `instead` will (NULL: none). */
int library_set_check(struct library_set *set, const struct library *library, struct library_set *instead,
                      struct error *error);
/* The library is the set's. -1 with `error`: no memory, and nothing was done. The set must not have it, nor its
 * functions. */
int library_set_add(struct library_set *set, struct library *library, struct error *error);
void library_set_remove(struct library_set *set, struct library *library); /* it is the caller's again */
void library_set_clear(struct library_set *set, struct script_engine *engine);

#endif
