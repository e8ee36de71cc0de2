/* cmd_debug: DEBUG: what tests of clients and of the server ask for. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "server/admin/admin_subsystem.h"
#include "server/admin/debug_data.h"
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/config.h"
#include "server/core/server.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/redis_subsystem.h"
#include "store/glob.h"

static void wake_up(struct client *client) {
    uint64_t slept_us = client->server->now_us - client->active_us;
    reply_status(client, "OK");
    if (slept_us * 1000 >= client->server->slow_ns) slow_log_took(client, client->entry, slept_us * 1000);
}

/* DEBUG SLEEP seconds: delays this client only; nothing may hold the loop. It counts as a call that took so long. In a
 * transaction or a script other commands wait, as for any that takes long. */
static void debug_sleep(struct client *client) {
    double seconds;
    if (!argument_double(&client->argv[2], &seconds) || seconds < 0) seconds = 0; /* what Redis makes of such words */
    if (seconds > 3600) seconds = 3600;
    uint64_t until_us = client->server->now_us + (uint64_t)(seconds * 1e6);
    if (client_may_block(client)) {
        client_block(client, NULL, until_us, NULL, wake_up);
    } else {
        exclusive_sleep(client->server, until_us);
        reply_status(client, "OK");
    }
}

static void debug_object(struct client *client) {
    const struct dict_entry *entry = keyspace_find(client, 2);
    if (!entry) {
        reply_no_such_key(client);
        return;
    }
    const struct value *value = store_value(entry);
    char line[240];
    snprintf(line, sizeof line, "Value at:%p refcount:1 encoding:%s serializedlength:%zu lru:%u lru_seconds_idle:0",
             (const void *)value, value_encoding_name(value), value_memory_bytes(value), value->access);
    reply_status(client, line);
}

static void debug_set_active_expire(struct client *client) {
    int64_t on;
    if (!argument_int64(&client->argv[2], &on)) on = 0;
    client->server->store->leaves_expired = on == 0;
    reply_status(client, "OK");
}

/* DEBUG STRINGMATCH-LEN length pattern: how long a pattern takes at worst. */
static void debug_stringmatch_len(struct client *client) {
    int64_t length;
    const struct resp_argument *pattern = &client->argv[3];
    if (!argument_int64(&client->argv[2], &length) || length < 0 || length > 65536) {
        reply_error(client, "ERR DEBUG STRINGMATCH-LEN takes a length from 0 to 65536");
        return;
    }
    char text[1024];
    memset(text, 'a', sizeof text);
    int64_t piece = length < (int64_t)sizeof text ? length : (int64_t)sizeof text;
    reply_integer(client, glob_match(pattern->data, pattern->length, (const uint8_t *)text, (size_t)piece));
}

/* DEBUG LOG message: a line of the log. */
static void debug_log(struct client *client) {
    const struct resp_argument *text = &client->argv[2];
    log_event(LOG_NOTICE, "debug", NULL, "DEBUG LOG: %.*s", text->length < 900 ? (int)text->length : 900,
              (const char *)text->data);
    reply_status(client, "OK");
}

/* DEBUG QUICKLIST-PACKED-THRESHOLD bytes: what is larger lies by itself in Redis's lists; in those here everything does. */
static void debug_quicklist_packed_threshold(struct client *client) {
    char text[32] = "";
    const struct resp_argument *bytes = &client->argv[2];
    int64_t threshold;
    if (bytes->length < sizeof text) memcpy(text, bytes->data, bytes->length);
    if (!config_parse_bytes(text, &threshold) || threshold >= INT64_C(1) << 32)
        reply_error(client, "ERR argument must be a memory value bigger than 1 and smaller than 4gb");
    else
        reply_status(client, "OK");
}

/* DEBUG REPLYBUFFER PEAK-RESET-TIME ms|NEVER|RESET, RESIZING 0|1: checked; buffers of replies here are as large as what
 * waits in them. */
static void debug_replybuffer(struct client *client) {
    const struct resp_argument *word = &client->argv[2], *value = &client->argv[3];
    int64_t number;
    bool is_time = argument_is(word, "peak-reset-time");
    if (!is_time && !argument_is(word, "resizing"))
        reply_subcommand_syntax_error(client);
    else if (is_time && (argument_is(value, "never") || argument_is(value, "reset")))
        reply_status(client, "OK");
    else if (integer_argument(client, 3, &number))
        reply_status(client, "OK");
}

/* DEBUG SET-DISABLE-DENY-SCRIPTS 0|1: scripts may call DEBUG. What else is not for them stays so: it needs a connection. */
static void debug_set_disable_deny_scripts(struct client *client) {
    int64_t on;
    client->server->redis->scripts_may_debug = argument_int64(&client->argv[2], &on) && on != 0;
    reply_status(client, "OK");
}

static void debug_error(struct client *client) {
    const struct resp_argument *text = &client->argv[2];
    reply_error(client, "%.*s", text->length < 900 ? (int)text->length : 900, (const char *)text->data);
}

static void reply_attribute(struct client *client) {
    static const char head[] = "|1\r\n";
    reply_raw(client, head, sizeof head - 1);
    reply_bulk_string(client, "key-popularity");
    reply_array(client, 2);
    reply_bulk_string(client, "key:123");
    reply_integer(client, 90);
}

