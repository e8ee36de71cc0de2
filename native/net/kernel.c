/* kernel: the transport over the kernel's sockets: TCP and unix sockets in one epoll set. */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/memory.h"
#include "net/transport.h"

#define EVENTS_PER_POLL 256
#define ACCEPTS_PER_EVENT 64
#define BACKLOG 511
#define KEEPALIVE_S 300
#define DRAIN_READS 16          /* of 64 KB, before closing: see close_descriptor */
#define LONGEST_WAIT_MS 60000

enum descriptor_kind { DESCRIPTOR_LISTENER, DESCRIPTOR_WATCH, DESCRIPTOR_CONNECTION };

/* What epoll's data points to: the first member of each of the three structs below but for connections, whose first
 * member must be the transport's `struct connection`. */
struct descriptor {
    enum descriptor_kind kind;
    int number;
};

struct listener {
    struct descriptor descriptor;
    struct listener *next;
    bool is_unix, is_abstract, is_admin;
    char path[108];
};

struct watch {
    struct descriptor descriptor;
    struct watch *next;
    void (*ready)(void *context, int descriptor);
    void *context;
};

struct kernel_connection {
    struct connection base;
    struct descriptor descriptor;
    uint32_t interest;          /* EPOLLIN, EPOLLOUT */
    bool dying;                 /* in the list of those that `closed` is due for */
    bool hung_up;               /* the event was given */
    int attached;               /* a descriptor that goes along with the next byte; -1: none */
    struct kernel_connection *next, *previous, *next_dying;
};

struct kernel_transport {
    struct transport base;
    int epoll;
    int spare;                  /* a descriptor to give up when the process has none left for accept */
    struct listener *listeners;
    struct watch *watches;
    struct kernel_connection *connections;
    struct kernel_connection *dying;
};

static struct kernel_transport *transport_of(struct connection *connection) {
    return (struct kernel_transport *)connection->transport;
}

/* ---- connections ------------------------------------------------------------------------------------- */

static bool set_interest(struct kernel_connection *connection, uint32_t interest) {
    struct kernel_transport *transport = transport_of(&connection->base);
    struct epoll_event event = {.events = interest, .data.ptr = &connection->descriptor};
    if (!(interest & EPOLLIN) && !connection->hung_up) event.events |= EPOLLRDHUP; /* no read will find out */
    connection->interest = interest;
    return epoll_ctl(transport->epoll, EPOLL_CTL_MOD, connection->descriptor.number, &event) == 0;
}

/* From here on the connection only waits for its `closed`, at the end of the poll in progress or of the next. */
static void begin_dying(struct kernel_connection *connection) {
    if (connection->dying) return;
    struct kernel_transport *transport = transport_of(&connection->base);
    connection->dying = true;
    connection->next_dying = transport->dying;
    transport->dying = connection;
    epoll_ctl(transport->epoll, EPOLL_CTL_DEL, connection->descriptor.number, NULL);
}

static ssize_t kernel_readv(struct connection *base, const struct iovec *vectors, int count) {
    struct kernel_connection *connection = (struct kernel_connection *)base;
    if (connection->dying) return -2;
    ssize_t got;
    do
        got = count == 1 ? recv(connection->descriptor.number, vectors[0].iov_base, vectors[0].iov_len, 0)
                         : readv(connection->descriptor.number, vectors, count);
    while (got < 0 && errno == EINTR);
    if (got >= 0) return got;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return -1;
    begin_dying(connection);
    return -2;
}

static void drop_attached(struct kernel_connection *connection) {
    if (connection->attached >= 0) close(connection->attached);
    connection->attached = -1;
}

static int kernel_attach(struct connection *base, int descriptor) {
    struct kernel_connection *connection = (struct kernel_connection *)base;
    if (!base->is_unix || connection->attached >= 0) return -1;
    connection->attached = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    return connection->attached >= 0 ? 0 : -1;
}

static ssize_t send_attached(struct kernel_connection *connection, struct msghdr *message) {
    union {
        struct cmsghdr header; /* for its alignment */
        uint8_t bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    message->msg_control = control.bytes;
    message->msg_controllen = sizeof control.bytes;
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &connection->attached, sizeof(int));
    ssize_t sent = sendmsg(connection->descriptor.number, message, MSG_NOSIGNAL);
    if (sent > 0) drop_attached(connection);
    return sent;
}

