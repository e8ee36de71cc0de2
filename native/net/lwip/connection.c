/* connection: between lwIP's callbacks and the server's events. */
#include "net/lwip/connection.h"

#include <arpa/inet.h>
#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <lwip/priv/tcp_priv.h>

#include "base/clock.h"
#include "base/memory.h"
#include "net/dpdk/memif.h"
#include "net/lwip/pools.h"
#include "net/lwip/stack.h"

#define CLOSE_US 3000000u /* without progress in delivering what was written before a close: the peer gets a reset */
#define CLOSE_MOST_US 60000000u /* whatever the progress: a peer that takes byte by byte would hold it for days */
#define COPY_BYTES 512u /* smaller pieces are copied: cheaper than to keep track of them */
#define WRITABLE_BYTES 131072u /* room for less is not worth an event, while more is under way */
#define PIECES_MOST 4096u /* of memory, under way for one connection */
#define PIECES_ALWAYS 64u /* so many also when they are short */
#define SEGMENT_BYTES 23360u /* lwIP's segments: several frames, see output.c */
static_assert(SEGMENT_BYTES <= SENDING_QUANTUM_BYTES, "a connection in its turn can send a segment");
static_assert(TCP_MSS == SEGMENT_BYTES, "a segment is at least a frame");
static_assert(TCP_MSS + 40u == MEMIF_MTU_MOST, "no device has longer frames than a segment fills");
#define WIRE_LEAST_BYTES \
    48u /* a peer that asks for less in a frame would have the server send next to nothing but headers */
#define WINDOWS_MOST_BYTES (64u << 20) /* of all receive windows, beyond what each has at first */
#define OUT_OF_ORDER_BLOCKS 8192u /* of all connections: see out_of_order.h */
#define BUFFER_MOST_BYTES RECOVERY_WINDOW_MOST_BYTES
#define WRITE_BYTES 0xffffu /* tcp_write and tcp_recved take no more at once */

static struct lwip_connection *of(struct connection *connection) {
    return (struct lwip_connection *)connection;
}

/* ---- the list of those with something to do -------------------------------------------------------------------- */

static void make_ready(struct lwip_connection *connection) {
    if (connection->ready) return;
    struct connections *all = connection->all;
    connection->ready = true;
    connection->next_ready = NULL;
    if (all->ready_tail)
        all->ready_tail->next_ready = connection;
    else
        all->ready_head = connection;
    all->ready_tail = connection;
}

static bool has_room(const struct lwip_connection *connection) {
    const struct tcp_pcb *pcb = connection->pcb;
    if (connection->starved || pcb->snd_queuelen >= PIECES_MOST || pcb->snd_buf == 0) return false;
    return pcb->snd_queuelen < PIECES_ALWAYS || !pools_are_low();
}

static bool is_writable(const struct lwip_connection *connection) {
    return connection->wants_write && !connection->closing && connection->pcb && has_room(connection) &&
           (connection->pcb->snd_buf >= WRITABLE_BYTES || connection->written_bytes == 0);
}

static bool is_readable(const struct lwip_connection *connection) {
    return connection->wants_read && !connection->closing && (connection->unread_bytes > 0 || connection->ended);
}

/* ---- the table ------------------------------------------------------------------------------------------------- */

int connections_open(struct connections *connections, struct transport *transport, uint32_t most, struct error *error) {
    *connections = (struct connections){.transport = transport, .most = most};
    connections->table = memory_calloc(most, sizeof *connections->table);
    if (!connections->table) return error_set(error, ERROR_GENERIC, "no memory for %u connections", most);
    for (uint32_t i = most; i-- > 0;) {
        connections->table[i].next_free = connections->free;
        connections->free = &connections->table[i];
    }
    if (out_of_order_open(OUT_OF_ORDER_BLOCKS, error) < 0) return -1;
    return demultiplex_open(most, error);
}

static void drop_received(struct lwip_connection *connection) {
    while (connection->first) {
        struct received *next = connection->first->next;
        received_free(connection->first);
        connection->first = next;
    }
    connection->last = NULL;
    connection->unread_bytes = 0;
}

