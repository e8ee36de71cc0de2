/* fair_share: divides the bytes that one turn may move among the clients with much to move. Each gets at least a minimum, and
 * a large reply, or a client that takes it slowly, does not delay the short requests of others. */
#include "server/core/fair_share.h"

#include "server/core/server.h"

/* One of `many` clients' part of what a turn may move for all of them, so that whoever has little is soon served. */
static size_t share_of(size_t bytes, uint32_t many) {
    size_t share = many > 1 ? bytes / many : bytes;
    return share > LIMIT_TURN_LEAST_BYTES ? share : LIMIT_TURN_LEAST_BYTES;
}

size_t fair_share_to_read(struct client *client) {
    client->server->turn.landings++;
    return share_of(LIMIT_TURN_READ_BYTES, client->server->turn.landings_before);
}

/* Pieces as long as may be: each is a packet's work for the kernel, whatever its length. */
size_t fair_share_to_write(const struct client *client) {
    uint32_t writers = client->server->clients.writers;
    if (client->output.unsent_source_bytes > 0) return share_of(LIMIT_TURN_WRITE_BYTES, writers);
    size_t share = share_of(LIMIT_TURN_WRITE_BLOB_BYTES, writers);
    return share < LIMIT_TURN_WRITE_BYTES ? share : LIMIT_TURN_WRITE_BYTES;
}