static ssize_t kernel_writev(struct connection *base, const struct iovec *vectors, int count) {
    struct kernel_connection *connection = (struct kernel_connection *)base;
    if (connection->dying) return -2;
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)vectors, .msg_iovlen = (size_t)count};
    ssize_t sent;
    do
        sent = connection->attached >= 0 ? send_attached(connection, &message)
               : count == 1 ? send(connection->descriptor.number, vectors[0].iov_base, vectors[0].iov_len, MSG_NOSIGNAL)
                            : sendmsg(connection->descriptor.number, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent >= 0) return sent;
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) return -1;
    begin_dying(connection);
    return -2;
}

static void want(struct connection *base, uint32_t event, bool on) {
    struct kernel_connection *connection = (struct kernel_connection *)base;
    uint32_t interest = on ? connection->interest | event : connection->interest & ~event;
    if (!connection->dying && interest != connection->interest && !set_interest(connection, interest))
        begin_dying(connection);
}

static void kernel_want_read(struct connection *connection, bool on) {
    want(connection, EPOLLIN, on);
}

static void kernel_want_write(struct connection *connection, bool on) {
    want(connection, EPOLLOUT, on);
}

static void kernel_close(struct connection *connection) {
    begin_dying((struct kernel_connection *)connection);
}

/* Closing with unread input makes the kernel send a reset, which can overtake the last reply (say, why the client is
 * being dropped): so what has come is read away first, up to a bound. */
static void close_descriptor(int number) {
    static uint8_t waste[65536];
    shutdown(number, SHUT_WR);
    for (int i = 0; i < DRAIN_READS; i++) {
        if (recv(number, waste, sizeof waste, MSG_DONTWAIT) <= 0) break;
    }
    close(number);
}

static void unlink_connection(struct kernel_transport *transport, struct kernel_connection *connection) {
    if (connection->previous)
        connection->previous->next = connection->next;
    else
        transport->connections = connection->next;
    if (connection->next) connection->next->previous = connection->previous;
}

