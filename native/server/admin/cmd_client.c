/* cmd_client: CLIENT LIST, INFO, KILL and UNBLOCK: what one client sees of others, and does to them. */
#include "server/admin/cmd_client.h"

#include <inttypes.h>
#include <string.h>

#include "server/admin/admin_subsystem.h"
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/exclusive_execution.h"
#include "server/core/pause.h"
#include "server/core/server.h"
#include "server/core/slices.h"
#include "server/durability/copy_first.h"
#include "server/redis/acl/acl.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/pubsub/pubsub.h"
#include "server/redis/redis_subsystem.h"
#include "server/redis/tracking/tracking.h"
#include "server/redis/transaction/transaction.h"
#include "server/replication/replicas.h"

/* ---- one line for each client ------------------------------------------------------------------------ */

enum client_type { TYPE_ANY, TYPE_NORMAL, TYPE_PUBSUB, TYPE_REPLICA, TYPE_PRIMARY };

static enum client_type type_of(const struct client *client) {
    if (client->is_primary) return TYPE_PRIMARY;
    if (replica_is_attached(client)) return TYPE_REPLICA;
    return pubsub_is_subscriber(client) ? TYPE_PUBSUB : TYPE_NORMAL;
}

static void flag_letters(const struct client *client, char letters[16]) {
    char *next = letters;
    if (client->is_monitor) *next++ = 'O';
    if (replica_is_attached(client)) *next++ = 'S';
    if (client->is_primary) *next++ = 'M';
    if (pubsub_is_subscriber(client)) *next++ = 'P';
    if (client->transaction) *next++ = 'x';
    if (client->tracker) *next++ = 't';
    if (client->tracker && client->tracker->redirect_is_broken) *next++ = 'R';
    if (client->tracker && client->tracker->mode == TRACKING_BROADCAST) *next++ = 'B';
    if (client->blocked) *next++ = 'b';
    if (client->close_after_reply) *next++ = 'c';
    if (client->connection->is_unix) *next++ = 'U';
    if (client->reads_replica) *next++ = 'r';
    if (client->no_evict) *next++ = 'e';
    if (next == letters) *next++ = 'N';
    *next = '\0';
}

/* What is held for the client: of input, the request at hand and what came behind it, and room for more; of output, bytes
 * that were copied (rbs: room for them, rbp: the most there ever was, obl: not sent yet), and blobs and pieces of tables
 * (oll, omem). */
static void buffers_describe(struct text *out, const struct client *client) {
    const struct resp_parser *parser = &client->parser;
    struct output_waiting waiting = output_waiting(&client->output);
    size_t room = parser->arena_capacity - parser->arena_used;
    if (client->pending) room += LIMIT_PENDING_INPUT_BYTES - client->pending_length;
    text_append(out, " qbuf=%zu qbuf-free=%zu argv-mem=%zu multi-mem=%zu",
                client->request_bytes + client->pending_length, room, resp_parser_used_bytes(parser),
                transaction_bytes(client));
    text_append(out, " rbs=%zu rbp=%zu obl=%zu oll=%u omem=%zu tot-mem=%zu", client->output.inline_bytes,
                client->output.most_inline_bytes, waiting.inline_bytes, waiting.pieces, waiting.blob_bytes,
                client_held_bytes(client));
}

