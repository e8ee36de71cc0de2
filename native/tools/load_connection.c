/* load_connection: one connection of a load: connecting, sending a request, following its replies, counting. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/clock.h"
#include "tools/load.h"

#define TICK_US 100000 /* a blocked receive looks up so often */

static int lost(const struct load_connection *connection, const char *why, struct error *error) {
    return error_set(error, ERROR_GENERIC, "a connection of role %s was lost: %s", connection->role->name, why);
}

static const struct load_request *request_of(const struct load_connection *connection) {
    return &connection->role->requests[connection->turn];
}

/* ---- connecting -------------------------------------------------------------------------------------- */

/* What must be said once, before anything is timed: a password, say. */
static int say_first(struct load *load, struct load_connection *connection, struct error *error) {
    const struct load_request *first = &load->plan->first;
    struct reply_reader reader = {0};
    for (size_t sent = 0; sent < first->size;) {
        ssize_t went = send(connection->descriptor, first->bytes + sent, first->size - sent, MSG_NOSIGNAL);
        if (went < 0) return lost(connection, strerror(errno), error);
        sent += (size_t)went;
    }
    uint64_t deadline_ns = clock_monotonic_ns() + (uint64_t)(load->plan->patience_s * 1e9);
    for (uint32_t replies = 0; replies < first->replies;) {
        ssize_t got = recv(connection->descriptor, load->buffer, LOAD_BUFFER_BYTES, 0);
        if (got < 0 && errno == EAGAIN && clock_monotonic_ns() < deadline_ns) continue;
        if (got <= 0) return lost(connection, got == 0 ? "the server closed it" : strerror(errno), error);
        for (size_t at = 0, used; at < (size_t)got; at += used) {
            enum reply_status status = reply_reader_feed(&reader, load->buffer + at, (size_t)got - at, &used);
            if (status == REPLY_MALFORMED) return lost(connection, "the server does not speak RESP2", error);
            if (status == REPLY_COMPLETE) replies++;
        }
    }
    if (reader.errors == 0) return 0;
    return error_set(error, ERROR_GENERIC, "the server refused %s: %s", first->name, reader.first_error);
}

