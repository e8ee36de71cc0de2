/* kernel: the transport over the kernel's sockets: TCP and unix sockets in one epoll set. */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/memory.h"
#include "net/sockets.h"
#include "net/tls.h"
#include "net/transport.h"

struct watch {
    struct descriptor descriptor;
    struct watch *next;
    void (*ready)(void *context, int descriptor);
    void *context;
};

struct kernel_connection {
    struct socket_connection socket;
    bool carries;               /* `attached` goes along with the next byte */
    int attached;
    struct tls_session *session; /* NULL: without TLS */
    struct kernel_connection *next_due; /* has input that no event will tell of */
    bool is_due;
    bool drained; /* the last read took all there was: the next event tells of more */
    bool ends_short; /* a short read is no sign of that */
};

struct kernel_transport {
    struct sockets sockets;
    struct watch *watches;
    struct tls *tls;
    struct kernel_connection *due;
};

/* ---- the kernel's calls ------------------------------------------------------------------------------ */

static int call_socket(int family) {
    return socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

static int call_accept(int number) {
    return accept4(number, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
}

/* The three calls that every request costs go to the kernel without the C library's points of cancellation, which take two
 * locked instructions each where there are threads. Sanitizers watch the library's own. */
#if defined(SYS_recvfrom) && defined(SYS_sendto) && defined(SYS_epoll_pwait) && !defined(__SANITIZE_ADDRESS__)
static ssize_t call_read(int number, void *bytes, size_t length) {
    return syscall(SYS_recvfrom, number, bytes, length, 0, NULL, NULL);
}

static ssize_t call_write(int number, const void *bytes, size_t length) {
    return syscall(SYS_sendto, number, bytes, length, MSG_NOSIGNAL, NULL, 0);
}

static int call_epoll_wait(int set, struct epoll_event *events, int count, int wait_ms) {
    return (int)syscall(SYS_epoll_pwait, set, events, count, wait_ms, NULL, 0);
}
#else
static ssize_t call_read(int number, void *bytes, size_t length) {
    return recv(number, bytes, length, 0);
}

static ssize_t call_write(int number, const void *bytes, size_t length) {
    return send(number, bytes, length, MSG_NOSIGNAL);
}

static int call_epoll_wait(int set, struct epoll_event *events, int count, int wait_ms) {
    return epoll_wait(set, events, count, wait_ms);
}
#endif

static ssize_t call_writev(int number, const struct iovec *vectors, int count) {
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)vectors, .msg_iovlen = (size_t)count};
    return sendmsg(number, &message, MSG_NOSIGNAL);
}

static int call_dup(int number) {
    return fcntl(number, F_DUPFD_CLOEXEC, 0);
}

static int call_epoll_create(void) {
    return epoll_create1(EPOLL_CLOEXEC);
}

static const struct socket_calls kernel_calls = {
    .socket = call_socket,
    .bind = bind,
    .listen = listen,
    .accept = call_accept,
    .getsockname = getsockname,
    .getpeername = getpeername,
    .setsockopt = setsockopt,
    .read = call_read,
    .readv = readv,
    .write = call_write,
    .writev = call_writev,
    .shutdown = shutdown,
    .close = close,
    .dup = call_dup,
    .epoll_create = call_epoll_create,
    .epoll_ctl = epoll_ctl,
    .epoll_wait = call_epoll_wait,
};

static void tls_ready(struct sockets *sockets, struct descriptor *descriptor, uint32_t events);
static void edge_ready(struct sockets *sockets, struct descriptor *descriptor, uint32_t events);

static void drop_attached(struct socket_connection *base) {
    struct kernel_connection *connection = (struct kernel_connection *)base;
    if (connection->carries) close(connection->attached);
    connection->carries = false;
}

/* ---- TLS --------------------------------------------------------------------------------------------- */

/* Before a connection is told of. (What is sent along through a unix socket makes reads short.) */
static bool begin_session(struct socket_connection *base) {
    struct kernel_connection *connection = (struct kernel_connection *)base;
    const struct kernel_transport *transport = (const struct kernel_transport *)base->base.transport;
    if (!base->base.is_tls) {
        base->edges = !base->base.is_unix;
        if (base->edges) base->descriptor.ready = edge_ready;
        return true;
    }
    if (transport->tls)
        connection->session = tls_session_new(transport->tls, base->descriptor.number, base->is_outgoing);
    base->descriptor.ready = tls_ready;
    base->base.is_shaking_hands = true;
    return connection->session;
}

