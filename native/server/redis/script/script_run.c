/* script_run: one call of a script or a function, from its arguments to its reply: in slices, ended where it is killed. */
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "server/core/exclusive_execution.h"
#include "server/core/make_room.h"
#include "server/core/propagate.h"
#include "server/core/server.h"
#include "server/redis/redis_subsystem.h"
#include "server/redis/script/script_engine.h"

/* With more than this behind it, or a quarter of what it may have, a script collects its garbage. */
#define COLLECT_BYTES (16u << 20)
#define COLLECT_STEP 100

/* ---- the engine --------------------------------------------------------------------------------------------- */

bool script_engine_open(struct script_engine *engine, struct server *server) {
    if (engine->lua) return true;
    if (!engine->server) script_seed_first(engine);
    engine->server = server;
    if (!engine->client) engine->client = client_new_own(server);
    return engine->client && script_state_open(engine);
}

void script_engine_free(struct script_engine *engine) {
    script_state_close(engine);
    if (engine->client) client_free_own(engine->client);
    memory_free(engine->argv);
    memory_free(engine->flat);
}

/* Calls what frees memory: first it takes a little. Leaves the stack as it is. */
static void call_to_free(struct script_engine *engine, lua_CFunction function, void *context) {
    engine->frees = true;
    if (lua_cpcall(engine->lua, function, context) != 0) lua_pop(engine->lua, 1);
    engine->frees = false;
}

static int compile(lua_State *lua) {
    struct script_source *source = lua_touserdata(lua, 1);
    if (script_load_chunk(lua, source->text, source->length, source->name)) return lua_error(lua);
    source->reference = luaL_ref(lua, LUA_REGISTRYINDEX);
    return 0;
}

/* Lua collects nothing while it compiles: some of the garbage goes after it, so that many sources, which may all be wrong,
 * leave no more than a few do. */
static int collect_some(lua_State *lua) {
    const size_t *grown_bytes = lua_touserdata(lua, 1);
    lua_gc(lua, LUA_GCSTEP, (int)(*grown_bytes >> 10) + 1);
    return 0;
}

bool script_compile(struct script_engine *engine, struct script_source *source) {
    size_t before_bytes = engine->memory_bytes;
    bool compiled = lua_cpcall(engine->lua, compile, source) == 0;
    size_t grown_bytes = engine->memory_bytes > before_bytes ? engine->memory_bytes - before_bytes : 0;
    call_to_free(engine, collect_some, &grown_bytes);
    return compiled;
}

/* ---- one call ------------------------------------------------------------------------------------------------- */

static void push_arguments(lua_State *lua, const struct client *client, uint32_t from, uint32_t to) {
    struct script_engine *engine = script_of(lua);
    lua_createtable(lua, (int)(to - from), 0);
    for (uint32_t i = from; i < to; i++) {
        script_work_outside(engine, client->argv[i].length);
        lua_pushlstring(lua, (const char *)client->argv[i].data, client->argv[i].length);
        lua_rawseti(lua, -2, (int)(i - from) + 1);
    }
}

static void push_text(lua_State *lua, int index) {
    if (lua_isnil(lua, index))
        lua_pushliteral(lua, "nil");
    else if (lua_isboolean(lua, index))
        lua_pushstring(lua, lua_toboolean(lua, index) ? "true" : "false");
    else if (lua_isstring(lua, index))
        lua_pushvalue(lua, index);
    else
        lua_pushfstring(lua, "(a %s value)", luaL_typename(lua, index));
}

/* Makes {err, source, line}, with the mark of errors that are counted, of whatever was raised: in a table of its own,
 * since the script may have raised anything. */