/* DEBUG PROTOCOL type: a reply of each type of the protocol, for tests of clients. */
static void debug_protocol(struct client *client) {
    const struct resp_argument *type = &client->argv[2];
    if (argument_is(type, "string")) {
        reply_bulk_string(client, "Hello World");
    } else if (argument_is(type, "integer")) {
        reply_integer(client, 12345);
    } else if (argument_is(type, "double")) {
        reply_double(client, 3.141);
    } else if (argument_is(type, "null")) {
        reply_null(client);
    } else if (argument_is(type, "array") || argument_is(type, "set")) {
        if (argument_is(type, "array"))
            reply_array(client, 3);
        else
            reply_set(client, 3);
        for (int i = 0; i < 3; i++) reply_integer(client, i);
    } else if (argument_is(type, "map")) {
        reply_map(client, 3);
        for (int i = 0; i < 3; i++) {
            reply_integer(client, i);
            reply_boolean(client, i == 1);
        }
    } else if (argument_is(type, "attrib")) {
        if (client->resp > 2) reply_attribute(client);
        reply_bulk_string(client, "Some real reply following the attribute");
    } else if (argument_is(type, "bignum")) {
        static const char digits[] = "1234567999999999999999999999999999999";
        if (client->resp > 2)
            reply_line(client, '(', digits, sizeof digits - 1);
        else
            reply_bulk_string(client, digits);
    } else if (argument_is(type, "push")) {
        if (client->resp == 2) {
            reply_error(client, "ERR RESP2 is not supported by this command");
            return;
        }
        reply_push(client, 2);
        reply_bulk_string(client, "server-cpu-usage");
        reply_integer(client, 42);
        /* A push is no reply: whoever waits for one gets it here. */
        reply_bulk_string(client, "Some real reply following the push reply");
    } else if (argument_is(type, "verbatim")) {
        reply_verbatim(client, "This is a verbatim\nstring", 25);
    } else if (argument_is(type, "true")) {
        reply_boolean(client, true);
    } else if (argument_is(type, "false")) {
        reply_boolean(client, false);
    } else {
        reply_error(client, "ERR Wrong protocol type name. Please use one of the following: "
                            "string|integer|double|bignum|null|array|set|map|attrib|push|verbatim|true|false");
    }
}

static void debug_nothing(struct client *client) {
    reply_status(client, "OK");
}

/* Rows of DEBUG alone: COMMAND does not list them, as in Redis. */
static const struct command words[] = {
    {"debug|change-repl-id", debug_nothing, 2, .summary = "Accepted, without effect."},
    {"debug|digest", debug_digest, 2,
     .summary = "A digest of all keys of all databases, whatever their order and how they are kept."},
    {"debug|digest-value", debug_digest_value, -2, .summary = "Digests of the values of keys.",
     .usage = "<key> [<key> ...]"},
    {"debug|error", debug_error, 3, .summary = "Reply with this error.", .usage = "<string>"},
    {"debug|loadaof", debug_loadaof, 2,
     .summary = "Load the append-only file in place of all keys. Weights and gradients stay."},
    {"debug|log", debug_log, 3, .summary = "Write a line into the log.", .usage = "<message>"},
    {"debug|object", debug_object, 3, .summary = "How the value of a key is kept.", .usage = "<key>"},
    {"debug|pause-cron", debug_nothing, 3, .summary = "Accepted; what Redis does in a cron has its own times here.",
     .usage = "<0|1>"},
    {"debug|protocol", debug_protocol, 3, .summary = "Reply with a value of this type of the protocol.",
     .usage = "<type>"},
    {"debug|quicklist-packed-threshold", debug_quicklist_packed_threshold, 3,
     .summary = "Checked, without effect: elements of lists lie by themselves.", .usage = "<size>"},
    {"debug|reload", debug_reload, -2,
     .summary = "Save, and load the file in place of all keys and tables. Weights and gradients stay."},
    {"debug|replybuffer", debug_replybuffer, 4,
     .summary = "Checked, without effect: buffers are as large as what waits in them.",
     .usage = "<PEAK-RESET-TIME <milliseconds|NEVER|RESET>|RESIZING <0|1>>"},
    {"debug|set-active-expire", debug_set_active_expire, 3,
     .summary = "Whether keys whose time is over go although nobody asks for them.", .usage = "<0|1>"},
    {"debug|set-disable-deny-scripts", debug_set_disable_deny_scripts, 3, .summary = "Whether scripts may call DEBUG.",
     .usage = "<0|1>"},
    {"debug|sleep", debug_sleep, 3, .summary = "Reply later. Other clients are served meanwhile.",
     .usage = "<seconds>"},
    {"debug|stringmatch-len", debug_stringmatch_len, 4, .summary = "Match a pattern with so many letters a.",
     .usage = "<length> <pattern>"},
    {0},
};

/* A script, which has no connection, gets here only if DEBUG itself was allowed to let it. */
static bool is_allowed(const struct client *client) {
    int64_t allowed = client->server->config.enable_debug_command;
    if (allowed == DEBUG_LOCAL) return !client->connection || client_is_from_this_host(client);
    return allowed == DEBUG_ALLOWED;
}

static void debug_command(struct client *client) {
    if (!is_allowed(client)) {
        reply_error(client,
                    "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can "
                    "run it from a local connection, otherwise you need to set this option in the configuration file, "
                    "and then restart the server.");
        return;
    }
    for (const struct command *word = words; word->name; word++) {
        if (!argument_is(&client->argv[1], word->name + strlen("debug|")) || !command_arity_holds(word, client->argc))
            continue;
        word->handler(client);
        return;
    }
    if (client->argc == 2 && argument_is(&client->argv[1], "help"))
        reply_help_on(client, words);
    else
        reply_subcommand_syntax_error(client);
}

const struct command commands_debug[] = {
    {"debug", debug_command, -2, COMMAND_ADMIN | COMMAND_NOSCRIPT | COMMAND_DEBUGS | COMMAND_LOADING | COMMAND_STALE,
     &group_server, "What tests ask for.", "1.0.0"},
    {0},
};
