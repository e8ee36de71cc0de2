/* script_state: the Lua state that scripts run in. They may use some of Lua, change none of it for others, and take so much
 * memory. */
#include "server/core/server.h"
#include "server/redis/script/library.h"
#include "server/redis/script/script_engine.h"

#define PATTERN_BYTES 2048 /* Lua's matcher recurses for each item of a pattern: longer ones are refused */

static const char protected_key; /* its address names the registry's table from what stands for a table to that */

struct script_engine *script_of(lua_State *lua) {
    void *context;
    lua_getallocf(lua, &context);
    return context;
}

/* ---- errors ------------------------------------------------------------------------------------------ */

void script_push_error(lua_State *lua, const char *message) {
    lua_createtable(lua, 0, 2);
    lua_pushstring(lua, message);
    lua_setfield(lua, -2, "err");
}

void script_push_command_error(lua_State *lua, const char *message) {
    script_push_error(lua, message);
    lua_pushboolean(lua, 1);
    lua_setfield(lua, -2, SCRIPT_ERROR_IS_COUNTED);
}

int script_raise(lua_State *lua, const char *message) {
    script_push_error(lua, message);
    return lua_error(lua);
}

/* ---- reading without changing -------------------------------------------------------------------------- */

static int refuse_change(lua_State *lua) {
    return luaL_error(lua, "Attempt to modify a readonly table");
}

static int refuse_unknown(lua_State *lua) {
    const char *name = lua_tostring(lua, 2);
    return luaL_error(lua, "Script attempted to access nonexistent global variable '%s'", name ? name : "?");
}

void script_refuse_unknown(lua_State *lua) {
    lua_createtable(lua, 0, 1);
    lua_pushcfunction(lua, refuse_unknown);
    lua_setfield(lua, -2, "__index");
    lua_setmetatable(lua, -2);
}

static void push_protected(lua_State *lua) {
    lua_pushlightuserdata(lua, (void *)(uintptr_t)&protected_key);
    lua_rawget(lua, LUA_REGISTRYINDEX);
}

void script_protect(lua_State *lua) {
    int table = lua_gettop(lua);
    lua_newtable(lua);
    lua_createtable(lua, 0, 3);
    lua_pushvalue(lua, table);
    lua_setfield(lua, -2, "__index");
    lua_pushcfunction(lua, refuse_change);
    lua_setfield(lua, -2, "__newindex");
    lua_pushboolean(lua, 0);
    lua_setfield(lua, -2, "__metatable");
    lua_setmetatable(lua, -2);
    push_protected(lua);
    lua_pushvalue(lua, -2);
    lua_pushvalue(lua, table);
    lua_rawset(lua, -3);
    lua_pop(lua, 1);
    lua_replace(lua, table);
}

bool script_push_original(lua_State *lua, int index) {
    if (!lua_istable(lua, index)) return false;
    push_protected(lua);
    lua_pushvalue(lua, index);
    lua_rawget(lua, -2);
    lua_remove(lua, -2);
    if (lua_istable(lua, -1)) return true;
    lua_pop(lua, 1);
    return false;
}

/* ---- functions of Lua's that need care -------------------------------------------------------------------- */

static int call_upvalue(lua_State *lua) {
    lua_pushvalue(lua, lua_upvalueindex(1));
    lua_insert(lua, 1);
    lua_call(lua, lua_gettop(lua) - 1, LUA_MULTRET);
    return lua_gettop(lua);
}

static int change_guarded(lua_State *lua) {
    if (script_push_original(lua, 1)) return script_raise(lua, "ERR Attempt to modify a readonly table");
    return call_upvalue(lua);
}

static int read_raw(lua_State *lua) {
    if (script_push_original(lua, 1)) lua_replace(lua, 1);
    return call_upvalue(lua);
}

/* Walks a copy: with the original a script could change it. */
static int walk_guarded(lua_State *lua) {
    if (!script_push_original(lua, 1)) return call_upvalue(lua);
    lua_newtable(lua);
    lua_pushnil(lua);
    while (lua_next(lua, -3)) {
        lua_pushvalue(lua, -2);
        lua_insert(lua, -2);
        lua_rawset(lua, -4);
    }
    lua_replace(lua, 1);
    lua_settop(lua, 1);
    return call_upvalue(lua);
}

static int match_bounded(lua_State *lua) {
    size_t length = 0;
    if (lua_isstring(lua, 2)) lua_tolstring(lua, 2, &length);
    if (length > PATTERN_BYTES)
        return luaL_error(lua, "the pattern has %d bytes, at most %d are possible", (int)length, PATTERN_BYTES);
    return lua_tocfunction(lua, lua_upvalueindex(1))(lua);
}

