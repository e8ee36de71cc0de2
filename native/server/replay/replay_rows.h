/* replay_rows: what the rows of REPLAY.*, WEIGHTS.* and GRAD.* share: their groups, and where names stand among the
 * arguments. */
#ifndef REPLAY_SERVER_REPLAY_ROWS_H
#define REPLAY_SERVER_REPLAY_ROWS_H

#include "server/core/command_table.h"

extern const struct command_group group_gradients, group_replay, group_weights;

/* Names of tables, weights and gradients, which are keys to access rules. `known`: any right to one is enough. */
extern const struct key_specification name_known[], name_read[], name_sampled[], name_written[], names_written[];

extern const struct command commands_gradients[], commands_replay[], commands_share[], commands_weights[];

#endif
