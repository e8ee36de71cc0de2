#include "net/sockets.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>

#include "base/list.h"
#include "base/memory.h"

#define EVENTS_PER_POLL 256
#define ACCEPTS_PER_EVENT 64
#define BACKLOG 511
#define DRAIN_READS 16 /* of 64 KB, before closing: see close_descriptor */
#define LONGEST_WAIT_MS 60000

static struct sockets *sockets_of(struct socket_connection *connection) {
    return (struct sockets *)connection->base.transport;
}

static const struct socket_calls *calls_of(struct socket_connection *connection) {
    return sockets_of(connection)->calls;
}

/* ---- connections ------------------------------------------------------------------------------------- */

/* Without edges the kernel looks at a socket a second time after each event, only to find nothing. With them it must tell
 * what a short read does not show: that the end of the input, or a byte out of band, lies behind. */
static uint32_t events_wanted(const struct socket_connection *connection) {
    uint32_t wanted = connection->interest | connection->own_interest;
    if (connection->edges && wanted == EPOLLIN) return wanted | EPOLLET | EPOLLRDHUP | EPOLLPRI;
    if (!(connection->interest & EPOLLIN) && !connection->hung_up) wanted |= EPOLLRDHUP; /* no read will find out */
    return wanted;
}

static bool tell_wanted(struct socket_connection *connection, int operation) {
    struct sockets *sockets = sockets_of(connection);
    struct epoll_event event = {.events = events_wanted(connection), .data.ptr = &connection->descriptor};
    return sockets->calls->epoll_ctl(sockets->epoll, operation, connection->descriptor.number, &event) == 0;
}

static bool set_interest(struct socket_connection *connection, uint32_t interest) {
    connection->interest = interest;
    return tell_wanted(connection, EPOLL_CTL_MOD);
}

bool sockets_wait_for(struct socket_connection *connection, uint32_t events) {
    connection->own_interest = events;
    return set_interest(connection, connection->interest);
}

void sockets_begin_dying(struct socket_connection *connection) {
    if (connection->dying) return;
    struct sockets *sockets = sockets_of(connection);
    connection->dying = true;
    connection->next_dying = sockets->dying;
    sockets->dying = connection;
    sockets->calls->epoll_ctl(sockets->epoll, EPOLL_CTL_DEL, connection->descriptor.number, NULL);
}

ssize_t sockets_readv(struct connection *base, const struct iovec *vectors, int count) {
    struct socket_connection *connection = (struct socket_connection *)base;
    if (connection->dying) return -2;
    const struct socket_calls *calls = calls_of(connection);
    int number = connection->descriptor.number;
    ssize_t got;
    do
        got = count == 1 ? calls->read(number, vectors[0].iov_base, vectors[0].iov_len)
                         : calls->readv(number, vectors, count);
    while (got < 0 && errno == EINTR);
    if (got >= 0) return got;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return -1;
    sockets_begin_dying(connection);
    return -2;
}

ssize_t sockets_wrote(struct socket_connection *connection, ssize_t sent) {
    if (sent >= 0) return sent;
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) return -1;
    sockets_begin_dying(connection);
    return -2;
}

ssize_t sockets_writev(struct connection *base, const struct iovec *vectors, int count) {
    struct socket_connection *connection = (struct socket_connection *)base;
    if (connection->dying) return -2;
    const struct socket_calls *calls = calls_of(connection);
    int number = connection->descriptor.number;
    ssize_t sent;
    do
        sent = count == 1 ? calls->write(number, vectors[0].iov_base, vectors[0].iov_len)
                          : calls->writev(number, vectors, count);
    while (sent < 0 && errno == EINTR);
    return sockets_wrote(connection, sent);
}

static void want(struct connection *base, uint32_t event, bool on) {
    struct socket_connection *connection = (struct socket_connection *)base;
    uint32_t interest = on ? connection->interest | event : connection->interest & ~event;
    if (!connection->dying && interest != connection->interest && !set_interest(connection, interest))
        sockets_begin_dying(connection);
}

void sockets_want_read(struct connection *connection, bool on) {
    want(connection, EPOLLIN, on);
}

void sockets_want_write(struct connection *connection, bool on) {
    want(connection, EPOLLOUT, on);
}

