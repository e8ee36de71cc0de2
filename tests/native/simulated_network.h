/* simulated_network: connections between two servers: streams of bytes from the memory transport of one to that of the
 * other. One seed decides in which pieces and how late they arrive, when connections break, and when nothing is carried.
 * The linker puts these in the place of the real calls (--wrap, native/CMakeLists.txt).
 *
 * The system of a killed process ends its connections, after it has sent what was written. Where the power is lost nobody
 * ends them: the other server hears nothing until the machine is back. */
#ifndef REPLAY_TESTS_SIMULATED_NETWORK_H
#define REPLAY_TESTS_SIMULATED_NETWORK_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "base/byte_queue.h"
#include "server_stage.h"
#include "simulated_machine.h"

#define HOSTS 2u
#define LINKS 64u
#define MOST_ON_WAY (256u << 10)

/* A machine with a server, which listens on the port that follows its number. */
struct host {
    struct server *server; /* NULL: it does not run */
    struct transport *transport;
    struct disk *disk;
};

static struct host hosts[HOSTS];
static struct host *host; /* whose server is the one of the stage, and runs */

static inline void enter_host(struct host *next) {
    host = next;
    server = next->server;
    transport = next->transport;
    use_disk(next->disk);
}

static inline unsigned port_of(const struct host *of) {
    return (unsigned)(of - hosts) + 1;
}

/* ---- links ----------------------------------------------------------------------------------------------------------- */

struct end {
    struct host *host;
    struct memory_peer *peer; /* NULL: it is not there yet, or no longer */
    bool is_gone, is_told; /* is_told: that the other end is gone */
    struct bytes on_way; /* to the other end */
};

struct link {
    struct end ends[2]; /* the first has begun it */
    uint64_t waits_until_us; /* nothing is carried before that */
    bool is_silent; /* for as long as the machine of one end is without power */
};

static struct {
    struct link links[LINKS];
    uint32_t count;
    uint32_t connections; /* so far */
    uint64_t cut_until_us; /* nothing is carried at all before that */
    uint32_t breaking; /* of so many times that bytes are left on a connection it breaks once; 0: never */
    uint64_t bytes, breaks;
} network;

static inline bool is_over(const struct end *end) {
    return end->is_gone || (end->peer && memory_peer_is_closed(end->peer));
}

static inline void take_written(struct end *end) {
    size_t length = 0, before = end->on_way.length;
    const uint8_t *written = end->peer ? memory_peer_received(end->peer, &length) : NULL;
    if (!written || length == 0) return;
    resize(&end->on_way, before + length);
    memcpy(end->on_way.at + before, written, length);
    memory_peer_forget_received(end->peer);
}

static inline void drop_bytes(struct bytes *bytes, size_t count) {
    bytes->length -= count;
    if (bytes->length > 0) memmove(bytes->at, bytes->at + count, bytes->length);
}

static inline void carry_piece(struct end *from, struct end *to) {
    size_t piece = 1 + below(one_in(3) ? 16 : 8192);
    if (piece > from->on_way.length) piece = from->on_way.length;
    memory_peer_send(to->peer, from->on_way.at, piece);
    drop_bytes(&from->on_way, piece);
    network.bytes += piece;
}

static inline void tell_gone(struct end *end) {
    if (end->is_told || !end->peer) return;
    end->is_told = true;
    if (one_in(2))
        memory_peer_finish(end->peer);
    else
        memory_peer_vanish(end->peer);
}

/* The host that was called takes the connection, or nobody listens there. */
static inline void answer(struct link *link) {
    struct end *end = &link->ends[1];
    if (end->host->server && !end->host->disk->is_gone) {
        struct connection names = {0};
        snprintf(names.peer, sizeof names.peer, "127.0.0.1:%u", 40000 + network.connections);
        snprintf(names.local, sizeof names.local, "127.0.0.1:%u", port_of(end->host));
        enter_host(end->host);
        end->peer = memory_peer_connect_as(transport, &names);
    }
    end->is_gone = !end->peer;
}

/* What is on its way is lost. */
static inline void break_link(struct link *link) {
    for (int i = 0; i < 2; i++) {
        struct end *end = &link->ends[i];
        end->on_way.length = 0;
        end->is_told = true;
        if (end->peer)
            memory_peer_vanish(end->peer);
        else
            end->is_gone = true;
    }
    network.breaks++;
}

static inline void carry_from(struct link *link, int which) {
    struct end *from = &link->ends[which], *to = &link->ends[1 - which];
    if (is_over(to)) from->on_way.length = 0;
    if (from->on_way.length > 0)
        carry_piece(from, to);
    else if (is_over(from))
        tell_gone(to);
    if (from->peer && from->on_way.length < MOST_ON_WAY) memory_peer_open_window(from->peer, 1 + below(65536));
}

static inline void carry_link(struct link *link) {
    for (int i = 0; i < 2; i++) take_written(&link->ends[i]);
    if (link->is_silent || machine_us < network.cut_until_us || machine_us < link->waits_until_us) return;
    if (!link->ends[1].peer && !link->ends[1].is_gone) answer(link);
    for (int i = 0; i < 2; i++) carry_from(link, i);
    bool carries = link->ends[0].on_way.length > 0 || link->ends[1].on_way.length > 0;
    if (carries && network.breaking > 0 && one_in(network.breaking)) break_link(link);
    link->waits_until_us = machine_us + below(one_in(16) ? 50000 : 500);
}

static inline bool has_ended(const struct link *link) {
    return is_over(&link->ends[0]) && is_over(&link->ends[1]);
}

