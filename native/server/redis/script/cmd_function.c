/* cmd_function: FUNCTION, FCALL and FCALL_RO. Error texts and the order of checks follow Redis 7.0.
 *
 * A library is run when it is loaded, in slices in which nothing of another client is run. The libraries change in the last
 * of these alone, and all at once: until then a new one is nobody's but the engine's (`loading`) or stands in a set of its
 * own (`staged`), from which it is freed whatever becomes of the command. */
#include <string.h>
#include <strings.h>

#include "base/memory.h"
#include "persist/rdb_format.h"
#include "persist/rdb_payload.h"
#include "server/core/command_table.h"
#include "server/core/exclusive_execution.h"
#include "server/core/server.h"
#include "server/core/upcalls.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/redis_rows.h"
#include "server/redis/redis_subsystem.h"
#include "server/redis/script/functions.h"
#include "store/glob.h"
#include "store/store.h"

#ifdef REPLAY_LUA

#include "server/redis/script/library.h"

struct functions {
    struct script_engine engine;
    struct library_set set, staged;
};

/* NULL: memory is exhausted. */
static struct functions *functions_get(struct server *server) {
    struct functions *functions = server->redis->functions;
    if (!functions) functions = server->redis->functions = memory_calloc(1, sizeof *functions);
    if (!functions) return NULL;
    functions->engine.has_functions = true;
    return script_engine_open(&functions->engine, server) ? functions : NULL;
}

static void drop(struct functions *functions, struct library_set *set, struct library *library) {
    library_set_remove(set, library);
    library_free(&functions->engine, library);
}

static void clear(struct functions *functions) {
    library_set_clear(&functions->set, &functions->engine);
    script_state_close(&functions->engine);
}

void functions_clear(struct server *server) {
    if (server->redis->functions) clear(server->redis->functions);
}

void functions_free(struct server *server) {
    struct functions *functions = server->redis->functions;
    if (!functions) return;
    library_free(&functions->engine, functions->engine.loading);
    library_set_clear(&functions->staged, &functions->engine);
    clear(functions);
    script_engine_free(&functions->engine);
    memory_free(functions);
    server->redis->functions = NULL;
}

size_t functions_memory_bytes(const struct server *server) {
    return server->redis->functions ? server->redis->functions->engine.memory_bytes : 0;
}

size_t functions_library_bytes(const struct server *server) {
    const struct functions *functions = server->redis->functions;
    if (!functions) return 0;
    const struct library_set *set = &functions->set;
    return set->bytes + dict_overhead_bytes(&set->libraries) + dict_overhead_bytes(&set->functions) +
           (dict_count(&set->libraries) + dict_count(&set->functions)) * sizeof(struct dict_entry);
}

uint64_t functions_count(const struct server *server) {
    return server->redis->functions ? dict_count(&server->redis->functions->set.functions) : 0;
}

uint64_t functions_library_count(const struct server *server) {
    return server->redis->functions ? dict_count(&server->redis->functions->set.libraries) : 0;
}

static const struct library *first_library(const struct server *server) {
    return server->redis->functions ? server->redis->functions->set.oldest : NULL;
}

bool functions_save(const struct server *server,
                    bool (*add)(void *context, const void *name, size_t length, struct blob *code), void *context) {
    for (const struct library *library = first_library(server); library; library = library->next)
        if (!add(context, library->name, library->name_length, library->code)) return false;
    return true;
}

/* ---- loading ----------------------------------------------------------------------------------------------------------- */

/* Makes a library of the code and runs it. NULL with `error`. `set` may have one of that name if `replaces`. */
static struct library *load(struct functions *functions, struct library_set *set, struct blob *code, bool replaces,
                            struct client *loader, struct error *error) {
    struct script_engine *engine = &functions->engine;
    struct library *library = library_new(code, error);
    if (!library) return NULL;
    struct library *old = library_set_find(set, library->name, library->name_length);
    uint64_t limit_us = loader && !engine->server->loading ? LIMIT_LIBRARY_LOAD_US : LIMIT_LIBRARY_RELOAD_US;
    int failed = old && !replaces ? error_set(error, ERROR_GENERIC, "Library '%.*s' already exists", 200, library->name)
                                  : library_run(engine, library, loader, limit_us, error);
    if (!failed && !library_set_check(set, library, NULL, error)) return library;
    library_free(engine, library);
    return NULL;
}

/* The library takes the place of one of its name, or enters. -1: it was freed. */
static int enter(struct functions *functions, struct library_set *set, struct library *library, struct error *error) {
    struct library *old = library_set_find(set, library->name, library->name_length);
    if (old) drop(functions, set, old);
    if (!library_set_add(set, library, error)) return 0;
    library_free(&functions->engine, library);
    return -1;
}

