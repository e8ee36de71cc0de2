/* script_heap: the memory of Lua's values, which has a limit, and the table of Lua's strings.
 *
 * Lua keeps each string once, in a table of chains. Lua 5.1's own hash looks at every (length / 32 + 1)-th byte: strings of
 * 32 bytes and more that differ in the bytes between share a chain, and n documents that differ in a number take n² steps.
 * Redis's copy of Lua looks at all bytes, and so does the function below, which the linker puts in place of Lua's (--wrap,
 * see CMakeLists.txt). The order in which pairs() walks a table follows from the hash, and is Redis's, too. The hash has no
 * key: who chooses strings can make long chains, as in Redis, and the scripts that get them can be killed.
 *
 * The function takes part in what Lua does with the beginning of its own structures, described below as in Lua 5.1.5, the
 * last of its line (lstate.h, lobject.h, lgc.h, lstring.c; PUC-Rio). CMakeLists.txt asks for that release in an archive;
 * what shows that the description holds is that the allocator is found where it should be, and test_scripts. */
#include <limits.h>
#include <string.h>

#include "base/memory.h"
#include "server/core/server.h"
#include "server/redis/script/script_engine.h"

void *script_allocate(void *context, void *pointer, size_t old_bytes, size_t new_bytes) {
    struct script_engine *engine = context;
    if (new_bytes == 0) {
        memory_free(pointer);
        engine->memory_bytes -= old_bytes;
        return NULL;
    }
    size_t limit = (size_t)engine->server->config.script_memory_limit_bytes;
    bool is_over = new_bytes > old_bytes && engine->memory_bytes + (new_bytes - old_bytes) > limit;
    if (is_over && !engine->frees) return NULL;
    void *moved = memory_realloc(pointer, new_bytes);
    if (moved) engine->memory_bytes += new_bytes - old_bytes;
    return moved;
}

#ifdef REPLAY_LUA_STRINGS

#define WHITES \
    3u /* the bits of `marked` for the two colours that take turns: of what lives, and of what is to be swept */

struct object {
    struct object *next;
    unsigned char type, marked;
};

union string {
    LUAI_USER_ALIGNMENT_T alignment;
    struct {
        struct object *next;
        unsigned char type, marked, is_reserved_word;
        unsigned int hash;
        size_t length;
    } head; /* its bytes follow, and a zero */
};

struct shared_state {
    struct object **chains;
    LUAI_UINT32 count;
    int size; /* a power of two */
    lua_Alloc allocate;
    void *context;
    unsigned char current_white;
};

struct thread_state {
    struct object *next;
    unsigned char type, marked, status;
    void *top, *base;
    struct shared_state *shared;
};

union string *__real_luaS_newlstr(lua_State *lua, const char *bytes, size_t length);
union string *__wrap_luaS_newlstr(lua_State *lua, const char *bytes, size_t length);
void luaS_resize(lua_State *lua, int size);
void *luaM_realloc_(lua_State *lua, void *pointer, size_t old_bytes, size_t new_bytes);
void *luaM_toobig(lua_State *lua);

static unsigned int hash_of(const char *bytes, size_t length) {
    unsigned int hash = (unsigned int)length;
    while (length > 0) hash ^= (hash << 5) + (hash >> 2) + (unsigned char)bytes[--length];
    return hash;
}

static union string *add(lua_State *lua, struct shared_state *shared, const char *bytes, size_t length,
                         unsigned int hash) {
    union string *string;
    if (length >= SIZE_MAX - sizeof *string - 2) luaM_toobig(lua); /* does not return */
    string = luaM_realloc_(lua, NULL, 0, sizeof *string + length + 1);
    struct object **chain = &shared->chains[hash & (unsigned int)(shared->size - 1)];
    string->head.next = *chain;
    string->head.type = LUA_TSTRING;
    string->head.marked = shared->current_white & WHITES;
    string->head.is_reserved_word = 0;
    string->head.hash = hash;
    string->head.length = length;
    memcpy(string + 1, bytes, length);
    ((char *)(string + 1))[length] = '\0';
    *chain = (struct object *)string;
    shared->count++;
    if (shared->count > (LUAI_UINT32)shared->size && shared->size <= INT_MAX / 4) luaS_resize(lua, shared->size * 2);
    return string;
}

__attribute__((used)) union string *__wrap_luaS_newlstr(lua_State *lua, const char *bytes, size_t length) {
    struct shared_state *shared = ((struct thread_state *)(void *)lua)->shared;
    if (shared->allocate != script_allocate) return __real_luaS_newlstr(lua, bytes, length);
    if (length == 0) bytes = ""; /* in place of NULL */
    unsigned int hash = hash_of(bytes, length);
    struct object *found = shared->chains[hash & (unsigned int)(shared->size - 1)];
    for (; found; found = found->next) {
        union string *string = (union string *)(void *)found;
        if (string->head.hash != hash || string->head.length != length || memcmp(string + 1, bytes, length) != 0)
            continue;
        if (found->marked & (shared->current_white ^ WHITES) & WHITES) found->marked ^= WHITES; /* it lives again */
        return string;
    }
    return add(lua, shared, bytes, length, hash);
}

#endif
