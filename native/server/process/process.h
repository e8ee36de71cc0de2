/* process: what the executables share; each has its own transport for the data port. */
#ifndef REPLAY_SERVER_PROCESS_H
#define REPLAY_SERVER_PROCESS_H

#include "net/transport.h"

struct data_transport {
    const char *program; /* the executable's name, for its messages */
    /* Brings the data port up in user space. NULL: it is the kernel's, as unix sockets and the admin port always are. */
    struct transport *(*open)(const struct transport_settings *settings, const struct transport_events *events,
                              struct error *error);
    const struct transport_library *(*libraries)(void); /* that it is built on; NULL: none */
};

/* Runs a server until it is told to stop. Returns the exit code. */
int process_main(int argc, char **argv, const struct data_transport *data);

#endif
