#include "tools/load.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"

#define EVENTS 64
#define TICK_MS 100

static uint64_t processor_ns(void) {
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

/* ---- opening ----------------------------------------------------------------------------------------- */

static int watch(struct load *load, int descriptor, uint32_t events, void *subject, struct error *error) {
    struct epoll_event event = {.events = events, .data.ptr = subject};
    if (epoll_ctl(load->epoll, EPOLL_CTL_ADD, descriptor, &event) == 0) return 0;
    return error_set(error, ERROR_GENERIC, "cannot watch a descriptor: %s", strerror(errno));
}

static int open_connections(struct load *load, struct error *error) {
    for (uint32_t i = 0; i < load->connection_count; i++) {
        struct load_connection *connection = &load->connections[i];
        if (load_connect(load, connection, error) < 0 ||
            watch(load, connection->descriptor, EPOLLIN, connection, error) < 0)
            return -1;
    }
    return 0;
}

int load_make(struct load *load, struct load_plan *plan, struct error *error) {
    *load = (struct load){.plan = plan, .epoll = -1, .timer = -1};
    uint32_t count = 0;
    for (uint32_t i = 0; i < plan->role_count; i++) count += plan->roles[i].connections;
    load->connections = memory_calloc(count, sizeof *load->connections);
    load->buffer = memory_alloc(LOAD_BUFFER_BYTES);
    if (!load->connections || !load->buffer)
        return error_set(error, ERROR_GENERIC, "no memory for %u connections", count);
    load->connection_count = count;
    struct load_connection *connection = load->connections;
    for (uint32_t i = 0; i < plan->role_count; i++)
        for (uint32_t j = 0; j < plan->roles[i].connections; j++, connection++) {
            connection->role = &plan->roles[i];
            connection->descriptor = -1;
        }
    return 0;
}

int load_open(struct load *load, struct load_plan *plan, struct error *error) {
    if (load_make(load, plan, error) < 0) return -1;
    load->epoll = epoll_create1(EPOLL_CLOEXEC);
    load->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (load->epoll < 0 || load->timer < 0)
        return error_set(error, ERROR_GENERIC, "cannot make an epoll set: %s", strerror(errno));
    return watch(load, load->timer, EPOLLIN, NULL, error) < 0 ? -1 : open_connections(load, error);
}

void load_close(struct load *load) {
    for (uint32_t i = 0; i < load->connection_count; i++)
        if (load->connections[i].descriptor >= 0) close(load->connections[i].descriptor);
    if (load->epoll >= 0) close(load->epoll);
    if (load->timer >= 0) close(load->timer);
    memory_free(load->connections);
    memory_free(load->buffer);
}

/* ---- many connections -------------------------------------------------------------------------------- */

static int want_write(struct load *load, struct load_connection *connection, struct error *error) {
    bool wants = connection->busy && connection->sent < connection->role->requests[connection->turn].size;
    if (wants == connection->wants_write) return 0;
    connection->wants_write = wants;
    struct epoll_event event = {.events = EPOLLIN | (wants ? EPOLLOUT : 0u), .data.ptr = connection};
    if (epoll_ctl(load->epoll, EPOLL_CTL_MOD, connection->descriptor, &event) == 0) return 0;
    return error_set(error, ERROR_GENERIC, "cannot watch a connection: %s", strerror(errno));
}

/* Begins what is due; the earliest of what is not (UINT64_MAX: nothing waits). */
static uint64_t begin_due(struct load *load, struct error *error) {
    uint64_t earliest_ns = UINT64_MAX, now_ns = clock_monotonic_ns();
    for (uint32_t i = 0; i < load->connection_count; i++) {
        struct load_connection *connection = &load->connections[i];
        if (connection->busy || load_done(load, connection, now_ns)) continue;
        if (connection->due_ns <= now_ns) {
            load_begin(load, connection);
            if (load_send(load, connection, error) < 0 || want_write(load, connection, error) < 0) return 0;
        } else if (connection->due_ns < earliest_ns) {
            earliest_ns = connection->due_ns;
        }
    }
    return earliest_ns;
}

static void set_timer(struct load *load, uint64_t at_ns) {
    struct itimerspec when = {0};
    if (at_ns != UINT64_MAX) {
        when.it_value.tv_sec = (time_t)(at_ns / 1000000000u);
        when.it_value.tv_nsec = (long)(at_ns % 1000000000u);
        if (at_ns == 0) when.it_value.tv_nsec = 1;
    }
    timerfd_settime(load->timer, TFD_TIMER_ABSTIME, &when, NULL);
}

static int serve(struct load *load, struct load_connection *connection, uint32_t events, struct error *error) {
    if ((events & EPOLLOUT) && load_send(load, connection, error) < 0) return -1;
    if ((events & ~(uint32_t)EPOLLOUT) && load_receive(load, connection, MSG_DONTWAIT, error) < 0) return -1;
    uint64_t now_ns = connection->busy ? 0 : clock_monotonic_ns();
    if (!connection->busy && connection->due_ns <= now_ns && !load_done(load, connection, now_ns)) {
        load_begin(load, connection);
        if (load_send(load, connection, error) < 0) return -1;
    }
    return want_write(load, connection, error);
}

/* Every waiting connection has to be looked at only where some wait by themselves. */
static bool has_waiting(const struct load_plan *plan) {
    for (uint32_t i = 0; i < plan->role_count; i++)
        if (plan->roles[i].pause_us > 0 || plan->roles[i].rate_per_s > 0) return true;
    return false;
}

static int run_many(struct load *load, struct error *error) {
    bool waiting = has_waiting(load->plan);
    struct epoll_event events[EVENTS];
    error->code = ERROR_NONE;
    while (true) {
        if (waiting || load->busy == 0) {
            uint64_t due_ns = begin_due(load, error);
            if (error->code != ERROR_NONE) return -1;
            if (load->busy == 0 && due_ns == UINT64_MAX) return 0;
            if (waiting) set_timer(load, due_ns);
        }
        int count = epoll_wait(load->epoll, events, EVENTS, load->plan->spin ? 0 : TICK_MS);
        for (int i = 0; i < count; i++)
            if (events[i].data.ptr && serve(load, events[i].data.ptr, events[i].events, error) < 0) return -1;
        if (count <= 0 && load->busy > 0 && load_check_patience(load, error) < 0) return -1;
    }
}

/* ---- one connection ---------------------------------------------------------------------------------- */

/* As a client library does it: a blocking receive, no epoll. */
static int run_alone(struct load *load, struct error *error) {
    struct load_connection *connection = load->connections;
    int flags = load->plan->spin ? MSG_DONTWAIT : 0;
    while (connection->due_ns != UINT64_MAX && !load_done(load, connection, clock_monotonic_ns())) {
        if (connection->due_ns > clock_monotonic_ns()) {
            uint64_t until_ns = connection->due_ns;
            if (connection->measured_rounds > 0 && until_ns > load->end_ns) until_ns = load->end_ns;
            struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                                     .tv_nsec = (long)(until_ns % 1000000000u)};
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
            continue;
        }
        load_begin(load, connection);
        if (load_send(load, connection, error) < 0) return -1;
        while (connection->busy) {
            struct pollfd both = {.fd = connection->descriptor, .events = POLLIN | POLLOUT};
            bool sending = connection->sent < connection->role->requests[connection->turn].size;
            if (!sending || (poll(&both, 1, TICK_MS) > 0 && (both.revents & ~POLLOUT))) {
                if (load_receive(load, connection, sending ? MSG_DONTWAIT : flags, error) < 0) return -1;
            } else if (load_send(load, connection, error) < 0 || load_check_patience(load, error) < 0) {
                return -1;
            }
        }
    }
    return 0;
}

