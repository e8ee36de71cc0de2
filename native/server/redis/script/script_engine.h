/* script_engine: what the files on scripts share: the Lua state, what runs in it, and the parts that it is made of. */
#ifndef REPLAY_SERVER_SCRIPT_ENGINE_H
#define REPLAY_SERVER_SCRIPT_ENGINE_H

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/core/client.h"

struct library;

#define SCRIPT_KILLED "ERR Script killed by user with SCRIPT KILL..."

enum script_flags {
    SCRIPT_NO_WRITES = 1 << 0,
    SCRIPT_ALLOW_OOM = 1 << 1,
    SCRIPT_DECLARED = 1 << 2, /* it says what it does: "#!lua …" */
    SCRIPT_ALLOW_STALE = 1 << 3,
    SCRIPT_NO_CLUSTER = 1 << 4,
    SCRIPT_CROSS_SLOTS = 1 << 5, /* may reach keys of several slots of this shard */
};
struct script_flag {
    const char *name;
    uint32_t flag;
};
extern const struct script_flag script_flag_names[]; /* ended by a NULL name */

struct script_source {
    const char *text;
    size_t length;
    const char *name; /* in Lua's messages: "@user_script" */
    int reference; /* of the function that it was compiled to */
};

/* What scripts' libraries put together before it becomes a string of Lua's. */
struct script_buffer {
    char *bytes;
    size_t size, capacity;
};

/* A script or a function that is to run. */
struct script_call {
    const char *name; /* for messages: a SHA1, a function's name */
    uint32_t flags; /* of enum script_flags */
    int reference; /* of the function, in Lua's registry */
    uint32_t key_count; /* of the caller's arguments from the fourth on */
};

/* A Lua state and what runs in it. There are two: of scripts and of functions. What they have in common is this. */
struct script_engine {
    struct server *server;
    bool has_functions; /* it is that of functions */
    lua_State *lua; /* NULL: made when first needed */
    size_t memory_bytes;
    bool frees; /* its limit does not count: what frees memory takes a little first */
    struct client *client; /* runs the commands that scripts call */

    /* the script that runs */
    struct client *caller; /* NULL: none runs */
    struct script_call call;
    uint64_t began_us;
    bool read_only, wrote, killed, replying;
    struct resp_argument *argv; /* room for the arguments of calls */
    uint32_t argv_capacity;
    uint8_t *flat; /* a reply of more than one piece */
    uint64_t random; /* state of math.random, from one script to the next */
    uint32_t work; /* steps that a library has taken since it last looked at the clock */
    struct script_buffer buffer; /* one library uses it at a time */

    /* the library of functions that is being loaded (library_load.c) */
    struct library *loading; /* NULL: none is */
    struct client *loader; /* who asked for it */
    uint64_t load_until_us;
    int library_globals, globals; /* what globals stand for while one is loaded, and else: in Lua's registry */
};

struct script_engine *script_of(lua_State *lua);

/* script_run: makes the state where there is none. False: memory is exhausted. */
bool script_engine_open(struct script_engine *engine, struct server *server);
void script_engine_free(struct script_engine *engine);
/* Compiles the source, whose reference is set then. False: Lua's reason is on the stack. */
bool script_compile(struct script_engine *engine, struct script_source *source);
/* EVAL's and FCALL's third argument and what may be wrong with it. */
bool script_take_key_count(struct client *client, int64_t *keys);
/* Runs it for the client, which is replied to, now or in later turns. What speaks against it is replied, too. */
void script_start(struct client *client, struct script_engine *engine, const struct script_call *call, bool read_only);
/* Ends what runs, for SCRIPT KILL or FUNCTION KILL, and replies. */
void script_kill(struct client *client, bool is_function);
/* Collects garbage where there is much; it may take several slices. */
void script_collect_garbage(lua_State *lua, struct script_engine *engine);

/* script_header: takes off the line that says what the script does; what follows keeps its line numbers. */
int script_take_header(struct script_source *source, uint32_t *flags, struct error *error);
/* What a script may do that says so itself, or else what the command may that runs it: of enum command_flags. */
uint32_t script_own_flags(uint32_t command_flags, uint32_t script_flags);

/* script_heap: all memory of Lua's goes by this function; the context is the scripts'. */
void *script_allocate(void *context, void *pointer, size_t old_bytes, size_t new_bytes);
/* script_state: a new state with all that scripts may use. False: memory is exhausted. */
bool script_state_open(struct script_engine *engine);
void script_state_close(struct script_engine *engine);
/* Reading a global that is not in the table on the stack is an error from now on. */
void script_refuse_unknown(lua_State *lua);
/* Makes the table on the stack one that scripts can read but not change: what stands for it replaces it. */
void script_protect(lua_State *lua);
/* As luaL_loadbuffer. Nothing is collected meanwhile: Lua 5.1 does not hold on to the name of what it compiles. */
int script_load_chunk(lua_State *lua, const char *text, size_t length, const char *name);
/* Raises {err = "ERR …"}, as Redis's own functions do: where it happened is added by whoever reports it. */
int script_raise(lua_State *lua, const char *message);
void script_push_error(lua_State *lua, const char *message);
/* An error of a command, which INFO counts: it is not counted again if it becomes the script's reply. */
#define SCRIPT_ERROR_IS_COUNTED "ignore_error_stats_update" /* Redis's name of the field */
void script_push_command_error(lua_State *lua, const char *message);
/* The table that the value at `index` stands for, which is pushed; or false, and nothing is. */
bool script_push_original(lua_State *lua, int index);
/* script_interrupt.c */
/* From here on script_rest is called every so many instructions. */
void script_watch(lua_State *lua);
/* Called then, and behind every call of a command. */
void script_rest(lua_State *lua);
/* For what a library does over and over, once for each piece of work: now and then as script_rest. */
void script_work(lua_State *lua);
/* The same for a piece that has to do with so many bytes. */
void script_work_on(lua_State *lua, size_t bytes);
/* The same outside of the script's own code, where killing it would end more than that: it is killed later. */
void script_work_outside(struct script_engine *engine, size_t bytes);

/* script_buffer: bytes that count as the scripts' memory. What finds none raises Lua's error for that. */
struct script_buffer *script_buffer_start(lua_State *lua); /* empties it */
void script_buffer_add(lua_State *lua, struct script_buffer *buffer, const void *bytes, size_t length);
void script_buffer_add_byte(lua_State *lua, struct script_buffer *buffer, int byte);
void script_buffer_push(lua_State *lua, struct script_buffer *buffer); /* its bytes as a string on the stack */
void script_buffer_trim(lua_State *lua); /* gives back a large one, as push does */
void script_buffer_free(lua_State *lua);

/* script_redis, script_bit, script_struct, script_json, script_msgpack: the table of that name; it is left on the stack. */
void script_open_redis(lua_State *lua);
/* What a library finds under that name while it is loaded; `add` is its way to make functions. */
void script_open_redis_for_library(lua_State *lua, lua_CFunction add);
void script_open_bit(lua_State *lua);
void script_open_struct(lua_State *lua);
void script_open_json(lua_State *lua);
void script_open_msgpack(lua_State *lua);

/* script_random: what is in place of Lua's own in the table `math`, which is on the stack. */
void script_open_random(lua_State *lua);
void script_seed_first(struct script_engine *engine);

/* script_reply: the reply that the scripts' client holds, as a value on the stack; the client's output is cleared. */
void script_take_reply(lua_State *lua, struct script_engine *engine);
/* Replies the value on the top of the stack, which is popped, to the caller. */
void script_send_reply(lua_State *lua, struct script_engine *engine);

#endif
