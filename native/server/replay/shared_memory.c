#include "server/replay/shared_memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/arithmetic.h"
#include "base/memory.h"
#include "base/random.h"
#include "server/core/client.h"
#include "server/core/server.h"
#include "server/replay/replay_subsystem.h"

/* ---- arenas ---------------------------------------------------------------------------------------------------------- */

/* How large the arena becomes; 0 with `error` set: there may be none. */
static size_t allowed_bytes(const struct client *client, size_t asked, struct error *error) {
    const struct server_config *config = &client->server->config;
    size_t most = (size_t)config->shared_memory_client_limit_bytes;
    size_t bytes = round_up(asked == 0 || asked > most ? most : asked, SHARE_REGION_ALIGNMENT);
    if (bytes < SHARE_LEAST_BYTES) bytes = SHARE_LEAST_BYTES;
    const struct share_totals *totals = &client->server->replay->shares;
    size_t used = totals->bytes + totals->left_bytes, limit = (size_t)config->shared_memory_limit_bytes;
    if (used + bytes > limit) {
        error_set(
            error, ERROR_LIMIT,
            "clients share %zu bytes of memory with the server (%zu of them through connections that have closed), "
            "%zu more would exceed shared-memory-limit (%zu); go on without, or raise it",
            used, totals->left_bytes, bytes, limit);
        return 0;
    }
    if (client->server->clients.count + totals->watches >= (uint64_t)config->maxclients) {
        error_set(error, ERROR_LIMIT,
                  "%u clients and %u arenas of shared memory take as many descriptors as maxclients allows; go on "
                  "without, or raise it",
                  client->server->clients.count, totals->watches);
        return 0;
    }
    return bytes;
}

int share_open(struct client *client, size_t asked, struct error *error) {
    struct server *server = client->server;
    if (client->share) {
        return error_set(error, ERROR_EXISTS, "this connection shares %zu bytes with the server already",
                         client->share->bytes);
    }
    const struct transport_operations *operations = client->connection->transport->operations;
    if (!operations->attach || !client->connection->is_unix)
        return error_set(error, ERROR_GENERIC, "memory can be shared over a unix socket only");
    share_forget_let_go(server);
    size_t bytes = allowed_bytes(client, asked, error);
    if (bytes == 0) return -1;
    struct share *share = memory_calloc(1, sizeof *share);
    int descriptor = -1;
    if (share) {
        share->bytes = bytes;
        share->watch = -1;
        share->base = memory_map_shared(bytes, &descriptor, &share->watch);
    }
    if (!share || !share->base) {
        memory_free(share);
        return error_set(error, ERROR_GENERIC, "cannot share %zu bytes of memory: %s", bytes,
                         errno == ENOSYS ? "it needs Linux 5.1 or newer" : strerror(errno));
    }
    int attached = operations->attach(client->connection, descriptor);
    close(descriptor);
    if (attached < 0) {
        memory_unmap_shared(share->base, bytes);
        if (share->watch >= 0) close(share->watch);
        memory_free(share);
        return error_set(error, ERROR_GENERIC, "cannot pass a descriptor over this connection");
    }
    client->share = share;
    server->replay->shares.bytes += bytes;
    server->replay->shares.arenas++;
    server->replay->shares.watches += share->watch >= 0;
    return 0;
}

void share_close(struct client *client) {
    struct share *share = client->share;
    if (!share) return;
    struct share_totals *totals = &client->server->replay->shares;
    totals->bytes -= share->bytes;
    totals->arenas--;
    totals->leases -= share->count;
    client->share = NULL;
    memory_unmap_shared(share->base, share->bytes);
    if (share->watch < 0) {
        memory_free(share);
        return;
    }
    /* Whether the client has gone as well is seen later: its end of the connection closes first. */
    totals->left_bytes += share->bytes;
    share->next = totals->left;
    totals->left = share;
}

static void forget(struct share_totals *totals, struct share *share) {
    totals->left_bytes -= share->bytes;
    totals->watches--;
    close(share->watch);
    memory_free(share);
}

void share_forget_let_go(struct server *server) {
    struct share_totals *totals = &server->replay->shares;
    for (struct share **link = &totals->left; *link;) {
        struct share *share = *link;
        if (memory_shared_is_held(share->watch)) {
            link = &share->next;
        } else {
            *link = share->next;
            forget(totals, share);
        }
    }
}

void share_free_left(struct server *server) {
    while (server->replay->shares.left) {
        struct share *share = server->replay->shares.left;
        server->replay->shares.left = share->next;
        forget(&server->replay->shares, share);
    }
}

/* ---- leases ---------------------------------------------------------------------------------------------------------- */

const struct share_lease *share_begin(struct client *client, size_t length) {
    struct share *share = client->share;
    if (!share || length == 0 || length > share->bytes || share->count == SHARE_LEASES) return NULL;
    size_t needed = round_up(length, SHARE_REGION_ALIGNMENT), from = 0;
    uint32_t place = 0;
    for (; place < share->count && share->leases[place].offset - from < needed; place++)
        from = share->leases[place].offset + share->leases[place].length;
    if (place == share->count && share->bytes - from < needed) return NULL;
    struct share_lease *lease = &share->leases[place];
    memmove(lease + 1, lease, (share->count - place) * sizeof *lease);
    *lease = (struct share_lease){.number = ++share->given, .offset = from, .length = needed};
    share->count++;
    client->server->replay->shares.leases++;
    return lease;
}

bool share_end(struct client *client, uint64_t number) {
    struct share *share = client->share;
    for (uint32_t i = 0; share && i < share->count; i++) {
        if (share->leases[i].number == number) {
            share->count--;
            memmove(&share->leases[i], &share->leases[i + 1], (share->count - i) * sizeof share->leases[i]);
            client->server->replay->shares.leases--;
            return true;
        }
    }
    return false;
}

/* ---- being on the same host ------------------------------------------------------------------------------------------ */

static size_t host_length(const char *address) {
    const char *colon = strrchr(address, ':');
    return colon ? (size_t)(colon - address) : strlen(address);
}

bool share_is_same_host(const struct client *client) {
    const struct connection *connection = client->connection;
    if (connection->is_unix) return true;
    if (strncmp(connection->peer, "127.", 4) == 0 && strncmp(connection->local, "127.", 4) == 0) return true;
    size_t length = host_length(connection->peer);
    return length == host_length(connection->local) && memcmp(connection->peer, connection->local, length) == 0;
}

const char *share_new_nonce(struct client *client) {
    uint64_t secret[2];
    if (!random_secret(secret, sizeof secret)) return NULL;
    snprintf(client->nonce, sizeof client->nonce, "%016" PRIx64 "%016" PRIx64, secret[0], secret[1]);
    return client->nonce;
}

/* Takes as long whatever the guess has in common with the nonce. */
static bool equals_nonce(const struct client *client, const uint8_t *guess) {
    unsigned difference = client->nonce[0] == '\0';
    for (size_t i = 0; i < CLIENT_NONCE_BYTES; i++) difference |= (unsigned)(guess[i] ^ (uint8_t)client->nonce[i]);
    return difference == 0;
}

bool share_take_nonce(struct server *server, const void *nonce, size_t length) {
    if (!nonce || length != CLIENT_NONCE_BYTES) return false;
    for (struct client *client = server->clients.head; client; client = client->next) {
        if (!client->closing && equals_nonce(client, nonce)) {
            client->nonce[0] = '\0';
            return true;
        }
    }
    return false;
}
