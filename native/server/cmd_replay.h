/* cmd_replay: the handlers of REPLAY.* that have files of their own, for the table of commands in cmd_replay.c. */
#ifndef REPLAY_SERVER_CMD_REPLAY_H
#define REPLAY_SERVER_CMD_REPLAY_H

#include "server/command.h"

void replay_add_command(struct client *client);
void replay_add_land(void *context, const struct resp_argument *arguments, uint32_t index, uint32_t count,
                     size_t length, struct resp_landing *landing);
void replay_sample_command(struct client *client);
void replay_get_command(struct client *client);
void replay_info_command(struct client *client);

#endif
