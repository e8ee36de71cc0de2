/* metrics: what the server counts, for Prometheus: pages of an HTTP listener of its own. */
#ifndef REPLAY_SERVER_METRICS_H
#define REPLAY_SERVER_METRICS_H

#include <stdint.h>

#include "base/error.h"

struct server;
struct transport;
struct http;

/* Opens the listener that the settings ask for; the port is written back. -1 with `error`. */
int metrics_open(struct server *server, struct transport *kernel, struct error *error);
/* One slice. Returns when to call again, CLOCK_NEVER where there is no listener. */
uint64_t metrics_step(struct server *server);
void metrics_stop_listening(struct server *server);

#endif
