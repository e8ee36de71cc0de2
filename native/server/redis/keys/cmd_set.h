/* cmd_set: what the files of commands on sets have in common. */
#ifndef REPLAY_SERVER_CMD_SET_H
#define REPLAY_SERVER_CMD_SET_H

#include "server/core/client.h"
#include "server/redis/keys/keyspace.h"
#include "store/t_set.h"

/* Finds the set named by argument 1 for reading; false: an error is replied. *set is NULL where there is no key. */
bool find_set(struct client *client, struct value **set);
void reply_member(struct client *client, struct set_member *member);
void reply_members(struct client *client, const struct value *set); /* all of them, without a head */
/* The set in `entry` lost members: the key goes with the last of them. */
void set_shrunk(struct client *client, struct dict_entry *entry);
/* Takes a member of the set in `entry` out. */
bool take_out(struct dict_entry *entry, struct set_member *member);

/* Found as keyspace_find_read or _write did just before, for commands that look up several keys: finding one may remove
 * another one that was found before, if they are the same and its time has run out in between. */
struct dict_entry *find_again(struct client *client, uint32_t index);

void spop_command(struct client *client);
void srandmember_command(struct client *client);

void sdiff_command(struct client *client);
void sdiffstore_command(struct client *client);
void sinter_command(struct client *client);
void sintercard_command(struct client *client);
void sinterstore_command(struct client *client);
void sunion_command(struct client *client);
void sunionstore_command(struct client *client);

#endif