static int describe_error(lua_State *lua) {
    lua_createtable(lua, 0, 4);
    lua_insert(lua, 1);
    if (lua_istable(lua, 2)) {
        lua_pushliteral(lua, SCRIPT_ERROR_IS_COUNTED);
        lua_rawget(lua, 2);
        lua_setfield(lua, 1, SCRIPT_ERROR_IS_COUNTED);
        lua_pushliteral(lua, "err");
        lua_rawget(lua, 2);
    } else {
        lua_pushliteral(lua, "ERR ");
        push_text(lua, 2);
        lua_concat(lua, 2);
    }
    lua_setfield(lua, 1, "err");
    lua_Debug place;
    bool known = lua_getstack(lua, 1, &place) && lua_getinfo(lua, "Sl", &place);
    if (known && strcmp(place.what, "C") == 0) known = lua_getstack(lua, 2, &place) && lua_getinfo(lua, "Sl", &place);
    if (known) {
        lua_pushliteral(lua, "source");
        lua_pushstring(lua, place.source);
        lua_rawset(lua, 1);
        lua_pushliteral(lua, "line");
        lua_pushinteger(lua, place.currentline);
        lua_rawset(lua, 1);
    }
    lua_settop(lua, 1);
    return 1;
}

static void send_error(lua_State *lua, struct script_engine *engine) {
    struct client *client = engine->caller;
    engine->replying = true;
    if (!lua_istable(lua, -1)) {
        const char *text = lua_tostring(lua, -1);
        reply_error(client, "ERR %s (CONFIG GET script-memory-limit) script: %s", text ? text : "error",
                    engine->call.name);
        return;
    }
    static const char *const fields[] = {"err", "source", "line", SCRIPT_ERROR_IS_COUNTED};
    int table = lua_gettop(lua);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        lua_pushstring(lua, fields[i]);
        lua_rawget(lua, table); /* no function of the script's runs here */
    }
    const char *text = lua_tostring(lua, table + 1), *source = lua_tostring(lua, table + 2);
    if (!text) text = "ERR unknown error";
    char message[1000];
    if (source && lua_isnumber(lua, table + 3))
        snprintf(message, sizeof message, "%s script: %s, on %s:%d.", text, engine->call.name, source,
                 (int)lua_tointeger(lua, table + 3));
    else
        snprintf(message, sizeof message, "%s script: %s", text, engine->call.name);
    if (lua_toboolean(lua, table + 4))
        reply_error_again(client, message);
    else
        reply_error(client, "%s", message);
}

/* The arguments of a call are garbage when it has ended. */
static void forget_arguments(lua_State *lua, const struct script_engine *engine) {
    lua_rawgeti(lua, LUA_REGISTRYINDEX, engine->globals);
    for (int i = 0; i < 2; i++) {
        lua_pushnil(lua);
        lua_setfield(lua, -2, i == 0 ? "KEYS" : "ARGV");
    }
    lua_settop(lua, 0);
}

void script_collect_garbage(lua_State *lua, struct script_engine *engine) {
    lua_settop(lua, 0);
    script_buffer_trim(lua);
    size_t most = (size_t)engine->server->config.script_memory_limit_bytes / 4;
    if (most > COLLECT_BYTES) most = COLLECT_BYTES;
    if (engine->memory_bytes <= most) return;
    if (!engine->has_functions) forget_arguments(lua, engine);
    for (int round = 0; round < 2; round++) /* the first may have begun when what is garbage now was not */
        while (engine->memory_bytes > most && !lua_gc(lua, LUA_GCSTEP, COLLECT_STEP)) exclusive_rest(engine->server);
}

static int collect_protected(lua_State *lua) {
    script_collect_garbage(lua, lua_touserdata(lua, 1));
    return 0;
}

/* What was given to the call: in two tables, a script's in globals, a function's as its arguments. */
static int push_call(lua_State *lua, struct script_engine *engine) {
    const struct client *caller = engine->caller;
    uint32_t arguments = 3 + engine->call.key_count;
    if (!engine->has_functions) {
        lua_rawgeti(lua, LUA_REGISTRYINDEX, engine->globals);
        push_arguments(lua, caller, 3, arguments);
        lua_setfield(lua, -2, "KEYS");
        push_arguments(lua, caller, arguments, caller->argc);
        lua_setfield(lua, -2, "ARGV");
        lua_settop(lua, 0);
    }
    lua_pushcfunction(lua, describe_error);
    lua_rawgeti(lua, LUA_REGISTRYINDEX, engine->call.reference);
    if (!engine->has_functions) return 0;
    push_arguments(lua, caller, 3, arguments);
    push_arguments(lua, caller, arguments, caller->argc);
    return 2;
}

