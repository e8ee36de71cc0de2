/* metrics: what the server counts, for Prometheus: pages of an HTTP listener of its own. */
#ifndef REPLAY_SERVER_METRICS_H
#define REPLAY_SERVER_METRICS_H

#include <stdint.h>

#include "base/error.h"

struct server;
struct transport;
struct subsystem;

/* Opens the listener that the settings ask for; the port is written back. -1 with `error`. */
int metrics_open(struct server *server, struct transport *kernel, struct error *error);

extern const struct subsystem metrics_subsystem;

#endif