/* lwIP goes on with it alone: nothing that it still holds is the server's. */
static struct tcp_pcb *detach(struct lwip_connection *connection) {
    struct tcp_pcb *pcb = connection->pcb;
    demultiplex_remove(connection);
    sending_leave(&stack.sending, connection);
    recovery_close(&connection->recovery);
    out_of_order_drop(&connection->early);
    if (!pcb->ooseq) memset(pcb->rcv_sacks, 0, sizeof pcb->rcv_sacks); /* they told of what was dropped here */
    connection->pcb = NULL;
    tcp_arg(pcb, NULL);
    tcp_recv(pcb, NULL);
    tcp_sent(pcb, NULL);
    tcp_err(pcb, NULL);
    return pcb;
}

static struct tcp_pcb *stop_connecting(struct lwip_connection *connection) {
    struct tcp_pcb *pcb = connection->connecting;
    connection->connecting = NULL;
    tcp_arg(pcb, NULL);
    tcp_err(pcb, NULL);
    return pcb;
}

static void leave_closing(struct lwip_connection *connection) {
    for (struct lwip_connection **link = &connection->all->closing; *link; link = &(*link)->next_closing) {
        if (*link != connection) continue;
        *link = connection->next_closing;
        return;
    }
}

static void end(struct lwip_connection *connection) {
    connection->over = true;
    make_ready(connection);
}

/* All was delivered, or there was nothing: lwIP finishes the handshake by itself. It resets a connection whose window shows
 * that there is something unread, and the window that it means is the widest. */
static void finish_close(struct lwip_connection *connection) {
    struct tcp_pcb *pcb = detach(connection);
    if (pcb->rcv_wnd >= connection->window.bytes) pcb->rcv_wnd = TCP_WND_MAX(pcb);
    tcp_close(pcb);
    end(connection);
}

static void give_back(struct lwip_connection *connection) {
    struct connections *all = connection->all;
    assert(!connection->pcb && !connection->ready);
    drop_received(connection);
    out_of_order_drop(&connection->early);
    if (connection->window.bytes > RECEIVE_WINDOW_FIRST_BYTES)
        all->windows_bytes -= connection->window.bytes - RECEIVE_WINDOW_FIRST_BYTES;
    if (connection->closing) leave_closing(connection);
    memset(connection, 0, sizeof *connection);
    connection->next_free = all->free;
    all->free = connection;
    all->used--;
}

void connections_close(struct connections *connections) {
    for (uint32_t i = 0; i < connections->most; i++) {
        struct lwip_connection *connection = &connections->table[i];
        if (!connection->all) continue;
        drop_received(connection);
        if (connection->pcb) tcp_abort(detach(connection));
        if (connection->connecting) tcp_abort(stop_connecting(connection));
    }
    demultiplex_close();
    out_of_order_close();
    memory_free(connections->table);
    *connections = (struct connections){.transport = connections->transport};
}

/* ---- lwIP's callbacks ------------------------------------------------------------------------------------------ */

static err_t on_received(void *argument, struct tcp_pcb *pcb, struct pbuf *chain, err_t error) {
    struct lwip_connection *connection = argument;
    (void)error;
    if (!chain) {
        connection->ended = true;
        make_ready(connection);
        return ERR_OK;
    }
    uint16_t length = chain->tot_len;
    if (connection->closing || connection->over) { /* nobody reads it any more */
        tcp_recved(pcb, length);
        pbuf_free(chain);
        return ERR_OK;
    }
    struct received *first, *last;
    if (!received_take(chain, connection->unread_bytes, &first, &last))
        return ERR_MEM; /* lwIP keeps it, and asks again */
    if (connection->last)
        connection->last->next = first;
    else
        connection->first = first;
    if (first) connection->last = last;
    connection->unread_bytes += length;
    if (connection->wants_read) make_ready(connection);
    return ERR_OK;
}

