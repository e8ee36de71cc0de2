/* cmd_debug: DEBUG: what tests of clients and of the server ask for. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "server/client.h"
#include "server/command/command_table.h"
#include "server/server.h"
#include "server/store/keyspace.h"
#include "store/glob.h"

static bool never_sooner(struct client *client) {
    (void)client;
    return false;
}

static void wake_up(struct client *client) {
    reply_status(client, "OK");
}

/* DEBUG SLEEP seconds: delays this client only; nothing may hold the loop. */
static void debug_sleep(struct client *client) {
    double seconds;
    if (!argument_double(&client->argv[2], &seconds) || seconds < 0) seconds = 0; /* what Redis makes of such words */
    if (seconds > 3600) seconds = 3600;
    client_block(client, NULL, client->server->now_us + (uint64_t)(seconds * 1e6), never_sooner, wake_up);
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

static void debug_error(struct client *client) {
    const struct resp_argument *text = &client->argv[2];
    reply_error(client, "%.*s", text->length < 900 ? (int)text->length : 900, (const char *)text->data);
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
        reply_error(client, "ERR Wrong protocol type name. Please use one of the following: string|integer|double|null|"
                            "array|set|map|push|verbatim|true|false");
    }
}

static void debug_help(struct client *client) {
    static const char *const lines[] = {
        "DEBUG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "CHANGE-REPL-ID",
        "    Accepted; there is no replication.",
        "ERROR <string>",
        "    Reply with this error.",
        "JMAP",
        "    Refused: this is no Java.",
        "OBJECT <key>",
        "    How the value of a key is kept.",
        "PROTOCOL <type>",
        "    Reply with a value of this type of the protocol.",
        "SET-ACTIVE-EXPIRE <0|1>",
        "    Whether keys whose time is over go although nobody asks for them.",
        "SLEEP <seconds>",
        "    Reply later. Other clients are served meanwhile.",
        "STRINGMATCH-LEN <length> <pattern>",
        "    Match a pattern with so many letters a.",
        "HELP",
        "    Print this help.",
        NULL,
    };
    reply_help(client, lines);
}

static void debug_nothing(struct client *client) {
    reply_status(client, "OK");
}

static const struct {
    const char *name;
    void (*handler)(struct client *client);
    uint32_t argc;
} words[] = {
    {"change-repl-id", debug_nothing, 2},
    {"error", debug_error, 3},
    {"help", debug_help, 2},
    {"object", debug_object, 3},
    {"protocol", debug_protocol, 3},
    {"set-active-expire", debug_set_active_expire, 3},
    {"sleep", debug_sleep, 3},
    {"stringmatch-len", debug_stringmatch_len, 4},
};

static void debug_command(struct client *client) {
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (!argument_is(&client->argv[1], words[i].name) || client->argc != words[i].argc) continue;
        words[i].handler(client);
        return;
    }
    reply_subcommand_syntax_error(client);
}

const struct command commands_debug[] = {
    {"debug", debug_command, -2, COMMAND_ADMIN | COMMAND_NOSCRIPT | COMMAND_LOADING | COMMAND_STALE, .group = "server",
     .summary = "What tests ask for."},
    {0},
};