static void forget_due(struct kernel_connection *connection) {
    struct kernel_transport *transport = (struct kernel_transport *)connection->socket.base.transport;
    if (!connection->is_due) return;
    struct kernel_connection **link = &transport->due;
    while (*link != connection) link = &(*link)->next_due;
    *link = connection->next_due;
    connection->is_due = false;
}

static void forget(struct socket_connection *base) {
    struct kernel_connection *connection = (struct kernel_connection *)base;
    drop_attached(base);
    forget_due(connection);
    tls_session_free(connection->session);
    connection->session = NULL;
}

/* The next poll hands it on. With TLS it is what was read from the socket but not asked for yet, and waits inside the
 * session; without, what a read has left in the socket. */
static void note_due(struct kernel_connection *connection) {
    struct kernel_transport *transport = (struct kernel_transport *)connection->socket.base.transport;
    bool more = connection->session ? tls_has_more(connection->session) : !connection->drained;
    if (!more || !(connection->socket.interest & EPOLLIN) || connection->is_due || connection->socket.dying) return;
    connection->is_due = true;
    connection->next_due = transport->due;
    transport->due = connection;
}

static int hand_on_due(struct kernel_transport *transport) {
    struct kernel_connection *connection = transport->due;
    int handed = 0;
    transport->due = NULL; /* who becomes due now waits for the next poll */
    for (struct kernel_connection *at = connection; at; at = at->next_due) at->is_due = false;
    while (connection) {
        struct kernel_connection *next = connection->next_due; /* none is freed before the poll's end */
        const struct transport_events *to = &transport->sockets.base.events;
        if (!connection->socket.dying && (connection->socket.interest & EPOLLIN)) {
            connection->drained = false;
            to->readable(to->context, connection->socket.base.owner);
            if (!connection->session) note_due(connection);
            handed++;
        }
        connection = next;
    }
    return handed;
}

static void edge_ready(struct sockets *sockets, struct descriptor *descriptor, uint32_t events) {
    struct kernel_connection *connection =
        (struct kernel_connection *)((char *)descriptor - offsetof(struct kernel_connection, socket.descriptor));
    connection->drained = !(events & EPOLLIN);
    connection->ends_short = events & ~(uint32_t)(EPOLLIN | EPOLLOUT);
    sockets_connection_ready(sockets, descriptor, events);
    note_due(connection);
}

/* A handshake may have to write before it can read on. */
static void tls_ready(struct sockets *sockets, struct descriptor *descriptor, uint32_t events) {
    struct socket_connection *connection =
        (struct socket_connection *)((char *)descriptor - offsetof(struct socket_connection, descriptor));
    if ((events & EPOLLOUT) && connection->own_interest != 0) {
        if (!sockets_wait_for(connection, 0)) sockets_begin_dying(connection);
        events |= EPOLLIN;
    }
    if (connection->interest == 0 || !(connection->interest & EPOLLOUT)) events &= ~(uint32_t)EPOLLOUT;
    sockets_connection_ready(sockets, descriptor, events);
}

static ssize_t read_session(struct kernel_connection *connection, const struct iovec *vectors, int count) {
    struct socket_connection *base = &connection->socket;
    if (base->dying) return -2;
    ssize_t got = tls_readv(connection->session, vectors, count);
    if (base->base.is_shaking_hands) base->base.is_shaking_hands = !tls_is_open(connection->session);
    bool needs_room = got < 0 && tls_read_needs_room(connection->session);
    if (got == -2 || (needs_room && !sockets_wait_for(base, EPOLLOUT))) {
        sockets_begin_dying(base);
        return -2;
    }
    note_due(connection);
    return got;
}

static ssize_t kernel_readv(struct connection *base, const struct iovec *vectors, int count) {
    struct kernel_connection *connection = (struct kernel_connection *)base;
    if (connection->session) return read_session(connection, vectors, count);
    ssize_t got = sockets_readv(base, vectors, count);
    size_t asked = 0;
    for (int i = 0; i < count; i++) asked += vectors[i].iov_len;
    connection->drained = got < 0 || ((size_t)got < asked && !connection->ends_short);
    return got;
}

