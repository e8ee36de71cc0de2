/* cmd_bits: what the commands on bits of strings have in common. */
#ifndef REPLAY_SERVER_CMD_BITS_H
#define REPLAY_SERVER_CMD_BITS_H

#include "server/core/client.h"

/* The offset of a bit; with a width, "#n" is that of the n-th number of so many bits. False: the error is replied. */
bool bit_offset_argument(struct client *client, uint32_t index, uint64_t width, uint64_t *offset);

void bitfield_command(struct client *client);
void bitfield_ro_command(struct client *client);

#endif
