/* sockets: what transports over descriptors share: listeners, connections, interest in events, and closing.
 *
 * Each stack provides a table of its calls, with the names, arguments and `errno` of the kernel's. The kernel's
 * transport and F-Stack's are built on this. What only one of them has (unix sockets, passing of descriptors,
 * watches; its own loop) stays in that transport's files. */
#ifndef REPLAY_NET_SOCKETS_H
#define REPLAY_NET_SOCKETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "net/transport.h"

#define SOCKETS_KEEPALIVE_S 300

struct sockets;

struct socket_calls {
    int (*socket)(int family); /* of streams, not blocking */
    int (*bind)(int number, const struct sockaddr *address, socklen_t length);
    int (*listen)(int number, int backlog);
    int (*accept)(int number); /* not blocking either */
    int (*getsockname)(int number, struct sockaddr *address, socklen_t *length);
    int (*getpeername)(int number, struct sockaddr *address, socklen_t *length);
    int (*setsockopt)(int number, int level, int option, const void *value, socklen_t length);
    ssize_t (*read)(int number, void *bytes, size_t length);
    ssize_t (*readv)(int number, const struct iovec *vectors, int count);
    ssize_t (*write)(int number, const void *bytes, size_t length); /* raises no signal */
    ssize_t (*writev)(int number, const struct iovec *vectors, int count);
    int (*shutdown)(int number, int how);
    int (*close)(int number);
    int (*dup)(int number);
    int (*epoll_create)(void);
    /* Of the events EPOLLIN, EPOLLOUT, EPOLLRDHUP and EPOLLET are asked for; EPOLLERR and EPOLLHUP may come unasked. */
    int (*epoll_ctl)(int set, int operation, int number, struct epoll_event *event);
    int (*epoll_wait)(int set, struct epoll_event *events, int count, int wait_ms);
};

/* What the data of an event points to: a member of whatever it belongs to. */
struct descriptor {
    int number;
    void (*ready)(struct sockets *sockets, struct descriptor *descriptor, uint32_t events);
};

struct socket_listener {
    struct descriptor descriptor;
    struct socket_listener *next;
    bool is_unix, is_abstract, is_admin, is_tls;
    char path[108];
};

/* A transport's own connection begins with it. */
struct socket_connection {
    struct connection base;
    struct descriptor descriptor;
    uint32_t interest; /* EPOLLIN, EPOLLOUT: what the server waits for */
    uint32_t own_interest; /* and what the transport does, for itself */
    bool edges; /* where only input is waited for, it is told of when it comes, and not again while it lies there */
    bool dying; /* in the list of those that `closed` is due for */
    bool hung_up; /* the event was given */
    bool is_outgoing; /* begun here */
    struct socket_connection *next, *previous, *next_dying;
};

/* A transport begins with it. */
struct sockets {
    struct transport base;
    const struct socket_calls *calls;
    size_t connection_bytes; /* of the transport's own connection, zeroed when it begins */
    bool (*begin)(struct socket_connection *connection); /* before `opened`; false: drop it. NULL: nothing to do */
    void (*forget)(struct socket_connection *connection); /* before one is freed; NULL: nothing to do */
    int keepalive_s; /* 0: no probes */
    int epoll;
    int spare; /* a descriptor to give up when there is none left for accept */
    struct socket_listener *listeners;
    struct socket_connection *connections;
    struct socket_connection *dying;
};

/* `base`, `calls`, `connection_bytes`, `begin`, `forget` and `keepalive_s` are set; makes the rest. */
int sockets_open(struct sockets *sockets, struct error *error);
/* Closes everything without events, but frees not the struct. */
void sockets_close(struct sockets *sockets);

int sockets_listen_tcp(struct sockets *sockets, struct listen_address *address, struct error *error);
/* Begins to accept on a socket that is bound, which is closed if that fails: NULL then. */
struct socket_listener *sockets_add_listener(struct sockets *sockets, int number, const struct listen_address *address,
                                             struct error *error);
/* Says what failed on which address, after `errno`. Returns -1. */
int sockets_refuse_address(struct error *error, const char *what, const char *step);

/* Makes a connection of a socket that was begun elsewhere, without `opened`; NULL, and the socket is closed: no memory. */
struct socket_connection *sockets_adopt(struct sockets *sockets, int number, bool is_tls, void *owner);
/* From here on the connection only waits for its `closed`, at the end of the poll in progress or of the next. */
void sockets_begin_dying(struct socket_connection *connection);
/* What a connection's events lead to. */
void sockets_connection_ready(struct sockets *sockets, struct descriptor *descriptor, uint32_t events);
/* Waits for these events as well; false: the connection is broken. */
bool sockets_wait_for(struct socket_connection *connection, uint32_t events);
/* What a write returned, by the rules of `transport_operations.writev`. */
ssize_t sockets_wrote(struct socket_connection *connection, ssize_t sent);

/* Operations of a transport. */
int sockets_poll(struct transport *transport, uint64_t max_wait_us);
void sockets_stop_listening(struct transport *transport);
ssize_t sockets_readv(struct connection *connection, const struct iovec *vectors, int count);
ssize_t sockets_writev(struct connection *connection, const struct iovec *vectors, int count);
void sockets_want_read(struct connection *connection, bool on);
void sockets_want_write(struct connection *connection, bool on);
void sockets_close_connection(struct connection *connection);

#endif
