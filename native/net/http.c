/* http: connections of the HTTP listener: accepted, read, answered, closed. What a request says is http_request.h. */
#include "net/http.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "net/http_request.h"
#include "net/sockets.h"
#include "net/transport.h"

#define HEAD_BYTES 512u
#define EVENTS 16
#define BACKLOG 64

enum http_state { HTTP_FREE, HTTP_READING, HTTP_WRITING, HTTP_SENDING };

struct http_connection {
    int number;
    enum http_state state;
    bool keep;      /* open after this answer */
    bool head_only; /* HEAD */
    const struct http_page *page;
    struct http_cursor cursor;
    uint64_t deadline_us; /* then it is closed */
    uint64_t moved_us;    /* when it last got further */
    size_t input_length;
    size_t head_length, sent; /* of head and body together */
    struct text body;
    char head[HEAD_BYTES];
    uint8_t input[HTTP_REQUEST_BYTES];
};

/* Its sockets are in an epoll set of their own, which is one descriptor of the kernel transport's. */
struct http {
    const struct http_page *pages;
    void *context;
    int listener, epoll;
    bool poked;              /* something may be ready */
    uint32_t turn;           /* whose page is written first */
    uint64_t accept_again_us;
    uint64_t next_sweep_us;
    struct http_connection connections[HTTP_CONNECTIONS];
};

/* ---- listening ------------------------------------------------------------------------------------------------------ */

static void poke(void *context, int descriptor) {
    (void)descriptor;
    ((struct http *)context)->poked = true;
}

static int watch(const struct http *http, int number, void *pointer, uint32_t events, int operation) {
    struct epoll_event event = {.events = events, .data.ptr = pointer};
    return epoll_ctl(http->epoll, operation, number, &event);
}

