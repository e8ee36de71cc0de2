/* transaction: commands queued since MULTI, kept with copies of their arguments until EXEC runs them, and the commands
 * that begin and end it. */
#include "server/redis/transaction/transaction.h"

#include <string.h>

#include "base/memory.h"
#include "server/core/command_table.h"
#include "server/core/exclusive_execution.h"
#include "server/core/propagate.h"
#include "server/core/server.h"
#include "server/redis/acl/acl.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/redis_rows.h"
#include "server/redis/transaction/watch.h"

struct queued {
    struct command_entry *entry;
    uint32_t argc;
    struct resp_argument *argv; /* one allocation with the bytes of those that are in no blob */
};

struct transaction {
    struct queued *commands;
    uint32_t count, capacity;
    uint32_t flags;      /* of all their requests */
    size_t held_bytes;
    bool refused;        /* a request was */
};

/* ---- keeping requests -------------------------------------------------------------------------------- */

static void release_arguments(uint32_t argc, struct resp_argument *argv) {
    for (uint32_t i = 0; i < argc; i++) blob_release(argv[i].blob);
    memory_free(argv);
}

/* What the copy allocates, and what the blobs that it keeps hold. */
static void measure(const struct client *client, size_t *copied, size_t *kept) {
    *copied = client->argc * sizeof(struct resp_argument);
    *kept = 0;
    for (uint32_t i = 0; i < client->argc; i++) *(client->argv[i].blob ? kept : copied) += client->argv[i].length;
}

static struct resp_argument *copy_arguments(const struct client *client, size_t bytes) {
    struct resp_argument *argv = memory_alloc(bytes);
    if (!argv) return NULL;
    uint8_t *end = (uint8_t *)(argv + client->argc);
    for (uint32_t i = 0; i < client->argc; i++) {
        argv[i] = client->argv[i];
        if (argv[i].blob) {
            blob_retain(argv[i].blob);
            continue;
        }
        if (argv[i].length > 0) memcpy(end, argv[i].data, argv[i].length);
        argv[i].data = end;
        end += argv[i].length;
    }
    return argv;
}

static bool grow(struct transaction *transaction) {
    struct queued *commands =
        memory_grow(transaction->commands, transaction->count, &transaction->capacity, 8, sizeof *commands);
    if (commands) transaction->commands = commands;
    return commands;
}

static void queue(struct client *client, struct command_entry *entry) {
    struct transaction *transaction = client->transaction;
    size_t copied, kept;
    measure(client, &copied, &kept);
    size_t held = transaction->held_bytes + sizeof(struct queued) + copied + kept;
    size_t most = (size_t)client->server->config.max_request_bytes;
    if (held > most) {
        reply_error(client,
                    "LIMIT the transaction's commands are %zu bytes together, more than max-request-bytes (%zu): send "
                    "several smaller ones",
                    held, most);
        transaction->refused = true;
        return;
    }
    struct resp_argument *argv = grow(transaction) ? copy_arguments(client, copied) : NULL;
    if (!argv) {
        reply_out_of_memory(client);
        transaction->refused = true;
        return;
    }
    transaction->commands[transaction->count++] = (struct queued){entry, client->argc, argv};
    transaction->flags |= command_request_flags(client, entry->command);
    transaction->held_bytes = held;
    reply_status(client, "QUEUED");
}

static void exec_command(struct client *client);

bool transaction_queue(struct client *client, struct command_entry *entry) {
    if (!client->transaction || (entry->command->flags & COMMAND_NOT_QUEUED)) return false;
    queue(client, entry);
    return true;
}

void transaction_refused(struct client *client) {
    if (client->transaction) client->transaction->refused = true;
}

const char *transaction_refusal_prefix(struct client *client, const struct command *command) {
    if (command->handler != exec_command) return NULL;
    transaction_discard(client);
    return "EXECABORT Transaction discarded because of: ";
}

bool transaction_has(const struct client *client, const struct command *command,
                     bool (*is_so)(const struct client *client, const struct command *command, uint32_t argc,
                                   const struct resp_argument *argv, void *context),
                     void *context) {
    const struct transaction *transaction = command->handler == exec_command ? client->transaction : NULL;
    bool found = false;
    for (uint32_t i = 0; transaction && i < transaction->count; i++) {
        const struct queued *queued = &transaction->commands[i];
        found |= is_so(client, queued->entry->command, queued->argc, queued->argv, context);
    }
    return found;
}

uint32_t transaction_flags(const struct client *client, const struct command *command) {
    bool runs_them = client->transaction && command->handler == exec_command;
    return command_request_flags(client, command) | (runs_them ? client->transaction->flags : 0);
}

int64_t transaction_count(const struct client *client) {
    return client->transaction ? (int64_t)client->transaction->count : -1;
}

size_t transaction_bytes(const struct client *client) {
    return client->transaction ? client->transaction->held_bytes : 0;
}

static void transaction_free(struct transaction *transaction) {
    for (uint32_t i = 0; i < transaction->count; i++)
        release_arguments(transaction->commands[i].argc, transaction->commands[i].argv);
    memory_free(transaction->commands);
    memory_free(transaction);
}

void transaction_discard(struct client *client) {
    if (client->transaction) transaction_free(client->transaction);
    client->transaction = NULL;
    watch_forget(client);
}

/* ---- the commands ------------------------------------------------------------------------------------ */