/* Lua 5.1 counts the results in an int, which some numbers make too small a one: then it writes beyond its stack. */
static int unpack_bounded(lua_State *lua) {
    luaL_checktype(lua, 1, LUA_TTABLE);
    int64_t first = luaL_optint(lua, 2, 1);
    int64_t last = lua_isnoneornil(lua, 3) ? (int64_t)lua_objlen(lua, 1) : luaL_checkint(lua, 3);
    if (last - first >= LUAI_MAXCSTACK) return luaL_error(lua, "too many results to unpack");
    return lua_tocfunction(lua, lua_upvalueindex(1))(lua);
}

int script_load_chunk(lua_State *lua, const char *text, size_t length, const char *name) {
    lua_gc(lua, LUA_GCSTOP, 0);
    int status = luaL_loadbuffer(lua, text, length, name);
    lua_gc(lua, LUA_GCRESTART, 0);
    return status;
}

/* Text only: what is compiled already could be anything. */
static int load_text(lua_State *lua, const char *text, size_t length, const char *name) {
    if (length > 0 && text[0] == LUA_SIGNATURE[0]) {
        lua_pushnil(lua);
        lua_pushliteral(lua, "attempt to load chunk with wrong mode");
        return 2;
    }
    if (script_load_chunk(lua, text, length, name) == 0) return 1;
    lua_pushnil(lua);
    lua_insert(lua, -2);
    return 2;
}

static int load_string(lua_State *lua) {
    size_t length;
    const char *text = luaL_checklstring(lua, 1, &length);
    return load_text(lua, text, length, luaL_optstring(lua, 2, text));
}

static int load_pieces(lua_State *lua) {
    luaL_checktype(lua, 1, LUA_TFUNCTION);
    const char *name = luaL_optstring(lua, 2, "=(load)");
    lua_settop(lua, 2);
    lua_newtable(lua);
    for (int count = 1;; count++) {
        lua_pushvalue(lua, 1);
        lua_call(lua, 0, 1);
        if (lua_isnil(lua, -1)) break;
        if (!lua_isstring(lua, -1)) return luaL_error(lua, "reader function must return a string");
        if (lua_objlen(lua, -1) == 0) break;
        lua_rawseti(lua, 3, count);
    }
    lua_settop(lua, 3);
    luaL_Buffer buffer;
    size_t pieces = lua_objlen(lua, 3);
    luaL_buffinit(lua, &buffer);
    for (size_t i = 1; i <= pieces; i++) {
        lua_rawgeti(lua, 3, (int)i);
        luaL_addvalue(&buffer);
    }
    luaL_pushresult(&buffer);
    size_t length;
    const char *text = lua_tolstring(lua, -1, &length);
    return load_text(lua, text, length, name);
}

/* Errors with a text come back as that text; and nothing catches the end of a script that is killed. */
static int call_protected(lua_State *lua) {
    luaL_checkany(lua, 1);
    int status = lua_pcall(lua, lua_gettop(lua) - 1, LUA_MULTRET, 0);
    if (status == 0) {
        lua_pushboolean(lua, 1);
        lua_insert(lua, 1);
        return lua_gettop(lua);
    }
    if (script_of(lua)->killed) return lua_error(lua);
    if (lua_istable(lua, -1)) {
        lua_pushliteral(lua, "err");
        lua_rawget(lua, -2); /* no function of the script's runs here */
        if (!lua_isstring(lua, -1)) lua_pop(lua, 1);
    }
    lua_pushboolean(lua, 0);
    lua_insert(lua, -2);
    return 2;
}

/* xpcall(function, handler) */
static int call_handled(lua_State *lua) {
    luaL_checkany(lua, 2);
    lua_settop(lua, 2);
    lua_insert(lua, 1); /* the handler below the function */
    int status = lua_pcall(lua, 0, LUA_MULTRET, 1);
    if (status != 0 && script_of(lua)->killed) return script_raise(lua, SCRIPT_KILLED);
    lua_pushboolean(lua, status == 0);
    lua_replace(lua, 1);
    return lua_gettop(lua);
}

/* ---- the tables ------------------------------------------------------------------------------------------ */

static void open_library(lua_State *lua, const char *name, lua_CFunction open) {
    lua_pushcfunction(lua, open);
    lua_pushstring(lua, name);
    lua_call(lua, 1, 0);
}

static void wrap(lua_State *lua, const char *name, lua_CFunction wrapper) {
    lua_getfield(lua, -1, name);
    lua_pushcclosure(lua, wrapper, 1);
    lua_setfield(lua, -2, name);
}

/* What is on the stack goes into `globals` as one that cannot be changed. */
static void add_library(lua_State *lua, int globals, const char *name) {
    script_protect(lua);
    lua_setfield(lua, globals, name);
}

static void bound_patterns(lua_State *lua) {
    static const char *const names[] = {"find", "match", "gmatch", "gfind", "gsub"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) wrap(lua, names[i], match_bounded);
}