void sockets_close_connection(struct connection *connection) {
    sockets_begin_dying((struct socket_connection *)connection);
}

/* Closing with unread input makes a stack send a reset, which can overtake the last reply (say, why the client is
 * being dropped): so what has come is read away first, up to a bound. */
static void close_descriptor(const struct socket_calls *calls, int number) {
    static uint8_t waste[65536];
    calls->shutdown(number, SHUT_WR);
    for (int i = 0; i < DRAIN_READS; i++)
        if (calls->read(number, waste, sizeof waste) <= 0) break;
    calls->close(number);
}

static void unlink_connection(struct sockets *sockets, struct socket_connection *connection) {
    LIST_TAKE_OUT(sockets->connections, connection, next, previous);
}

static void end(struct sockets *sockets, struct socket_connection *connection) {
    if (sockets->forget) sockets->forget(connection);
    close_descriptor(sockets->calls, connection->descriptor.number);
    unlink_connection(sockets, connection);
    memory_free(connection);
}

static int bury(struct sockets *sockets) {
    int buried = 0;
    while (sockets->dying) {
        struct socket_connection *connection = sockets->dying;
        sockets->dying = connection->next_dying;
        sockets->base.events.closed(sockets->base.events.context, connection->base.owner);
        end(sockets, connection);
        buried++;
    }
    return buried;
}

void sockets_connection_ready(struct sockets *sockets, struct descriptor *descriptor, uint32_t events) {
    struct socket_connection *connection =
        (struct socket_connection *)((char *)descriptor - offsetof(struct socket_connection, descriptor));
    const struct transport_events *to = &sockets->base.events;
    bool broken = events & (EPOLLERR | EPOLLHUP);
    if (!connection->dying && ((events & EPOLLIN) || (broken && (connection->interest & EPOLLIN))))
        to->readable(to->context, connection->base.owner);
    if (!connection->dying && (events & EPOLLOUT)) to->writable(to->context, connection->base.owner);
    if (!connection->dying && (events & EPOLLRDHUP) && !(connection->interest & EPOLLIN) && !connection->hung_up) {
        connection->hung_up = true;
        if (!set_interest(connection, connection->interest)) sockets_begin_dying(connection);
        to->hung_up(to->context, connection->base.owner);
    }
    /* Broken while nobody reads: no read will find out. */
    if (!connection->dying && broken && !(connection->interest & EPOLLIN)) sockets_begin_dying(connection);
}

/* ---- accepting --------------------------------------------------------------------------------------- */

static void format_address(const struct sockaddr_storage *address, char *out, size_t size) {
    char host[INET6_ADDRSTRLEN] = "?";
    if (address->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
        snprintf(out, size, "%s:%u", host, (unsigned)ntohs(v4->sin_port));
    } else if (address->ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;
        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
        snprintf(out, size, "[%s]:%u", host, (unsigned)ntohs(v6->sin6_port));
    } else {
        snprintf(out, size, "?:0");
    }
}

static void name_ends(struct socket_connection *connection, const struct socket_listener *listener) {
    struct connection *base = &connection->base;
    base->is_unix = listener->is_unix;
    base->is_abstract = listener->is_abstract;
    base->is_admin = listener->is_admin;
    base->is_tls = listener->is_tls;
    if (listener->is_unix) {
        const char *mark = listener->is_abstract ? "@" : "";
        snprintf(base->peer, sizeof base->peer, "%s%.104s:0", mark, listener->path);
        snprintf(base->local, sizeof base->local, "%s%.104s:0", mark, listener->path);
        return;
    }
    const struct socket_calls *calls = calls_of(connection);
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;
    if (calls->getpeername(connection->descriptor.number, (struct sockaddr *)&address, &length) == 0)
        format_address(&address, base->peer, sizeof base->peer);
    length = sizeof address;
    if (calls->getsockname(connection->descriptor.number, (struct sockaddr *)&address, &length) == 0)
        format_address(&address, base->local, sizeof base->local);
}