static int bury(struct kernel_transport *transport) {
    int buried = 0;
    while (transport->dying) {
        struct kernel_connection *connection = transport->dying;
        transport->dying = connection->next_dying;
        transport->base.events.closed(transport->base.events.context, connection->base.owner);
        drop_attached(connection);
        close_descriptor(connection->descriptor.number);
        unlink_connection(transport, connection);
        memory_free(connection);
        buried++;
    }
    return buried;
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

static void name_ends(struct kernel_connection *connection, const struct listener *listener) {
    struct connection *base = &connection->base;
    base->is_unix = listener->is_unix;
    base->is_abstract = listener->is_abstract;
    base->is_admin = listener->is_admin;
    if (listener->is_unix) {
        const char *mark = listener->is_abstract ? "@" : "";
        snprintf(base->peer, sizeof base->peer, "%s%.104s:0", mark, listener->path);
        snprintf(base->local, sizeof base->local, "%s%.104s:0", mark, listener->path);
        return;
    }
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;
    if (getpeername(connection->descriptor.number, (struct sockaddr *)&address, &length) == 0)
        format_address(&address, base->peer, sizeof base->peer);
    length = sizeof address;
    if (getsockname(connection->descriptor.number, (struct sockaddr *)&address, &length) == 0)
        format_address(&address, base->local, sizeof base->local);
}

static void set_tcp_options(int number) {
    int on = 1;
    int idle_s = KEEPALIVE_S, interval_s = KEEPALIVE_S / 3, probes = 3;
    setsockopt(number, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(number, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(number, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(number, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(number, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

static void admit(struct kernel_transport *transport, const struct listener *listener, int number) {
    struct kernel_connection *connection = memory_calloc(1, sizeof *connection);
    if (!connection) {
        close(number);
        return;
    }
    connection->base.transport = &transport->base;
    connection->descriptor = (struct descriptor){.kind = DESCRIPTOR_CONNECTION, .number = number};
    connection->interest = EPOLLIN;
    connection->attached = -1;
    if (!listener->is_unix) set_tcp_options(number);
    name_ends(connection, listener);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &connection->descriptor};
    if (epoll_ctl(transport->epoll, EPOLL_CTL_ADD, number, &event) < 0) {
        close(number);
        memory_free(connection);
        return;
    }
    connection->next = transport->connections;
    if (connection->next) connection->next->previous = connection;
    transport->connections = connection;
    connection->base.owner = transport->base.events.opened(transport->base.events.context, &connection->base);
    if (connection->base.owner) return;
    for (struct kernel_connection **link = &transport->dying; *link; link = &(*link)->next_dying) {
        if (*link == connection) {
            *link = connection->next_dying; /* its refusal could not be written */
            break;
        }
    }
    unlink_connection(transport, connection);
    close_descriptor(number);
    memory_free(connection);
}

/* With no descriptor left, a waiting connection would wake the loop for ever: it is accepted on the spare one and
 * dropped. */
static void drop_one(struct kernel_transport *transport, int listener) {
    close(transport->spare);
    int number = accept(listener, NULL, NULL);
    if (number >= 0) close(number);
    transport->spare = dup(transport->epoll);
}

static int accept_waiting(struct kernel_transport *transport, const struct listener *listener) {
    int accepted = 0;
    while (accepted < ACCEPTS_PER_EVENT) {
        int number = accept4(listener->descriptor.number, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (number < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (number < 0 && (errno == EMFILE || errno == ENFILE)) drop_one(transport, listener->descriptor.number);
        if (number < 0) break;
        admit(transport, listener, number);
        accepted++;
    }
    return accepted;
}

/* ---- listening --------------------------------------------------------------------------------------- */

static int refuse_address(struct error *error, const char *what, const char *step) {
    bool in_use = errno == EADDRINUSE;
    return error_set(error, in_use ? ERROR_EXISTS : ERROR_GENERIC, "cannot listen on %s: %s: %s%s", what, step,
                     strerror(errno), in_use ? "; another server has it: choose another, or port 0 for any" : "");
}

static int add_listener(struct kernel_transport *transport, int number, const struct listen_address *address,
                        struct error *error) {
    struct listener *listener = memory_calloc(1, sizeof *listener);
    if (!listener) {
        close(number);
        return error_set(error, ERROR_GENERIC, "no memory for a listener");
    }
    listener->descriptor = (struct descriptor){.kind = DESCRIPTOR_LISTENER, .number = number};
    listener->is_unix = address->path != NULL;
    listener->is_abstract = address->is_abstract;
    listener->is_admin = address->is_admin;
    if (address->path) snprintf(listener->path, sizeof listener->path, "%s", address->path);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &listener->descriptor};
    if (listen(number, BACKLOG) < 0 || epoll_ctl(transport->epoll, EPOLL_CTL_ADD, number, &event) < 0) {
        memory_free(listener);
        int result = refuse_address(error, address->path ? address->path : address->host, "listen");
        if (address->path && !address->is_abstract) unlink(address->path);
        close(number);
        return result;
    }
    listener->next = transport->listeners;
    transport->listeners = listener;
    return 0;
}

static uint16_t bound_port(int number) {
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;
    getsockname(number, (struct sockaddr *)&address, &length);
    if (address.ss_family == AF_INET6) return ntohs(((struct sockaddr_in6 *)&address)->sin6_port);
    return ntohs(((struct sockaddr_in *)&address)->sin_port);
}

static int listen_tcp(struct kernel_transport *transport, struct listen_address *address, struct error *error) {
    char what[320], service[8];
    snprintf(what, sizeof what, "%s port %u", address->host, (unsigned)address->port);
    snprintf(service, sizeof service, "%u", (unsigned)address->port);
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found;
    int failure = getaddrinfo(address->host, service, &hints, &found);
    if (failure != 0) return error_set(error, ERROR_GENERIC, "cannot listen on %s: %s", what, gai_strerror(failure));
    int number = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int on = 1;
    if (number >= 0) setsockopt(number, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (number < 0 || bind(number, found->ai_addr, found->ai_addrlen) < 0) {
        int result = refuse_address(error, what, number < 0 ? "socket" : "bind");
        if (number >= 0) close(number);
        freeaddrinfo(found);
        return result;
    }
    freeaddrinfo(found);
    address->port = bound_port(number);
    return add_listener(transport, number, address, error);
}

/* A socket file that nobody answers at is left over from a server that was killed, and is replaced; one that is
 * answered is in use; anything else at that path is not ours to remove. */
static int clear_path(const struct sockaddr_un *address, struct error *error) {
    struct stat status;
    if (lstat(address->sun_path, &status) < 0) return 0;
    if (!S_ISSOCK(status.st_mode))
        return error_set(error, ERROR_GENERIC,
                         "cannot listen on %s: a file that is not a socket is there: choose another path",
                         address->sun_path);
    int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int connected = probe < 0 ? -1 : connect(probe, (const struct sockaddr *)address, sizeof *address);
    bool refused = connected < 0 && errno == ECONNREFUSED;
    if (probe >= 0) close(probe);
    if (!refused)
        return error_set(error, ERROR_EXISTS, "cannot listen on %s: another server answers there", address->sun_path);
    unlink(address->sun_path);
    return 0;
}

static int listen_unix(struct kernel_transport *transport, struct listen_address *address, struct error *error) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    if (strlen(address->path) >= sizeof name.sun_path)
        return error_set(error, ERROR_GENERIC, "cannot listen on %s: the path is %zu bytes, at most %zu are possible",
                         address->path, strlen(address->path), sizeof name.sun_path - 1);
    snprintf(name.sun_path, sizeof name.sun_path, "%s", address->path);
    if (clear_path(&name, error) < 0) return -1;
    int number = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (number < 0) return refuse_address(error, address->path, "socket");
    /* Created with no permissions, then opened up: nobody gets in between. */
    mode_t before = umask(0177);
    int bound = bind(number, (struct sockaddr *)&name, sizeof name);
    umask(before);
    if (bound < 0 || chmod(address->path, address->mode) < 0) {
        int result = refuse_address(error, address->path, bound < 0 ? "bind" : "chmod");
        if (bound == 0) unlink(address->path);
        close(number);
        return result;
    }
    return add_listener(transport, number, address, error);
}

/* Without a file: nobody else can take or keep the name, it goes with the server, and it lies in the network namespace. */
static int listen_abstract(struct kernel_transport *transport, struct listen_address *address, struct error *error) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    size_t length = strlen(address->path);
    if (length >= sizeof name.sun_path)
        return error_set(error, ERROR_GENERIC, "cannot listen on @%s: the name is %zu bytes, at most %zu are possible",
                         address->path, length, sizeof name.sun_path - 1);
    memcpy(name.sun_path + 1, address->path, length);
    int number = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (number < 0) return refuse_address(error, address->path, "socket");
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    if (bind(number, (struct sockaddr *)&name, size) < 0) {
        int result = refuse_address(error, address->path, "bind");
        close(number);
        return result;
    }
    return add_listener(transport, number, address, error);
}

static int kernel_listen(struct transport *base, struct listen_address *address, struct error *error) {
    struct kernel_transport *transport = (struct kernel_transport *)base;
    if (address->is_abstract) return listen_abstract(transport, address, error);
    return address->path ? listen_unix(transport, address, error) : listen_tcp(transport, address, error);
}

static void kernel_stop_listening(struct transport *base) {
    struct kernel_transport *transport = (struct kernel_transport *)base;
    while (transport->listeners) {
        struct listener *listener = transport->listeners;
        transport->listeners = listener->next;
        close(listener->descriptor.number); /* which takes it out of the epoll set */
        if (listener->is_unix && !listener->is_abstract) unlink(listener->path);
        memory_free(listener);
    }
}

/* ---- the loop ---------------------------------------------------------------------------------------- */

static struct kernel_connection *connection_of(struct descriptor *descriptor) {
    return (struct kernel_connection *)((char *)descriptor - offsetof(struct kernel_connection, descriptor));
}

static void handle_connection(struct kernel_transport *transport, struct kernel_connection *connection,
                              uint32_t events) {
    const struct transport_events *to = &transport->base.events;
    bool broken = events & (EPOLLERR | EPOLLHUP);
    if (!connection->dying && ((events & EPOLLIN) || (broken && (connection->interest & EPOLLIN))))
        to->readable(to->context, connection->base.owner);
    if (!connection->dying && (events & EPOLLOUT)) to->writable(to->context, connection->base.owner);
    if (!connection->dying && (events & EPOLLRDHUP) && !(connection->interest & EPOLLIN) && !connection->hung_up) {
        connection->hung_up = true;
        if (!set_interest(connection, connection->interest)) begin_dying(connection);
        to->hung_up(to->context, connection->base.owner);
    }
    /* Broken while nobody reads: no read will find out. */
    if (!connection->dying && broken && !(connection->interest & EPOLLIN)) begin_dying(connection);
}

static int kernel_poll(struct transport *base, uint64_t max_wait_us) {
    struct kernel_transport *transport = (struct kernel_transport *)base;
    struct epoll_event events[EVENTS_PER_POLL];
    int wait_ms = LONGEST_WAIT_MS;
    if (transport->dying)
        wait_ms = 0;
    else if (max_wait_us / 1000 < LONGEST_WAIT_MS)
        wait_ms = (int)((max_wait_us + 999) / 1000); /* rounded up: an early wake would find nothing due */
    int count = epoll_wait(transport->epoll, events, EVENTS_PER_POLL, wait_ms);
    for (int i = 0; i < count; i++) {
        struct descriptor *descriptor = events[i].data.ptr;
        if (descriptor->kind == DESCRIPTOR_CONNECTION) {
            handle_connection(transport, connection_of(descriptor), events[i].events);
        } else if (descriptor->kind == DESCRIPTOR_LISTENER) {
            accept_waiting(transport, (struct listener *)descriptor);
        } else {
            struct watch *watch = (struct watch *)descriptor;
            watch->ready(watch->context, descriptor->number);
        }
    }
    return (count > 0 ? count : 0) + bury(transport);
}

int transport_kernel_watch(struct transport *base, int descriptor, void (*ready)(void *context, int descriptor),
                           void *context, struct error *error) {
    struct kernel_transport *transport = (struct kernel_transport *)base;
    struct watch *watch = memory_calloc(1, sizeof *watch);
    if (!watch) return error_set(error, ERROR_GENERIC, "no memory to watch a descriptor");
    watch->descriptor = (struct descriptor){.kind = DESCRIPTOR_WATCH, .number = descriptor};
    watch->ready = ready;
    watch->context = context;
    /* Edge-triggered: a lifeline stays readable once its other end is gone, and must not be reported for ever. */
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.ptr = &watch->descriptor};
    if (epoll_ctl(transport->epoll, EPOLL_CTL_ADD, descriptor, &event) < 0) {
        memory_free(watch);
        return error_set(error, ERROR_GENERIC, "cannot watch descriptor %d: %s", descriptor, strerror(errno));
    }
    watch->next = transport->watches;
    transport->watches = watch;
    return 0;
}

static void kernel_stop(struct transport *transport) {
    (void)transport; /* polled: its loop is the server's */
}

static void kernel_free(struct transport *base) {
    struct kernel_transport *transport = (struct kernel_transport *)base;
    kernel_stop_listening(base);
    while (transport->connections) {
        struct kernel_connection *connection = transport->connections;
        transport->connections = connection->next;
        drop_attached(connection);
        close_descriptor(connection->descriptor.number);
        memory_free(connection);
    }
    while (transport->watches) {
        struct watch *watch = transport->watches;
        transport->watches = watch->next;
        memory_free(watch);
    }
    close(transport->spare);
    close(transport->epoll);
    memory_free(transport);
}

static const struct transport_operations kernel_operations = {
    .name = "kernel",
    .releases_at_write = true,
    .listen = kernel_listen,
    .poll = kernel_poll,
    .stop = kernel_stop,
    .stop_listening = kernel_stop_listening,
    .free = kernel_free,
    .readv = kernel_readv,
    .writev = kernel_writev,
    .want_read = kernel_want_read,
    .want_write = kernel_want_write,
    .close = kernel_close,
    .attach = kernel_attach,
};

struct transport *transport_kernel_new(const struct transport_events *events, struct error *error) {
    struct kernel_transport *transport = memory_calloc(1, sizeof *transport);
    if (!transport) {
        error_set(error, ERROR_GENERIC, "no memory for the kernel transport");
        return NULL;
    }
    transport->base.operations = &kernel_operations;
    transport->base.events = *events;
    transport->epoll = epoll_create1(EPOLL_CLOEXEC);
    transport->spare = transport->epoll >= 0 ? dup(transport->epoll) : -1;
    if (transport->epoll < 0 || transport->spare < 0) {
        error_set(error, ERROR_GENERIC, "cannot create an epoll set: %s", strerror(errno));
        if (transport->epoll >= 0) close(transport->epoll);
        memory_free(transport);
        return NULL;
    }
    return &transport->base;
}
