/* monitor: clients that are told of every command, by MONITOR. */
#ifndef REPLAY_SERVER_MONITOR_H
#define REPLAY_SERVER_MONITOR_H

#include <stdint.h>

#include "server/core/command.h"

struct monitors {
    struct client **clients;
    uint32_t count, capacity;
};

/* Tells every monitor of the command that the client ran. Called only while there are some. */
void monitor_feed(struct client *client, const struct command *command);
void monitor_feed_script(struct client *client); /* see struct upcalls */
void monitor_client_gone(struct client *client);

#endif