static void guard_changes(lua_State *lua) {
    static const char *const names[] = {"insert", "remove", "sort", "setn"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) wrap(lua, names[i], change_guarded);
}

/* "…":upper() goes by the metatable of strings, which must not be a way to the table behind it. */
static void protect_string_methods(lua_State *lua, int globals) {
    lua_pushliteral(lua, "");
    lua_getmetatable(lua, -1);
    lua_getfield(lua, globals, "string");
    lua_setfield(lua, -2, "__index");
    lua_newtable(lua);
    lua_getfield(lua, globals, "string");
    lua_setfield(lua, -2, "__index");
    script_protect(lua);
    lua_setfield(lua, -2, "__metatable");
    lua_pop(lua, 2);
}

static void copy_functions(lua_State *lua, int globals) {
    static const char *const names[] = {"_VERSION",     "assert",   "collectgarbage", "error",  "gcinfo",
                                        "getmetatable", "ipairs",   "next",           "pairs",  "pcall",
                                        "rawequal",     "rawget",   "rawset",         "select", "setmetatable",
                                        "tonumber",     "tostring", "type",           "unpack"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        lua_getfield(lua, LUA_GLOBALSINDEX, names[i]);
        lua_setfield(lua, globals, names[i]);
    }
    lua_pushvalue(lua, globals);
    wrap(lua, "rawset", change_guarded);
    wrap(lua, "setmetatable", change_guarded);
    wrap(lua, "rawget", read_raw);
    wrap(lua, "pairs", walk_guarded);
    wrap(lua, "next", read_raw);
    wrap(lua, "unpack", unpack_bounded);
    lua_pop(lua, 1);
    lua_pushcfunction(lua, call_protected);
    lua_setfield(lua, globals, "pcall");
    lua_pushcfunction(lua, call_handled);
    lua_setfield(lua, globals, "xpcall");
    lua_pushcfunction(lua, load_string);
    lua_setfield(lua, globals, "loadstring");
    lua_pushcfunction(lua, load_pieces);
    lua_setfield(lua, globals, "load");
}

static void copy_libraries(lua_State *lua, int globals) {
    static const char *const names[] = {"string", "table", "math", "coroutine"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        lua_getfield(lua, LUA_GLOBALSINDEX, names[i]);
        if (i == 0) bound_patterns(lua);
        if (i == 1) guard_changes(lua);
        if (i == 2) script_open_random(lua);
        add_library(lua, globals, names[i]);
    }
    protect_string_methods(lua, globals);
    script_open_redis(lua);
    add_library(lua, globals, "redis");
    script_open_bit(lua);
    add_library(lua, globals, "bit");
    script_open_struct(lua);
    add_library(lua, globals, "struct");
    script_open_json(lua);
    add_library(lua, globals, "cjson");
    script_open_msgpack(lua);
    add_library(lua, globals, "cmsgpack");
}

/* Globals are read through a table that stands for them; those that are not there are an error. */
static int make_state(lua_State *lua) {
    open_library(lua, "", luaopen_base);
    open_library(lua, LUA_STRLIBNAME, luaopen_string);
    open_library(lua, LUA_TABLIBNAME, luaopen_table);
    open_library(lua, LUA_MATHLIBNAME, luaopen_math);
    lua_pushlightuserdata(lua, (void *)(uintptr_t)&protected_key);
    lua_newtable(lua);
    lua_rawset(lua, LUA_REGISTRYINDEX);
    lua_pushboolean(lua, 1); /* so that luaL_unref, which is called outside of lua_pcall, never allocates */
    luaL_unref(lua, LUA_REGISTRYINDEX, luaL_ref(lua, LUA_REGISTRYINDEX));
    lua_newtable(lua);
    int globals = lua_gettop(lua);
    copy_functions(lua, globals);
    copy_libraries(lua, globals);
    script_refuse_unknown(lua);
    lua_pushvalue(lua, globals);
    script_of(lua)->globals = luaL_ref(lua, LUA_REGISTRYINDEX);
    if (script_of(lua)->has_functions) library_open_globals(lua);
    lua_pushvalue(lua, globals);
    script_protect(lua);
    lua_pushvalue(lua, -1);
    lua_setfield(lua, globals, "_G");
    lua_replace(lua, LUA_GLOBALSINDEX);
    return 0;
}

bool script_state_open(struct script_engine *engine) {
    lua_State *lua = lua_newstate(script_allocate, engine);
    if (!lua) return false;
    if (lua_cpcall(lua, make_state, NULL) != 0) {
        lua_close(lua);
        return false;
    }
    script_watch(lua);
    engine->lua = lua;
    return true;
}

void script_state_close(struct script_engine *engine) {
    if (!engine->lua) return;
    script_buffer_free(engine->lua);
    lua_close(engine->lua);
    engine->lua = NULL;
}