int functions_adopt(struct server *server, struct blob *code, struct error *error) {
    struct functions *functions = functions_get(server);
    if (!functions) return error_set(error, ERROR_GENERIC, "no memory for a library of functions");
    bool was_loading = server->loading;
    server->loading = true; /* not in slices */
    struct library *library = load(functions, &functions->set, code, true, NULL, error);
    server->loading = was_loading;
    return library ? enter(functions, &functions->set, library, error) : -1;
}

static void changed(struct client *client) {
    client->server->store->changes++;
}

/* In slices: the client may have gone after any of them. */
static void load_in_slices(struct client *client) {
    struct functions *functions = client->server->redis->functions;
    struct blob *code = argument_blob(&client->argv[client->argc - 1]);
    struct error error = {.code = ERROR_GENERIC, .message = "no memory for a library"};
    struct library *library = code ? load(functions, &functions->set, code, client->argc > 3, client, &error) : NULL;
    blob_release(code);
    if (exclusive_is_lost(client)) {
        library_free(&functions->engine, library);
    } else if (!library || enter(functions, &functions->set, library, &error)) {
        reply_failure(client, &error);
    } else {
        changed(client);
        reply_bulk(client, library->name, library->name_length);
    }
}

static void function_load(struct client *client) {
    for (uint32_t i = 2; i + 1 < client->argc; i++) {
        const struct resp_argument *word = &client->argv[i];
        if (argument_is(word, "replace")) continue;
        reply_error(client, "ERR Unknown option given: %.*s", word->length < 128 ? (int)word->length : 128,
                    (const char *)word->data);
        return;
    }
    if (functions_get(client->server))
        exclusive_run_command(client, load_in_slices);
    else
        reply_out_of_memory(client);
}

/* ---- payloads ---------------------------------------------------------------------------------------------------------- */

static bool goes_on(void *context) {
    return exclusive_goes_on(context);
}

static void dump_in_slices(struct client *client) {
    const struct rdb_rest rest = {goes_on, client};
    struct rdb_writer writer = {.compresses = client->server->config.rdbcompression != 0};
    const struct library *library = first_library(client->server);
    for (; library && exclusive_goes_on(client); library = library->next) {
        rdb_write_byte(&writer, RDB_FUNCTION);
        rdb_write_string(&writer, library->code->data, library->code->length);
    }
    if (!library && rdb_write_footer(&writer, &rest)) {
        if (writer.bytes.failed)
            reply_out_of_memory(client);
        else
            reply_bulk(client, writer.bytes.data, writer.bytes.length);
    }
    piece_bytes_free(&writer.bytes);
}

static void function_dump(struct client *client) {
    exclusive_run_command(client, dump_in_slices);
}

enum policy { RESTORE_APPEND, RESTORE_FLUSH, RESTORE_REPLACE };

static bool take_policy(struct client *client, enum policy *policy) {
    *policy = RESTORE_APPEND;
    if (client->argc < 4) return true;
    const struct resp_argument *word = &client->argv[3];
    if (client->argc > 4) {
        reply_subcommand_syntax_error(client);
        return false;
    }
    if (argument_is(word, "flush")) {
        *policy = RESTORE_FLUSH;
    } else if (argument_is(word, "replace")) {
        *policy = RESTORE_REPLACE;
    } else if (!argument_is(word, "append")) {
        reply_error(client, "ERR Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.");
        return false;
    }
    return true;
}

/* One library of the payload into the staged ones. */
static int stage(struct functions *functions, struct client *client, struct rdb_reader *reader, struct error *error) {
    struct rdb_string text = {0};
    uint8_t mark;
    if (!rdb_read_byte(reader, &mark)) return error_set(error, ERROR_GENERIC, "can not read data type");
    if (mark != RDB_FUNCTION) return error_set(error, ERROR_GENERIC, "given type is not a function");
    if (!rdb_read_string(reader, &text))
        return error_set(error, ERROR_GENERIC, "Failed loading library payload: %s", reader->error.message);
    struct blob *code = blob_new(text.length);
    if (code) memcpy(code->data, text.data, text.length);
    rdb_string_free(&text);
    if (!code) return error_set(error, ERROR_GENERIC, "no memory for a library");
    struct library *library = load(functions, &functions->staged, code, false, client, error);
    blob_release(code);
    return library ? enter(functions, &functions->staged, library, error) : -1;
}