static void multi_command(struct client *client) {
    if (client->transaction) {
        reply_error(client, "ERR MULTI calls can not be nested");
        return;
    }
    client->transaction = memory_calloc(1, sizeof *client->transaction);
    if (!client->transaction)
        reply_out_of_memory(client);
    else
        reply_status(client, "OK");
}

static void discard_command(struct client *client) {
    if (!client->transaction) {
        reply_error(client, "ERR DISCARD without MULTI");
        return;
    }
    transaction_discard(client);
    reply_status(client, "OK");
}

/* What is about the client's connection alone. */
static bool concerns_connection(const struct command *command) {
    return (command->flags & COMMAND_NOSCRIPT) && !(command->flags & (COMMAND_WRITE | COMMAND_MOVABLEKEYS));
}

static const char *reason_of(enum acl_verdict denial) {
    switch (denial) {
    case ACL_DENIED_COMMAND: return "no permission to execute the command or subcommand";
    case ACL_DENIED_KEY: return "no permission to touch the specified keys";
    case ACL_DENIED_CHANNEL: return "no permission to access one of the channels used as arguments";
    case ACL_ALLOWED:
    case ACL_DENIED_LOGIN: break;
    }
    return "no permission";
}

/* One after the other, each with a reply of its own; whatever one of them replies, the next is run. */
static void run_all(struct client *client, const struct transaction *transaction) {
    struct command_entry *entry = client->entry;
    uint32_t argc = client->argc;
    struct resp_argument *argv = client->argv;
    bool failed = client->error_replied, denied = client->deny_blocking;
    client->deny_blocking = true;
    reply_array(client, transaction->count);
    for (uint32_t i = 0; i < transaction->count; i++) {
        const struct queued *queued = &transaction->commands[i];
        if (i > 0) exclusive_rest(client->server);
        if (client->closing && concerns_connection(queued->entry->command)) continue;
        client->argc = queued->argc;
        client->argv = queued->argv;
        client->entry = queued->entry;
        client->command = queued->entry->command;
        enum acl_verdict denial =
            acl_denial(client, queued->entry); /* what was allowed when it was queued may be no more */
        if (denial != ACL_ALLOWED) {
            reply_error(client,
                        "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC "
                        "call. This command is no longer allowed for the following reason: %s",
                        reason_of(denial));
            continue;
        }
        command_call(client, queued->entry);
        client_command_done(client);
    }
    client->deny_blocking = denied;
    client->error_replied = failed;
    client->argc = argc;
    client->argv = argv;
    client->entry = entry;
    client->command = entry->command;
}

static void release(void *transaction) {
    transaction_free(transaction);
}

static void run_transaction(struct client *client) {
    struct server *server = client->server;
    struct transaction *transaction = server->exclusive.owned;
    propagate_begin(server);
    run_all(client, transaction);
    propagate_end(server);
    server->exclusive.owned = NULL;
    transaction_free(transaction);
}

static void exec_command(struct client *client) {
    struct transaction *transaction = client->transaction;
    if (!transaction) {
        reply_error(client, "ERR EXEC without MULTI");
        return;
    }
    if (transaction->refused) {
        reply_error(client, "EXECABORT Transaction discarded because of previous errors.");
        transaction_discard(client);
        return;
    }
    if (watch_is_broken(client)) {
        reply_null_array(client);
        transaction_discard(client);
        return;
    }
    /* Its own changes break no watch of it; and should the client be closed meanwhile, it runs to its end. */
    client->transaction = NULL;
    watch_forget(client);
    client->server->exclusive.owned = transaction;
    client->server->exclusive.release = release;
    exclusive_run(client, run_transaction);
}

static void watch_command(struct client *client) {
    if (client->transaction) {
        reply_error(client, "ERR WATCH inside MULTI is not allowed");
        return;
    }
    for (uint32_t i = 1; i < client->argc && !client->watch_broken; i++) {
        if (!exclusive_goes_on_at(client, i)) return;
        if (!watch_key(client, client->argv[i].data, client->argv[i].length)) {
            reply_out_of_memory(client);
            return;
        }
    }
    reply_status(client, "OK");
}

static void unwatch_command(struct client *client) {
    watch_forget(client);
    reply_status(client, "OK");
}

#define AT_ANY_TIME (COMMAND_NOSCRIPT | COMMAND_LOADING | COMMAND_STALE | COMMAND_FAST | COMMAND_ALLOW_BUSY)

const struct command commands_transactions[] = {
    {"discard", discard_command, 1, AT_ANY_TIME | COMMAND_NOT_QUEUED, &group_transactions,
     "Drops the commands queued since MULTI.", "2.0.0"},
    {"exec", exec_command, 1,
     COMMAND_NOSCRIPT | COMMAND_LOADING | COMMAND_STALE | COMMAND_SKIP_SLOWLOG | COMMAND_NOT_QUEUED,
     &group_transactions, "Runs the commands queued since MULTI, with none of another client in between.", "1.2.0"},
    {"multi", multi_command, 1, AT_ANY_TIME | COMMAND_NOT_QUEUED, &group_transactions,
     "Begins a transaction: what follows is queued.", "1.2.0"},
    {"unwatch", unwatch_command, 1, AT_ANY_TIME, &group_transactions, "Watches no key any more.", "2.2.0"},
    {"watch", watch_command, -2, AT_ANY_TIME | COMMAND_NOT_QUEUED | COMMAND_RESTS, &group_transactions,
     "Lets the next EXEC run only if none of the keys has changed.", "2.2.0", .keys = keys_known},
    {0},
};
