/* cmd_script: EVAL and its like, the cache of scripts, and SCRIPT. */
#include <ctype.h>
#include <string.h>

#include "base/list.h"
#include "base/memory.h"
#include "server/core/command_table.h"
#include "server/core/exclusive.h"
#include "server/core/make_room.h"
#include "server/core/propagate.h"
#include "server/core/server.h"
#include "server/core/upcalls.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/redis_part.h"
#include "server/redis/redis_rows.h"
#include "server/redis/script/script_engine.h"
#include "server/redis/script/scripts.h"

#ifdef REPLAY_LUA

#define SHA_BYTES (SHA1_HEX_BYTES - 1)
/* With more than this behind it, or a quarter of what it may have, a script collects its garbage. */
#define COLLECT_BYTES (16u << 20)
#define COLLECT_STEP 100

/* ---- the cache ---------------------------------------------------------------------------------------------- */

static struct scripts *scripts_get(struct server *server) {
    struct scripts *scripts = server->redis->scripts;
    if (!scripts) {
        scripts = memory_calloc(1, sizeof *scripts);
        if (!scripts) return NULL;
        scripts->server = server;
        script_seed_first(scripts);
        scripts->client = client_new_own(server);
        if (!scripts->client) {
            memory_free(scripts);
            return NULL;
        }
        server->redis->scripts = scripts;
    }
    return scripts->lua || script_state_open(scripts) ? scripts : NULL;
}

static void drop_script(void *context, void *value) {
    (void)context;
    memory_free(value);
}

static void forget_all(struct scripts *scripts) {
    size_t steps = SIZE_MAX;
    dict_release(&scripts->cache, &steps, drop_script, NULL);
    scripts->oldest = scripts->newest = NULL;
    scripts->evaluated = 0;
    script_state_close(scripts);
}

void scripts_free(struct server *server) {
    struct scripts *scripts = server->redis->scripts;
    if (!scripts) return;
    forget_all(scripts);
    client_free_own(scripts->client);
    memory_free(scripts->argv);
    memory_free(scripts->flat);
    memory_free(scripts);
    server->redis->scripts = NULL;
}

size_t scripts_memory_bytes(const struct server *server) {
    return server->redis->scripts ? server->redis->scripts->memory_bytes : 0;
}

size_t scripts_cache_bytes(const struct server *server) {
    if (!server->redis->scripts) return 0;
    const struct dict *cache = &server->redis->scripts->cache;
    return dict_overhead_bytes(cache) +
           dict_count(cache) * (sizeof(struct dict_entry) + SHA_BYTES + sizeof(struct script));
}

uint32_t scripts_count(const struct server *server) {
    return server->redis->scripts ? (uint32_t)dict_count(&server->redis->scripts->cache) : 0;
}

static struct script *find_script(struct scripts *scripts, const void *sha, size_t length) {
    char lower[SHA1_HEX_BYTES];
    if (length != SHA_BYTES) return NULL;
    for (size_t i = 0; i < SHA_BYTES; i++) lower[i] = (char)tolower(((const uint8_t *)sha)[i]);
    const struct dict_entry *entry = dict_find(&scripts->cache, dict_hash(lower, SHA_BYTES), lower, SHA_BYTES);
    return entry ? entry->value : NULL;
}

static void leave_list(struct scripts *scripts, struct script *script) {
    if (script->loaded) return;
    LIST_REMOVE(scripts->oldest, scripts->newest, script, next, previous);
    scripts->evaluated--;
}

static void enter_list(struct scripts *scripts, struct script *script) {
    if (script->loaded) return;
    LIST_APPEND(scripts->oldest, scripts->newest, script, next, previous);
    scripts->evaluated++;
}

static void forget_oldest(struct scripts *scripts) {
    struct script *script = scripts->oldest;
    leave_list(scripts, script);
    luaL_unref(scripts->lua, LUA_REGISTRYINDEX, script->reference);
    struct dict_entry *entry = dict_find(&scripts->cache, dict_hash(script->sha, SHA_BYTES), script->sha, SHA_BYTES);
    dict_unlink(&scripts->cache, entry);
    dict_entry_free(entry);
    memory_free(script);
}