static int stage_all(struct functions *functions, struct client *client, struct error *error) {
    const struct resp_argument *payload = &client->argv[2];
    struct rdb_reader reader = {.data = payload->data, .length = payload->length - RDB_FOOTER_BYTES};
    while (reader.at < reader.length)
        if (stage(functions, client, &reader, error) || exclusive_is_lost(client)) return -1;
    return 0;
}

/* Nothing of the staged libraries is in the way of what stays. */
static int check_join(struct functions *functions, bool replaces, struct error *error) {
    for (const struct library *library = functions->staged.oldest; library; library = library->next)
        if (!replaces && library_set_find(&functions->set, library->name, library->name_length))
            return error_set(error, ERROR_GENERIC, "Library %.*s already exists", 200, library->name);
    for (const struct library *library = functions->staged.oldest; library; library = library->next)
        if (library_set_check(&functions->set, library, &functions->staged, error)) return -1;
    return 0;
}

/* Whatever is replaced goes first: its functions may be those of another library from now on. */
static int join(struct functions *functions, struct error *error) {
    for (const struct library *library = functions->staged.oldest; library; library = library->next) {
        struct library *old = library_set_find(&functions->set, library->name, library->name_length);
        if (old) drop(functions, &functions->set, old);
    }
    while (functions->staged.oldest) {
        struct library *library = functions->staged.oldest;
        library_set_remove(&functions->staged, library);
        if (enter(functions, &functions->set, library, error)) return -1;
    }
    return 0;
}

static void restore_in_slices(struct client *client) {
    struct functions *functions = client->server->redis->functions;
    struct error error = {.code = ERROR_NONE};
    enum policy policy;
    const struct rdb_rest rest = {goes_on, client};
    if (!take_policy(client, &policy)) return;
    enum rdb_payload_result footer = rdb_check_footer(client->argv[2].data, client->argv[2].length, &rest);
    if (footer == RDB_PAYLOAD_GIVEN_UP) return;
    int failed = footer != RDB_PAYLOAD_READ
                     ? error_set(&error, ERROR_GENERIC, "DUMP payload version or checksum are wrong")
                     : stage_all(functions, client, &error);
    if (!failed && policy != RESTORE_FLUSH) failed = check_join(functions, policy == RESTORE_REPLACE, &error);
    if (!failed && policy == RESTORE_FLUSH) library_set_clear(&functions->set, &functions->engine);
    if (!failed) failed = join(functions, &error);
    library_set_clear(&functions->staged, &functions->engine);
    if (exclusive_is_lost(client)) return;
    if (failed) {
        reply_failure(client, &error);
    } else {
        changed(client);
        reply_status(client, "OK");
    }
}

static void function_restore(struct client *client) {
    if (functions_get(client->server))
        exclusive_run_command(client, restore_in_slices);
    else
        reply_out_of_memory(client);
}

/* ---- the other subcommands --------------------------------------------------------------------------------------------- */

static void function_delete(struct client *client) {
    struct functions *functions = client->server->redis->functions;
    struct library *library =
        functions ? library_set_find(&functions->set, client->argv[2].data, client->argv[2].length) : NULL;
    if (!library) {
        reply_error(client, "ERR Library not found");
        return;
    }
    drop(functions, &functions->set, library);
    changed(client);
    reply_status(client, "OK");
}

static void function_flush(struct client *client) {
    const struct resp_argument *word = &client->argv[2];
    if (client->argc > 3) {
        reply_subcommand_syntax_error(client);
    } else if (client->argc == 3 && !argument_is(word, "sync") && !argument_is(word, "async")) {
        reply_error(client, "ERR FUNCTION FLUSH only supports SYNC|ASYNC option");
    } else {
        functions_clear(client->server);
        changed(client);
        reply_status(client, "OK");
    }
}

static void reply_flags(struct client *client, uint32_t flags) {
    size_t count = 0;
    for (const struct script_flag *flag = script_flag_names; flag->name; flag++) count += (flags & flag->flag) != 0;
    reply_set(client, count);
    for (const struct script_flag *flag = script_flag_names; flag->name; flag++)
        if (flags & flag->flag) reply_status(client, flag->name);
}

static void reply_function(struct client *client, const struct function *function) {
    reply_map(client, 3);
    reply_bulk_string(client, "name");
    reply_bulk(client, function->name, function->name_length);
    reply_bulk_string(client, "description");
    if (function->description)
        reply_bulk(client, function->description, function->description_length);
    else
        reply_null(client);
    reply_bulk_string(client, "flags");
    reply_flags(client, function->flags);
}

