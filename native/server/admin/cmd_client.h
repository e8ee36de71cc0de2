/* cmd_client: the subcommands of CLIENT with which a client changes itself or asks about itself; cmd_client.c has
 * their table. */
#ifndef REPLAY_SERVER_CMD_CLIENT_H
#define REPLAY_SERVER_CMD_CLIENT_H

#include "server/core/command.h"

void client_caching(struct client *client);
void client_getname(struct client *client);
void client_getredir(struct client *client);
void client_id(struct client *client);
void client_no_evict(struct client *client);
void client_no_touch(struct client *client);
void client_reply(struct client *client);
void client_setinfo(struct client *client);
void client_setname(struct client *client);
void client_tracking(struct client *client);
void client_trackinginfo(struct client *client);

#endif
