/* script_redis: what scripts find in the table `redis`: commands, replies, and facts. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/sha1.h"
#include "server/core/command_table.h"
#include "server/core/server.h"
#include "server/redis/acl/acl.h"
#include "server/redis/redis_subsystem.h"
#include "server/redis/script/script_engine.h"

#define REPL_AOF 1
#define REPL_REPLICA 2
#define REPL_ALL (REPL_AOF | REPL_REPLICA)

/* ---- commands ------------------------------------------------------------------------------------------- */

static bool make_argument_room(struct script_engine *engine, uint32_t argc) {
    if (argc <= engine->argv_capacity) return true;
    struct resp_argument *argv = memory_realloc(engine->argv, argc * sizeof *argv);
    if (!argv) return false;
    engine->argv = argv;
    engine->argv_capacity = argc;
    return true;
}

/* The arguments stay on Lua's stack during the call, so that their bytes stay where they are. NULL: all is well. */
static const char *take_arguments(lua_State *lua, struct script_engine *engine) {
    int argc = lua_gettop(lua);
    if (argc == 0) return "ERR Please specify at least one argument for this redis lib call";
    if (!make_argument_room(engine, (uint32_t)argc)) return "OOM no memory for the arguments of a call";
    for (int i = 1; i <= argc; i++) {
        if (lua_type(lua, i) == LUA_TNUMBER) {
            char text[64];
            int length = snprintf(text, sizeof text, "%.17g", lua_tonumber(lua, i));
            lua_pushlstring(lua, text, (size_t)length);
            lua_replace(lua, i);
        }
        if (lua_type(lua, i) != LUA_TSTRING) return "ERR Lua redis lib command arguments must be strings or integers";
        struct resp_argument *argument = &engine->argv[i - 1];
        *argument = (struct resp_argument){0};
        argument->data = (const uint8_t *)lua_tolstring(lua, i, &argument->length);
        if (argument->length > engine->server->limits.known.max_bulk_bytes)
            return "ERR an argument of a call is longer than proto-max-bulk-len";
    }
    engine->client->argc = (uint32_t)argc;
    engine->client->argv = engine->argv;
    return NULL;
}

/* Why a script may not call this; NULL: it may. */
static const char *refusal(const struct script_engine *engine, const struct command_entry *entry, uint32_t argc) {
    if (!entry || (entry->command->subcommands && argc > 1)) return "ERR Unknown Redis command called from script";
    const struct command *command = entry->command;
    if (!command_arity_holds(command, argc)) return "ERR Wrong number of args calling Redis command from script";
    bool debugs = engine->server->redis->scripts_may_debug && (command->flags & COMMAND_DEBUGS);
    if ((command->flags & (COMMAND_NOSCRIPT | COMMAND_NO_MULTI)) && !debugs)
        return "ERR This Redis command is not allowed from script";
    if (engine->read_only && (command->flags & (COMMAND_WRITE | COMMAND_MAY_REPLICATE)))
        return "ERR Write commands are not allowed from read-only scripts.";
    return NULL;
}

static void call_command(lua_State *lua, struct script_engine *engine, struct command_entry *entry) {
    struct client *client = engine->client;
    struct server *server = engine->server;
    client->entry = entry;
    client->command = entry->command;
    client->error_replied = false;
    output_clear(&client->output, &server->output_pool); /* memory ran out over the reply before, and this was caught */
    /* What has begun to write ends it, rather than half of it. */
    client->goes_on_over_memory = engine->wrote || (engine->call.flags & SCRIPT_ALLOW_OOM);
    client->goes_on_unwritten = engine->wrote;
    enum acl_verdict denial = acl_denial(client, entry);
    if (denial != ACL_ALLOWED) {
        reply_error(client, "ERR The user executing the script %s", acl_verdict_sentence(denial));
    } else if (command_admit(client, entry)) {
        if (entry->command->flags & COMMAND_WRITE) engine->wrote = true;
        command_call(client, entry);
        client_command_done(client);
    } else {
        entry->stats.rejected++;
        server_tick(server);
    }
    client->argc = 0;
    client->argv = NULL;
    lua_settop(lua, 0);
    script_take_reply(lua, engine);
}

