/* command_line: the options of an executable, and whether they make sense together. */
#ifndef REPLAY_SERVER_COMMAND_LINE_H
#define REPLAY_SERVER_COMMAND_LINE_H

#include <stdbool.h>

#include "server/core/config.h"
#include "server/process/process.h"

enum { EXIT_CLEAN = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_IN_USE = 3, EXIT_REFUSED = 4 };

struct options {
    struct server_config config;
    int setup_descriptor, lifeline_descriptor; /* −1: none */
    bool allow_remote;
    bool only_check; /* the settings and tables, and end */
    const char *restore; /* a snapshot's file, "latest", or NULL */
};

/* Says why the server cannot start; `code`, for the way out. */
int start_failed(int code, const char *message);

/* Returns 0, or the exit code after saying what is wrong. `*done` is set for --help and what tells of the program. */
int command_line_parse(int argc, char **argv, const struct data_transport *data, struct options *options, bool *done);

/* What holds of several settings together, those of a file included; goes to the folder of data. Returns 0, or the exit
   code after saying what is wrong. */
int command_line_check(struct options *options, const struct data_transport *data);

#endif
