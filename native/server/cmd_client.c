/* cmd_client: CLIENT and its subcommands. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "server/client.h"
#include "server/keyspace.h"
#include "server/pubsub.h"
#include "server/server.h"

static void append_client(struct text *out, const struct client *client) {
    const struct server *server = client->server;
    const char *flags = client->blocked               ? "b"
                        : client->close_after_reply   ? "c"
                        : client->connection->is_unix ? "U"
                                                      : "N";
    text_append(out,
                "id=%" PRIu64 " addr=%s laddr=%s fd=-1 name=%s age=%" PRIu64 " idle=%" PRIu64
                " flags=%s db=%d sub=%" PRIu64 " psub=%" PRIu64 " ssub=%" PRIu64 " "
                "multi=-1 qbuf=%zu qbuf-free=%zu argv-mem=%zu multi-mem=0 rbs=%zu rbp=%zu obl=0 oll=%u omem=%zu "
                "tot-mem=%zu events=%s%s "
                "cmd=%s user=default redir=-1 resp=%d lib-name=%s lib-ver=%s\n",
                client->id, client->connection->peer, client->connection->local, client->name ? client->name : "",
                (server->now_us - client->created_us) / 1000000,
                server->now_us > client->active_us ? (server->now_us - client->active_us) / 1000000 : 0, flags,
                client->database, pubsub_count(client, PUBSUB_CHANNEL), pubsub_count(client, PUBSUB_PATTERN),
                pubsub_count(client, PUBSUB_SHARD), client->pending_length,
                client->pending ? LIMIT_PENDING_INPUT_BYTES - client->pending_length : 0,
                resp_parser_held_bytes(&client->parser), client->output.inline_bytes, client->output.inline_bytes,
                client->output.unsent_bytes > 0 ? 1u : 0u, client->output.unsent_bytes, client_held_bytes(client),
                client->reading ? "r" : "", client->writing ? "w" : "",
                client->command ? client->command->name : "NULL", client->resp, client->library_name,
                client->library_version);
}

static void reply_text(struct client *client, struct text *text) {
    if (text->failed)
        reply_error(client, "OOM no memory for the reply");
    else
        reply_verbatim(client, text->data ? text->data : "", text->length);
    text_free(text);
}

static bool is_listed_type(struct client *client, const struct resp_argument *type, bool *matches) {
    *matches = argument_is(type, "normal");
    if (*matches || argument_is(type, "master") || argument_is(type, "replica") || argument_is(type, "slave") ||
        argument_is(type, "pubsub"))
        return true;
    reply_error(client, "ERR Unknown client type '%.*s'", type->data && type->length < 128 ? (int)type->length : 0,
                (const char *)type->data);
    return false;
}

/* CLIENT LIST [TYPE type] [ID id …] */
static void client_list(struct client *client) {
    struct text text = {0};
    if (client->argc == 2) {
        for (struct client *other = client->server->clients.head; other; other = other->next) {
            if (!other->closing) append_client(&text, other);
        }
    } else if (client->argc == 4 && argument_is(&client->argv[2], "type")) {
        bool matches;
        if (!is_listed_type(client, &client->argv[3], &matches)) return;
        for (struct client *other = client->server->clients.head; matches && other; other = other->next)
            append_client(&text, other);
    } else if (client->argc > 3 && argument_is(&client->argv[2], "id")) {
        for (uint32_t i = 3; i < client->argc; i++) {
            int64_t id;
            if (!argument_int64(&client->argv[i], &id) || id < 1) {
                text_free(&text);
                reply_error(client, "ERR Invalid client ID");
                return;
            }
            struct client *other = server_client_by_id(client->server, (uint64_t)id);
            if (other) append_client(&text, other);
        }
    } else {
        reply_syntax_error(client);
        return;
    }
    reply_text(client, &text);
}

static void client_info(struct client *client) {
    struct text text = {0};
    append_client(&text, client);
    reply_text(client, &text);
}

/* ---- KILL -------------------------------------------------------------------------------------------- */

struct kill_filter {
    uint64_t id;            /* 0: any */
    const struct resp_argument *peer, *local;
    bool type_matches, user_matches, skip_self;
};

static bool names_address(const struct resp_argument *argument, const char *address) {
    return argument->data && argument->length == strlen(address) &&
           memcmp(argument->data, address, argument->length) == 0;
}

