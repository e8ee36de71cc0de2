/* cmd_script: EVAL and its like, the cache of scripts, and SCRIPT. */
#include <ctype.h>
#include <string.h>

#include "base/list.h"
#include "base/memory.h"
#include "base/sha1.h"
#include "server/core/command_table.h"
#include "server/core/server.h"
#include "server/core/upcalls.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/redis_rows.h"
#include "server/redis/redis_subsystem.h"
#include "server/redis/script/scripts.h"
#include "store/dict.h"

#ifdef REPLAY_LUA

#include "server/redis/script/script_engine.h"

#define SHA_BYTES (SHA1_HEX_BYTES - 1)

/* A compiled script, known by its SHA1. */
struct script {
    char sha[SHA1_HEX_BYTES];
    uint32_t flags;
    int reference; /* of its function, in Lua's registry */
    bool loaded; /* by SCRIPT LOAD: stays until SCRIPT FLUSH */
    struct script *next, *previous; /* of those that only EVAL has seen, the oldest first */
};

struct scripts {
    struct script_engine engine;
    struct dict cache; /* of struct script */
    struct script *oldest, *newest;
    uint32_t evaluated; /* scripts on that list */
};

/* ---- the cache ---------------------------------------------------------------------------------------------- */

static struct scripts *scripts_get(struct server *server) {
    struct scripts *scripts = server->redis->scripts;
    if (!scripts) scripts = server->redis->scripts = memory_calloc(1, sizeof *scripts);
    return scripts && script_engine_open(&scripts->engine, server) ? scripts : NULL;
}

static void drop_script(void *context, void *value) {
    (void)context;
    memory_free(value);
}

static void forget_all(struct scripts *scripts) {
    dict_clear(&scripts->cache, drop_script, NULL);
    scripts->oldest = scripts->newest = NULL;
    scripts->evaluated = 0;
    script_state_close(&scripts->engine);
}

void scripts_free(struct server *server) {
    struct scripts *scripts = server->redis->scripts;
    if (!scripts) return;
    forget_all(scripts);
    script_engine_free(&scripts->engine);
    memory_free(scripts);
    server->redis->scripts = NULL;
}

size_t scripts_memory_bytes(const struct server *server) {
    return server->redis->scripts ? server->redis->scripts->engine.memory_bytes : 0;
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
    luaL_unref(scripts->engine.lua, LUA_REGISTRYINDEX, script->reference);
    struct dict_entry *entry = dict_find(&scripts->cache, dict_hash(script->sha, SHA_BYTES), script->sha, SHA_BYTES);
    dict_unlink(&scripts->cache, entry);
    dict_entry_free(entry);
    memory_free(script);
}

/* ---- compiling ----------------------------------------------------------------------------------------------- */

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
    struct script_source source = {.text = (const char *)body->data, .length = body->length, .name = "@user_script"};
    uint32_t flags = 0;
    struct error error;
    if (script_take_header(&source, &flags, &error) < 0) {
        reply_failure(client, &error);
        return NULL;
    }
    if (!script_compile(&scripts->engine, &source)) {
        const char *reason = lua_tostring(scripts->engine.lua, -1);
        reply_error(client, "ERR Error compiling script (new function): %s", reason ? reason : "?");
        lua_settop(scripts->engine.lua, 0);
        return NULL;
    }
    if (scripts->evaluated >= LIMIT_SCRIPTS_EVALUATED) forget_oldest(scripts);
    script = remember(scripts, sha, source.reference, flags, loaded);
    if (!script) {
        luaL_unref(scripts->engine.lua, LUA_REGISTRYINDEX, source.reference);
        reply_out_of_memory(client);
    }
    return script;
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

/* ---- the commands --------------------------------------------------------------------------------------------- */

static void start(struct client *client, struct scripts *scripts, const struct script *script, int64_t keys,
                  bool read_only) {
    const struct script_call call = {
        .name = script->sha, .flags = script->flags, .reference = script->reference, .key_count = (uint32_t)keys};
    script_start(client, &scripts->engine, &call, read_only);
}

static bool take_key_count(struct client *client, int64_t *keys) {
    return integer_argument(client, 2, keys) && script_take_key_count(client, keys);
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
        scripts && scripts->engine.lua ? find_script(scripts, client->argv[1].data, client->argv[1].length) : NULL;
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

static void script_kill_command(struct client *client) {
    script_kill(client, false);
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
#define script_kill_command refuse_scripts
#define eval_flags NULL
#define evalsha_flags NULL

#endif

static void script_debug(struct client *client) {
    if (argument_is(&client->argv[2], "no"))
        reply_status(client, "OK");
    else
        reply_error(client, "ERR this server has no debugger of scripts");
}

#define RUN (COMMAND_NOSCRIPT | COMMAND_STALE | COMMAND_SKIP_MONITOR | COMMAND_NO_MANDATORY_KEYS | COMMAND_MOVABLEKEYS)

static const struct command subcommands[] = {
    {"script|debug", script_debug, 3, COMMAND_NOSCRIPT, &group_scripting, "Refused, but for NO: there is no debugger.",
     "3.2.0", .usage = "NO"},
    {"script|exists", script_exists, -3, COMMAND_NOSCRIPT, &group_scripting, "Tells which scripts are in the cache.",
     "2.6.0", .tips = "request_policy:all_shards\nresponse_policy:agg_logical_and", .usage = "<sha1> [<sha1> ...]"},
    {"script|flush", script_flush, -2, COMMAND_NOSCRIPT, &group_scripting, "Empties the cache of scripts.", "2.6.0",
     .tips = "request_policy:all_nodes\nresponse_policy:all_succeeded", .usage = "[ASYNC|SYNC]"},
    {"script|help", reply_help, 2, COMMAND_LOADING | COMMAND_STALE, &group_scripting, "Lists the subcommands.",
     "5.0.0"},
    {"script|kill", script_kill_command, 2, COMMAND_NOSCRIPT | COMMAND_ALLOW_BUSY, &group_scripting,
     "Ends the script that runs.", "2.6.0", .tips = "request_policy:all_shards\nresponse_policy:one_succeeded"},
    {"script|load", script_load, 3, COMMAND_NOSCRIPT | COMMAND_STALE, &group_scripting, "Puts a script into the cache.",
     "2.6.0", .tips = "request_policy:all_nodes\nresponse_policy:all_succeeded", .usage = "<script>"},
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