/* ---- compiling ----------------------------------------------------------------------------------------------- */

static int compile(lua_State *lua) {
    struct script_source *source = lua_touserdata(lua, 1);
    if (luaL_loadbuffer(lua, source->text, source->length, "@user_script")) return lua_error(lua);
    source->reference = luaL_ref(lua, LUA_REGISTRYINDEX);
    return 0;
}

static struct script *remember(struct scripts *scripts, const char *sha, int reference, uint32_t flags, bool loaded) {
    struct script *script = memory_calloc(1, sizeof *script);
    struct dict_entry *entry = script ? dict_add(&scripts->cache, dict_hash(sha, SHA_BYTES), sha, SHA_BYTES) : NULL;
    if (!entry) {
        memory_free(script);
        return NULL;
    }
    *script = (struct script){.flags = flags, .reference = reference, .loaded = loaded};
    memcpy(script->sha, sha, SHA1_HEX_BYTES);
    entry->value = script;
    enter_list(scripts, script);
    return script;
}

/* Finds the script in the cache, or compiles it. NULL: the error is replied. */
static struct script *get_script(struct client *client, struct scripts *scripts, const struct resp_argument *body,
                                 bool loaded) {
    char sha[SHA1_HEX_BYTES];
    sha1_hex(body->data, body->length, sha);
    struct script *script = find_script(scripts, sha, SHA_BYTES);
    if (script) {
        leave_list(scripts, script);
        script->loaded |= loaded;
        enter_list(scripts, script);
        return script;
    }
    struct script_source source = {.text = (const char *)body->data, .length = body->length};
    uint32_t flags = 0;
    struct error error;
    if (script_take_header(&source, &flags, &error) < 0) {
        reply_failure(client, &error);
        return NULL;
    }
    if (lua_cpcall(scripts->lua, compile, &source) != 0) {
        const char *reason = lua_tostring(scripts->lua, -1);
        reply_error(client, "ERR Error compiling script (new function): %s", reason ? reason : "?");
        lua_settop(scripts->lua, 0);
        return NULL;
    }
    if (scripts->evaluated >= LIMIT_SCRIPTS_EVALUATED) forget_oldest(scripts);
    script = remember(scripts, sha, source.reference, flags, loaded);
    if (!script) {
        luaL_unref(scripts->lua, LUA_REGISTRYINDEX, source.reference);
        reply_out_of_memory(client);
    }
    return script;
}

/* ---- running -------------------------------------------------------------------------------------------------- */