static bool filter_matches(const struct kill_filter *filter, const struct client *self, const struct client *other) {
    if (other->closing || (filter->skip_self && other == self) || !filter->type_matches || !filter->user_matches)
        return false;
    if (filter->id != 0 && other->id != filter->id) return false;
    if (filter->peer && !names_address(filter->peer, other->connection->peer)) return false;
    return !filter->local || names_address(filter->local, other->connection->local);
}

static int64_t kill_matching(struct client *client, const struct kill_filter *filter) {
    int64_t killed = 0;
    for (struct client *other = client->server->clients.head; other; other = other->next) {
        if (!filter_matches(filter, client, other)) continue;
        killed++;
        if (other == client)
            client->close_after_reply = true; /* its reply first */
        else
            client_close(other);
    }
    return killed;
}

static bool parse_kill_filter(struct client *client, struct kill_filter *filter) {
    for (uint32_t i = 2; i < client->argc; i += 2) {
        const struct resp_argument *value = &client->argv[i + 1];
        int64_t id;
        if (i + 1 >= client->argc) {
            reply_syntax_error(client);
            return false;
        }
        if (argument_is(&client->argv[i], "id")) {
            if (!argument_int64(value, &id) || id < 1) {
                reply_error(client, "ERR client-id should be greater than 0");
                return false;
            }
            filter->id = (uint64_t)id;
        } else if (argument_is(&client->argv[i], "addr")) {
            filter->peer = value;
        } else if (argument_is(&client->argv[i], "laddr")) {
            filter->local = value;
        } else if (argument_is(&client->argv[i], "type")) {
            if (!is_listed_type(client, value, &filter->type_matches)) return false;
        } else if (argument_is(&client->argv[i], "user")) {
            filter->user_matches = argument_is(value, "default");
        } else if (argument_is(&client->argv[i], "skipme") && (argument_is(value, "yes") || argument_is(value, "no"))) {
            filter->skip_self = argument_is(value, "yes");
        } else {
            reply_syntax_error(client);
            return false;
        }
    }
    return true;
}

/* CLIENT KILL address, or CLIENT KILL filter value … */
static void client_kill(struct client *client) {
    struct kill_filter filter = {.type_matches = true, .user_matches = true, .skip_self = true};
    if (client->argc == 3) {
        filter.peer = &client->argv[2];
        filter.skip_self = false;
        if (kill_matching(client, &filter) > 0)
            reply_status(client, "OK");
        else
            reply_error(client, "ERR No such client");
        return;
    }
    if (parse_kill_filter(client, &filter)) reply_integer(client, kill_matching(client, &filter));
}

/* ---- the rest ---------------------------------------------------------------------------------------- */

/* CLIENT UNBLOCK id [TIMEOUT|ERROR] */
static void client_unblock_other(struct client *client) {
    int64_t id;
    bool with_error = client->argc == 4 && argument_is(&client->argv[3], "error");
    if (client->argc == 4 && !with_error && !argument_is(&client->argv[3], "timeout")) {
        reply_error(client, "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR");
        return;
    }
    if (!argument_int64(&client->argv[2], &id)) {
        reply_error(client, "ERR value is not an integer or out of range");
        return;
    }
    struct client *other = id > 0 ? server_client_by_id(client->server, (uint64_t)id) : NULL;
    if (!other || !other->blocked) {
        reply_integer(client, 0);
        return;
    }
    if (with_error)
        client_interrupt(other, "UNBLOCKED client unblocked via CLIENT UNBLOCK");
    else
        client_expire(other);
    reply_integer(client, 1);
}

static void client_reply(struct client *client) {
    const struct resp_argument *mode = &client->argv[2];
    if (argument_is(mode, "on")) {
        client->reply_mode = CLIENT_REPLY_ON;
        reply_status(client, "OK");
    } else if (argument_is(mode, "off")) {
        client->reply_mode = CLIENT_REPLY_OFF;
    } else if (argument_is(mode, "skip")) {
        if (client->reply_mode != CLIENT_REPLY_OFF) client->reply_mode = CLIENT_REPLY_SKIP_NEXT;
    } else {
        reply_syntax_error(client);
    }
}

