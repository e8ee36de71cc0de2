/* cmd_share: REPLAY.SHARE, PROVE and RELEASE: how a client on the same host comes to read batches from shared memory. The
 * replies themselves are those of REPLAY.SAMPLE … SHARED (replay_share.c). */

#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/secret_arguments.h"
#include "server/core/server.h"
#include "server/replay/replay_arguments.h"
#include "server/replay/replay_rows.h"
#include "server/replay/replay_subsystem.h"
#include "server/replay/shared_memory.h"

/* Over TCP memory cannot be shared, but the client may be told of the socket that it can be shared over. */
static void tell_socket(struct client *client) {
    const struct server *server = client->server;
    if (client->argc > 1) {
        reply_error(client,
                    "ERR memory can be shared over a unix socket only; REPLAY.SHARE without arguments names one");
        return;
    }
    if (server->replay->share_socket[0] == '\0' || server->config.shared_memory_limit_bytes == 0) {
        reply_error(client, "ERR this server shares no memory (CONFIG GET shared-memory-limit)");
        return;
    }
    if (!share_is_same_host(client)) {
        reply_error(client, "ERR memory can be shared on the same host only, and %s is not this one",
                    client->connection->peer);
        return;
    }
    const char *nonce = share_new_nonce(client);
    if (!nonce) {
        reply_error(client, "ERR the system has no random numbers for secrets yet; go on without, or try again later");
        return;
    }
    reply_array(client, 3);
    reply_bulk_string(client, server->replay->share_socket);
    reply_bulk_string(client, server->start.run_id);
    reply_bulk_string(client, nonce);
}

/* REPLAY.SHARE [bytes] */
static void share_command(struct client *client) {
    int64_t bytes = 0;
    if (client->argc > 2) {
        reply_syntax_error(client);
        return;
    }
    if (!client->connection->is_unix) {
        tell_socket(client);
        return;
    }
    if (client->argc == 2 && (!argument_int64(&client->argv[1], &bytes) || bytes < 1)) {
        reply_error(client, "ERR expected how many bytes to share, an integer of at least 1");
        return;
    }
    struct error error;
    if (share_open(client, (size_t)bytes, &error)) {
        reply_failure(client, &error);
        return;
    }
    reply_integer(client, (int64_t)client->share->bytes);
}

/* REPLAY.PROVE nonce */
static void prove_command(struct client *client) {
    if (!share_take_nonce(client->server, client->argv[1].data, client->argv[1].length)) {
        reply_error(client, "NOAUTH expected a nonce that REPLAY.SHARE gave to a TCP connection that is still open");
        return;
    }
    client->unproven = false;
    client_use_limits(client);
    reply_status(client, "OK");
}

/* REPLAY.RELEASE lease … */
static void release_command(struct client *client) {
    int64_t number, released = 0;
    if (!names_within_or_reply(client, 1, SHARE_LEASES, "leases")) return;
    for (uint32_t i = 1; i < client->argc; i++) {
        if (!argument_int64(&client->argv[i], &number) || number < 1) {
            reply_error(client, "ERR expected the numbers of leases, integers of at least 1; none was given back");
            return;
        }
    }
    for (uint32_t i = 1; i < client->argc; i++) {
        argument_int64(&client->argv[i], &number);
        released += share_end(client, (uint64_t)number);
    }
    reply_integer(client, released);
}

const struct command commands_share[] = {
    {"replay.share", share_command, -1, COMMAND_FAST | COMMAND_NO_MULTI | COMMAND_NOSCRIPT, &group_replay,
     "Shares memory with a client over a unix socket; over TCP, tells a client of this host of such a socket."},
    {"replay.prove", prove_command, 2, COMMAND_FAST | COMMAND_NOAUTH | COMMAND_NO_MULTI | COMMAND_NOSCRIPT,
     &group_replay, "Shows on the socket told of by REPLAY.SHARE that the client is the one that was told.",
     .is_secret = every_argument_is_secret},
    {"replay.release", release_command, -2, COMMAND_FAST | COMMAND_NOSCRIPT, &group_replay,
     "Gives shared memory back; returns how many of the leases were held."},
    {0},
};