/* Leaves the reply on the stack, errors as {err = …}. */
static void call(lua_State *lua) {
    struct script_engine *engine = script_of(lua);
    const char *wrong = take_arguments(lua, engine);
    struct client *client = engine->client;
    struct command_entry *entry = NULL;
    bool refused = false;
    if (!wrong) {
        entry = command_table_find_request(engine->server->commands, client->argc, client->argv);
        wrong = refusal(engine, entry, client->argc);
        refused = wrong != NULL;
    }
    if (!wrong) {
        call_command(lua, engine, entry);
    } else if (refused) {
        if (entry && !entry->command->subcommands) entry->stats.rejected++;
        reply_count_error(engine->server, wrong, strlen(wrong));
        script_push_command_error(lua, wrong);
    } else {
        script_push_error(lua, wrong);
    }
}

static bool is_error(lua_State *lua) {
    if (!lua_istable(lua, -1)) return false;
    lua_getfield(lua, -1, "err");
    bool has = lua_isstring(lua, -1);
    lua_pop(lua, 1);
    return has;
}

static int redis_call(lua_State *lua) {
    call(lua);
    if (is_error(lua)) return lua_error(lua);
    script_rest(lua);
    return 1;
}

static int redis_pcall(lua_State *lua) {
    call(lua);
    script_rest(lua);
    return 1;
}

/* ---- replies --------------------------------------------------------------------------------------------- */

static int one_field(lua_State *lua, const char *name) {
    lua_createtable(lua, 0, 1);
    lua_insert(lua, -2);
    lua_setfield(lua, -2, name);
    return 1;
}

static int wrong_arguments(lua_State *lua) {
    lua_pushliteral(lua, "ERR wrong number or type of arguments");
    return one_field(lua, "err");
}

static int redis_status_reply(lua_State *lua) {
    if (lua_gettop(lua) != 1 || lua_type(lua, 1) != LUA_TSTRING) return wrong_arguments(lua);
    return one_field(lua, "ok");
}

/* A text without a blank is no code and reason yet. */
static int redis_error_reply(lua_State *lua) {
    if (lua_gettop(lua) != 1 || lua_type(lua, 1) != LUA_TSTRING) return wrong_arguments(lua);
    const char *text = lua_tostring(lua, 1);
    if (*text == '-') text++;
    if (strchr(text, ' '))
        lua_pushstring(lua, text);
    else
        lua_pushfstring(lua, "ERR %s", text);
    return one_field(lua, "err");
}

static int redis_setresp(lua_State *lua) {
    if (lua_gettop(lua) != 1) return script_raise(lua, "ERR redis.setresp() requires one argument.");
    double version = lua_tonumber(lua, 1);
    if (version != 2 && version != 3) return script_raise(lua, "ERR RESP version must be 2 or 3.");
    script_of(lua)->client->resp = (int)version;
    return 0;
}

/* ---- the rest -------------------------------------------------------------------------------------------- */

static int redis_sha1hex(lua_State *lua) {
    if (lua_gettop(lua) != 1) return script_raise(lua, "ERR wrong number of arguments");
    size_t length;
    const char *text = lua_tolstring(lua, 1, &length);
    char hex[SHA1_HEX_BYTES];
    sha1_hex(text ? text : "", text ? length : 0, hex);
    lua_pushstring(lua, hex);
    return 1;
}

/* Checked as in Redis, and kept nowhere: this server writes no log file. */
static int redis_log(lua_State *lua) {
    if (lua_gettop(lua) < 2) return script_raise(lua, "ERR redis.log() requires two arguments or more.");
    if (!lua_isnumber(lua, 1)) return script_raise(lua, "ERR First argument must be a number (log level).");
    double level = lua_tonumber(lua, 1);
    if (level < 0 || level > 3) return script_raise(lua, "ERR Invalid debug level.");
    return 0;
}

static int redis_set_repl(lua_State *lua) {
    if (lua_gettop(lua) != 1) return script_raise(lua, "ERR redis.set_repl() requires two arguments.");
    double flags = lua_tonumber(lua, 1);
    if (flags < 0 || flags > REPL_ALL || flags != floor(flags))
        return script_raise(lua, "ERR Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or "
                                 "REPL_NONE.");
    return 0;
}