static void push_arguments(lua_State *lua, const struct client *client, uint32_t from, uint32_t to) {
    struct scripts *scripts = script_of(lua);
    lua_createtable(lua, (int)(to - from), 0);
    for (uint32_t i = from; i < to; i++) {
        script_work_outside(scripts, client->argv[i].length);
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

/* Makes {err, source, line} of whatever was raised: in a table of its own, since the script may have raised anything. */
static int describe_error(lua_State *lua) {
    lua_createtable(lua, 0, 3);
    lua_insert(lua, 1);
    if (lua_istable(lua, 2)) {
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

static void send_error(lua_State *lua, struct scripts *scripts) {
    struct client *client = scripts->caller;
    scripts->replying = true;
    if (!lua_istable(lua, -1)) {
        const char *text = lua_tostring(lua, -1);
        reply_error(client, "ERR %s (CONFIG GET script-memory-limit) script: %s", text ? text : "error",
                    scripts->script->sha);
        return;
    }
    static const char *const fields[] = {"err", "source", "line"};
    int table = lua_gettop(lua);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        lua_pushstring(lua, fields[i]);
        lua_rawget(lua, table); /* no function of the script's runs here */
    }
    const char *text = lua_tostring(lua, table + 1), *source = lua_tostring(lua, table + 2);
    if (!text) text = "ERR unknown error";
    if (source && lua_isnumber(lua, table + 3))
        reply_error(client, "%s script: %s, on %s:%d.", text, scripts->script->sha, source,
                    (int)lua_tointeger(lua, table + 3));
    else
        reply_error(client, "%s script: %s", text, scripts->script->sha);
}

static void collect_garbage(lua_State *lua, struct scripts *scripts) {
    lua_settop(lua, 0);
    script_buffer_trim(lua);
    lua_gc(lua, LUA_GCRESTART, 0);
    size_t most = (size_t)scripts->server->config.script_memory_limit_bytes / 4;
    if (most > COLLECT_BYTES) most = COLLECT_BYTES;
    for (int round = 0; round < 2; round++) /* the first may have begun when what is garbage now was not */
        while (scripts->memory_bytes > most && !lua_gc(lua, LUA_GCSTEP, COLLECT_STEP)) exclusive_rest(scripts->server);
}

static int collect_protected(lua_State *lua) {
    collect_garbage(lua, lua_touserdata(lua, 1));
    return 0;
}

static int run_protected(lua_State *lua) {
    struct scripts *scripts = lua_touserdata(lua, 1);
    const struct client *caller = scripts->caller;
    lua_getfield(lua, LUA_REGISTRYINDEX, "globals");
    push_arguments(lua, caller, 3, 3 + scripts->key_count);
    lua_setfield(lua, -2, "KEYS");
    push_arguments(lua, caller, 3 + scripts->key_count, caller->argc);
    lua_setfield(lua, -2, "ARGV");
    lua_settop(lua, 0);
    lua_pushcfunction(lua, describe_error);
    lua_rawgeti(lua, LUA_REGISTRYINDEX, scripts->script->reference);
    if (lua_pcall(lua, 0, 1, 1) == 0)
        script_send_reply(lua, scripts);
    else
        send_error(lua, scripts);
    collect_garbage(lua, scripts);
    return 0;
}

/* Memory ran out outside of the script's own code. */
static void send_failure(struct scripts *scripts) {
    const char *text = lua_tostring(scripts->lua, -1);
    if (scripts->replying)
        client_close(scripts->caller); /* half a reply would put it out of step */
    else
        reply_error(scripts->caller, "ERR %s (CONFIG GET script-memory-limit)", text ? text : "not enough memory");
}

static void run_script(struct client *caller) {
    struct server *server = caller->server;
    struct scripts *scripts = server->redis->scripts;
    struct client *client = scripts->client;
    scripts->caller = caller;
    scripts->wrote = scripts->killed = scripts->replying = false;
    client->database = caller->database;
    client->user = caller->user;
    client->resp = 2;
    client->slot = -1;
    client->crosses_slots =
        !(scripts->script->flags & SCRIPT_DECLARED) || (scripts->script->flags & SCRIPT_CROSS_SLOTS);
    propagate_begin(server);
    if (lua_cpcall(scripts->lua, run_protected, scripts) != 0) {
        send_failure(scripts);
        lua_cpcall(scripts->lua, collect_protected, scripts);
    }
    propagate_end(server);
    lua_settop(scripts->lua, 0);
    output_clear(&client->output, &server->output_pool);
    memory_free(scripts->flat);
    scripts->flat = NULL;
    client->user = NULL;
    scripts->caller = NULL;
    scripts->script = NULL;
}

static uint32_t eval_flags(const struct client *client) {
    struct script_source source = {.text = (const char *)client->argv[1].data, .length = client->argv[1].length};
    uint32_t flags = 0;
    struct error error;
    if (script_take_header(&source, &flags, &error) < 0) flags = 0; /* it will be refused */
    return script_own_flags(client->command->flags, flags);
}

static uint32_t evalsha_flags(const struct client *client) {
    struct scripts *scripts = client->server->redis->scripts;
    const struct script *script = scripts ? find_script(scripts, client->argv[1].data, client->argv[1].length) : NULL;
    return script_own_flags(client->command->flags, script ? script->flags : 0);
}

static void start(struct client *client, struct scripts *scripts, struct script *script, int64_t keys, bool read_only) {
    if (read_only && (script->flags & SCRIPT_DECLARED) && !(script->flags & SCRIPT_NO_WRITES)) {
        reply_error(client, "ERR Can not execute a script with write flag using *_ro command.");
        return;
    }
    const struct server *server = client->server;
    if (server->config.cluster_enabled && (script->flags & SCRIPT_NO_CLUSTER)) {
        reply_error(client, "ERR Can not run script on cluster, 'no-cluster' flag is set.");
        return;
    }
    /* In a transaction: a script that runs by itself was refused before. */
    if ((script_own_flags(client->command->flags, script->flags) & COMMAND_DENYOOM) && server->config.maxmemory > 0 &&
        server->room.last == ROOM_NONE) {
        reply_error(client,
                    "OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'");
        return;
    }
    scripts->script = script;
    scripts->key_count = (uint32_t)keys;
    scripts->read_only = read_only || (script->flags & SCRIPT_NO_WRITES);
    exclusive_run(client, run_script);
}

/* ---- the commands --------------------------------------------------------------------------------------------- */

static bool take_key_count(struct client *client, int64_t *keys) {
    if (!integer_argument(client, 2, keys)) return false;
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

static void evaluate(struct client *client, bool read_only) {
    int64_t keys;
    upcalls.monitor_feed_script(client);
    if (!take_key_count(client, &keys)) return;
    struct scripts *scripts = scripts_get(client->server);
    if (!scripts) {
        reply_out_of_memory(client);
        return;
    }
    struct script *script = get_script(client, scripts, &client->argv[1], false);
    if (script) start(client, scripts, script, keys, read_only);
}

static void evaluate_sha(struct client *client, bool read_only) {
    struct scripts *scripts = client->server->redis->scripts;
    int64_t keys;
    upcalls.monitor_feed_script(client);
    struct script *script =
        scripts && scripts->lua ? find_script(scripts, client->argv[1].data, client->argv[1].length) : NULL;
    if (client->argv[1].length == SHA_BYTES && !take_key_count(client, &keys)) return;
    if (!script)
        reply_error(client, "NOSCRIPT No matching script. Please use EVAL.");
    else
        start(client, scripts, script, keys, read_only);
}

static void eval_command(struct client *client) {
    evaluate(client, false);
}

static void eval_ro_command(struct client *client) {
    evaluate(client, true);
}

static void evalsha_command(struct client *client) {
    evaluate_sha(client, false);
}

static void evalsha_ro_command(struct client *client) {
    evaluate_sha(client, true);
}

static void script_load(struct client *client) {
    struct scripts *scripts = scripts_get(client->server);
    if (!scripts) {
        reply_out_of_memory(client);
        return;
    }
    const struct script *script = get_script(client, scripts, &client->argv[2], true);
    if (script) reply_bulk(client, script->sha, SHA_BYTES);
}

static void script_exists(struct client *client) {
    struct scripts *scripts = client->server->redis->scripts;
    reply_array(client, client->argc - 2);
    for (uint32_t i = 2; i < client->argc; i++)
        reply_integer(client, scripts && find_script(scripts, client->argv[i].data, client->argv[i].length) ? 1 : 0);
}

static void script_flush(struct client *client) {
    bool known = client->argc == 3 && (argument_is(&client->argv[2], "sync") || argument_is(&client->argv[2], "async"));
    if (client->argc > 2 && !known) {
        reply_error(client, "ERR SCRIPT FLUSH only support SYNC|ASYNC option");
        return;
    }
    if (client->server->redis->scripts) forget_all(client->server->redis->scripts);
    reply_status(client, "OK");
}

static void script_kill(struct client *client) {
    struct scripts *scripts = client->server->redis->scripts;
    if (!scripts || !scripts->caller) {
        reply_error(client, "NOTBUSY No scripts in execution right now.");
    } else if (scripts->wrote) {
        reply_error(client,
                    "UNKILLABLE Sorry the script already executed write commands against the dataset. You can either "
                    "wait the script termination or kill the server in a hard way using the SHUTDOWN NOSAVE command.");
    } else {
        scripts->killed = true;
        reply_status(client, "OK");
    }
}

#else /* no Lua */

void scripts_free(struct server *server) {
    (void)server;
}

size_t scripts_memory_bytes(const struct server *server) {
    (void)server;
    return 0;
}

size_t scripts_cache_bytes(const struct server *server) {
    (void)server;
    return 0;
}

uint32_t scripts_count(const struct server *server) {
    (void)server;
    return 0;
}

static void refuse_scripts(struct client *client) {
    reply_error(client, "ERR this server was built without Lua: install liblua5.1-0-dev and build it again");
}

#define eval_command refuse_scripts
#define eval_ro_command refuse_scripts
#define evalsha_command refuse_scripts
#define evalsha_ro_command refuse_scripts
#define script_load refuse_scripts
#define script_exists refuse_scripts
#define script_flush refuse_scripts
#define script_kill refuse_scripts
#define eval_flags NULL
#define evalsha_flags NULL

#endif

static void script_debug(struct client *client) {
    if (argument_is(&client->argv[2], "no"))
        reply_status(client, "OK");
    else
        reply_error(client, "ERR this server has no debugger of scripts");
}

static void script_help(struct client *client) {
    static const char *const lines[] = {
        "SCRIPT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "DEBUG NO",
        "    There is no debugger: YES and SYNC are refused.",
        "EXISTS <sha1> [<sha1> ...]",
        "    Tell which of these scripts are in the cache.",
        "FLUSH [ASYNC|SYNC]",
        "    Empty the cache of scripts.",
        "KILL",
        "    End the script that runs, if it has not written yet.",
        "LOAD <script>",
        "    Put a script into the cache without running it.",
        "HELP",
        "    Print this help.",
        NULL,
    };
    reply_help(client, lines);
}

#define RUN (COMMAND_NOSCRIPT | COMMAND_STALE | COMMAND_SKIP_MONITOR | COMMAND_NO_MANDATORY_KEYS | COMMAND_MOVABLEKEYS)

static const struct command subcommands[] = {
    {"script|debug", script_debug, 3, COMMAND_NOSCRIPT, &group_scripting, "Refused, but for NO: there is no debugger.",
     "3.2.0"},
    {"script|exists", script_exists, -3, COMMAND_NOSCRIPT, &group_scripting, "Tells which scripts are in the cache.",
     "2.6.0", .tips = "request_policy:all_shards\nresponse_policy:agg_logical_and"},
    {"script|flush", script_flush, -2, COMMAND_NOSCRIPT, &group_scripting, "Empties the cache of scripts.", "2.6.0",
     .tips = "request_policy:all_nodes\nresponse_policy:all_succeeded"},
    {"script|help", script_help, 2, COMMAND_LOADING | COMMAND_STALE, &group_scripting, "Lists the subcommands.",
     "5.0.0"},
    {"script|kill", script_kill, 2, COMMAND_NOSCRIPT | COMMAND_ALLOW_BUSY, &group_scripting,
     "Ends the script that runs.", "2.6.0", .tips = "request_policy:all_shards\nresponse_policy:one_succeeded"},
    {"script|load", script_load, 3, COMMAND_NOSCRIPT | COMMAND_STALE, &group_scripting, "Puts a script into the cache.",
     "2.6.0", .tips = "request_policy:all_nodes\nresponse_policy:all_succeeded"},
    {0},
};

const struct command commands_scripts[] = {
    {"eval", eval_command, -3, RUN | COMMAND_MAY_REPLICATE, &group_scripting, "Runs a script.", "2.6.0",
     .keys = script_keys_changed, .flags_of = eval_flags},
    {"eval_ro", eval_ro_command, -3, RUN | COMMAND_READONLY, &group_scripting, "Runs a script that may not write.",
     "7.0.0", .keys = script_keys_read, .flags_of = eval_flags},
    {"evalsha", evalsha_command, -3, RUN | COMMAND_MAY_REPLICATE, &group_scripting, "Runs a script of the cache.",
     "2.6.0", .keys = script_keys_changed, .flags_of = evalsha_flags},
    {"evalsha_ro", evalsha_ro_command, -3, RUN | COMMAND_READONLY, &group_scripting,
     "Runs a script of the cache that may not write.", "7.0.0", .keys = script_keys_read, .flags_of = evalsha_flags},
    {"script", command_container, -2, 0, &group_scripting, "Keeps the cache of scripts.", "2.6.0",
     .subcommands = subcommands},
    {0},
};