static void extend_close(struct lwip_connection *connection) {
    uint64_t deadline_us = clock_monotonic_us() + CLOSE_US;
    connection->deadline_us = deadline_us < connection->last_us ? deadline_us : connection->last_us;
}

static err_t on_acknowledged(void *argument, struct tcp_pcb *pcb, uint16_t length) {
    struct lwip_connection *connection = argument;
    /* A probe of a closed window may have been all that there was left to send: lwIP would go on probing with nothing. */
    if (!pcb->unsent) pcb->persist_backoff = 0;
    assert(length <= connection->written_bytes);
    connection->written_bytes -= length;
    connection->acknowledged_bytes += length;
    make_ready(connection);
    if (connection->closing) extend_close(connection);
    /* At once: lwIP may drop a control block that waits for nothing more without a word. */
    if (connection->closing && connection->written_bytes == 0) finish_close(connection);
    return ERR_OK;
}

/* Reset by the peer, given up by lwIP, or closed in full: the control block is gone. */
static void on_gone(void *argument, err_t error) {
    struct lwip_connection *connection = argument;
    (void)error;
    demultiplex_remove(connection);
    sending_leave(&stack.sending, connection);
    recovery_close(&connection->recovery);
    out_of_order_drop(&connection->early);
    connection->pcb = NULL;
    end(connection);
}

static void name_end(char *text, size_t size, const ip_addr_t *address, uint16_t port) {
    char host[INET_ADDRSTRLEN] = "?";
    inet_ntop(AF_INET, &ip_2_ip4(address)->addr, host, sizeof host);
    snprintf(text, size, "%s:%u", host, (unsigned)port);
}

static void set_up(struct lwip_connection *connection, struct tcp_pcb *pcb) {
    connection->pcb = pcb;
    demultiplex_add(connection);
    connection->wants_read = true;
    if (pcb->mss < WIRE_LEAST_BYTES) pcb->mss = WIRE_LEAST_BYTES;
    connection->wire_bytes = pcb->mss;
    /* lwIP makes no segment longer than half the widest window seen, and stops at one without data. */
    if (pcb->snd_wnd_max < 2u * pcb->mss) pcb->snd_wnd_max = 2u * pcb->mss;
    uint32_t frames = SEGMENT_BYTES / pcb->mss;
    if (frames > STACK_FRAMES_PER_PACKET) frames = STACK_FRAMES_PER_PACKET;
    if (frames > 1) pcb->mss = (uint16_t)(pcb->mss * frames);
    connection->buffer_bytes = pcb->snd_buf;
    if (pcb->rcv_wnd > RECEIVE_WINDOW_FIRST_BYTES) pcb->rcv_wnd = RECEIVE_WINDOW_FIRST_BYTES;
    connection->window.bytes = pcb->rcv_ann_wnd = pcb->rcv_wnd;
    pcb->rcv_ann_right_edge = pcb->rcv_nxt + pcb->rcv_wnd;
    recovery_open(&connection->recovery, pcb, connection->wire_bytes);
    uint32_t answer_us = stack_answer_us(pcb);
    if (answer_us > 0) round_trips_add(&connection->recovery.round_trips, answer_us);
    connection->recovery.probe.measured = answer_us > 0;
    name_end(connection->base.peer, sizeof connection->base.peer, &pcb->remote_ip, pcb->remote_port);
    name_end(connection->base.local, sizeof connection->base.local, &pcb->local_ip, pcb->local_port);
    tcp_nagle_disable(pcb);
    ip_set_option(pcb, SOF_KEEPALIVE);
    pcb->rttest = 0; /* lwIP's measurement of the handshake would change the timeout */
    tcp_arg(pcb, connection);
    tcp_recv(pcb, on_received);
    tcp_sent(pcb, on_acknowledged);
    tcp_err(pcb, on_gone);
}

/* NULL: there is no place left. */
static struct lwip_connection *take_place(struct connections *all) {
    struct lwip_connection *connection = all->free;
    if (!connection) {
        all->refused++;
        return NULL;
    }
    all->free = connection->next_free;
    all->used++;
    memset(connection, 0, sizeof *connection);
    connection->all = all;
    connection->base.transport = all->transport;
    return connection;
}

