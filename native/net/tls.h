/* tls: TLS between a kernel socket and the server, by OpenSSL. A build without it refuses to begin one.
 *
 * It lies right above the socket: it reads and writes records there, and gives the server the bytes that clients
 * sent. It copies. Handshakes run inside the first reads. */
#ifndef REPLAY_NET_TLS_H
#define REPLAY_NET_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "net/transport.h"

struct tls_session; /* one connection's */

/* On a socket that does not block, and was accepted, or `connects` to another. NULL: no memory. */
struct tls_session *tls_session_new(struct tls *tls, int descriptor, bool connects);
/* Says good-bye if that can be done at once. */
void tls_session_free(struct tls_session *session);

/* As reads and writes of transports: > 0 bytes, 0 end of stream, −1 would block, −2 broken. What a write did not take must
 * be offered again, with at least as many bytes behind it. */
ssize_t tls_readv(struct tls_session *session, const struct iovec *vectors, int count);
ssize_t tls_writev(struct tls_session *session, const struct iovec *vectors, int count);
/* After a read: bytes have come that no event of the socket will tell of. */
bool tls_has_more(const struct tls_session *session);
/* After a read that would block: it waits for room to write, in the midst of a handshake. */
bool tls_read_needs_room(const struct tls_session *session);
/* The handshake has ended. */
bool tls_is_open(const struct tls_session *session);

#endif