static ssize_t write_session(struct kernel_connection *connection, const struct iovec *vectors, int count) {
    if (connection->socket.dying) return -2;
    ssize_t sent = tls_writev(connection->session, vectors, count);
    if (sent == -2) sockets_begin_dying(&connection->socket);
    return sent;
}

static void kernel_want_read(struct connection *base, bool on) {
    sockets_want_read(base, on);
    if (on && ((struct kernel_connection *)base)->session) note_due((struct kernel_connection *)base);
}

void transport_kernel_use_tls(struct transport *base, struct tls *tls) {
    struct kernel_transport *transport = (struct kernel_transport *)base;
    tls_free(transport->tls);
    transport->tls = tls;
}

struct connection *transport_kernel_connect(struct transport *base, const struct sockaddr *address, uint32_t length,
                                            bool is_tls, void *owner, struct error *error) {
    struct kernel_transport *transport = (struct kernel_transport *)base;
    if (is_tls && !transport->tls) {
        error_set(error, ERROR_GENERIC,
                  "there are no certificates: set tls-cert-file, tls-key-file and tls-ca-cert-file");
        return NULL;
    }
    int number = call_socket(address->sa_family);
    if (number < 0 || (connect(number, address, length) < 0 && errno != EINPROGRESS)) {
        error_set(error, ERROR_GENERIC, "cannot connect: %s", strerror(errno));
        if (number >= 0) close(number);
        return NULL;
    }
    struct socket_connection *connection = sockets_adopt(&transport->sockets, number, is_tls, owner);
    if (!connection) error_set(error, ERROR_GENERIC, "no memory for a connection");
    return connection ? &connection->base : NULL;
}

void transport_kernel_keepalive(struct transport *base, int64_t seconds) {
    ((struct sockets *)base)->keepalive_s = (int)seconds;
}

/* ---- descriptors sent along, and writing ------------------------------------------------------------- */

static int kernel_attach(struct connection *base, int descriptor) {
    struct kernel_connection *connection = (struct kernel_connection *)base;
    if (!base->is_unix || connection->carries) return -1;
    connection->attached = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    connection->carries = connection->attached >= 0;
    return connection->carries ? 0 : -1;
}

static ssize_t send_attached(struct kernel_connection *connection, const struct iovec *vectors, int count) {
    union {
        struct cmsghdr header; /* for its alignment */
        uint8_t bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr message = {
        .msg_iov = (struct iovec *)(uintptr_t)vectors,
        .msg_iovlen = (size_t)count,
        .msg_control = control.bytes,
        .msg_controllen = sizeof control.bytes,
    };
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &connection->attached, sizeof(int));
    ssize_t sent;
    do sent = sendmsg(connection->socket.descriptor.number, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent > 0) drop_attached(&connection->socket);
    return sent;
}

static ssize_t kernel_writev(struct connection *base, const struct iovec *vectors, int count) {
    struct kernel_connection *connection = (struct kernel_connection *)base;
    if (connection->session) return write_session(connection, vectors, count);
    if (!connection->carries || connection->socket.dying) return sockets_writev(base, vectors, count);
    return sockets_wrote(&connection->socket, send_attached(connection, vectors, count));
}

/* ---- listening --------------------------------------------------------------------------------------- */

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

static int listen_unix(struct sockets *sockets, struct listen_address *address, struct error *error) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    if (strlen(address->path) >= sizeof name.sun_path)
        return error_set(error, ERROR_GENERIC, "cannot listen on %s: the path is %zu bytes, at most %zu are possible",
                         address->path, strlen(address->path), sizeof name.sun_path - 1);
    snprintf(name.sun_path, sizeof name.sun_path, "%s", address->path);
    if (clear_path(&name, error) < 0) return -1;
    int number = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (number < 0) return sockets_refuse_address(error, address->path, "socket");
    /* Created with no permissions, then opened up: nobody gets in between. */
    mode_t before = umask(0177);
    int bound = bind(number, (struct sockaddr *)&name, sizeof name);
    umask(before);
    if (bound < 0 || chmod(address->path, address->mode) < 0) {
        int result = sockets_refuse_address(error, address->path, bound < 0 ? "bind" : "chmod");
        if (bound == 0) unlink(address->path);
        close(number);
        return result;
    }
    if (sockets_add_listener(sockets, number, address, error)) return 0;
    unlink(address->path);
    return -1;
}

