/* library_load: a library's first line, and its code, which is run once and registers functions meanwhile.
 *
 * What is a global is looked up through the table that stands for globals (script_state.c). While a library is loaded that
 * leads to a table that holds `redis` alone, and in this no more than register_function, log and facts; afterwards to what
 * scripts have. A function keeps the table that stands for globals, and so finds the latter when it is called. */
#include "server/redis/script/library.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/memory.h"
#include "resp/parse.h"
#include "server/core/exclusive_execution.h"
#include "server/core/server.h"

#define NAME_RULE \
    "Library names can only contain letters, numbers, or underscores(_) and must be at least one character long"

/* ---- the first line -------------------------------------------------------------------------------------------------- */

struct header {
    const char *engine, *name;
    size_t engine_length, name_length;
};

static bool is_name(const char *name, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)name[i]) && name[i] != '_') return false;
    return length > 0;
}

static int shown(size_t length) {
    return length < 200 ? (int)length : 200;
}

static int take_word(struct header *header, const char *word, size_t length, struct error *error) {
    if (!header->engine) {
        header->engine = word + (length < 2 ? length : 2); /* "#!lua" */
        header->engine_length = length < 2 ? 0 : length - 2;
        return 0;
    }
    if (length < 5 || strncasecmp(word, "name=", 5) != 0)
        return error_set(error, ERROR_GENERIC, "Invalid metadata value given: %.*s", shown(length), word);
    if (header->name)
        return error_set(error, ERROR_GENERIC, "Invalid metadata value, name argument was given multiple times");
    header->name = word + 5;
    header->name_length = length - 5;
    return 0;
}

/* `line` is decoded in place. */
static int read_header(char *line, size_t length, struct header *header, struct error *error) {
    const char *at = line, *end = line + length;
    char *out = line;
    if (memchr(line, '\0', length)) return error_set(error, ERROR_GENERIC, "Invalid library metadata");
    for (;;) {
        while (at < end && isspace((unsigned char)*at)) at++;
        if (at == end) break;
        char *word = out;
        if (!resp_decode_word(&at, end, &out)) return error_set(error, ERROR_GENERIC, "Invalid library metadata");
        if (take_word(header, word, (size_t)(out - word), error)) return -1;
    }
    if (!header->name) return error_set(error, ERROR_GENERIC, "Library name was not given");
    if (!is_name(header->name, header->name_length)) return error_set(error, ERROR_GENERIC, NAME_RULE);
    if (header->engine_length != 3 || strncasecmp(header->engine, "lua", 3) != 0)
        return error_set(error, ERROR_GENERIC, "Engine '%.*s' not found", shown(header->engine_length), header->engine);
    return 0;
}

static struct library *make(const struct header *header, struct blob *code, size_t header_bytes, struct error *error) {
    struct library *library = memory_calloc(1, sizeof *library + header->name_length + 1);
    if (!library) {
        error_set(error, ERROR_GENERIC, "no memory for a library");
        return NULL;
    }
    library->code = blob_retain(code);
    library->header_bytes = header_bytes;
    library->name_length = header->name_length;
    memcpy(library->name, header->name, header->name_length);
    return library;
}

struct library *library_new(struct blob *code, struct error *error) {
    const char *text = (const char *)code->data;
    const char *end = memchr(text, '\n', code->length);
    if (code->length < 2 || memcmp(text, "#!", 2) != 0) {
        error_set(error, ERROR_GENERIC, "Missing library metadata");
        return NULL;
    }
    size_t length = end ? (size_t)(end - text) : 0;
    char *line = end ? memory_alloc(length) : NULL;
    if (!line) {
        error_set(error, ERROR_GENERIC, end ? "no memory for a library" : "Invalid library metadata");
        return NULL;
    }
    memcpy(line, text, length);
    struct header header = {0};
    struct library *library = read_header(line, length, &header, error) ? NULL : make(&header, code, length, error);
    memory_free(line);
    return library;
}

void library_free(struct script_engine *engine, struct library *library) {
    if (!library) return;
    for (struct function *function = library->functions; function;) {
        struct function *next = function->next;
        if (engine->lua) luaL_unref(engine->lua, LUA_REGISTRYINDEX, function->reference);
        memory_free(function->description);
        memory_free(function);
        function = next;
    }
    blob_release(library->code);
    memory_free(library);
}

/* ---- redis.register_function ------------------------------------------------------------------------------------------- */

enum argument { FUNCTION_NAME = 1, CALLBACK, DESCRIPTION, ARGUMENTS = DESCRIPTION };