/* ---- running ----------------------------------------------------------------------------------------- */

/* Those that pause begin one after another, not all at once. */
static void spread_beginnings(struct load *load, uint64_t now_ns) {
    struct load_connection *connection = load->connections;
    for (uint32_t i = 0; i < load->plan->role_count; i++) {
        const struct load_role *role = &load->plan->roles[i];
        double interval_ns =
            role->rate_per_s > 0 ? 1e9 * role->connections / role->rate_per_s : 1e3 * (double)role->pause_us;
        for (uint32_t j = 0; j < role->connections; j++, connection++)
            connection->due_ns = now_ns + (uint64_t)(interval_ns * j / role->connections);
    }
}

void load_start(struct load *load, uint64_t now_ns) {
    const struct load_plan *plan = load->plan;
    load->measure_from_ns = now_ns + (uint64_t)(plan->warm_up_s * 1e9);
    load->end_ns = plan->seconds > 0 ? load->measure_from_ns + (uint64_t)(plan->seconds * 1e9) : UINT64_MAX;
    load->moved_seen_ns = now_ns;
    spread_beginnings(load, now_ns);
}

int load_run(struct load *load, struct error *error) {
    load_start(load, clock_monotonic_ns());
    uint64_t processor_before_ns = processor_ns();
    int result = load->connection_count == 1 ? run_alone(load, error) : run_many(load, error);
    load->processor_ns = processor_ns() - processor_before_ns;
    return result;
}

