/* secret_arguments: what no log, no MONITOR and no error message shows: passwords and tokens, in arguments of commands and
 * in settings. The row of a command says which of its arguments are secret (struct command, is_secret). */
#ifndef REPLAY_SERVER_CORE_SECRET_ARGUMENTS_H
#define REPLAY_SERVER_CORE_SECRET_ARGUMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/core/command.h"

#define SECRET_SHOWN_AS "(redacted)"

bool command_argument_is_secret(const struct command *command, uint32_t argc, const struct resp_argument *argv,
                                uint32_t index);
/* An is_secret for rows of commands that take nothing else. */
bool every_argument_is_secret(uint32_t argc, const struct resp_argument *argv, uint32_t index);
/* The name of a setting, in any case. Its value is also written to no file. */
bool config_is_secret(const void *name, size_t length);

#endif
