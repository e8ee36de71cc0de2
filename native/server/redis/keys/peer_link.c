/* peer_link: a socket that does not block, looked at once in each turn of the loop. */
#include "server/redis/keys/peer_link.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/core/exclusive_execution.h"
#include "server/core/resolution.h"

#define SENT_AT_ONCE_BYTES (64u << 10)
#define TAKEN_AT_ONCE_BYTES 4096u
#define PROMPT_US 1000u
#define LOOK_AGAIN_US 1000u

void peer_link_init(struct peer_link *link, struct client *client, uint64_t timeout_us,
                    void (*take_line)(struct peer_link *link, const char *line)) {
    *link = (struct peer_link){.client = client, .number = -1, .timeout_us = timeout_us, .take_line = take_line};
}

static void hang_up(struct peer_link *link) {
    if (link->number >= 0) close(link->number);
    link->number = -1;
}

void peer_link_free(struct peer_link *link) {
    hang_up(link);
    resolution_free(link->resolution);
    link->resolution = NULL;
}

static void note_progress(struct peer_link *link) {
    link->until_us = clock_monotonic_us() + link->timeout_us;
}

/* Until a later turn of the loop. */
static enum peer_result await(struct client *client, uint64_t until_us) {
    if (exclusive_awaits(client, until_us)) return PEER_DONE;
    return exclusive_is_lost(client) ? PEER_CLIENT_LOST : PEER_FAILED;
}

/* Most answers come within a moment. */
static enum peer_result await_progress(struct peer_link *link) {
    uint64_t now_us = clock_monotonic_us();
    if (now_us >= link->until_us) return PEER_FAILED;
    bool is_prompt = now_us < link->until_us - link->timeout_us + PROMPT_US;
    return await(link->client, is_prompt ? 0 : now_us + LOOK_AGAIN_US);
}

/* ---- connecting ------------------------------------------------------------------------------------------------------ */

static bool has_connected(const struct peer_link *link) {
    int failure = 0;
    socklen_t length = sizeof failure;
    return getsockopt(link->number, SOL_SOCKET, SO_ERROR, &failure, &length) == 0 && failure == 0;
}

static enum peer_result connect_to(struct peer_link *link, const struct addrinfo *address) {
    int on = 1;
    link->number = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (link->number < 0) return PEER_FAILED;
    setsockopt(link->number, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    note_progress(link);
    if (connect(link->number, address->ai_addr, address->ai_addrlen) != 0 && errno != EINPROGRESS) return PEER_FAILED;
    struct pollfd looked = {.fd = link->number, .events = POLLOUT};
    while (poll(&looked, 1, 0) == 0) {
        enum peer_result result = await_progress(link);
        if (result != PEER_DONE) return result;
    }
    return has_connected(link) ? PEER_DONE : PEER_FAILED;
}

/* The first of its addresses that answers. */
enum peer_result peer_link_connect(struct peer_link *link, const char *host, int64_t port) {
    const char *why;
    link->resolution = resolution_begin(host, port);
    if (!link->resolution) return PEER_FAILED;
    while (!resolution_has_ended(link->resolution)) {
        enum peer_result waited = await(link->client, clock_monotonic_us() + LOOK_AGAIN_US);
        if (waited != PEER_DONE) return waited;
    }
    enum peer_result result = PEER_FAILED;
    const struct addrinfo *address = resolution_found(link->resolution, &why);
    for (; address && result == PEER_FAILED; address = address->ai_next) {
        hang_up(link);
        result = connect_to(link, address);
    }
    return result;
}

/* ---- lines ------------------------------------------------------------------------------------------------------------ */

static void take_byte(struct peer_link *link, char byte) {
    if (byte != '\n') {
        if (link->line_length + 1 < sizeof link->line) link->line[link->line_length++] = byte;
        return;
    }
    if (link->line_length > 0 && link->line[link->line_length - 1] == '\r') link->line_length--;
    link->line[link->line_length] = '\0';
    link->line_length = 0;
    link->lines++;
    link->take_line(link, link->line);
}

/* Takes some of the bytes that have come. */
static enum peer_result take_input(struct peer_link *link) {
    char bytes[TAKEN_AT_ONCE_BYTES];
    ssize_t length = recv(link->number, bytes, sizeof bytes, 0);
    if (length < 0) return errno == EAGAIN || errno == EINTR ? PEER_DONE : PEER_FAILED;
    for (ssize_t i = 0; i < length; i++) take_byte(link, bytes[i]);
    return length > 0 ? PEER_DONE : PEER_FAILED;
}

enum peer_result peer_link_send(struct peer_link *link, const void *bytes, size_t length) {
    const uint8_t *from = bytes;
    note_progress(link); /* what was made to be sent may have taken long */
    while (length > 0) {
        size_t some = length < SENT_AT_ONCE_BYTES ? length : SENT_AT_ONCE_BYTES;
        ssize_t sent = send(link->number, from, some, MSG_NOSIGNAL);
        bool broken = sent < 0 && errno != EAGAIN && errno != EINTR;
        enum peer_result result = take_input(link); /* also what says why it takes no more */
        if (result != PEER_DONE || broken) return PEER_FAILED;
        if (sent > 0) {
            from += sent;
            length -= (size_t)sent;
            note_progress(link);
            if (!exclusive_goes_on(link->client)) return PEER_CLIENT_LOST;
        } else if ((result = await_progress(link)) != PEER_DONE) {
            return result;
        }
    }
    return PEER_DONE;
}

enum peer_result peer_link_await(struct peer_link *link, uint64_t lines) {
    note_progress(link);
    for (uint64_t before = link->lines;; before = link->lines) {
        enum peer_result result = take_input(link);
        if (link->lines >= lines) return PEER_DONE;
        if (link->lines > before) note_progress(link);
        if (result == PEER_DONE) result = await_progress(link);
        if (result != PEER_DONE) return result;
    }
}
