/* digest: 20 bytes that are equal if two stores hold the same keys and values, whatever the order in which keys,
 * fields and members were added, and whatever their form in memory. */
#ifndef REPLAY_STORE_DIGEST_H
#define REPLAY_STORE_DIGEST_H

#include "base/sha1.h"
#include "store/store.h"

struct digest {
    uint8_t bytes[SHA1_BYTES];
};

/* Of a key's type, value and time of expiry, not of its name. */
void digest_entry(const struct store *store, unsigned database, const struct dict_entry *entry, struct digest *digest);
/* Adds a key to the digest of many, which begins with zeros: in any order. */
void digest_add_key(const struct store *store, unsigned database, const struct dict_entry *entry, struct digest *sum);

#endif