err_t connection_accept(void *argument, struct tcp_pcb *pcb, err_t error) {
    struct listener *listener = argument;
    if (error != ERR_OK || !pcb) return ERR_VAL;
    struct connections *all = listener->connections;
    struct lwip_connection *connection = take_place(all);
    if (!connection) return ERR_MEM; /* lwIP resets it */
    connection->base.is_admin = listener->is_admin;
    set_up(connection, pcb);
    const struct transport_events *events = &all->transport->events;
    connection->base.owner = events->opened(events->context, &connection->base);
    if (!connection->base.owner) connection_close(&connection->base); /* after the refusal, if one was written */
    return ERR_OK;
}

static err_t on_connected(void *argument, struct tcp_pcb *pcb, err_t error) {
    struct lwip_connection *connection = argument;
    (void)error; /* always ERR_OK */
    connection->connecting = NULL;
    set_up(connection, pcb);
    /* lwIP chose it for segments of a frame, and ours would not fit: nothing has been acknowledged that could set it anew. */
    pcb->cwnd = cubic_window_bytes(&connection->recovery.cubic);
    const struct transport_events *events = &connection->all->transport->events;
    connection->base.owner = events->opened(events->context, &connection->base);
    if (!connection->base.owner) connection_close(&connection->base);
    return ERR_OK;
}

static void on_refused(void *argument, err_t error) {
    struct lwip_connection *connection = argument;
    (void)error;
    connection->connecting = NULL;
    end(connection);
}

struct connection *connection_connect(struct connections *all, const ip_addr_t *address, uint16_t port, void *owner,
                                      struct error *error) {
    struct lwip_connection *connection = take_place(all);
    struct tcp_pcb *pcb = connection ? tcp_new() : NULL;
    if (!pcb) {
        if (connection) give_back(connection);
        error_set(error, ERROR_LIMIT, "there is no place for another connection");
        return NULL;
    }
    connection->base.owner = owner;
    connection->connecting = pcb;
    tcp_arg(pcb, connection);
    tcp_err(pcb, on_refused);
    err_t begun = tcp_connect(pcb, address, port, on_connected);
    if (begun == ERR_OK) return &connection->base;
    tcp_abort(stop_connecting(connection));
    give_back(connection);
    error_set(error, ERROR_GENERIC, "cannot connect: %s", lwip_strerr(begun));
    return NULL;
}

/* ---- reading and writing --------------------------------------------------------------------------------------- */

static void open_window(struct tcp_pcb *pcb, size_t length) {
    while (length > 0) {
        uint16_t piece = (uint16_t)(length < WRITE_BYTES ? length : WRITE_BYTES);
        tcp_recved(pcb, piece);
        length -= piece;
    }
}

/* Widens the window, as the bounds allow, where the server takes what comes as fast as it comes. */
static void widen_window(struct lwip_connection *connection, uint32_t taken) {
    struct connections *all = connection->all;
    struct receive_window *window = &connection->window;
    struct tcp_pcb *pcb = connection->pcb;
    if (!(pcb->flags & TF_WND_SCALE)) return;
    uint32_t wanted = receive_window_take(window, taken, connection->recovery.round_trips.least_us,
                                          connection->wire_bytes, clock_monotonic_us());
    if (wanted > TCP_WND) wanted = TCP_WND;
    if (wanted <= window->bytes || received_is_low()) return;
    size_t room = WINDOWS_MOST_BYTES - all->windows_bytes, more = wanted - window->bytes;
    if (more > room) more = room;
    window->bytes += (uint32_t)more;
    pcb->rcv_wnd += (tcpwnd_size_t)more;
    all->windows_bytes += more;
    if (window->bytes > all->window_most_bytes) all->window_most_bytes = window->bytes;
}