/* ---- telling ----------------------------------------------------------------------------------------- */

static void append_string(const char *string, struct text *out) {
    text_append(out, "\"");
    for (const char *at = string; *at; at++)
        if (*at == '"' || *at == '\\')
            text_append(out, "\\%c", *at);
        else if ((unsigned char)*at < 32 || (unsigned char)*at > 126)
            text_append(out, "\\u%04x", (unsigned char)*at);
        else
            text_append(out, "%c", *at);
    text_append(out, "\"");
}

static void append_request(const struct load_request *request, struct text *out) {
    append_string(request->name, out);
    text_append(out, ":{\"count\":%llu,\"replies_per_request\":%u,\"sent_bytes\":%llu,\"received_bytes\":%llu,",
                (unsigned long long)request->latency.count, request->replies,
                (unsigned long long)(request->latency.count * request->size),
                (unsigned long long)request->received_bytes);
    text_append(out, "\"errors\":%llu,\"first_error\":", (unsigned long long)request->errors);
    append_string(request->first_error, out);
    text_append(out, ",");
    latency_append(&request->latency, "latency_us", out);
    text_append(out, "}");
}

/* Rounds a second of a role: the sum over its connections, each over its own time. */
static double rounds_per_s(const struct load *load, const struct load_role *role, uint64_t *rounds) {
    double rate = 0;
    *rounds = 0;
    for (uint32_t i = 0; i < load->connection_count; i++) {
        const struct load_connection *connection = &load->connections[i];
        if (connection->role != role || connection->measured_rounds == 0) continue;
        uint64_t took_ns = connection->measured_to_ns - connection->measured_from_ns;
        *rounds += connection->measured_rounds;
        if (took_ns > 0) rate += (double)connection->measured_rounds / ((double)took_ns / 1e9);
    }
    return rate;
}

static void append_received(const struct load *load, const struct load_role *role, struct text *out) {
    const char *between = "";
    text_append(out, ",\"received_bytes_by_connection\":[");
    for (uint32_t i = 0; i < load->connection_count; i++) {
        if (load->connections[i].role != role) continue;
        text_append(out, "%s%llu", between, (unsigned long long)load->connections[i].received_bytes);
        between = ",";
    }
    text_append(out, "]");
}

static uint64_t retransmits(const struct load *load) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < load->connection_count; i++) {
        struct tcp_info about = {0};
        socklen_t size = sizeof about;
        if (getsockopt(load->connections[i].descriptor, IPPROTO_TCP, TCP_INFO, &about, &size) == 0)
            total += about.tcpi_total_retrans;
    }
    return total;
}

void load_report(const struct load *load, struct text *out) {
    text_append(out, "{\"processor\":%d,\"processor_s\":%.4f,\"retransmits\":%llu,\"roles\":{", load->plan->processor,
                (double)load->processor_ns / 1e9, (unsigned long long)retransmits(load));
    for (uint32_t i = 0; i < load->plan->role_count; i++) {
        const struct load_role *role = &load->plan->roles[i];
        uint64_t rounds;
        double rate = rounds_per_s(load, role, &rounds);
        double bytes = 0;
        for (uint32_t j = 0; j < role->request_count; j++) bytes += (double)role->requests[j].size;
        if (i > 0) text_append(out, ",");
        append_string(role->name, out);
        text_append(out, ":{\"connections\":%u,\"rounds\":%llu,\"rounds_per_s\":%.4f,\"sent_bytes_per_s\":%.0f",
                    role->connections, (unsigned long long)rounds, rate, rate * bytes);
        append_received(load, role, out);
        text_append(out, ",\"requests\":{");
        for (uint32_t j = 0; j < role->request_count; j++) {
            if (j > 0) text_append(out, ",");
            append_request(&role->requests[j], out);
        }
        text_append(out, "}}");
    }
    text_append(out, "}}");
}
