/* memory_transport: a transport without sockets, for tests. */
#include "memory_transport.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct bytes {
    uint8_t *data;
    size_t length, capacity;
};

/* A piece of the server's memory that was "sent" without a copy. */
struct held {
    const uint8_t *data;
    size_t length;
};

struct memory_peer {
    struct connection base;
    struct memory_peer *next;
    struct bytes input, received;
    size_t input_read;
    struct held *held;
    size_t held_count, held_capacity, held_bytes;
    size_t piece, window;
    int attached;
    bool finished, vanished, hung_up, wants_read, wants_write, dying, closed;
};

struct memory_transport {
    struct transport base;
    struct memory_peer *peers;
    int count;
};

/* Tests have memory. */
static void *must(void *pointer) {
    assert(pointer);
    return pointer;
}

static void bytes_append(struct bytes *bytes, const void *data, size_t length) {
    if (bytes->length + length > bytes->capacity) {
        bytes->capacity = 2 * (bytes->length + length);
        bytes->data = must(realloc(bytes->data, bytes->capacity));
    }
    if (length > 0) memcpy(bytes->data + bytes->length, data, length);
    bytes->length += length;
}

static void bytes_free(struct bytes *bytes) {
    free(bytes->data);
    *bytes = (struct bytes){0};
}

/* ---- the peer's side --------------------------------------------------------------------------------- */

struct memory_peer *memory_peer_connect(struct transport *base) {
    struct connection ends = {.local = "memory:0"};
    snprintf(ends.peer, sizeof ends.peer, "memory:%d", ++((struct memory_transport *)base)->count);
    return memory_peer_connect_as(base, &ends);
}

struct memory_peer *memory_peer_reached(struct transport *base, const struct connection *ends, void *owner) {
    struct memory_transport *transport = (struct memory_transport *)base;
    struct memory_peer *peer = must(calloc(1, sizeof *peer));
    peer->base = *ends;
    peer->base.transport = base;
    peer->attached = -1;
    peer->wants_read = true;
    peer->piece = SIZE_MAX;
    peer->window = SIZE_MAX;
    peer->next = transport->peers;
    transport->peers = peer;
    peer->base.owner = owner;
    return peer;
}

struct connection *memory_peer_connection(struct memory_peer *peer) {
    return &peer->base;
}

struct memory_peer *memory_peer_connect_as(struct transport *base, const struct connection *ends) {
    struct memory_peer *peer = memory_peer_reached(base, ends, NULL);
    peer->base.owner = base->events.opened(base->events.context, &peer->base);
    if (peer->base.owner) return peer;
    peer->dying = peer->closed = true;
    return NULL;
}

void memory_peer_send(struct memory_peer *peer, const void *bytes, size_t length) {
    bytes_append(&peer->input, bytes, length);
}

void memory_peer_finish(struct memory_peer *peer) {
    peer->finished = true;
}

void memory_peer_vanish(struct memory_peer *peer) {
    peer->vanished = true;
}

void memory_peer_cut_input(struct memory_peer *peer, size_t piece) {
    assert(piece > 0);
    peer->piece = piece;
}

void memory_peer_open_window(struct memory_peer *peer, size_t window) {
    peer->window = window;
}

const uint8_t *memory_peer_received(const struct memory_peer *peer, size_t *length) {
    *length = peer->received.length;
    return peer->received.data;
}

void memory_peer_forget_received(struct memory_peer *peer) {
    bytes_free(&peer->received);
}

size_t memory_peer_held(const struct memory_peer *peer) {
    return peer->held_bytes;
}

void memory_peer_release(struct memory_peer *peer, size_t length) {
    assert(length <= peer->held_bytes && !peer->closed);
    if (length == 0) return;
    size_t left = length;
    size_t gone = 0;
    while (left > 0) {
        struct held *held = &peer->held[gone];
        size_t piece = held->length < left ? held->length : left;
        bytes_append(&peer->received, held->data, piece); /* read as late as a network card would */
        held->data += piece;
        held->length -= piece;
        left -= piece;
        if (held->length == 0) gone++;
    }
    memmove(peer->held, peer->held + gone, (peer->held_count - gone) * sizeof *peer->held);
    peer->held_count -= gone;
    peer->held_bytes -= length;
    peer->base.transport->events.released(peer->base.transport->events.context, peer->base.owner, length);
}

bool memory_peer_is_closed(const struct memory_peer *peer) {
    return peer->closed;
}

int memory_peer_attached(const struct memory_peer *peer) {
    return peer->attached;
}

bool memory_peer_is_read(const struct memory_peer *peer) {
    return peer->wants_read;
}

/* ---- the server's side ------------------------------------------------------------------------------- */

static ssize_t memory_readv(struct connection *connection, const struct iovec *vectors, int count) {
    struct memory_peer *peer = (struct memory_peer *)connection;
    if (peer->dying || peer->vanished) {
        peer->dying = true;
        return -2;
    }
    size_t left = peer->input.length - peer->input_read;
    if (left == 0) return peer->finished ? 0 : -1;
    if (left > peer->piece) left = peer->piece;
    size_t got = 0;
    for (int i = 0; i < count && got < left; i++) {
        size_t piece = vectors[i].iov_len < left - got ? vectors[i].iov_len : left - got;
        memcpy(vectors[i].iov_base, peer->input.data + peer->input_read, piece);
        peer->input_read += piece;
        got += piece;
    }
    return (ssize_t)got;
}