void client_describe(struct text *out, const struct client *client) {
    const struct server *server = client->server;
    char flags[16];
    flag_letters(client, flags);
    text_append(out, "id=%" PRIu64 " addr=%s laddr=%s fd=-1 name=%s age=%" PRIu64 " idle=%" PRIu64 " flags=%s db=%d",
                client->id, client->connection->peer, client->connection->local, client->name ? client->name : "",
                (server->now_us - client->created_us) / 1000000,
                server->now_us > client->active_us ? (server->now_us - client->active_us) / 1000000 : 0, flags,
                client->database);
    text_append(out, " sub=%" PRIu64 " psub=%" PRIu64 " ssub=%" PRIu64 " multi=%" PRId64,
                pubsub_count(client, PUBSUB_CHANNEL), pubsub_count(client, PUBSUB_PATTERN),
                pubsub_count(client, PUBSUB_SHARD), transaction_count(client));
    buffers_describe(out, client);
    text_append(out, " events=%s%s cmd=%s user=%s redir=%" PRId64 " resp=%d lib-name=%s lib-ver=%s\n",
                client->reading ? "r" : "", client->writing ? "w" : "",
                client->command ? client->command->name : "NULL",
                client->user         ? client->user->name
                : client->is_primary ? "(superuser)"
                                     : "default",
                client->tracker ? (int64_t)client->tracker->redirect : -1, client->resp, client->library_name,
                client->library_version);
}

/* ---- which clients ----------------------------------------------------------------------------------- */

/* False: the error is replied. */
static bool parse_type(struct client *client, const struct resp_argument *word, enum client_type *type) {
    *type = argument_is(word, "normal")                                  ? TYPE_NORMAL
            : argument_is(word, "pubsub")                                ? TYPE_PUBSUB
            : argument_is(word, "master")                                ? TYPE_PRIMARY
            : argument_is(word, "replica") || argument_is(word, "slave") ? TYPE_REPLICA
                                                                         : TYPE_ANY;
    if (*type == TYPE_ANY)
        reply_error(client, "ERR Unknown client type '%.*s'", word->length < 128 ? (int)word->length : 128,
                    (const char *)word->data);
    return *type != TYPE_ANY;
}

static bool is_of_type(const struct client *client, enum client_type type) {
    return type == TYPE_ANY || type == type_of(client);
}

static void append_named(struct client *client, struct text *text) {
    for (uint32_t i = 3; i < client->argc; i++) {
        int64_t id;
        argument_int64(&client->argv[i], &id);
        struct client *other = id > 0 ? server_client_by_id(client->server, (uint64_t)id) : NULL;
        if (other) client_describe(text, other);
    }
}

static bool are_ids(struct client *client) {
    for (uint32_t i = 3; i < client->argc; i++) {
        int64_t id;
        if (argument_int64(&client->argv[i], &id)) continue;
        reply_error(client, "ERR Invalid client ID");
        return false;
    }
    return true;
}

/* CLIENT LIST [TYPE type] [ID id …] */
static void client_list(struct client *client) {
    struct text text = {0};
    enum client_type type = TYPE_ANY;
    bool by_type = client->argc == 4 && argument_is(&client->argv[2], "type");
    bool by_id = !by_type && client->argc > 3 && argument_is(&client->argv[2], "id");
    if (by_type && !parse_type(client, &client->argv[3], &type)) return;
    if (by_id && !are_ids(client)) return;
    if (!by_type && !by_id && client->argc != 2) {
        reply_syntax_error(client);
        return;
    }
    if (by_id) append_named(client, &text);
    for (struct client *other = client->server->clients.head; !by_id && other; other = other->next)
        if (!other->closing && is_of_type(other, type)) client_describe(&text, other);
    reply_verbatim_text(client, &text);
}

static void client_info(struct client *client) {
    struct text text = {0};
    client_describe(&text, client);
    reply_verbatim_text(client, &text);
}

/* ---- KILL -------------------------------------------------------------------------------------------- */

struct kill_filter {
    uint64_t id;            /* 0: any */
    const struct resp_argument *peer, *local;
    const struct acl_user *user; /* NULL: any */
    enum client_type type;
    bool skip_self;
};

static bool names_address(const struct resp_argument *argument, const char *address) {
    return argument->length == strlen(address) && memcmp(argument->data, address, argument->length) == 0;
}