static bool has_function(const struct library *library, const char *name, size_t length) {
    const struct function *function = library->functions;
    for (; function; function = function->next)
        if (function->name_length == length && strncasecmp(function->name, name, length) == 0) return true;
    return false;
}

static char *copy_description(lua_State *lua, size_t *length) {
    const char *text = lua_tolstring(lua, DESCRIPTION, length);
    char *copy = memory_alloc(*length + 1);
    if (!copy) luaL_error(lua, "not enough memory");
    memcpy(copy, text, *length + 1);
    return copy;
}

/* It is the library's before anything that may raise an error: whatever happens then, it is freed with that. */
static void add_function(lua_State *lua, struct library *library, uint32_t flags) {
    size_t length;
    const char *name = lua_tolstring(lua, FUNCTION_NAME, &length);
    if (!is_name(name, length)) script_raise(lua, "ERR " NAME_RULE);
    if (has_function(library, name, length)) script_raise(lua, "ERR Function already exists in the library");
    struct function *function = memory_calloc(1, sizeof *function + length + 1);
    if (!function) luaL_error(lua, "not enough memory");
    function->library = library;
    function->flags = flags | SCRIPT_DECLARED;
    function->reference = LUA_NOREF;
    function->name_length = length;
    memcpy(function->name, name, length);
    *(library->last_function ? &library->last_function->next : &library->functions) = function;
    library->last_function = function;
    library->function_count++;
    if (!lua_isnil(lua, DESCRIPTION)) function->description = copy_description(lua, &function->description_length);
    lua_pushvalue(lua, CALLBACK);
    function->reference = luaL_ref(lua, LUA_REGISTRYINDEX);
}

static uint32_t flag_of(const char *word) {
    const struct script_flag *flag = script_flag_names;
    while (flag->name && strcasecmp(flag->name, word) != 0) flag++;
    return flag->flag;
}

/* Of the list on the top of the stack, up to its first gap. */
static uint32_t read_flags(lua_State *lua) {
    uint32_t flags = 0;
    for (int i = 1;; i++) {
        lua_rawgeti(lua, -1, i);
        if (lua_isnil(lua, -1)) break;
        uint32_t flag = lua_isstring(lua, -1) ? flag_of(lua_tostring(lua, -1)) : 0;
        if (flag == 0) script_raise(lua, "ERR unknown flag given");
        flags |= flag;
        lua_pop(lua, 1);
    }
    lua_pop(lua, 1);
    return flags;
}

/* The value on the top of the stack belongs to this name. Puts it where it is looked for; 0: it is flags, which are read. */
static int place_named(lua_State *lua, const char *name, uint32_t *flags) {
    if (strcasecmp(name, "function_name") == 0) {
        if (lua_isstring(lua, -1)) return FUNCTION_NAME;
        return script_raise(lua, "ERR function_name argument given to redis.register_function must be a string");
    }
    if (strcasecmp(name, "description") == 0) {
        if (lua_isstring(lua, -1)) return DESCRIPTION;
        return script_raise(lua, "ERR description argument given to redis.register_function must be a string");
    }
    if (strcasecmp(name, "callback") == 0) {
        if (lua_isfunction(lua, -1)) return CALLBACK;
        return script_raise(lua, "ERR callback argument given to redis.register_function must be a function");
    }
    if (strcasecmp(name, "flags") != 0)
        return script_raise(lua, "ERR unknown argument given to redis.register_function");
    if (!lua_istable(lua, -1))
        return script_raise(
            lua, "ERR flags argument to redis.register_function must be a table representing function flags");
    *flags = read_flags(lua);
    return 0;
}

/* {function_name = …, callback = …, …}: leaves name, callback and description on the stack, nil where there is none. */
static uint32_t read_named(lua_State *lua) {
    uint32_t flags = 0;
    if (!lua_istable(lua, 1))
        script_raise(lua, "ERR calling redis.register_function with a single argument is only applicable to Lua table "
                          "(representing named arguments).");
    for (int i = 0; i < ARGUMENTS; i++) {
        lua_pushnil(lua);
        lua_insert(lua, 1); /* below the table */
    }
    lua_pushnil(lua);
    while (lua_next(lua, ARGUMENTS + 1)) {
        if (!lua_isstring(lua, -2))
            script_raise(lua, "ERR named argument key given to redis.register_function is not a string");
        int place = place_named(lua, lua_type(lua, -2) == LUA_TSTRING ? lua_tostring(lua, -2) : "", &flags);
        if (place)
            lua_replace(lua, place);
        else
            lua_pop(lua, 1);
    }
    lua_settop(lua, ARGUMENTS);
    if (lua_isnil(lua, FUNCTION_NAME))
        script_raise(lua, "ERR redis.register_function must get a function name argument");
    if (lua_isnil(lua, CALLBACK)) script_raise(lua, "ERR redis.register_function must get a callback argument");
    return flags;
}