static void reply_library(struct client *client, const struct library *library, bool with_code) {
    reply_map(client, with_code ? 4 : 3);
    reply_bulk_string(client, "library_name");
    reply_bulk(client, library->name, library->name_length);
    reply_bulk_string(client, "engine");
    reply_bulk_string(client, "LUA");
    reply_bulk_string(client, "functions");
    reply_array(client, library->function_count);
    for (const struct function *function = library->functions; function; function = function->next)
        reply_function(client, function);
    if (!with_code) return;
    reply_bulk_string(client, "library_code");
    reply_bulk(client, library->code->data, library->code->length);
}

static void reply_list(struct client *client, const struct resp_argument *pattern, bool with_code) {
    size_t mark = reply_array_deferred(client), count = 0;
    for (const struct library *library = first_library(client->server); library; library = library->next) {
        if (pattern &&
            !glob_match(pattern->data, pattern->length, (const uint8_t *)library->name, library->name_length))
            continue;
        reply_library(client, library, with_code);
        count++;
    }
    reply_set_array_length(client, mark, count);
}

static void reply_running(struct client *client, const struct script_engine *engine) {
    if (!engine) {
        reply_null(client);
        return;
    }
    const struct client *caller = engine->caller;
    reply_map(client, 3);
    reply_bulk_string(client, "name");
    reply_bulk_string(client, engine->call.name);
    reply_bulk_string(client, "command");
    reply_array(client, caller->argc);
    for (uint32_t i = 0; i < caller->argc; i++) reply_bulk(client, caller->argv[i].data, caller->argv[i].length);
    reply_bulk_string(client, "duration_ms");
    reply_integer(client, (int64_t)((clock_monotonic_us() - engine->began_us) / 1000));
}

static void function_stats(struct client *client) {
    const struct script_engine *running = client->server->redis->running;
    if (running && !running->has_functions) {
        reply_error(client, EXCLUSIVE_BUSY_REFUSAL, client->server->exclusive.ended_by);
        return;
    }
    reply_map(client, 2);
    reply_bulk_string(client, "running_script");
    reply_running(client, running);
    reply_bulk_string(client, "engines");
    reply_map(client, 1);
    reply_bulk_string(client, "LUA");
    reply_map(client, 2);
    reply_bulk_string(client, "libraries_count");
    reply_integer(client, (int64_t)functions_library_count(client->server));
    reply_bulk_string(client, "functions_count");
    reply_integer(client, (int64_t)functions_count(client->server));
}

static void function_kill(struct client *client) {
    script_kill(client, true);
}

/* ---- calling ----------------------------------------------------------------------------------------------------------- */

static const struct function *function_of(const struct client *client) {
    struct functions *functions = client->server->redis->functions;
    return functions ? library_set_function(&functions->set, client->argv[1].data, client->argv[1].length) : NULL;
}

static uint32_t fcall_flags(const struct client *client) {
    const struct function *function = function_of(client);
    return script_own_flags(client->command->flags, function ? function->flags : 0);
}

static void call(struct client *client, bool read_only) {
    int64_t keys;
    upcalls.monitor_feed_script(client);
    const struct function *function = function_of(client);
    if (!function) {
        reply_error(client, "ERR Function not found");
        return;
    }
    if (!argument_int64(&client->argv[2], &keys)) {
        reply_error(client, "ERR Bad number of keys provided");
        return;
    }
    if (!script_take_key_count(client, &keys)) return;
    const struct script_call wanted = {.name = function->name,
                                       .flags = function->flags,
                                       .reference = function->reference,
                                       .key_count = (uint32_t)keys};
    script_start(client, &client->server->redis->functions->engine, &wanted, read_only);
}

static void fcall_command(struct client *client) {
    call(client, false);
}

static void fcall_ro_command(struct client *client) {
    call(client, true);
}

#else /* no Lua */

void functions_free(struct server *server) {
    (void)server;
}

void functions_clear(struct server *server) {
    (void)server;
}

size_t functions_memory_bytes(const struct server *server) {
    (void)server;
    return 0;
}

size_t functions_library_bytes(const struct server *server) {
    (void)server;
    return 0;
}

uint64_t functions_count(const struct server *server) {
    (void)server;
    return 0;
}

uint64_t functions_library_count(const struct server *server) {
    (void)server;
    return 0;
}

bool functions_save(const struct server *server,
                    bool (*add)(void *context, const void *name, size_t length, struct blob *code), void *context) {
    (void)server, (void)add, (void)context;
    return true;
}

#define NO_LUA "this server was built without Lua: install liblua5.1-0-dev and build it again"

int functions_adopt(struct server *server, struct blob *code, struct error *error) {
    (void)server, (void)code;
    return error_set(error, ERROR_GENERIC, NO_LUA);
}