int load_connect(struct load *load, struct load_connection *connection, struct error *error) {
    const struct load_plan *plan = load->plan;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(plan->port)};
    if (inet_pton(AF_INET, plan->host, &address.sin_addr) != 1)
        return error_set(error, ERROR_GENERIC, "--connect %s: expected an IPv4 address", plan->host);
    connection->descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection->descriptor < 0) return error_set(error, ERROR_GENERIC, "cannot make a socket: %s", strerror(errno));
    int on = 1;
    struct timeval patience = {.tv_sec = (time_t)plan->patience_s + 1}, tick = {.tv_usec = TICK_US};
    setsockopt(connection->descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(connection->descriptor, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    setsockopt(connection->descriptor, SOL_SOCKET, SO_RCVTIMEO, &tick, sizeof tick);
    if (connect(connection->descriptor, (struct sockaddr *)&address, sizeof address) < 0)
        return error_set(error, ERROR_GENERIC, "cannot connect to %s:%u: %s", plan->host, plan->port, strerror(errno));
    return plan->first.size > 0 ? say_first(load, connection, error) : 0;
}

/* ---- a request --------------------------------------------------------------------------------------- */

bool load_done(const struct load *load, const struct load_connection *connection, uint64_t now_ns) {
    return now_ns >= load->end_ns && connection->measured_rounds > 0;
}

int load_check_patience(struct load *load, struct error *error) {
    uint64_t now_ns = clock_monotonic_ns();
    if (load->moved != load->moved_seen) {
        load->moved_seen = load->moved;
        load->moved_seen_ns = now_ns;
    }
    double waited_s = (double)(now_ns - load->moved_seen_ns) / 1e9;
    if (waited_s < load->plan->patience_s) return 0;
    return error_set(error, ERROR_GENERIC, "nothing has moved for %.1f s while replies were due", waited_s);
}

void load_begin(struct load *load, struct load_connection *connection) {
    connection->busy = true;
    load->busy++;
    connection->sent = 0;
    connection->replies_left = request_of(connection)->replies;
    connection->begun_ns = clock_monotonic_ns();
    connection->measured = connection->begun_ns >= load->measure_from_ns;
    if (connection->turn == 0) connection->round_begun_ns = connection->begun_ns;
}

/* When the next round, or with `spread` the next request, begins: after the pause, or by the schedule, which owes nothing
 * to those who are late. */
static uint64_t next_due_ns(const struct load_connection *connection, uint64_t now_ns) {
    const struct load_role *role = connection->role;
    if (role->rate_per_s <= 0) return now_ns + role->pause_us * 1000;
    double begun_per_s = role->rate_per_s * (role->spread ? role->request_count : 1);
    uint64_t scheduled_ns = connection->due_ns + (uint64_t)(1e9 * role->connections / begun_per_s);
    return scheduled_ns > now_ns ? scheduled_ns : now_ns;
}

static void end_round(struct load *load, struct load_connection *connection, uint64_t now_ns) {
    const struct load_role *role = connection->role;
    connection->rounds++;
    connection->due_ns = next_due_ns(connection, now_ns);
    if (connection->round_begun_ns >= load->measure_from_ns) {
        if (connection->measured_rounds++ == 0) connection->measured_from_ns = connection->round_begun_ns;
        connection->measured_to_ns = connection->due_ns;
    }
    if (role->most_rounds > 0 && connection->rounds >= role->most_rounds) connection->due_ns = UINT64_MAX;
}

static void end_request(struct load *load, struct load_connection *connection) {
    struct load_request *request = &connection->role->requests[connection->turn];
    uint64_t now_ns = clock_monotonic_ns();
    if (connection->measured) latency_record(&request->latency, now_ns - connection->begun_ns);
    if (connection->reader.errors > 0) {
        if (request->errors == 0)
            snprintf(request->first_error, sizeof request->first_error, "%s", connection->reader.first_error);
        request->errors += connection->reader.errors;
        connection->reader.errors = 0;
    }
    connection->busy = false;
    load->busy--;
    connection->turn = (connection->turn + 1) % connection->role->request_count;
    if (connection->turn == 0)
        end_round(load, connection, now_ns);
    else
        connection->due_ns = connection->role->spread ? next_due_ns(connection, now_ns) : now_ns;
}

int load_send(struct load *load, struct load_connection *connection, struct error *error) {
    const struct load_request *request = request_of(connection);
    while (connection->sent < request->size) {
        ssize_t went = send(connection->descriptor, request->bytes + connection->sent, request->size - connection->sent,
                            MSG_DONTWAIT | MSG_NOSIGNAL);
        if (went < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
        if (went < 0) return lost(connection, strerror(errno), error);
        connection->sent += (size_t)went;
        load->moved += (uint64_t)went;
    }
    return 0;
}

static void count_received(const struct load *load, struct load_connection *connection, size_t bytes) {
    uint64_t now_ns = clock_monotonic_ns();
    if (now_ns >= load->measure_from_ns && now_ns < load->end_ns) connection->received_bytes += bytes;
}

int load_take(struct load *load, struct load_connection *connection, const uint8_t *bytes, size_t size,
              struct error *error) {
    load->moved += size;
    count_received(load, connection, size);
    if (load->plan->kept && fwrite(bytes, 1, size, load->plan->kept) < size)
        return error_set(error, ERROR_GENERIC, "--keep: %s", strerror(errno));
    for (size_t at = 0, used; at < size; at += used) {
        struct load_request *request = &connection->role->requests[connection->turn];
        if (!connection->busy)
            return error_set(error, ERROR_GENERIC, "role %s got bytes after its last reply", connection->role->name);
        enum reply_status status = reply_reader_feed(&connection->reader, bytes + at, size - at, &used);
        if (connection->measured) request->received_bytes += used;
        if (status == REPLY_MALFORMED) return lost(connection, "the server does not speak RESP2", error);
        if (status == REPLY_COMPLETE && --connection->replies_left == 0) end_request(load, connection);
    }
    return 0;
}

int load_receive(struct load *load, struct load_connection *connection, int flags, struct error *error) {
    ssize_t got = recv(connection->descriptor, load->buffer, LOAD_BUFFER_BYTES, flags);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return load_check_patience(load, error);
    if (got <= 0) return lost(connection, got == 0 ? "the server closed it" : strerror(errno), error);
    return load_take(load, connection, load->buffer, (size_t)got, error);
}
