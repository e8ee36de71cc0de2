/* fair_share: how many bytes one client may send or receive in one turn of the loop. Which connection of a stack in user
 * space sends next: net/round_robin.h. */
#ifndef REPLAY_SERVER_FAIR_SHARE_H
#define REPLAY_SERVER_FAIR_SHARE_H

#include "server/core/client.h"

size_t
fair_share_to_read(struct client *client); /* of a large argument; counts it among those that are read in this turn */
size_t fair_share_to_write(const struct client *client);

#endif
