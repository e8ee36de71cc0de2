/* cmd_geo: what the commands on places have in common. */
#ifndef REPLAY_SERVER_CMD_GEO_H
#define REPLAY_SERVER_CMD_GEO_H

#include "server/redis/keys/cmd_zset.h"
#include "store/geohash.h"

/* Longitude and latitude in two arguments from `index` on. False: the error is replied. */
bool geo_point_argument(struct client *client, uint32_t index, struct geo_point *point);
/* Metres in the unit that the argument names. False: the error is replied. */
bool geo_unit_argument(struct client *client, uint32_t index, double *unit_m);
/* The place of a member; false: it is not there. */
bool geo_point_of(struct zset *zset, const struct resp_argument *member, struct geo_point *point);

void reply_distance(struct client *client, double distance);
void reply_point(struct client *client, const struct geo_point *point);

#endif
