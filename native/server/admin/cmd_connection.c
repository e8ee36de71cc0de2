/* cmd_connection: HELLO, AUTH, PING, ECHO, SELECT, QUIT, RESET. */
#include <string.h>

#include "base/memory.h"
#include "server/admin/admin_subsystem.h"
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/secret_arguments.h"
#include "server/core/server.h"
#include "server/redis/acl/acl.h"
#include "server/redis/pubsub/pubsub.h"
#include "server/redis/redis_subsystem.h"
#include "server/redis/tracking/tracking.h"
#include "server/redis/transaction/transaction.h"
#include "server/replication/table_replication.h"

static bool log_in(struct client *client, const struct resp_argument *user, const struct resp_argument *password) {
    if (acl_log_in(client, user, password)) return true;
    reply_error(client, "WRONGPASS invalid username-password pair or user is disabled.");
    return false;
}

static void auth_command(struct client *client) {
    if (client->argc > 3) {
        reply_syntax_error(client);
        return;
    }
    if (client->argc == 2 && (client->server->redis->acl->standard->flags & ACL_USER_NO_PASSWORD)) {
        reply_error(
            client,
            "ERR AUTH <password> called without any password configured for the default user. Are you sure your "
            "configuration is correct?");
        return;
    }
    if (log_in(client, client->argc == 3 ? &client->argv[1] : NULL, &client->argv[client->argc - 1]))
        reply_status(client, "OK");
}

static bool is_printable(const struct resp_argument *text) {
    for (size_t i = 0; i < text->length; i++)
        if (!text->data || text->data[i] < '!' || text->data[i] > '~') return false;
    return true;
}

/* Sets the name; false: the error is replied. */
bool client_set_name(struct client *client, const struct resp_argument *name) {
    if (!is_printable(name)) {
        reply_error(client, "ERR Client names cannot contain spaces, newlines or special characters.");
        return false;
    }
    if (name->length > LIMIT_CLIENT_NAME_BYTES) {
        reply_error(client, "ERR the client name is %zu bytes, at most %u are possible", name->length,
                    LIMIT_CLIENT_NAME_BYTES);
        return false;
    }
    char *copy = NULL;
    if (name->length > 0) {
        copy = memory_alloc(name->length + 1);
        if (!copy) {
            reply_error(client, "OOM no memory for the client name");
            return false;
        }
        memcpy(copy, name->data, name->length);
        copy[name->length] = '\0';
    }
    memory_free(client->name);
    client->name = copy;
    return true;
}

static void reply_hello(struct client *client) {
    reply_map(client, 7);
    reply_bulk_string(client, "server");
    reply_bulk_string(client, "redis");
    reply_bulk_string(client, "version");
    reply_bulk_string(client, SERVER_REDIS_VERSION);
    reply_bulk_string(client, "proto");
    reply_integer(client, client->resp);
    reply_bulk_string(client, "id");
    reply_integer(client, (int64_t)client->id);
    reply_bulk_string(client, "mode");
    reply_bulk_string(client, client->server->config.cluster_enabled ? "cluster" : "standalone");
    reply_bulk_string(client, "role");
    reply_bulk_string(client, "master");
    reply_bulk_string(client, "modules");
    reply_array(client, 0);
}

/* HELLO [version [AUTH user password] [SETNAME name]] */
static void hello_command(struct client *client) {
    int64_t version = client->resp;
    if (client->argc >= 2) {
        if (!argument_int64(&client->argv[1], &version)) {
            reply_error(client, "ERR Protocol version is not an integer or out of range");
            return;
        }
        if (version < 2 || version > 3) {
            reply_error(client, "NOPROTO unsupported protocol version");
            return;
        }
    }
    const struct resp_argument *name = NULL;
    for (uint32_t i = 2; i < client->argc;) {
        uint32_t more = client->argc - i - 1;
        if (argument_is(&client->argv[i], "auth") && more >= 2) {
            if (!log_in(client, &client->argv[i + 1], &client->argv[i + 2])) return;
            i += 3;
        } else if (argument_is(&client->argv[i], "setname") && more >= 1) {
            name = &client->argv[i + 1];
            i += 2;
        } else {
            reply_error(client, "ERR Syntax error in HELLO option '%.*s'",
                        client->argv[i].data && client->argv[i].length < 128 ? (int)client->argv[i].length : 0,
                        (const char *)client->argv[i].data);
            return;
        }
    }
    if (!client->authenticated) {
        reply_error(
            client,
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> "
            "option can be used to authenticate the client and select the RESP protocol version at the same time");
        return;
    }
    if (name && !client_set_name(client, name)) return;
    client->resp = (int)version;
    reply_hello(client);
}