/* CLIENT SETINFO LIB-NAME|LIB-VER value: what a library says of itself, shown in CLIENT LIST. */
static void client_setinfo(struct client *client) {
    const struct resp_argument *attribute = &client->argv[2];
    const struct resp_argument *value = &client->argv[3];
    char *to = argument_is(attribute, "lib-name")  ? client->library_name
               : argument_is(attribute, "lib-ver") ? client->library_version
                                                   : NULL;
    if (!to) {
        reply_error(client, "ERR Unrecognized option '%.*s'",
                    attribute->data && attribute->length < 128 ? (int)attribute->length : 0,
                    (const char *)attribute->data);
        return;
    }
    bool fits = value->data && value->length < sizeof client->library_name;
    for (size_t i = 0; fits && i < value->length; i++) fits = value->data[i] >= '!' && value->data[i] <= '~';
    if (!fits) {
        reply_error(client, "ERR lib-name and lib-ver take at most %zu printable characters without spaces",
                    sizeof client->library_name - 1);
        return;
    }
    memcpy(to, value->data, value->length);
    to[value->length] = '\0';
    reply_status(client, "OK");
}

static void set_flag(struct client *client, bool *flag) {
    if (argument_is(&client->argv[2], "on"))
        *flag = true;
    else if (argument_is(&client->argv[2], "off"))
        *flag = false;
    else {
        reply_syntax_error(client);
        return;
    }
    reply_status(client, "OK");
}

static void client_id(struct client *client) {
    reply_integer(client, (int64_t)client->id);
}

static void client_getname(struct client *client) {
    if (client->name)
        reply_bulk_string(client, client->name);
    else
        reply_null(client);
}

static void client_setname(struct client *client) {
    if (client_set_name(client, &client->argv[2])) reply_status(client, "OK");
}

static void client_getredir(struct client *client) {
    reply_integer(client, -1); /* no tracking */
}

static void client_no_evict(struct client *client) {
    set_flag(client, &client->no_evict);
}

static void client_no_touch(struct client *client) {
    set_flag(client, &client->no_touch);
}

static void client_help(struct client *client) {
    static const char *const lines[] = {
        "CLIENT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "GETNAME",
        "    Return the name of the current connection.",
        "GETREDIR",
        "    Return the client ID we are redirecting to when tracking is enabled.",
        "ID",
        "    Return the ID of the current connection.",
        "INFO",
        "    Return information about the current client connection.",
        "KILL <ip:port>",
        "    Kill connection made from <ip:port>.",
        "KILL <option> <value> [<option> <value> [...]]",
        "    Kill connections. Options are: ADDR, LADDR, TYPE, USER, SKIPME, ID.",
        "LIST [options ...]",
        "    Return information about client connections. Options: TYPE, ID.",
        "NO-EVICT (ON|OFF)",
        "    Accepted; clients are never evicted.",
        "NO-TOUCH (ON|OFF)",
        "    Accepted; no access times are kept.",
        "REPLY (ON|OFF|SKIP)",
        "    Control the replies sent to the current connection.",
        "SETINFO <option> <value>",
        "    Set client attributes. Options are: LIB-NAME, LIB-VER.",
        "SETNAME <name>",
        "    Assign the name <name> to the current connection.",
        "UNBLOCK <clientid> [TIMEOUT|ERROR]",
        "    Unblock the specified blocked client.",
        "HELP",
        "    Print this help.",
        NULL,
    };
    reply_help(client, lines);
}

static const struct {
    const char *name;
    void (*handler)(struct client *client);
    int arity;
} subcommands[] = {
    {"getname", client_getname, 2},
    {"getredir", client_getredir, 2},
    {"help", client_help, 2},
    {"id", client_id, 2},
    {"info", client_info, 2},
    {"kill", client_kill, -3},
    {"list", client_list, -2},
    {"no-evict", client_no_evict, 3},
    {"no-touch", client_no_touch, 3},
    {"reply", client_reply, 3},
    {"setinfo", client_setinfo, 4},
    {"setname", client_setname, 3},
    {"unblock", client_unblock_other, -3},
};

static void client_command(struct client *client) {
    for (size_t i = 0; i < sizeof subcommands / sizeof *subcommands; i++) {
        if (!argument_is(&client->argv[1], subcommands[i].name)) continue;
        int arity = subcommands[i].arity;
        if ((arity > 0 && (int64_t)client->argc != arity) || (int64_t)client->argc < -(int64_t)arity)
            reply_subcommand_arity_error(client);
        else
            subcommands[i].handler(client);
        return;
    }
    reply_unknown_subcommand(client);
}

const struct command commands_client[] = {
    {"client", client_command, -2, COMMAND_LOADING, 0, 0, 0, "connection",
     "Lists, names, kills and configures connections.", NULL},
    {0},
};
