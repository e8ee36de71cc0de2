/* program: another program, run on a helper thread while the loop goes on. What it writes stays in memory. */
#ifndef REPLAY_SERVER_PROGRAM_H
#define REPLAY_SERVER_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "net/transport.h"

#define PROGRAM_MOST_US 60000000u /* that it may run; then it is killed */
#define PROGRAM_COMPLAINTS_BYTES 8192u /* of what it says on standard error, the beginning */

struct program;

struct program_end {
    int failed;      /* 0, −1: it could not run, or its wait status */
    int output;      /* a descriptor of what it wrote, from the beginning on; whoever is told closes it */
    char complaints[PROGRAM_COMPLAINTS_BYTES]; /* what it said on standard error, or why it could not run */
};

/* `ended` is called on the loop's thread, through `kernel`. NULL with `error`: no memory, or no descriptor. */
struct program *program_new(struct transport *kernel, void (*ended)(void *context, struct program_end *end),
                            void *context, struct error *error);
/* One that runs is killed. NULL is allowed. */
void program_free(struct program *program);
/* Starts it with what it is to read on standard input; none may be running. `arguments` end with NULL, begin with its path,
 * and stay until it has ended. −1 with `error`: `ended` is not called. */
int program_start(struct program *program, char **arguments, const void *input, size_t length, struct error *error);
bool program_runs(const struct program *program);

#endif
