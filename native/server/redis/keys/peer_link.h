/* peer_link: a connection to another server, for a command that waits for it within its slices (exclusive_run_command).
 *
 * Functions that wait return PEER_CLIENT_LOST when the client has gone. The link went with the client's state then, and
 * nothing of either may be touched. */
#ifndef REPLAY_SERVER_PEER_LINK_H
#define REPLAY_SERVER_PEER_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client;
struct resolution;

enum peer_result { PEER_DONE, PEER_FAILED, PEER_CLIENT_LOST };

struct peer_link {
    struct client *client;
    int number; /* the socket; −1: none */
    uint64_t timeout_us; /* the longest time without a byte sent, or without a line that is awaited */
    uint64_t until_us;
    struct resolution *resolution;
    void (*take_line)(struct peer_link *link, const char *line); /* without its end, cut at 255 bytes */
    char line[256];
    size_t line_length;
    uint64_t lines; /* that were taken */
};

void peer_link_init(struct peer_link *link, struct client *client, uint64_t timeout_us,
                    void (*take_line)(struct peer_link *link, const char *line));
void peer_link_free(struct peer_link *link);
enum peer_result peer_link_connect(struct peer_link *link, const char *host, int64_t port);
/* Lines that come meanwhile are taken, so that neither side waits for the other. */
enum peer_result peer_link_send(struct peer_link *link, const void *bytes, size_t length);
/* Waits until so many lines were taken in all. */
enum peer_result peer_link_await(struct peer_link *link, uint64_t lines);

#endif