/* Without a file: nobody else can take or keep the name, it goes with the server, and it lies in the network namespace. */
static int listen_abstract(struct sockets *sockets, struct listen_address *address, struct error *error) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    size_t length = strlen(address->path);
    if (length >= sizeof name.sun_path)
        return error_set(error, ERROR_GENERIC, "cannot listen on @%s: the name is %zu bytes, at most %zu are possible",
                         address->path, length, sizeof name.sun_path - 1);
    memcpy(name.sun_path + 1, address->path, length);
    int number = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (number < 0) return sockets_refuse_address(error, address->path, "socket");
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    if (bind(number, (struct sockaddr *)&name, size) < 0) {
        int result = sockets_refuse_address(error, address->path, "bind");
        close(number);
        return result;
    }
    return sockets_add_listener(sockets, number, address, error) ? 0 : -1;
}

static int kernel_listen(struct transport *base, struct listen_address *address, struct error *error) {
    struct sockets *sockets = (struct sockets *)base;
    if (address->is_abstract) return listen_abstract(sockets, address, error);
    return address->path ? listen_unix(sockets, address, error) : sockets_listen_tcp(sockets, address, error);
}

static void kernel_stop_listening(struct transport *base) {
    const struct sockets *sockets = (const struct sockets *)base;
    for (const struct socket_listener *listener = sockets->listeners; listener; listener = listener->next)
        if (listener->is_unix && !listener->is_abstract) unlink(listener->path);
    sockets_stop_listening(base);
}

/* ---- the loop ---------------------------------------------------------------------------------------- */

static void watch_ready(struct sockets *sockets, struct descriptor *descriptor, uint32_t events) {
    (void)sockets;
    (void)events;
    const struct watch *watch = (const struct watch *)descriptor; /* its first member */
    watch->ready(watch->context, descriptor->number);
}

int transport_kernel_watch(struct transport *base, int descriptor, void (*ready)(void *context, int descriptor),
                           void *context, struct error *error) {
    struct kernel_transport *transport = (struct kernel_transport *)base;
    struct watch *watch = memory_calloc(1, sizeof *watch);
    if (!watch) return error_set(error, ERROR_GENERIC, "no memory to watch a descriptor");
    watch->descriptor = (struct descriptor){.number = descriptor, .ready = watch_ready};
    watch->ready = ready;
    watch->context = context;
    /* Edge-triggered: a lifeline stays readable once its other end is gone, and must not be reported for ever. */
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.ptr = &watch->descriptor};
    if (epoll_ctl(transport->sockets.epoll, EPOLL_CTL_ADD, descriptor, &event) < 0) {
        memory_free(watch);
        return error_set(error, ERROR_GENERIC, "cannot watch descriptor %d: %s", descriptor, strerror(errno));
    }
    watch->next = transport->watches;
    transport->watches = watch;
    return 0;
}

static int kernel_poll(struct transport *base, uint64_t max_wait_us) {
    struct kernel_transport *transport = (struct kernel_transport *)base;
    int handed = transport->due ? hand_on_due(transport) : 0;
    return handed + sockets_poll(base, handed > 0 || transport->due ? 0 : max_wait_us);
}

static void kernel_stop(struct transport *transport) {
    (void)transport; /* polled: its loop is the server's */
}

static void kernel_free(struct transport *base) {
    struct kernel_transport *transport = (struct kernel_transport *)base;
    kernel_stop_listening(base);
    sockets_close(&transport->sockets);
    while (transport->watches) {
        struct watch *watch = transport->watches;
        transport->watches = watch->next;
        memory_free(watch);
    }
    tls_free(transport->tls);
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
    .want_write = sockets_want_write,
    .close = sockets_close_connection,
    .attach = kernel_attach,
};

struct transport *transport_kernel_new(const struct transport_events *events, struct error *error) {
    struct kernel_transport *transport = memory_calloc(1, sizeof *transport);
    if (!transport) {
        error_set(error, ERROR_GENERIC, "no memory for the kernel transport");
        return NULL;
    }
    transport->sockets = (struct sockets){
        .base = {.operations = &kernel_operations, .events = *events},
        .calls = &kernel_calls,
        .connection_bytes = sizeof(struct kernel_connection),
        .begin = begin_session,
        .forget = forget,
        .keepalive_s = SOCKETS_KEEPALIVE_S,
    };
    if (sockets_open(&transport->sockets, error) < 0) {
        memory_free(transport);
        return NULL;
    }
    return &transport->sockets.base;
}