static void refuse_functions(struct client *client) {
    reply_error(client, "ERR " NO_LUA);
}

static void reply_list(struct client *client, const struct resp_argument *pattern, bool with_code) {
    (void)pattern, (void)with_code;
    reply_array(client, 0);
}

#define fcall_command refuse_functions
#define fcall_ro_command refuse_functions
#define function_load refuse_functions
#define function_delete refuse_functions
#define function_dump refuse_functions
#define function_flush refuse_functions
#define function_kill refuse_functions
#define function_restore refuse_functions
#define function_stats refuse_functions
#define fcall_flags NULL

#endif

/* FUNCTION LIST [LIBRARYNAME pattern] [WITHCODE] */
static void function_list(struct client *client) {
    const struct resp_argument *pattern = NULL;
    bool with_code = false;
    for (uint32_t i = 2; i < client->argc; i++) {
        const struct resp_argument *word = &client->argv[i];
        if (!with_code && argument_is(word, "withcode")) {
            with_code = true;
        } else if (pattern || !argument_is(word, "libraryname")) {
            reply_error(client, "ERR Unknown argument %.*s", word->length < 128 ? (int)word->length : 128,
                        (const char *)word->data);
            return;
        } else if (++i == client->argc) {
            reply_error(client, "ERR library name argument was not given");
            return;
        } else {
            pattern = &client->argv[i];
        }
    }
    reply_list(client, pattern, with_code);
}

#define CHANGES (COMMAND_WRITE | COMMAND_NOSCRIPT)
#define RUN (COMMAND_NOSCRIPT | COMMAND_STALE | COMMAND_SKIP_MONITOR | COMMAND_NO_MANDATORY_KEYS | COMMAND_MOVABLEKEYS)
#define EVERY_SHARD "request_policy:all_shards\nresponse_policy:all_succeeded"

static const struct command subcommands[] = {
    {"function|delete", function_delete, 3, CHANGES, &group_scripting, "Removes a library of functions.", "7.0.0",
     .tips = EVERY_SHARD, .usage = "<library>"},
    {"function|dump", function_dump, 2, COMMAND_NOSCRIPT, &group_scripting,
     "Returns all libraries of functions as bytes for FUNCTION RESTORE.", "7.0.0"},
    {"function|flush", function_flush, -2, CHANGES, &group_scripting, "Removes all libraries of functions.", "7.0.0",
     .tips = EVERY_SHARD, .usage = "[ASYNC|SYNC]"},
    {"function|help", reply_help, 2, COMMAND_LOADING | COMMAND_STALE, &group_scripting, "Lists the subcommands.",
     "7.0.0"},
    {"function|kill", function_kill, 2, COMMAND_NOSCRIPT | COMMAND_ALLOW_BUSY, &group_scripting,
     "Ends the function that runs.", "7.0.0", .tips = "request_policy:all_shards\nresponse_policy:one_succeeded"},
    {"function|list", function_list, -2, COMMAND_NOSCRIPT, &group_scripting, "Lists libraries and their functions.",
     "7.0.0", .tips = "nondeterministic_output_order", .usage = "[LIBRARYNAME <pattern>] [WITHCODE]"},
    {"function|load", function_load, -3, CHANGES | COMMAND_DENYOOM, &group_scripting, "Loads a library of functions.",
     "7.0.0", .tips = EVERY_SHARD, .usage = "[REPLACE] <code>"},
    {"function|restore", function_restore, -3, CHANGES | COMMAND_DENYOOM, &group_scripting,
     "Loads libraries that FUNCTION DUMP returned.", "7.0.0", .tips = EVERY_SHARD,
     .usage = "<bytes> [APPEND|FLUSH|REPLACE]"},
    {"function|stats", function_stats, 2, COMMAND_NOSCRIPT | COMMAND_ALLOW_BUSY, &group_scripting,
     "Tells which function runs and how many there are.", "7.0.0",
     .tips = "nondeterministic_output\nrequest_policy:all_shards\nresponse_policy:special"},
    {0},
};

const struct command commands_functions[] = {
    {"fcall", fcall_command, -3, RUN | COMMAND_MAY_REPLICATE, &group_scripting, "Calls a function.", "7.0.0",
     .keys = script_keys_changed, .flags_of = fcall_flags},
    {"fcall_ro", fcall_ro_command, -3, RUN | COMMAND_READONLY, &group_scripting, "Calls a function that may not write.",
     "7.0.0", .keys = script_keys_read, .flags_of = fcall_flags},
    {"function", command_container, -2, 0, &group_scripting, "Keeps libraries of functions.", "7.0.0",
     .subcommands = subcommands},
    {0},
};
