/* replay_rows: groups of our own commands and the places of the names that they take.
 *
 * The words for COMMAND GETKEYSANDFLAGS only tell commands that write from those that read; the rights are finer. */
#include "server/replay/replay_rows.h"

const struct command_group group_gradients = {"gradients", ACL_GRADIENTS, DATA_BESIDE_KEYS};
const struct command_group group_replay = {"replay", ACL_REPLAY, DATA_TABLES};
const struct command_group group_weights = {"weights", ACL_WEIGHTS, DATA_BESIDE_KEYS};

const struct key_specification name_known[] = {{"RO access", 0, KEY_RANGE, 1, {0, 1}}, {0}};
const struct key_specification name_read[] = {{"RO access", KEY_READ, KEY_RANGE, 1, {0, 1}}, {0}};
/* That a draw may remove what was sampled often enough is the table's doing. */
const struct key_specification name_sampled[] = {{"RW access update", KEY_READ, KEY_RANGE, 1, {0, 1}}, {0}};
const struct key_specification name_written[] = {{"RW access update", KEY_WRITE, KEY_RANGE, 1, {0, 1}}, {0}};
const struct key_specification names_written[] = {{"RW access update", KEY_WRITE, KEY_RANGE, 1, {-1, 1}}, {0}};
