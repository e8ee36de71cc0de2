/* digest: SHA-1 of what has an order; the parts of what has none are hashed one by one, and their hashes XORed. No part
 * is there twice (keys, fields, members), so none takes another out. */
#include "store/digest.h"

#include <string.h>

#include "store/t_hash.h"
#include "store/t_list.h"
#include "store/t_set.h"
#include "store/t_stream.h"
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

/* Adds bytes to what has an order. */
static void chain(struct digest *digest, const void *bytes, size_t length) {
    struct digest link[2] = {*digest};
    sha1(bytes, length, link[1].bytes);
    sha1(link, sizeof link, digest->bytes);
}

static void chain_element(struct digest *digest, const struct listpack_element *element) {
    char text[LISTPACK_INTEGER_TEXT];
    size_t length;
    const uint8_t *bytes = listpack_text(element, text, &length);
    chain(digest, bytes, length);
}

static void digest_consumer(const struct xstream_consumer *consumer, struct digest *digest) {
    chain(digest, consumer->name.bytes, consumer->name.length);
    struct id_position position = id_index_first(&consumer->pending);
    for (; position.leaf; position = id_index_next(position)) {
        const struct xstream_pending *pending = id_index_slot(position)->value;
        chain(digest, &id_index_slot(position)->id, sizeof(struct xstream_id));
        chain(digest, &pending->delivered_ms, sizeof pending->delivered_ms);
        chain(digest, &pending->deliveries, sizeof pending->deliveries);
    }
}

/* When a consumer was last seen changes without a trace. */
static void digest_stream(const struct xstream *stream, struct digest *digest) {
    struct xstream_walk walk;
    struct xstream_entry entry;
    xstream_walk_begin(stream, XSTREAM_ID_FIRST, XSTREAM_ID_LAST, false, &walk);
    while (xstream_walk_next(&walk, &entry)) {
        chain(digest, &entry.id, sizeof entry.id);
        chain(digest, &entry.fields, sizeof entry.fields);
        for (uint32_t i = entry.fields; i > 0; i--) {
            struct listpack_element field, value;
            xstream_entry_pair(&entry, &field, &value);
            chain_element(digest, &field);
            chain_element(digest, &value);
        }
    }
    const struct xstream_id ids[] = {stream->last_id, stream->max_deleted_id, {stream->entries_added, 0}};
    chain(digest, ids, sizeof ids);
    for (uint32_t i = 0; i < stream->groups.names.count; i++) {
        const struct xstream_group *group = xstream_group_at(&stream->groups, i);
        chain(digest, group->name.bytes, group->name.length);
        chain(digest, &group->last_id, sizeof group->last_id);
        chain(digest, &group->entries_read, sizeof group->entries_read);
        for (uint32_t j = 0; j < group->consumers.count; j++) digest_consumer(xstream_consumer_at(group, j), digest);
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
    case VALUE_STREAM: digest_stream(xstream_of(value), &whole.value); break;
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
