/* digest: SHA-1 of what has an order; the parts of what has none are hashed one by one, and their hashes XORed. No part
 * is there twice (keys, fields, members), so none takes another out. */
#include "store/digest.h"

#include <string.h>

#include "store/t_hash.h"
#include "store/t_list.h"
#include "store/t_set.h"
#include "store/t_string.h"
#include "store/t_zset.h"

static void mix(struct digest *sum, const struct digest *part) {
    for (size_t i = 0; i < sizeof sum->bytes; i++) sum->bytes[i] ^= part->bytes[i];
}

/* Of two parts in this order, each of any length: first their own hashes, so that no byte can move from one to the other. */
static void pair(const void *first, size_t first_length, const void *second, size_t second_length, struct digest *out) {
    struct digest both[2];
    sha1(first, first_length, both[0].bytes);
    sha1(second, second_length, both[1].bytes);
    sha1(both, sizeof both, out->bytes);
}

static void digest_string(const struct value *value, struct digest *digest) {
    struct string_view view;
    string_view(value, &view);
    sha1(view.data, view.length, digest->bytes);
}

static void digest_list(const struct list *list, struct digest *digest) {
    if (list_length(list) == 0) return;
    struct list_position position = list_at(list, 0);
    do {
        struct digest link[2] = {*digest};
        digest_string(*list_element(position), &link[1]);
        sha1(link, sizeof link, digest->bytes);
    } while (list_step(&position, false));
}

static void digest_hash(const struct hash *hash, struct digest *digest) {
    struct hash_position position = {0};
    const uint8_t *field;
    size_t length;
    struct string_view value;
    while (hash_next(hash, &position, &field, &length, &value)) {
        struct digest part;
        pair(field, length, value.data, value.length, &part);
        mix(digest, &part);
    }
}

static void digest_set(const struct value *set, struct digest *digest) {
    struct set_position position = {0};
    struct set_member member;
    while (set_next(set, &position, &member)) {
        struct digest part;
        set_member_text(&member);
        sha1(member.data, member.length, part.bytes);
        mix(digest, &part);
    }
}

static void digest_zset(const struct zset *zset, struct digest *digest) {
    struct zset_position position = {0};
    struct zset_item item;
    while (zset_next(zset, &position, &item)) {
        struct digest part;
        double score = item.score == 0 ? 0 : item.score; /* −0 is kept by one of the two forms only */
        pair(item.member, item.length, &score, sizeof score, &part);
        mix(digest, &part);
    }
}

void digest_entry(const struct store *store, unsigned database, const struct dict_entry *entry, struct digest *digest) {
    const struct value *value = store_value(entry);
    struct {
        struct digest value;
        uint32_t type;
        int64_t expiry_ms;
    } whole;
    memset(&whole, 0, sizeof whole); /* its padding too */
    whole.type = value->type;
    if (!store_expiry(store, database, entry, &whole.expiry_ms)) whole.expiry_ms = -1;
    switch ((enum value_type)value->type) {
    case VALUE_STRING: digest_string(value, &whole.value); break;
    case VALUE_LIST: digest_list((const struct list *)value, &whole.value); break;
    case VALUE_HASH: digest_hash((const struct hash *)value, &whole.value); break;
    case VALUE_SET: digest_set(value, &whole.value); break;
    case VALUE_SORTED_SET: digest_zset((const struct zset *)value, &whole.value); break;
    case VALUE_TYPES: break;
    }
    sha1(&whole, sizeof whole, digest->bytes);
}

void digest_add_key(const struct store *store, unsigned database, const struct dict_entry *entry, struct digest *sum) {
    struct {
        struct digest key, entry;
        uint32_t database;
    } whole = {.database = database};
    struct digest part;
    sha1(entry->key, entry->key_length, whole.key.bytes);
    digest_entry(store, database, entry, &whole.entry);
    sha1(&whole, sizeof whole, part.bytes);
    mix(sum, &part);
}
