/* transport: all that the server knows of networks. The server calls functions on opaque connections, and the
 * transport reports events.
 *
 * A transport is either polled by the server's loop (`poll`, with a longest wait) or owns the loop itself (`run`, which
 * calls the server's `step` and must honour the deadline that it returns). Several transports may serve one server.
 * Neither RESP nor tables are known here. Partial reads and writes are normal. All calls come from the loop's thread.
 *
 * Life of a connection: opened → (readable | writable | hung_up | released)* → closed. `closed` comes exactly once, from the
 * transport, after the peer went, after an error, or after the server called `close`; it never comes from inside a call
 * that the server made, so a connection stays valid for the rest of the event being handled. */
#ifndef REPLAY_NET_TRANSPORT_H
#define REPLAY_NET_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/error.h"
#include "base/text.h"

struct sockaddr;
struct transport;

/* The part of a connection that every transport has; a transport's own struct begins with it. */
struct connection {
    struct transport *transport;
    void *owner;          /* the server's client; set by `opened` */
    char peer[108];       /* "127.0.0.1:50412", or the socket's path */
    char local[108];
    bool is_unix;
    bool is_abstract;     /* a unix socket without a file: whoever knows its name may connect */
    bool is_admin;        /* came in through an admin listener */
    bool is_tls;
    bool is_shaking_hands; /* TLS has not begun to carry anything yet */
};

struct transport_events {
    void *context;
    /* A new connection. Returns the owner, or NULL to refuse: the transport then closes it without `closed`. */
    void *(*opened)(void *context, struct connection *connection);
    void (*readable)(void *context, void *owner);
    void (*writable)(void *context, void *owner);
    /* The peer sends no more, noticed while reads are not wanted; at most once. What it sent before may still be read. */
    void (*hung_up)(void *context, void *owner);
    /* `size_bytes` of what was written earlier are no longer needed by the transport (oldest first). A transport whose
     * `writev` copies reports nothing: see `releases_at_write`. */
    void (*released)(void *context, void *owner, size_t size_bytes);
    void (*closed)(void *context, void *owner);
};

struct listen_address {
    const char *host;     /* NULL for a unix socket */
    uint16_t port;        /* 0 = any; the port bound is written back */
    const char *path;     /* unix socket, NULL for TCP */
    uint32_t mode;        /* permission bits of a unix socket */
    bool is_abstract;     /* `path` is a name without a file (Linux) */
    bool is_admin;
    bool is_tls;          /* the kernel's transport alone, after transport_kernel_use_tls */
};

/* Runs due work and returns the microseconds until the next (UINT64_MAX: none). */
typedef uint64_t (*transport_step)(void *context);

struct transport_operations {
    const char *name; /* "kernel", "dpdk", "fstack", "memory" */
    bool releases_at_write; /* bytes accepted by writev are released at once */
    int (*listen)(struct transport *transport, struct listen_address *address, struct error *error);
    /* Polled transports: handle what is ready, waiting at most max_wait_us (0: do not wait). Returns events handled. */
    int (*poll)(struct transport *transport, uint64_t max_wait_us);
    /* Transports that own the loop (NULL where polled): call step until `stop`. -1: the device was lost before. */
    int (*run)(struct transport *transport, transport_step step, void *context);
    void (*stop)(struct transport *transport);    /* makes `run` return */
    void (*stop_listening)(struct transport *transport);
    void (*free)(struct transport *transport);    /* closes everything without events, unlinks socket files */

    /* > 0 bytes, 0 end of stream, -1 would block, -2 error (a `closed` follows) */
    ssize_t (*readv)(struct connection *connection, const struct iovec *vectors, int count);
    ssize_t (*writev)(struct connection *connection, const struct iovec *vectors, int count);
    void (*want_read)(struct connection *connection, bool on);   /* on when opened */
    void (*want_write)(struct connection *connection, bool on);  /* off when opened */
    void (*close)(struct connection *connection);
    /* Sends a copy of the descriptor along with the next byte written. NULL, or -1: this connection cannot carry one, or has
     * one waiting. */
    int (*attach)(struct connection *connection, int descriptor);
    /* Appends lines "name:value\r\n" for INFO: device, link, counters. NULL: nothing to tell. */
    void (*describe)(struct transport *transport, struct text *out);
};

