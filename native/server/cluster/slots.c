/* slots: as the specification of Redis Cluster says. */
#include "server/cluster/slots.h"

#include <stdint.h>
#include <string.h>

#include "base/crc16.h"

int slot_of_key(const void *key, size_t length) {
    const uint8_t *bytes = key;
    const uint8_t *open = length > 0 ? memchr(bytes, '{', length) : NULL;
    const uint8_t *tag = open ? open + 1 : NULL;
    const uint8_t *close = open ? memchr(tag, '}', length - (size_t)(tag - bytes)) : NULL;
    if (close && close > tag) return crc16(tag, (size_t)(close - tag)) % CLUSTER_SLOTS;
    return crc16(bytes, length) % CLUSTER_SLOTS;
}