static int listen_at(struct http *http, const char *host, uint16_t *port, struct error *error) {
    char what[320], service[8];
    snprintf(what, sizeof what, "%s port %u for metrics", host, (unsigned)*port);
    snprintf(service, sizeof service, "%u", (unsigned)*port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found;
    int failure = getaddrinfo(host, service, &hints, &found);
    if (failure != 0) return error_set(error, ERROR_GENERIC, "cannot listen on %s: %s", what, gai_strerror(failure));
    http->listener = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int on = 1;
    if (http->listener >= 0) setsockopt(http->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    bool bound = http->listener >= 0 && bind(http->listener, found->ai_addr, found->ai_addrlen) == 0;
    freeaddrinfo(found);
    if (!bound) return sockets_refuse_address(error, what, http->listener < 0 ? "socket" : "bind");
    if (listen(http->listener, BACKLOG) < 0 || watch(http, http->listener, NULL, EPOLLIN | EPOLLET, EPOLL_CTL_ADD) < 0)
        return sockets_refuse_address(error, what, "listen");
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;
    getsockname(http->listener, (struct sockaddr *)&address, &length);
    *port = ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                                : ((struct sockaddr_in *)&address)->sin_port);
    return 0;
}

struct http *http_new(struct transport *kernel, const char *host, uint16_t *port, const struct http_page *pages,
                      void *context, struct error *error) {
    struct http *http = memory_calloc(1, sizeof *http);
    if (!http) {
        error_set(error, ERROR_GENERIC, "no memory for metrics");
        return NULL;
    }
    http->pages = pages;
    http->context = context;
    http->listener = -1;
    http->accept_again_us = CLOCK_NEVER;
    http->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (http->epoll < 0) {
        error_set(error, ERROR_GENERIC, "no descriptor for metrics: %s", strerror(errno));
        http_free(http);
        return NULL;
    }
    if (listen_at(http, host, port, error) < 0 || transport_kernel_watch(kernel, http->epoll, poke, http, error) < 0) {
        http_free(http);
        return NULL;
    }
    return http;
}

void http_stop_listening(struct http *http) {
    if (http->listener >= 0) close(http->listener);
    http->listener = -1;
    http->accept_again_us = CLOCK_NEVER;
}

static void drop(struct http_connection *connection) {
    close(connection->number); /* which takes it out of the epoll set */
    text_free(&connection->body);
    connection->state = HTTP_FREE;
    connection->input_length = 0;
}

void http_free(struct http *http) {
    if (!http) return;
    http_stop_listening(http);
    for (uint32_t i = 0; i < HTTP_CONNECTIONS; i++)
        if (http->connections[i].state != HTTP_FREE) drop(&http->connections[i]);
    if (http->epoll >= 0) close(http->epoll);
    memory_free(http);
}

/* How readily a connection makes way for a new one: idle between requests before half a request, and that before an answer
 * that is not being taken. 0: not at all. */
static int readiness_of(const struct http_connection *connection, uint64_t now_us) {
    if (connection->state == HTTP_READING) return connection->input_length == 0 ? 3 : 2;
    return connection->state == HTTP_SENDING && now_us >= connection->moved_us + HTTP_STALL_US ? 1 : 0;
}

/* A free place, or that of who makes way, of several the one that has not got further for longest. NULL: all are busy. */
static struct http_connection *find_place(struct http *http, uint64_t now_us) {
    struct http_connection *first = NULL;
    int most = 0;
    for (uint32_t i = 0; i < HTTP_CONNECTIONS; i++) {
        struct http_connection *connection = &http->connections[i];
        if (connection->state == HTTP_FREE) return connection;
        int ready = readiness_of(connection, now_us);
        if (ready < most || ready == 0) continue;
        if (ready == most && connection->moved_us >= first->moved_us) continue;
        first = connection;
        most = ready;
    }
    if (first) drop(first);
    return first;
}

static void greet(struct http *http, int number, uint64_t now_us) {
    static const char busy[] = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    struct http_connection *connection = find_place(http, now_us);
    if (!connection || watch(http, number, connection, EPOLLIN, EPOLL_CTL_ADD) < 0) {
        if (send(number, busy, sizeof busy - 1, MSG_NOSIGNAL) < 0) errno = 0; /* whether it is heard or not */
        close(number);
        return;
    }
    connection->number = number;
    connection->state = HTTP_READING;
    connection->moved_us = now_us;
    connection->deadline_us = now_us + HTTP_REQUEST_US;
}

/* All of them, since they are told of once; where there are no descriptors, the others in a while. */
static void accept_all(struct http *http, uint64_t now_us) {
    http->accept_again_us = CLOCK_NEVER;
    for (int i = 0; i < 2 * BACKLOG; i++) {
        int number = accept4(http->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (number >= 0)
            greet(http, number, now_us);
        else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            http->accept_again_us = now_us + HTTP_ACCEPT_AGAIN_US;
        if (number < 0 && errno != EINTR && errno != ECONNABORTED) return;
    }
    http->accept_again_us = now_us;
}

/* ---- answering ------------------------------------------------------------------------------------------------------ */

static const struct http_page *find_page(const struct http *http, const char *path) {
    for (const struct http_page *page = http->pages; page->path; page++)
        if (strcmp(page->path, path) == 0) return page;
    return NULL;
}

static const char *words_of(int status) {
    switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 431: return "Request Header Fields Too Large";
    case 503: return "Service Unavailable";
    case 505: return "HTTP Version Not Supported";
    default: return "Internal Server Error";
    }
}

/* The body is whole: from here on it is sent. */
static void begin_sending(struct http *http, struct http_connection *connection, int status, const char *type,
                          uint64_t now_us) {
    int length = snprintf(connection->head, sizeof connection->head,
                          "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nCache-Control: no-store\r\n"
                          "X-Content-Type-Options: nosniff\r\n%s%s\r\n",
                          status, words_of(status), type, connection->body.length,
                          status == 405 ? "Allow: GET, HEAD\r\n" : "", connection->keep ? "" : "Connection: close\r\n");
    connection->head_length = (size_t)length;
    connection->sent = 0;
    connection->state = HTTP_SENDING;
    connection->moved_us = now_us;
    connection->deadline_us = now_us + HTTP_SEND_US;
    watch(http, connection->number, connection, EPOLLOUT, EPOLL_CTL_MOD);
    http->poked = true;
}

static void refuse(struct http *http, struct http_connection *connection, int status, uint64_t now_us) {
    text_free(&connection->body);
    text_append(&connection->body, "%d %s\n", status, words_of(status));
    begin_sending(http, connection, status, "text/plain; charset=utf-8", now_us);
}

/* Takes up the request that the input begins with, if it is whole. */
static void take_request(struct http *http, struct http_connection *connection, uint64_t now_us) {
    struct http_request request;
    size_t length = http_request_parse(&request, connection->input, connection->input_length);
    if (length == 0 && connection->input_length < sizeof connection->input) return;
    connection->keep = request.keep && length > 0 && request.status == 0;
    connection->head_only = request.head_only;
    connection->body.length = 0;
    connection->input_length -= length;
    memmove(connection->input, connection->input + length, connection->input_length);
    connection->page = length > 0 && request.status == 0 ? find_page(http, request.path) : NULL;
    if (length == 0)
        refuse(http, connection, 431, now_us);
    else if (request.status != 0)
        refuse(http, connection, request.status, now_us);
    else if (!connection->page)
        refuse(http, connection, 404, now_us);
    else {
        bool openmetrics = request.openmetrics && connection->page->openmetrics_type;
        connection->cursor = (struct http_cursor){.openmetrics = openmetrics, .status = 200};
        connection->state = HTTP_WRITING;
        watch(http, connection->number, connection, 0, EPOLL_CTL_MOD);
    }
}

static void read_some(struct http *http, struct http_connection *connection, uint64_t now_us) {
    ssize_t got = recv(connection->number, connection->input + connection->input_length,
                       sizeof connection->input - connection->input_length, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        drop(connection);
        return;
    }
    if (connection->input_length == 0) { /* half a request gets no younger by more of it */
        connection->deadline_us = now_us + HTTP_REQUEST_US;
        connection->moved_us = now_us;
    }
    connection->input_length += (size_t)got;
    take_request(http, connection, now_us);
}

static void end_answer(struct http *http, struct http_connection *connection, uint64_t now_us) {
    if (!connection->keep) {
        /* What is left unread would make the system reset the connection, and the answer with it. */
        shutdown(connection->number, SHUT_WR);
        for (int i = 0; i < 8 && recv(connection->number, connection->input, sizeof connection->input, 0) > 0; i++) {
        }
        drop(connection);
        return;
    }
    if (connection->body.capacity > HTTP_KEPT_BYTES) text_free(&connection->body);
    connection->state = HTTP_READING;
    connection->moved_us = now_us;
    connection->deadline_us = now_us + (connection->input_length > 0 ? HTTP_REQUEST_US : HTTP_IDLE_US);
    watch(http, connection->number, connection, EPOLLIN, EPOLL_CTL_MOD);
    if (connection->input_length > 0) take_request(http, connection, now_us);
}

static void send_some(struct http *http, struct http_connection *connection, uint64_t now_us) {
    size_t body = connection->head_only ? 0 : connection->body.length, all = connection->head_length + body;
    size_t in_head = connection->sent < connection->head_length ? connection->head_length - connection->sent : 0;
    size_t in_body = connection->sent > connection->head_length ? connection->sent - connection->head_length : 0;
    size_t rest = body - in_body < HTTP_TURN_BYTES ? body - in_body : HTTP_TURN_BYTES;
    struct iovec vectors[2] = {{connection->head + connection->head_length - in_head, in_head},
                               {rest ? connection->body.data + in_body : NULL, rest}};
    struct msghdr message = {.msg_iov = vectors, .msg_iovlen = 2};
    ssize_t sent = sendmsg(connection->number, &message, MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (sent < 0) {
        drop(connection);
        return;
    }
    connection->sent += (size_t)sent;
    connection->moved_us = now_us;
    if (connection->sent == all) end_answer(http, connection, now_us);
}

/* Part of a page. True: there is more of it to write. */
static bool write_some(struct http *http, struct http_connection *connection, uint64_t now_us, uint64_t deadline_us) {
    const struct http_page *page = connection->page;
    struct http_cursor *cursor = &connection->cursor;
    bool done = page->write(http->context, cursor, &connection->body, deadline_us);
    if (connection->body.failed || connection->body.length > HTTP_ANSWER_BYTES) {
        connection->keep = false;
        refuse(http, connection, connection->body.failed ? 503 : 500, now_us);
    } else if (done) {
        begin_sending(http, connection, cursor->status, cursor->openmetrics ? page->openmetrics_type : page->type,
                      now_us);
    }
    return connection->state == HTTP_WRITING;
}

/* ---- the loop ------------------------------------------------------------------------------------------------------- */

static void handle(struct http *http, struct http_connection *connection, uint64_t now_us) {
    if (!connection)
        accept_all(http, now_us);
    else if (connection->state == HTTP_READING)
        read_some(http, connection, now_us);
    else if (connection->state == HTTP_SENDING)
        send_some(http, connection, now_us);
    else if (connection->state == HTTP_WRITING)
        drop(connection); /* nothing was asked for: its peer is gone */
}

static void look(struct http *http, uint64_t now_us) {
    struct epoll_event events[EVENTS];
    int count = epoll_wait(http->epoll, events, EVENTS, 0);
    http->poked = count > 0; /* what is ready stays so until nothing more is found */
    for (int i = 0; i < count; i++) handle(http, events[i].data.ptr, now_us);
}

/* The nearest deadline; who has passed his own is dropped. */
static uint64_t sweep(struct http *http, uint64_t now_us) {
    uint64_t nearest_us = CLOCK_NEVER;
    for (uint32_t i = 0; i < HTTP_CONNECTIONS; i++) {
        struct http_connection *connection = &http->connections[i];
        if (connection->state != HTTP_FREE && connection->state != HTTP_WRITING && now_us >= connection->deadline_us)
            drop(connection);
        if (connection->state != HTTP_FREE && connection->state != HTTP_WRITING && connection->deadline_us < nearest_us)
            nearest_us = connection->deadline_us;
    }
    return nearest_us;
}

/* One after the other until the deadline: who has not had a turn comes first the next time. True: there is more to write. */
static bool write_pages(struct http *http, uint64_t now_us, uint64_t deadline_us) {
    bool more = false;
    for (uint32_t i = 0; i < HTTP_CONNECTIONS; i++) {
        uint32_t place = (http->turn + i) % HTTP_CONNECTIONS;
        if (http->connections[place].state != HTTP_WRITING) continue;
        more |= write_some(http, &http->connections[place], now_us, deadline_us);
        if (clock_monotonic_us() < deadline_us) continue;
        http->turn = place + 1;
        return true;
    }
    return more;
}

uint64_t http_due(const struct http *http, uint64_t now_us) {
    return http->poked ? now_us : http->next_sweep_us;
}

uint64_t http_step(struct http *http, uint64_t now_us, uint64_t deadline_us) {
    if (http->poked) look(http, now_us);
    if (now_us >= http->accept_again_us) accept_all(http, now_us);
    bool more = write_pages(http, now_us, deadline_us);
    http->next_sweep_us = sweep(http, now_us);
    if (http->accept_again_us < http->next_sweep_us) http->next_sweep_us = http->accept_again_us;
    if (more) http->next_sweep_us = now_us;
    return more || http->poked ? now_us : http->next_sweep_us;
}
