/* cmd_replay: the handlers of REPLAY.* that have files of their own, for the table of commands in cmd_replay.c. */
#ifndef REPLAY_SERVER_CMD_REPLAY_H
#define REPLAY_SERVER_CMD_REPLAY_H

#include "server/core/command.h"
#include "server/replay/replay_registry.h"

void replay_add_command(struct client *client);
void replay_add_land(void *context, const struct resp_argument *arguments, uint32_t index, uint32_t count,
                     size_t length, struct resp_landing *landing);
void replay_append_command(struct client *client);
void replay_append_land(void *context, const struct resp_argument *arguments, uint32_t index, uint32_t count,
                        size_t length, struct resp_landing *landing);
void replay_item_command(struct client *client);
void replay_item_land(void *context, const struct resp_argument *arguments, uint32_t index, uint32_t count,
                      size_t length, struct resp_landing *landing);
void replay_end_command(struct client *client);
void replay_close_command(struct client *client);
void replay_sample_command(struct client *client);
void replay_get_command(struct client *client);
void replay_update_command(struct client *client);
void replay_del_command(struct client *client);
void replay_await_command(struct client *client);
void replay_close_table_command(struct client *client);
void replay_open_table_command(struct client *client);
void replay_reset_command(struct client *client);
void replay_config_command(struct client *client);
/* Goes on with resets and changes of tables until the deadline; true if some work is left. */
bool replay_change_step(struct server *server);
void replay_info_command(struct client *client);
/* Goes on with what the first of those that wait to add has to do, for a part of the turn; true if some is left. */
bool replay_adders_step(struct server *server);
/* Whether the client has any right to the table, in the use of a command that tells of tables which it does not name. */
bool replay_may_be_told(const struct client *client, const struct replay_entry *entry);

/* Shared by ADD and ITEM: reserving items; entering those of a request whose columns are in place, or waiting until that
 * may be done. `priorities` is the index of their argument. */
/* Binds some of the next items of an ITEM to the steps that they see. -1: refused. */
int replay_resolve_part(struct client *client, struct replay_request *request, struct error *error);
int replay_reserve_items(struct replay_request *request, struct error *error);
void replay_commit_or_wait(struct client *client, struct replay_request *request, uint32_t priorities);

#endif