ssize_t connection_readv(struct connection *base, const struct iovec *vectors, int count) {
    struct lwip_connection *connection = of(base);
    if (connection->closing || connection->over) return -2;
    if (connection->unread_bytes == 0) return connection->ended ? 0 : -1;
    size_t got = 0;
    for (int i = 0; i < count && connection->first; i++) {
        uint8_t *to = vectors[i].iov_base;
        size_t room = vectors[i].iov_len;
        while (room > 0 && connection->first) {
            struct pbuf *buffer = &connection->first->buffer.pbuf;
            size_t piece = buffer->len < room ? buffer->len : room;
            memcpy(to, buffer->payload, piece);
            to += piece;
            room -= piece;
            got += piece;
            buffer->payload = (uint8_t *)buffer->payload + piece;
            buffer->len = buffer->tot_len = (uint16_t)(buffer->len - piece);
            if (buffer->len > 0) break;
            struct received *next = connection->first->next;
            received_free(connection->first);
            connection->first = next;
        }
    }
    if (!connection->first) connection->last = NULL;
    connection->unread_bytes -= got;
    if (connection->pcb) {
        widen_window(connection, (uint32_t)got);
        open_window(connection->pcb, got);
        if (connection->early.first) stack_give_early(connection); /* there may have been no room for them */
    }
    return (ssize_t)got;
}

/* Returns how much of a vector lwIP took. */
static size_t write_vector(struct lwip_connection *connection, const struct iovec *vector, bool more) {
    struct tcp_pcb *pcb = connection->pcb;
    const uint8_t *from = vector->iov_base;
    size_t done = 0;
    while (done < vector->iov_len && has_room(connection)) {
        size_t piece = vector->iov_len - done;
        if (piece > pcb->snd_buf) piece = pcb->snd_buf;
        if (piece > WRITE_BYTES) piece = WRITE_BYTES;
        /* Without an owner nobody keeps the bytes for us. */
        bool copies = piece < COPY_BYTES || !connection->base.owner;
        uint8_t flags = (uint8_t)((copies ? TCP_WRITE_FLAG_COPY : 0) |
                                  (more || done + piece < vector->iov_len ? TCP_WRITE_FLAG_MORE : 0));
        if (tcp_write(pcb, from + done, (uint16_t)piece, flags) != ERR_OK) {
            connection->starved = connection->all->any_starved = true;
            break;
        }
        done += piece;
    }
    return done;
}

ssize_t connection_writev(struct connection *base, const struct iovec *vectors, int count) {
    struct lwip_connection *connection = of(base);
    if (connection->closing || connection->over) return -2;
    if (connection->connecting) return -1;
    size_t written = 0;
    for (int i = 0; i < count; i++) {
        if (vectors[i].iov_len == 0) continue;
        size_t done = write_vector(connection, &vectors[i], i + 1 < count);
        written += done;
        if (done < vectors[i].iov_len) break;
    }
    if (written == 0) return -1;
    connection->written_bytes += written;
    tcp_output(connection->pcb);
    /* Nobody else's frames are waited for: what the server does at the end of its step need not delay a lone reply. */
    if (connection->all->active == 1) port_flush(stack.port);
    return (ssize_t)written;
}

void connection_want_read(struct connection *base, bool on) {
    struct lwip_connection *connection = of(base);
    connection->wants_read = on;
    if (on ? is_readable(connection) : connection->ended && !connection->hung_up) make_ready(connection);
}

void connection_want_write(struct connection *base, bool on) {
    struct lwip_connection *connection = of(base);
    connection->wants_write = on;
    if (is_writable(connection)) make_ready(connection);
}

struct lwip_connection *connection_of(const struct tcp_pcb *pcb) {
    return pcb && pcb->state != LISTEN && pcb->sent == on_acknowledged ? pcb->callback_arg : NULL;
}

uint32_t connection_wire_bytes(const struct tcp_pcb *pcb) {
    const struct lwip_connection *connection = connection_of(pcb);
    return connection ? connection->wire_bytes : pcb->mss;
}