static int register_function(lua_State *lua) {
    struct library *library = script_of(lua)->loading;
    int count = lua_gettop(lua);
    uint32_t flags = 0;
    if (!library) return script_raise(lua, "ERR redis.register_function can only be called on FUNCTION LOAD command");
    if (count < 1 || count > 2) return script_raise(lua, "ERR wrong number of arguments to redis.register_function");
    if (count == 1) {
        flags = read_named(lua);
    } else {
        if (!lua_isstring(lua, FUNCTION_NAME))
            return script_raise(lua, "ERR first argument to redis.register_function must be a string");
        if (!lua_isfunction(lua, CALLBACK))
            return script_raise(lua, "ERR second argument to redis.register_function must be a function");
        lua_settop(lua, ARGUMENTS);
    }
    add_function(lua, library, flags);
    return 0;
}

void library_open_globals(lua_State *lua) {
    lua_newtable(lua);
    script_open_redis_for_library(lua, register_function);
    script_protect(lua);
    lua_setfield(lua, -2, "redis");
    script_refuse_unknown(lua);
    script_of(lua)->library_globals = luaL_ref(lua, LUA_REGISTRYINDEX);
}

/* ---- running the code --------------------------------------------------------------------------------------------------- */

bool library_is_late(const struct script_engine *engine) {
    return clock_monotonic_us() > engine->load_until_us || (engine->loader && exclusive_is_lost(engine->loader));
}

/* Allocates nothing of Lua's: "__index" is a name of its own, which stays. */
static void lead_globals_to(lua_State *lua, int reference) {
    lua_getmetatable(lua, LUA_GLOBALSINDEX);
    lua_pushliteral(lua, "__index");
    lua_rawgeti(lua, LUA_REGISTRYINDEX, reference);
    lua_rawset(lua, -3);
    lua_pop(lua, 1);
}

static const char *reason_of(lua_State *lua) {
    if (lua_istable(lua, -1)) {
        lua_pushliteral(lua, "err");
        lua_rawget(lua, -2);
    } else {
        lua_pushliteral(lua, "ERR ");
        lua_insert(lua, -2);
        if (lua_isstring(lua, -1)) lua_concat(lua, 2);
    }
    const char *reason = lua_tostring(lua, -1);
    return reason ? reason : "ERR unknown error";
}

static int run_protected(lua_State *lua) {
    struct error *error = lua_touserdata(lua, 1);
    struct script_engine *engine = script_of(lua);
    const struct library *library = engine->loading;
    const char *text = (const char *)library->code->data + library->header_bytes;
    lua_settop(lua, 0);
    if (script_load_chunk(lua, text, library->code->length - library->header_bytes, "@user_function"))
        error_set(error, ERROR_GENERIC, "Error compiling function: %s", lua_tostring(lua, -1));
    else if (lua_pcall(lua, 0, 0, 0))
        error_set(error, ERROR_GENERIC, "Error registering functions: %s", reason_of(lua));
    else if (library->function_count == 0)
        error_set(error, ERROR_GENERIC, "No functions registered");
    engine->load_until_us = UINT64_MAX; /* what remains is no longer its code */
    engine->loader = NULL;
    script_collect_garbage(lua, engine);
    return 0;
}

int library_run(struct script_engine *engine, struct library *library, struct client *loader, uint64_t limit_us,
                struct error *error) {
    lua_State *lua = engine->lua;
    *error = (struct error){.code = ERROR_NONE};
    engine->loading = library;
    engine->loader = loader;
    engine->load_until_us = clock_monotonic_us() + limit_us;
    engine->killed = false;
    lead_globals_to(lua, engine->library_globals);
    if (lua_cpcall(lua, run_protected, error) != 0 && error->code == ERROR_NONE)
        error_set(error, ERROR_GENERIC, "Error registering functions: ERR %s (CONFIG GET script-memory-limit)",
                  lua_tostring(lua, -1));
    lua_settop(lua, 0);
    lead_globals_to(lua, engine->globals);
    engine->loading = NULL;
    engine->loader = NULL;
    return error->code == ERROR_NONE ? 0 : -1;
}
