/* share: memory of the server that one client on the same host reads its sampled batches from. */
#include "server/replay/share.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/random.h"
#include "server/client.h"
#include "server/server.h"

/* ---- arenas ---------------------------------------------------------------------------------------------------------- */

static size_t round_up(size_t bytes) {
    return (bytes + SHARE_REGION_ALIGNMENT - 1) / SHARE_REGION_ALIGNMENT * SHARE_REGION_ALIGNMENT;
}

/* How large the arena becomes; 0 with `error` set: there may be none. */
static size_t allowed_bytes(const struct client *client, size_t asked, struct error *error) {
    const struct server_config *config = &client->server->config;
    size_t most = (size_t)config->shared_memory_client_limit_bytes;
    size_t bytes = round_up(asked == 0 || asked > most ? most : asked);
    if (bytes < SHARE_LEAST_BYTES) {
        bytes = SHARE_LEAST_BYTES;
    }
    size_t used = client->server->shares.bytes, limit = (size_t)config->shared_memory_limit_bytes;
    if (used + bytes <= limit) {
        return bytes;
    }
    error_set(
        error, ERROR_LIMIT,
        "clients share %zu bytes of memory with the server, %zu more would exceed shared-memory-limit (%zu); go on "
        "without, or raise it",
        used, bytes, limit);
    return 0;
}

int share_open(struct client *client, size_t asked, struct error *error) {
    struct server *server = client->server;
    if (client->share) {
        return error_set(error, ERROR_EXISTS, "this connection shares %zu bytes with the server already",
                         client->share->bytes);
    }
    const struct transport_operations *operations = client->connection->transport->operations;
    if (!operations->attach || !client->connection->is_unix) {
        return error_set(error, ERROR_GENERIC, "memory can be shared over a unix socket only");
    }
    size_t bytes = allowed_bytes(client, asked, error);
    if (bytes == 0) {
        return -1;
    }
    struct share *share = memory_calloc(1, sizeof *share);
    int descriptor = -1;
    if (share) {
        share->bytes = bytes;
        share->base = memory_map_shared(bytes, &descriptor);
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
        memory_free(share);
        return error_set(error, ERROR_GENERIC, "cannot pass a descriptor over this connection");
    }
    client->share = share;
    server->shares.bytes += bytes;
    server->shares.arenas++;
    return 0;
}

void share_close(struct client *client) {
    struct share *share = client->share;
    if (!share) {
        return;
    }
    struct share_totals *totals = &client->server->shares;
    totals->bytes -= share->bytes;
    totals->arenas--;
    totals->leases -= share->count;
    client->share = NULL;
    memory_unmap_shared(share->base, share->bytes);
    memory_free(share);
}

/* ---- leases ---------------------------------------------------------------------------------------------------------- */

const struct share_lease *share_begin(struct client *client, size_t length) {
    struct share *share = client->share;
    if (!share || length == 0 || length > share->bytes || share->count == SHARE_LEASES) {
        return NULL;
    }
    size_t needed = round_up(length), from = 0;
    uint32_t place = 0;
    for (; place < share->count && share->leases[place].offset - from < needed; place++) {
        from = share->leases[place].offset + share->leases[place].length;
    }
    if (place == share->count && share->bytes - from < needed) {
        return NULL;
    }
    struct share_lease *lease = &share->leases[place];
    memmove(lease + 1, lease, (share->count - place) * sizeof *lease);
    *lease = (struct share_lease){.number = ++share->given, .offset = from, .length = needed};
    share->count++;
    client->server->shares.leases++;
    return lease;
}

bool share_end(struct client *client, uint64_t number) {
    struct share *share = client->share;
    for (uint32_t i = 0; share && i < share->count; i++) {
        if (share->leases[i].number == number) {
            share->count--;
            memmove(&share->leases[i], &share->leases[i + 1], (share->count - i) * sizeof share->leases[i]);
            client->server->shares.leases--;
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
    if (connection->is_unix) {
        return true;
    }
    if (strncmp(connection->peer, "127.", 4) == 0 && strncmp(connection->local, "127.", 4) == 0) {
        return true;
    }
    size_t length = host_length(connection->peer);
    return length == host_length(connection->local) && memcmp(connection->peer, connection->local, length) == 0;
}

const char *share_new_nonce(struct client *client) {
    snprintf(client->nonce, sizeof client->nonce, "%016" PRIx64 "%016" PRIx64, random_entropy(), random_entropy());
    return client->nonce;
}

/* Takes as long whatever the guess has in common with the nonce. */
static bool equals_nonce(const struct client *client, const uint8_t *guess) {
    unsigned difference = client->nonce[0] == '\0';
    for (size_t i = 0; i < SHARE_NONCE_BYTES; i++) {
        difference |= (unsigned)(guess[i] ^ (uint8_t)client->nonce[i]);
    }
    return difference == 0;
}

bool share_take_nonce(struct server *server, const void *nonce, size_t length) {
    if (!nonce || length != SHARE_NONCE_BYTES) {
        return false;
    }
    for (struct client *client = server->clients.head; client; client = client->next) {
        if (!client->closing && equals_nonce(client, nonce)) {
            client->nonce[0] = '\0';
            return true;
        }
    }
    return false;
}
