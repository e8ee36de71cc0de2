/* memory_transport: a transport without sockets, for tests: the test plays the peers, and decides how bytes are cut, when a peer
 * stops reading, and when written bytes are released. */
#ifndef REPLAY_TESTS_MEMORY_TRANSPORT_H
#define REPLAY_TESTS_MEMORY_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/transport.h"

struct memory_peer;

struct transport *transport_memory_new(const struct transport_events *events);

/* From now on written bytes are not copied: the server must keep them until memory_peer_release. Before any connection.
 */
void transport_memory_hold_writes(struct transport *transport);

/* NULL: the server refused. The peer belongs to the transport and stays until the transport is freed. */
struct memory_peer *memory_peer_connect(struct transport *transport);
/* As if it came over a socket of that kind; its ends are named so. */
struct memory_peer *memory_peer_connect_as(struct transport *transport, const struct connection *ends);
/* The other end of a connection that the server itself begins, with what it wants to get events with. */
struct memory_peer *memory_peer_reached(struct transport *transport, const struct connection *ends, void *owner);
struct connection *memory_peer_connection(struct memory_peer *peer);
void memory_peer_send(struct memory_peer *peer, const void *bytes, size_t length);
void memory_peer_finish(struct memory_peer *peer); /* end of stream after what was sent */
void memory_peer_vanish(struct memory_peer *peer); /* reads and writes fail from now on */
/* What the peer takes: `readv` of the server returns at most `piece` bytes, `writev` accepts at most `window` more. */
void memory_peer_cut_input(struct memory_peer *peer, size_t piece);
void memory_peer_open_window(struct memory_peer *peer, size_t window);
/* All that has arrived; where writes are held, only what was released. */
const uint8_t *memory_peer_received(const struct memory_peer *peer, size_t *length);
void memory_peer_forget_received(struct memory_peer *peer);
size_t memory_peer_held(const struct memory_peer *peer); /* written, not yet released */
void memory_peer_release(struct memory_peer *peer, size_t length);
bool memory_peer_is_closed(const struct memory_peer *peer); /* the server closed, or noticed that the peer is gone */
/* The descriptor that the server attached, open until the transport is freed; -1: none. */
int memory_peer_attached(const struct memory_peer *peer);
bool memory_peer_is_read(const struct memory_peer *peer); /* the server wants more input */

#endif
