/* slots: which of the 16,384 parts of all keys a key belongs to. */
#ifndef REPLAY_SERVER_CLUSTER_SLOTS_H
#define REPLAY_SERVER_CLUSTER_SLOTS_H

#include <stddef.h>

#define CLUSTER_SLOTS 16384
#define CLUSTER_SLOT_NONE (-1)

/* By CRC16 of the key, or of what stands between its first '{' and the next '}', unless that is nothing. */
int slot_of_key(const void *key, size_t length);

#endif