void connection_enlarge_buffer(struct lwip_connection *connection) {
    uint32_t window = cubic_window_bytes(&connection->recovery.cubic);
    if (window > connection->all->send_window_most_bytes) connection->all->send_window_most_bytes = window;
    size_t wanted = 2u * (size_t)window;
    if (wanted > BUFFER_MOST_BYTES) wanted = BUFFER_MOST_BYTES;
    if (wanted <= connection->buffer_bytes) return;
    connection->pcb->snd_buf += (tcpwnd_size_t)(wanted - connection->buffer_bytes);
    connection->buffer_bytes = wanted;
}

struct lwip_connection *connection_of_turn(struct round_robin_member *turn) {
    return (struct lwip_connection *)((char *)turn - offsetof(struct lwip_connection, turn));
}

struct lwip_connection *connection_of_timer(struct timer *timer) {
    return (struct lwip_connection *)((char *)timer - offsetof(struct lwip_connection, recovery.timer));
}

/* ---- the end --------------------------------------------------------------------------------------------------- */

void connection_close(struct connection *base) {
    struct lwip_connection *connection = of(base);
    if (connection->closing) return;
    connection->closing = true;
    connection->next_closing = connection->all->closing;
    connection->all->closing = connection;
    connection->last_us = clock_monotonic_us() + CLOSE_MOST_US;
    extend_close(connection);
    size_t unread = connection->unread_bytes;
    drop_received(connection);
    make_ready(connection);
    if (connection->connecting) tcp_abort(stop_connecting(connection));
    if (!connection->pcb) {
        end(connection);
        return;
    }
    /* Unread input would make lwIP reset what was written. */
    open_window(connection->pcb, unread);
    if (connection->pcb->refused_data) tcp_process_refused_data(connection->pcb);
    if (connection->written_bytes == 0)
        finish_close(connection);
    else
        tcp_shutdown(connection->pcb, 0, 1);
}

void connections_tick(struct connections *connections, uint64_t now_us) {
    for (struct lwip_connection *connection = connections->closing; connection; connection = connection->next_closing) {
        if (connection->over || now_us < connection->deadline_us) continue;
        connections->aborted++;
        if (connection->pcb) tcp_abort(detach(connection));
        end(connection);
    }
    if (!connections->any_starved) return;
    connections->any_starved = false;
    for (uint32_t i = 0; i < connections->most; i++) {
        struct lwip_connection *connection = &connections->table[i];
        if (!connection->starved) continue;
        connection->starved = false;
        make_ready(connection);
    }
}

/* ---- events ---------------------------------------------------------------------------------------------------- */

static int deliver(struct lwip_connection *connection) {
    const struct transport_events *events = &connection->all->transport->events;
    void *context = events->context, *owner = connection->base.owner;
    int given = 0;
    if (connection->acknowledged_bytes > 0) {
        size_t bytes = connection->acknowledged_bytes;
        connection->acknowledged_bytes = 0;
        if (owner) events->released(context, owner, bytes);
        given++;
    }
    if (connection->over) {
        if (owner) events->closed(context, owner);
        connection->ready = false; /* whatever `closed` did */
        give_back(connection);
        return given + 1;
    }
    if (is_readable(connection)) {
        events->readable(context, owner);
        given++;
    }
    if (is_writable(connection)) {
        events->writable(context, owner);
        given++;
    }
    if (connection->ended && !connection->wants_read && !connection->hung_up && !connection->closing) {
        connection->hung_up = true;
        events->hung_up(context, owner);
        given++;
    }
    if (is_readable(connection) || is_writable(connection)) make_ready(connection);
    return given;
}

int connections_deliver(struct connections *connections) {
    struct lwip_connection *connection = connections->ready_head;
    connections->ready_head = connections->ready_tail = NULL; /* who has more to do waits for the next round */
    int given = 0;
    connections->active = 0;
    while (connection) {
        connections->active++;
        struct lwip_connection *next = connection->next_ready;
        connection->ready = false;
        given += deliver(connection);
        connection = next;
    }
    return given;
}