/* True: there is something to carry, or to tell. */
static inline bool has_work(const struct link *link) {
    const struct end *ends = link->ends;
    if (link->is_silent) return false;
    if (!ends[1].peer && !ends[1].is_gone) return true;
    for (int i = 0; i < 2; i++)
        if (ends[i].on_way.length > 0 || (is_over(&ends[i]) && !ends[1 - i].is_told)) return true;
    return false;
}

/* Returns in how many microseconds there is something to do. */
static inline uint64_t network_carry(void) {
    uint64_t wait_us = UINT64_MAX;
    for (uint32_t i = 0; i < network.count;) {
        struct link *link = &network.links[i];
        carry_link(link);
        if (has_ended(link)) {
            for (int end = 0; end < 2; end++) free(link->ends[end].on_way.at);
            *link = network.links[--network.count];
            continue;
        }
        i++;
        if (!has_work(link)) continue;
        uint64_t at_us = link->waits_until_us > network.cut_until_us ? link->waits_until_us : network.cut_until_us;
        uint64_t link_us = at_us > machine_us ? at_us - machine_us : 1;
        if (link_us < wait_us) wait_us = link_us;
    }
    return wait_us;
}

/* ---- what goes wrong ------------------------------------------------------------------------------------------------- */

/* All connections. */
static inline void network_break(void) {
    for (uint32_t i = 0; i < network.count; i++) break_link(&network.links[i]);
}

/* The host's server is about to be freed. If its process was killed between two turns, all that it had written is sent. */
static inline void network_leave(const struct host *left, bool is_kill, bool was_amid_turn) {
    for (uint32_t i = 0; i < network.count; i++) {
        struct link *link = &network.links[i];
        for (int which = 0; which < 2; which++) {
            struct end *end = &link->ends[which];
            if (end->host != left || !end->peer) continue;
            if (is_kill && !was_amid_turn) take_written(end);
            if (!is_kill) end->on_way.length = 0;
            link->is_silent |= !is_kill;
            end->peer = NULL;
            end->is_gone = true;
        }
    }
}

static inline void network_return(const struct host *back) {
    for (uint32_t i = 0; i < network.count; i++) {
        struct link *link = &network.links[i];
        if (link->ends[0].host == back || link->ends[1].host == back) link->is_silent = false;
    }
}

/* ---- in the place of the real calls ---------------------------------------------------------------------------------- */

struct connection *__wrap_transport_kernel_connect(struct transport *from, const struct sockaddr *address,
                                                   uint32_t length, bool is_tls, void *owner, struct error *error);
struct byte_queue *__wrap_byte_queue_new(size_t capacity);
void __wrap_byte_queue_free(struct byte_queue *queue);
size_t __wrap_byte_queue_put(struct byte_queue *queue, const void *bytes, size_t length);
void __wrap_byte_queue_end(struct byte_queue *queue);
size_t __wrap_byte_queue_take(struct byte_queue *queue, void *out, size_t length);

struct connection *__wrap_transport_kernel_connect(struct transport *from, const struct sockaddr *address,
                                                   uint32_t length, bool is_tls, void *owner, struct error *error) {
    struct sockaddr_in called;
    struct connection names = {.local = "127.0.0.1:0"};
    CHECK(address->sa_family == AF_INET && length == sizeof called && from == transport && !is_tls);
    memcpy(&called, address, sizeof called);
    unsigned port = ntohs(called.sin_port);
    CHECK(port >= 1 && port <= HOSTS);
    if (network.count == LINKS) {
        error_set(error, ERROR_GENERIC, "cannot connect: all connections are taken");
        return NULL;
    }
    snprintf(names.peer, sizeof names.peer, "127.0.0.1:%u", port);
    struct link *link = &network.links[network.count++];
    *link = (struct link){.ends = {{.host = host}, {.host = &hosts[port - 1]}}};
    link->waits_until_us = machine_us + below(3000);
    link->ends[0].peer = memory_peer_reached(from, &names, owner);
    memory_peer_open_window(link->ends[0].peer, 65536);
    network.connections++;
    return memory_peer_connection(link->ends[0].peer);
}

/* A replica's thread takes what comes out of a queue, as it comes. Here the thread is the test's, so it takes all of it later,
 * once the queue has ended, which therefore has room for everything. */
struct byte_queue {
    struct bytes put;
    size_t taken;
    bool has_ended;
};

struct byte_queue *__wrap_byte_queue_new(size_t capacity) {
    (void)capacity;
    if (memory_fails()) return NULL;
    struct byte_queue *queue = calloc(1, sizeof *queue);
    CHECK(queue && !next_feed);
    next_feed = queue;
    return queue;
}

void __wrap_byte_queue_free(struct byte_queue *queue) {
    if (!queue) return;
    free(queue->put.at);
    free(queue);
}

/* The thread may be behind. */
size_t __wrap_byte_queue_put(struct byte_queue *queue, const void *bytes, size_t length) {
    if (length == 0 || one_in(8)) return 0;
    size_t before = queue->put.length, count = one_in(2) ? length : 1 + below((uint32_t)length);
    resize(&queue->put, before + count);
    memcpy(queue->put.at + before, bytes, count);
    return count;
}

void __wrap_byte_queue_end(struct byte_queue *queue) {
    queue->has_ended = true;
    end_feed(queue);
}

size_t __wrap_byte_queue_take(struct byte_queue *queue, void *out, size_t length) {
    CHECK(queue->has_ended);
    size_t left = queue->put.length - queue->taken, most = length < left ? length : left;
    if (most == 0) return 0;
    size_t count = one_in(2) ? most : 1 + below((uint32_t)most);
    memcpy(out, queue->put.at + queue->taken, count);
    queue->taken += count;
    return count;
}

#endif
