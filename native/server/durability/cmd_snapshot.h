/* cmd_snapshot: what saving a snapshot asks of the command that requested it. */
#ifndef REPLAY_SERVER_CMD_SNAPSHOT_H
#define REPLAY_SERVER_CMD_SNAPSHOT_H

#include "server/core/client.h"
#include "server/durability/snapshots.h"

/* Gives the snapshot that is about to begin the name that its first waiter wants, and notes who waits for it. */
void snapshots_take_name(struct snapshots *snapshots);
/* Before one begins: clients at the head of the queue for whose names the folder has no room are told so. That is no failure
 * to save, and concerns nobody else. */
void snapshots_refuse_names(struct snapshots *snapshots);

#endif