/* Of a data port in user space. Texts are "" where nothing was said. */
struct transport_settings {
    const char *device; /* a PCI address, or a virtual device with its arguments: "net_af_packet0,iface=veth0" */
    const char *address; /* IPv4 and mask: "10.0.0.2/24" */
    const char *gateway;
    uint16_t mtu; /* of IP, 0: the device's */
    int lcore; /* the processor to run on, −1: where the thread is */
    uint64_t memory_bytes; /* for packets; 0: the transport's default */
    const char *eal_arguments; /* more arguments for DPDK's EAL, separated by spaces */
    const char *offloads; /* "auto": what the device has; "none"; or names: see net/dpdk/offloads.h */
    const char *faults; /* for tests: "loss=0.01,duplicate=0.01,reorder=0.01,seed=1" */
    const char *fstack_config; /* F-Stack's config.ini; "": written from the above */
    uint32_t max_connections;
    uint16_t queues,
        queue; /* of how many processes on the device, each with a queue pair, this one is which; ≤ 1: alone */
};

struct transport {
    const struct transport_operations *operations;
    struct transport_events events;
};

struct transport *transport_kernel_new(const struct transport_events *events, struct error *error);
/* Calls `ready` when the descriptor is readable (signals, the parent's lifeline). */
int transport_kernel_watch(struct transport *transport, int descriptor, void (*ready)(void *context, int descriptor),
                           void *context, struct error *error);

enum tls_clients { TLS_CLIENTS_PROVE, TLS_CLIENTS_NEED_NOT, TLS_CLIENTS_MAY }; /* show a certificate */

/* Texts are "" where nothing was said. */
struct tls_settings {
    const char *certificate, *key,
        *key_password; /* files of the server's own, PEM; the key may be with the certificate */
    const char *authorities, *authorities_folder; /* that clients' certificates are checked by */
    const char *protocols; /* "TLSv1.2 TLSv1.3" */
    const char *ciphers, *ciphersuites; /* for TLS 1.2, and for 1.3, as OpenSSL names them */
    enum tls_clients clients;
    bool prefer_own_ciphers, no_session_cache;
};

struct tls; /* what all connections have in common */
/* NULL with `error` set: a file cannot be read, does not fit another, or this build has no TLS. */
struct tls *tls_new(const struct tls_settings *settings, struct error *error);
void tls_free(struct tls *tls); /* sessions may go on; NULL is allowed */

/* With these certificates, which become its own, for listeners that are TLS; also while it runs, for connections that come
 * from then on. */
void transport_kernel_use_tls(struct transport *transport, struct tls *tls);
/* Begins a connection to another server, whose events come as those of any: what is written before it stands is sent then, and
 * one that cannot be made is closed. `is_tls`: with the certificates of transport_kernel_use_tls, which the other must
 * match. NULL with `error` set: it cannot even be begun. */
struct connection *transport_kernel_connect(struct transport *transport, const struct sockaddr *address,
                                            uint32_t length, bool is_tls, void *owner, struct error *error);
/* Connections that come from now on are probed after so many seconds without a word; 0: never. */
void transport_kernel_keepalive(struct transport *transport, int64_t seconds);

/* A library that a transport is built on, and its version; an array of them ends with one without a name. */
struct transport_library {
    const char *name, *version;
};

/* lwIP over a DPDK port, in the executables built with them. It owns the loop; there is one a process. */
struct transport *transport_dpdk_new(const struct transport_settings *settings, const struct transport_events *events,
                                     struct error *error);
/* Begins a connection to a server at an IPv4 address. When it stands, `opened` comes; when it cannot be made, `closed`, with
 * this owner. Until then nothing can be read or written. NULL with `error` set: it cannot even be begun. */
struct connection *transport_dpdk_connect(struct transport *transport, const char *host, uint16_t port, void *owner,
                                          struct error *error);
const struct transport_library *transport_dpdk_libraries(void);
/* F-Stack, likewise. */
struct transport *transport_fstack_new(const struct transport_settings *settings, const struct transport_events *events,
                                       struct error *error);
const struct transport_library *transport_fstack_libraries(void);

#endif