static int run_protected(lua_State *lua) {
    struct script_engine *engine = lua_touserdata(lua, 1);
    lua_settop(lua, 0);
    if (lua_pcall(lua, push_call(lua, engine), 1, 1) == 0)
        script_send_reply(lua, engine);
    else
        send_error(lua, engine);
    script_collect_garbage(lua, engine);
    return 0;
}

/* Memory ran out outside of the script's own code. */
static void send_failure(struct script_engine *engine) {
    const char *text = lua_tostring(engine->lua, -1);
    if (engine->replying)
        client_close(engine->caller); /* half a reply would put it out of step */
    else
        reply_error(engine->caller, "ERR %s (CONFIG GET script-memory-limit)", text ? text : "not enough memory");
}

static void run_script(struct client *caller) {
    struct server *server = caller->server;
    struct script_engine *engine = server->redis->running;
    struct client *client = engine->client;
    engine->caller = caller;
    engine->wrote = engine->killed = engine->replying = false;
    engine->began_us = clock_monotonic_us();
    client->database = caller->database;
    client->user = caller->user;
    client->resp = 2;
    client->slot = -1;
    client->crosses_slots = !(engine->call.flags & SCRIPT_DECLARED) || (engine->call.flags & SCRIPT_CROSS_SLOTS);
    server->exclusive.ended_by = engine->has_functions ? "FUNCTION KILL" : "SCRIPT KILL";
    propagate_begin(server);
    if (lua_cpcall(engine->lua, run_protected, engine) != 0) {
        send_failure(engine);
        call_to_free(engine, collect_protected, engine);
    }
    propagate_end(server);
    lua_settop(engine->lua, 0);
    output_clear(&client->output, &server->output_pool);
    memory_free(engine->flat);
    engine->flat = NULL;
    client->user = NULL;
    engine->caller = NULL;
    server->redis->running = NULL;
}

/* ---- begin and end --------------------------------------------------------------------------------------------- */

bool script_take_key_count(struct client *client, int64_t *keys) {
    if (*keys > (int64_t)client->argc - 3) {
        reply_error(client, "ERR Number of keys can't be greater than number of args");
        return false;
    }
    if (*keys < 0) {
        reply_error(client, "ERR Number of keys can't be negative");
        return false;
    }
    return true;
}

void script_start(struct client *client, struct script_engine *engine, const struct script_call *call, bool read_only) {
    if (read_only && (call->flags & SCRIPT_DECLARED) && !(call->flags & SCRIPT_NO_WRITES)) {
        reply_error(client, "ERR Can not execute a script with write flag using *_ro command.");
        return;
    }
    struct server *server = client->server;
    if (server->config.cluster_enabled && (call->flags & SCRIPT_NO_CLUSTER)) {
        reply_error(client, "ERR Can not run script on cluster, 'no-cluster' flag is set.");
        return;
    }
    /* In a transaction: a script that runs by itself was refused before. */
    if ((script_own_flags(client->command->flags, call->flags) & COMMAND_DENYOOM) && server->config.maxmemory > 0 &&
        server->room.last == ROOM_NONE) {
        reply_error(client,
                    "OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'");
        return;
    }
    engine->call = *call;
    engine->read_only = read_only || (call->flags & SCRIPT_NO_WRITES);
    server->redis->running = engine;
    exclusive_run(client, run_script);
}

void script_kill(struct client *client, bool is_function) {
    struct script_engine *engine = client->server->redis->running;
    if (!engine) {
        reply_error(client, "NOTBUSY No scripts in execution right now.");
    } else if (engine->wrote) {
        reply_error(client,
                    "UNKILLABLE Sorry the script already executed write commands against the dataset. You can either "
                    "wait the script termination or kill the server in a hard way using the SHUTDOWN NOSAVE command.");
    } else if (engine->has_functions != is_function) {
        reply_error(client, EXCLUSIVE_BUSY_REFUSAL, client->server->exclusive.ended_by);
    } else {
        engine->killed = true;
        reply_status(client, "OK");
    }
}