static void set_tcp_options(const struct sockets *sockets, int number) {
    const struct socket_calls *calls = sockets->calls;
    int on = 1, idle_s = sockets->keepalive_s, probes = 3;
    int interval_s = idle_s >= 3 ? idle_s / 3 : 1;
    calls->setsockopt(number, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (idle_s <= 0) return;
    calls->setsockopt(number, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    calls->setsockopt(number, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    calls->setsockopt(number, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    calls->setsockopt(number, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

static struct socket_connection *begin(struct sockets *sockets, const struct socket_listener *listener, int number,
                                       bool is_outgoing) {
    const struct socket_calls *calls = sockets->calls;
    struct socket_connection *connection = memory_calloc(1, sockets->connection_bytes);
    if (!connection) {
        calls->close(number);
        return NULL;
    }
    connection->base.transport = &sockets->base;
    connection->descriptor = (struct descriptor){.number = number, .ready = sockets_connection_ready};
    connection->interest = EPOLLIN;
    connection->is_outgoing = is_outgoing;
    if (!listener->is_unix) set_tcp_options(sockets, number);
    name_ends(connection, listener);
    if (sockets->begin && !sockets->begin(connection)) {
        calls->close(number);
        memory_free(connection);
        return NULL;
    }
    if (!tell_wanted(connection, EPOLL_CTL_ADD)) {
        if (sockets->forget) sockets->forget(connection);
        calls->close(number);
        memory_free(connection);
        return NULL;
    }
    LIST_PUSH(sockets->connections, connection, next, previous);
    return connection;
}

struct socket_connection *sockets_adopt(struct sockets *sockets, int number, bool is_tls, void *owner) {
    const struct socket_listener from = {.is_tls = is_tls};
    struct socket_connection *connection = begin(sockets, &from, number, true);
    if (connection) connection->base.owner = owner;
    return connection;
}

static void admit(struct sockets *sockets, const struct socket_listener *listener, int number) {
    struct socket_connection *connection = begin(sockets, listener, number, false);
    if (!connection) return;
    connection->base.owner = sockets->base.events.opened(sockets->base.events.context, &connection->base);
    if (connection->base.owner) return;
    for (struct socket_connection **link = &sockets->dying; *link; link = &(*link)->next_dying) {
        if (*link == connection) {
            *link = connection->next_dying; /* its refusal could not be written */
            break;
        }
    }
    end(sockets, connection);
}

/* With no descriptor left, a waiting connection would wake the loop for ever: it is accepted on the spare one and
 * dropped. */
static void drop_one(struct sockets *sockets, int listener) {
    sockets->calls->close(sockets->spare);
    int number = sockets->calls->accept(listener);
    if (number >= 0) sockets->calls->close(number);
    sockets->spare = sockets->calls->dup(sockets->epoll);
}

static void listener_ready(struct sockets *sockets, struct descriptor *descriptor, uint32_t events) {
    (void)events;
    const struct socket_listener *listener = (const struct socket_listener *)descriptor;
    static_assert(offsetof(struct socket_listener, descriptor) == 0, "a listener begins with its descriptor");
    int accepted = 0;
    while (accepted < ACCEPTS_PER_EVENT) {
        int number = sockets->calls->accept(descriptor->number);
        if (number < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (number < 0 && (errno == EMFILE || errno == ENFILE)) drop_one(sockets, descriptor->number);
        if (number < 0) break;
        admit(sockets, listener, number);
        accepted++;
    }
}

/* ---- listening --------------------------------------------------------------------------------------- */

int sockets_refuse_address(struct error *error, const char *what, const char *step) {
    bool in_use = errno == EADDRINUSE;
    return error_set(error, in_use ? ERROR_EXISTS : ERROR_GENERIC, "cannot listen on %s: %s: %s%s", what, step,
                     strerror(errno), in_use ? "; another server has it: choose another, or port 0 for any" : "");
}

struct socket_listener *sockets_add_listener(struct sockets *sockets, int number, const struct listen_address *address,
                                             struct error *error) {
    struct socket_listener *listener = memory_calloc(1, sizeof *listener);
    if (!listener) {
        sockets->calls->close(number);
        error_set(error, ERROR_GENERIC, "no memory for a listener");
        return NULL;
    }
    listener->descriptor = (struct descriptor){.number = number, .ready = listener_ready};
    listener->is_unix = address->path;
    listener->is_abstract = address->is_abstract;
    listener->is_admin = address->is_admin;
    listener->is_tls = address->is_tls;
    if (address->path) snprintf(listener->path, sizeof listener->path, "%s", address->path);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &listener->descriptor};
    if (sockets->calls->listen(number, BACKLOG) < 0 ||
        sockets->calls->epoll_ctl(sockets->epoll, EPOLL_CTL_ADD, number, &event) < 0) {
        memory_free(listener);
        sockets_refuse_address(error, address->path ? address->path : address->host, "listen");
        sockets->calls->close(number);
        return NULL;
    }
    listener->next = sockets->listeners;
    sockets->listeners = listener;
    return listener;
}

static uint16_t bound_port(const struct socket_calls *calls, int number) {
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;
    calls->getsockname(number, (struct sockaddr *)&address, &length);
    if (address.ss_family == AF_INET6) return ntohs(((struct sockaddr_in6 *)&address)->sin6_port);
    return ntohs(((struct sockaddr_in *)&address)->sin_port);
}

int sockets_listen_tcp(struct sockets *sockets, struct listen_address *address, struct error *error) {
    const struct socket_calls *calls = sockets->calls;
    char what[320], service[8];
    snprintf(what, sizeof what, "%s port %u", address->host, (unsigned)address->port);
    snprintf(service, sizeof service, "%u", (unsigned)address->port);
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found;
    int failure = getaddrinfo(address->host, service, &hints, &found);
    if (failure != 0) return error_set(error, ERROR_GENERIC, "cannot listen on %s: %s", what, gai_strerror(failure));
    int number = calls->socket(found->ai_family);
    int on = 1;
    if (number >= 0) calls->setsockopt(number, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (number < 0 || calls->bind(number, found->ai_addr, found->ai_addrlen) < 0) {
        int result = sockets_refuse_address(error, what, number < 0 ? "socket" : "bind");
        if (number >= 0) calls->close(number);
        freeaddrinfo(found);
        return result;
    }
    freeaddrinfo(found);
    address->port = bound_port(calls, number);
    return sockets_add_listener(sockets, number, address, error) ? 0 : -1;
}

void sockets_stop_listening(struct transport *base) {
    struct sockets *sockets = (struct sockets *)base;
    while (sockets->listeners) {
        struct socket_listener *listener = sockets->listeners;
        sockets->listeners = listener->next;
        sockets->calls->close(listener->descriptor.number); /* which takes it out of the epoll set */
        memory_free(listener);
    }
}

/* ---- the loop ---------------------------------------------------------------------------------------- */

int sockets_poll(struct transport *base, uint64_t max_wait_us) {
    struct sockets *sockets = (struct sockets *)base;
    struct epoll_event events[EVENTS_PER_POLL];
    int wait_ms = LONGEST_WAIT_MS;
    if (sockets->dying)
        wait_ms = 0;
    else if (max_wait_us / 1000 < LONGEST_WAIT_MS)
        wait_ms = (int)((max_wait_us + 999) / 1000); /* rounded up: an early wake would find nothing due */
    int count = sockets->calls->epoll_wait(sockets->epoll, events, EVENTS_PER_POLL, wait_ms);
    for (int i = 0; i < count; i++) {
        struct descriptor *descriptor = events[i].data.ptr;
        descriptor->ready(sockets, descriptor, events[i].events);
    }
    return (count > 0 ? count : 0) + bury(sockets);
}

int sockets_open(struct sockets *sockets, struct error *error) {
    sockets->epoll = sockets->calls->epoll_create();
    sockets->spare = sockets->epoll >= 0 ? sockets->calls->dup(sockets->epoll) : -1;
    if (sockets->epoll >= 0 && sockets->spare >= 0) return 0;
    int result = error_set(error, ERROR_GENERIC, "cannot create an epoll set: %s", strerror(errno));
    if (sockets->epoll >= 0) sockets->calls->close(sockets->epoll);
    return result;
}

void sockets_close(struct sockets *sockets) {
    sockets_stop_listening(&sockets->base);
    while (sockets->connections) end(sockets, sockets->connections);
    sockets->calls->close(sockets->spare);
    sockets->calls->close(sockets->epoll);
}