static int answer_true(lua_State *lua) {
    lua_pushboolean(lua, 1);
    return 1;
}

static int answer_false(lua_State *lua) {
    lua_pushboolean(lua, 0);
    return 1;
}

static int answer_nothing(lua_State *lua) {
    (void)lua;
    return 0;
}

static int redis_acl_check_cmd(lua_State *lua) {
    struct script_engine *engine = script_of(lua);
    if (lua_gettop(lua) == 0)
        return script_raise(lua, "ERR Please specify at least one argument for this redis lib call");
    if (take_arguments(lua, engine))
        return script_raise(lua, "ERR redis.acl_check_cmd() command arguments must be strings or integers");
    struct client *client = engine->client;
    const struct command_entry *entry =
        command_table_find_request(engine->server->commands, client->argc, client->argv);
    if (!entry) return script_raise(lua, "ERR Invalid command passed to redis.acl_check_cmd()");
    const struct acl *acl = engine->server->redis->acl;
    const struct acl_item *item = acl_commands_of_request(acl->commands, entry, client->argc, client->argv);
    uint32_t at;
    bool allowed = !client->user || acl_check(acl, client->user, item, client->argc, client->argv, &at) == ACL_ALLOWED;
    lua_pushboolean(lua, allowed);
    return 1;
}

static const luaL_Reg functions[] = {
    {"call", redis_call},
    {"pcall", redis_pcall},
    {"status_reply", redis_status_reply},
    {"error_reply", redis_error_reply},
    {"setresp", redis_setresp},
    {"sha1hex", redis_sha1hex},
    {"log", redis_log},
    {"set_repl", redis_set_repl},
    {"acl_check_cmd", redis_acl_check_cmd},
    {NULL, NULL},
};

/* Functions have none of these. */
static const luaL_Reg functions_of_scripts[] = {
    {"replicate_commands", answer_true},
    {"breakpoint", answer_false},
    {"debug", answer_nothing},
    {NULL, NULL},
};

struct number {
    const char *name;
    int value;
};

static const struct number levels[] = {
    {"LOG_DEBUG", 0}, {"LOG_VERBOSE", 1}, {"LOG_NOTICE", 2}, {"LOG_WARNING", 3}, {0}};
static const struct number replication[] = {{"REPL_NONE", 0},
                                            {"REPL_AOF", REPL_AOF},
                                            {"REPL_SLAVE", REPL_REPLICA},
                                            {"REPL_REPLICA", REPL_REPLICA},
                                            {"REPL_ALL", REPL_ALL},
                                            {0}};

static void add_numbers(lua_State *lua, const struct number *number) {
    for (; number->name; number++) {
        lua_pushinteger(lua, number->value);
        lua_setfield(lua, -2, number->name);
    }
}

static void add_version(lua_State *lua) {
    int major = 0, minor = 0, patch = 0;
    sscanf(SERVER_REDIS_VERSION, "%d.%d.%d", &major, &minor, &patch);
    lua_pushliteral(lua, SERVER_REDIS_VERSION);
    lua_setfield(lua, -2, "REDIS_VERSION");
    lua_pushinteger(lua, major << 16 | minor << 8 | patch);
    lua_setfield(lua, -2, "REDIS_VERSION_NUM");
}

void script_open_redis(lua_State *lua) {
    lua_newtable(lua);
    luaL_register(lua, NULL, functions);
    if (!script_of(lua)->has_functions) luaL_register(lua, NULL, functions_of_scripts);
    add_numbers(lua, levels);
    add_numbers(lua, replication);
    add_version(lua);
}

void script_open_redis_for_library(lua_State *lua, lua_CFunction add) {
    lua_newtable(lua);
    lua_pushcfunction(lua, add);
    lua_setfield(lua, -2, "register_function");
    lua_pushcfunction(lua, redis_log);
    lua_setfield(lua, -2, "log");
    add_numbers(lua, levels);
    add_version(lua);
    script_refuse_unknown(lua);
}