static void take_written(struct memory_peer *peer, const uint8_t *data, size_t length) {
    if (peer->base.transport->operations->releases_at_write) {
        bytes_append(&peer->received, data, length);
        return;
    }
    if (peer->held_count == peer->held_capacity) {
        peer->held_capacity = peer->held_capacity ? 2 * peer->held_capacity : 16;
        peer->held = must(realloc(peer->held, peer->held_capacity * sizeof *peer->held));
    }
    peer->held[peer->held_count++] = (struct held){.data = data, .length = length};
    peer->held_bytes += length;
}

static ssize_t memory_writev(struct connection *connection, const struct iovec *vectors, int count) {
    struct memory_peer *peer = (struct memory_peer *)connection;
    if (peer->dying || peer->vanished) {
        peer->dying = true;
        return -2;
    }
    size_t sent = 0;
    for (int i = 0; i < count && peer->window > 0; i++) {
        size_t piece = vectors[i].iov_len < peer->window ? vectors[i].iov_len : peer->window;
        take_written(peer, vectors[i].iov_base, piece);
        if (peer->window != SIZE_MAX) peer->window -= piece;
        sent += piece;
    }
    return sent > 0 ? (ssize_t)sent : -1;
}

static void memory_want_read(struct connection *connection, bool on) {
    ((struct memory_peer *)connection)->wants_read = on;
}

static void memory_want_write(struct connection *connection, bool on) {
    ((struct memory_peer *)connection)->wants_write = on;
}

static void memory_close(struct connection *connection) {
    ((struct memory_peer *)connection)->dying = true;
}

static int memory_attach(struct connection *connection, int descriptor) {
    struct memory_peer *peer = (struct memory_peer *)connection;
    if (!connection->is_unix || peer->attached >= 0) return -1;
    peer->attached = dup(descriptor);
    return peer->attached >= 0 ? 0 : -1;
}

/* One round over the peers; waiting is pointless where the test is the only source of events. */
static int memory_poll(struct transport *base, uint64_t max_wait_us) {
    (void)max_wait_us;
    struct memory_transport *transport = (struct memory_transport *)base;
    const struct transport_events *to = &base->events;
    int handled = 0;
    for (struct memory_peer *peer = transport->peers; peer; peer = peer->next) {
        bool has_input = peer->input_read < peer->input.length || peer->finished || peer->vanished;
        if (!peer->dying && peer->wants_read && has_input) {
            to->readable(to->context, peer->base.owner);
            handled++;
        }
        if (!peer->dying && peer->wants_write && (peer->window > 0 || peer->vanished)) {
            to->writable(to->context, peer->base.owner);
            handled++;
        }
        if (!peer->dying && peer->finished && !peer->wants_read && !peer->hung_up) {
            peer->hung_up = true;
            to->hung_up(to->context, peer->base.owner);
            handled++;
        }
        if (!peer->dying && peer->vanished && !peer->wants_read && !peer->wants_write) peer->dying = true;
        if (peer->dying && !peer->closed) {
            peer->closed = true;
            to->closed(to->context, peer->base.owner);
            bytes_free(&peer->input);
            peer->input_read = 0;
            handled++;
        }
    }
    return handled;
}

static int memory_listen(struct transport *transport, struct listen_address *address, struct error *error) {
    (void)transport;
    (void)address;
    (void)error;
    return 0;
}

static void memory_stop(struct transport *transport) {
    (void)transport;
}

static void memory_transport_free(struct transport *base) {
    struct memory_transport *transport = (struct memory_transport *)base;
    while (transport->peers) {
        struct memory_peer *peer = transport->peers;
        transport->peers = peer->next;
        if (peer->attached >= 0) close(peer->attached);
        bytes_free(&peer->input);
        bytes_free(&peer->received);
        free(peer->held);
        free(peer);
    }
    free(transport);
}

#define MEMORY_OPERATIONS(releases)      \
    {                                    \
        .name = "memory",                \
        .releases_at_write = (releases), \
        .listen = memory_listen,         \
        .poll = memory_poll,             \
        .stop = memory_stop,             \
        .stop_listening = memory_stop,   \
        .free = memory_transport_free,   \
        .readv = memory_readv,           \
        .writev = memory_writev,         \
        .want_read = memory_want_read,   \
        .want_write = memory_want_write, \
        .close = memory_close,           \
        .attach = memory_attach,         \
    }

static const struct transport_operations copying_operations = MEMORY_OPERATIONS(true);
static const struct transport_operations holding_operations = MEMORY_OPERATIONS(false);

void transport_memory_hold_writes(struct transport *transport) {
    assert(!((struct memory_transport *)transport)->peers);
    transport->operations = &holding_operations;
}

struct transport *transport_memory_new(const struct transport_events *events) {
    struct memory_transport *transport = calloc(1, sizeof *transport);
    if (!transport) return NULL;
    transport->base.operations = &copying_operations;
    transport->base.events = *events;
    return &transport->base;
}