static bool filter_matches(const struct kill_filter *filter, const struct client *self, const struct client *other) {
    if (other->closing || (filter->skip_self && other == self) || !is_of_type(other, filter->type)) return false;
    if (filter->user && other->user != filter->user) return false;
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

static bool parse_user(struct client *client, const struct resp_argument *name, struct kill_filter *filter) {
    filter->user = acl_find(client->server->redis->acl, name->data, name->length);
    if (filter->user) return true;
    reply_error(client, "ERR No such user '%.*s'", name->length < 128 ? (int)name->length : 128,
                (const char *)name->data);
    return false;
}

/* One filter and its value; false: the error is replied. */
static bool parse_filter(struct client *client, const struct resp_argument *word, struct kill_filter *filter) {
    const struct resp_argument *value = word + 1;
    int64_t id;
    if (argument_is(word, "id")) {
        if (!argument_int64(value, &id) || id < 1) {
            reply_error(client, "ERR client-id should be greater than 0");
            return false;
        }
        filter->id = (uint64_t)id;
        return true;
    }
    if (argument_is(word, "type")) return parse_type(client, value, &filter->type);
    if (argument_is(word, "user")) return parse_user(client, value, filter);
    if (argument_is(word, "addr")) {
        filter->peer = value;
    } else if (argument_is(word, "laddr")) {
        filter->local = value;
    } else if (argument_is(word, "skipme") && (argument_is(value, "yes") || argument_is(value, "no"))) {
        filter->skip_self = argument_is(value, "yes");
    } else {
        reply_syntax_error(client);
        return false;
    }
    return true;
}

/* CLIENT KILL address, or CLIENT KILL filter value … */
static void client_kill(struct client *client) {
    struct kill_filter filter = {.skip_self = true};
    if (client->argc == 3) {
        filter.peer = &client->argv[2];
        filter.skip_self = false;
        if (kill_matching(client, &filter) > 0)
            reply_status(client, "OK");
        else
            reply_error(client, "ERR No such client");
        return;
    }
    for (uint32_t i = 2; i < client->argc; i += 2) {
        if (i + 1 >= client->argc) {
            reply_syntax_error(client);
            return;
        }
        if (!parse_filter(client, &client->argv[i], &filter)) return;
    }
    reply_integer(client, kill_matching(client, &filter));
}

/* CLIENT UNBLOCK id [TIMEOUT|ERROR] */
static void client_unblock_other(struct client *client) {
    int64_t id;
    if (client->argc > 4) {
        reply_subcommand_syntax_error(client);
        return;
    }
    bool with_error = client->argc == 4 && argument_is(&client->argv[3], "error");
    if (client->argc == 4 && !with_error && !argument_is(&client->argv[3], "timeout")) {
        reply_error(client, "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR");
        return;
    }
    if (!integer_argument(client, 2, &id)) return;
    struct client *other = id > 0 ? server_client_by_id(client->server, (uint64_t)id) : NULL;
    if (!other || !other->blocked || pause_is_waiting(other) || copy_first_is_waiting(other) ||
        slices_is_going_on(other) || exclusive_is_run_for(other)) {
        reply_integer(client, 0);
        return;
    }
    if (with_error)
        client_interrupt(other, "UNBLOCKED client unblocked via CLIENT UNBLOCK");
    else
        client_expire(other);
    reply_integer(client, 1);
}

/* ---- pauses ------------------------------------------------------------------------------------------ */

/* CLIENT PAUSE milliseconds [WRITE|ALL] */
static void client_pause(struct client *client) {
    enum pause_kind kind = PAUSE_ALL;
    if (client->argc > 4) {
        reply_subcommand_syntax_error(client);
        return;
    }
    if (client->argc == 4 && !argument_is(&client->argv[3], "all")) {
        if (!argument_is(&client->argv[3], "write")) {
            reply_error(client, "ERR CLIENT PAUSE mode must be WRITE or ALL");
            return;
        }
        kind = PAUSE_WRITES;
    }
    int64_t milliseconds;
    if (!argument_int64(&client->argv[2], &milliseconds)) {
        reply_error(client, "ERR timeout is not an integer or out of range");
        return;
    }
    if (milliseconds < 0) {
        reply_error(client, "ERR timeout is negative");
        return;
    }
    if (milliseconds > INT64_MAX / 1000000) {
        reply_error(client, "ERR timeout is out of range");
        return;
    }
    pause_begin(client->server, kind, client->server->now_us + (uint64_t)milliseconds * 1000);
    reply_status(client, "OK");
}

static void client_unpause(struct client *client) {
    reply_status(client, "OK");
    pause_end(client->server);
}

/* ---- the table --------------------------------------------------------------------------------------- */

#define ASK (COMMAND_NOSCRIPT | COMMAND_LOADING | COMMAND_STALE)
#define RULE (ASK | COMMAND_ADMIN)

static const struct command subcommands[] = {
    {"client|caching", client_caching, 3, ASK, &group_connection,
     "Says whether the keys of the next command are tracked.", "6.0.0", .usage = "(YES|NO)"},
    {"client|getname", client_getname, 2, ASK, &group_connection, "Returns the connection's name.", "2.6.9"},
    {"client|getredir", client_getredir, 2, ASK, &group_connection,
     "Returns the client that tracking tells of changes.", "6.0.0"},
    {"client|help", reply_help, 2, COMMAND_LOADING | COMMAND_STALE, &group_connection, "Lists the subcommands.",
     "5.0.0"},
    {"client|id", client_id, 2, ASK, &group_connection, "Returns the connection's number.", "5.0.0"},
    {"client|info", client_info, 2, ASK, &group_connection, "Describes the connection.", "6.2.0",
     .tips = "nondeterministic_output"},
    {"client|kill", client_kill, -3, RULE, &group_connection, "Closes connections.", "2.4.0",
     .usage = "<ip:port> | (ADDR|LADDR|TYPE|USER|SKIPME|ID) <value> [...]"},
    {"client|list", client_list, -2, RULE, &group_connection, "Describes the connections.", "2.4.0",
     .tips = "nondeterministic_output", .usage = "[TYPE <type>] [ID <id> [<id> ...]]"},
    {"client|no-evict", client_no_evict, 3, RULE, &group_connection,
     "Keeps the connection when clients take too much memory.", "7.0.0", .usage = "(ON|OFF)"},
    {"client|no-touch", client_no_touch, 3, ASK, &group_connection,
     "Says whether commands change the access times of keys.", .usage = "(ON|OFF)"},
    {"client|pause", client_pause, -3, RULE, &group_connection, "Has commands wait for a while.", "2.9.50",
     .usage = "<timeout> [WRITE|ALL]"},
    {"client|reply", client_reply, 3, ASK, &group_connection, "Says whether commands are replied to.", "3.2.0",
     .usage = "(ON|OFF|SKIP)"},
    {"client|setinfo", client_setinfo, 4, ASK, &group_connection,
     "Takes the name and the version of the client's library.", .usage = "(LIB-NAME|LIB-VER) <value>"},
    {"client|setname", client_setname, 3, ASK, &group_connection, "Names the connection.", "2.6.9", .usage = "<name>"},
    {"client|tracking", client_tracking, -3, ASK, &group_connection,
     "Has the client told of changes of the keys that it keeps copies of.", "6.0.0",
     .usage = "(ON|OFF) [REDIRECT <id>] [BCAST] [PREFIX <prefix> [...]] [OPTIN] [OPTOUT] [NOLOOP]"},
    {"client|trackinginfo", client_trackinginfo, 2, ASK, &group_connection, "Tells what is tracked for the connection.",
     "6.2.0"},
    {"client|unblock", client_unblock_other, -3, RULE, &group_connection, "Ends the wait of a blocked client.", "5.0.0",
     .usage = "<clientid> [TIMEOUT|ERROR]"},
    {"client|unpause", client_unpause, 2, RULE, &group_connection, "Ends CLIENT PAUSE.", "6.2.0"},
    {0},
};

const struct command commands_client[] = {
    {"client", command_container, -2, 0, &group_connection, "Lists, names, kills and configures connections.", "2.4.0",
     .subcommands = subcommands},
    {0},
};
