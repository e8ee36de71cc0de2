/* cmd_hash_random: HRANDFIELD: fields of a hash that chance picks. Order of checks and error texts follow Redis 7.0's
 * t_hash.c. */
#include "base/memory.h"
#include "server/core/command_table.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/keys/random_replies.h"
#include "server/redis/redis_rows.h"

#define SPARSE_FACTOR 4 /* a hash has so many times the fields wanted: then picking one by one is cheaper than a walk */

static struct random_state *random_of(struct client *client) {
    return &client->server->store->random;
}

static void pick_field(struct client *client, struct value *value, struct random_element *field) {
    struct hash *hash = (struct hash *)value;
    if (hash->head.encoding == ENCODING_DICT) {
        const struct dict_entry *entry = dict_random(&hash->dict, random_of(client));
        field->name = entry->key;
        field->length = entry->key_length;
        string_view(entry->value, &field->value);
        return;
    }
    struct hash_position position = {0};
    uint64_t skip = random_below(random_of(client), hash_count(hash));
    do {
        hash_next(hash, &position, &field->name, &field->length, &field->value);
    } while (skip-- > 0);
}

/* RESP3 has the two in an array of their own. */
static void reply_field(struct client *client, const struct random_element *field, bool with_value) {
    if (with_value && client->resp > 2) reply_array(client, 2);
    reply_bulk(client, field->name, field->length);
    if (with_value) reply_view(client, &field->value);
}

static void begin_reply(struct client *client, uint64_t count, bool with_values) {
    reply_array(client, (size_t)(with_values && client->resp == 2 ? 2 * count : count));
}

static const struct random_kind repeated_fields = {VALUE_HASH, pick_field, reply_field};

/* One walk: each field is taken with the chance that is left for it (selection sampling: Knuth, vol. 2, 3.4.2, S). */
static void reply_selected(struct client *client, const struct hash *hash, uint64_t count, bool with_values) {
    uint64_t left = hash_count(hash);
    struct hash_position position = {0};
    struct random_element field;
    begin_reply(client, count, with_values);
    while (count > 0 && hash_next(hash, &position, &field.name, &field.length, &field.value)) {
        if (random_below(random_of(client), left--) >= count) continue;
        reply_field(client, &field, with_values);
        count--;
    }
}

/* Few of many: picks again what was picked before; those are known by open addressing on where they lie. */
static void reply_picked(struct client *client, struct hash *hash, uint64_t count, bool with_values) {
    uint64_t mask = 1;
    while (mask < 2 * count) mask = 2 * mask + 1;
    const struct dict_entry **picked = memory_calloc(mask + 1, sizeof *picked);
    if (!picked) {
        reply_out_of_memory(client);
        return;
    }
    begin_reply(client, count, with_values);
    while (count > 0) {
        const struct dict_entry *entry = dict_random(&hash->dict, random_of(client));
        uint64_t slot = entry->hash & mask;
        while (picked[slot] && picked[slot] != entry) slot = (slot + 1) & mask;
        if (picked[slot] == entry) continue;
        picked[slot] = entry;
        struct random_element field = {.name = entry->key, .length = entry->key_length};
        string_view(entry->value, &field.value);
        reply_field(client, &field, with_values);
        count--;
    }
    memory_free(picked);
}

/* Finds the hash for reading; false: an error is replied. *hash is NULL where there is no key. */
static bool find_hash(struct client *client, struct hash **hash) {
    struct dict_entry *entry = keyspace_find_read(client, 1);
    if (!keyspace_type_is(client, entry, VALUE_HASH)) return false;
    *hash = entry ? (struct hash *)store_value(entry) : NULL;
    return true;
}

static void reply_fields(struct client *client) {
    int64_t count;
    bool with_values;
    struct hash *hash;
    if (!random_count_arguments(client, "withvalues", &count, &with_values) || !find_hash(client, &hash)) return;
    if (!hash || count == 0) {
        reply_array(client, 0);
        return;
    }
    uint64_t size = hash_count(hash), wanted = count < 0 ? (uint64_t)-count : (uint64_t)count;
    if (count < 0)
        reply_repeated(client, &hash->head, &repeated_fields, wanted, with_values);
    else if (wanted > size / SPARSE_FACTOR || hash->head.encoding != ENCODING_DICT)
        reply_selected(client, hash, wanted < size ? wanted : size, with_values);
    else
        reply_picked(client, hash, wanted, with_values);
}

static void hrandfield_command(struct client *client) {
    struct hash *hash;
    struct random_element field;
    if (client->argc > 2) {
        reply_fields(client);
        return;
    }
    if (!find_hash(client, &hash)) return;
    if (!hash) {
        reply_null(client);
        return;
    }
    pick_field(client, &hash->head, &field);
    reply_field(client, &field, false);
}

const struct command commands_hash_random[] = {
    {"hrandfield", hrandfield_command, -2, COMMAND_READONLY, &group_hash, "Returns fields of a hash that chance picks.",
     "6.2.0", .tips = "nondeterministic_output", .keys = key_read},
    {0},
};