static void ping_command(struct client *client) {
    if (client->argc > 2) {
        reply_arity_error(client);
    } else if (client->is_primary && table_replication_apply(client)) {
        return;
    } else if (client->resp == 2 && pubsub_is_subscriber(client)) {
        reply_array(client, 2); /* so that it looks like a message */
        reply_bulk_string(client, "pong");
        reply_bulk(client, client->argc == 2 ? client->argv[1].data : (const uint8_t *)"",
                   client->argc == 2 ? client->argv[1].length : 0);
    } else if (client->argc == 2)
        reply_bulk(client, client->argv[1].data, client->argv[1].length);
    else
        reply_status(client, "PONG");
}

static void echo_command(struct client *client) {
    if (client->argv[1].blob)
        reply_blob(client, client->argv[1].blob);
    else
        reply_bulk(client, client->argv[1].data, client->argv[1].length);
}

static void select_command(struct client *client) {
    int64_t database;
    if (!argument_int64(&client->argv[1], &database)) {
        reply_error(client, "ERR value is not an integer or out of range");
    } else if (database < 0 || database >= LIMIT_DATABASES) {
        reply_error(client, "ERR DB index is out of range");
    } else if (client->server->config.cluster_enabled && database != 0) {
        reply_error(client, "ERR SELECT is not allowed in cluster mode");
    } else {
        client->database = (int)database;
        reply_status(client, "OK");
    }
}

static void quit_command(struct client *client) {
    reply_status(client, "OK");
    client->close_after_reply = true;
}

static void reset_command(struct client *client) {
    pubsub_client_gone(client);
    monitor_client_gone(client);
    transaction_discard(client);
    tracking_end(client);
    client->database = 0;
    client->resp = 2;
    client->reply_mode = CLIENT_REPLY_ON;
    client->no_evict = false;
    client->no_touch = false;
    client->reads_replica = false;
    acl_welcome(client);
    memory_free(client->name);
    client->name = NULL;
    reply_status(client, "RESET");
}

static bool hello_is_secret(uint32_t argc, const struct resp_argument *argv, uint32_t index) {
    for (uint32_t i = 2; i + 2 < argc; i++)  /* each: one may be a name (SETNAME auth), another may be repeated */
        if (argument_is(&argv[i], "auth") && (index == i + 1 || index == i + 2)) return true;
    return false;
}

#define LOGIN (COMMAND_FAST | COMMAND_NOAUTH | COMMAND_LOADING | COMMAND_STALE | COMMAND_NOSCRIPT | COMMAND_ALLOW_BUSY)

const struct command commands_connection[] = {
    {"auth", auth_command, -2, LOGIN, &group_connection, "Authenticates the connection.", "1.0.0",
     .is_secret = every_argument_is_secret},
    {"echo", echo_command, 2, COMMAND_FAST | COMMAND_LOADING | COMMAND_STALE, &group_connection,
     "Returns the given string.", "1.0.0"},
    {"hello", hello_command, -1, LOGIN, &group_connection,
     "Handshakes with the server: protocol version, authentication, name.", "6.0.0", .is_secret = hello_is_secret},
    {"ping", ping_command, -1, COMMAND_FAST | COMMAND_SUBSCRIBER, &group_connection,
     "Returns PONG, or the given message.", "1.0.0",
     .tips = "request_policy:all_shards\nresponse_policy:all_succeeded"},
    {"quit", quit_command, -1, LOGIN | COMMAND_SUBSCRIBER | COMMAND_NOT_QUEUED, &group_connection,
     "Closes the connection.", "1.0.0"},
    {"reset", reset_command, 1, LOGIN | COMMAND_SUBSCRIBER | COMMAND_NOT_QUEUED, &group_connection,
     "Makes the connection as it was when new.", "6.2.0"},
    {"select", select_command, 2, COMMAND_FAST | COMMAND_LOADING | COMMAND_STALE | COMMAND_IN_LOG, &group_connection,
     "Chooses the database, 0 to 15.", "1.0.0"},
    {0},
};
