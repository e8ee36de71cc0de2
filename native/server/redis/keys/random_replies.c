/* random_replies: in slices, as fast as the client takes them. */
#include "server/redis/keys/random_replies.h"

#include <string.h>

#include "base/memory.h"
#include "server/core/server.h"
#include "server/core/slices.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/pubsub/pubsub.h"
#include "store/store.h"

#define AT_ONCE 1000          /* elements that are replied in one go */
#define AT_ONCE_LIMIT 1000000 /* that may be asked for where nothing else can run meanwhile */
#define SLICE_ELEMENTS 16     /* between two looks at the clock */

struct repeated {
    uint64_t left;
    const struct random_kind *kind;
    bool with_value;
    struct random_element kept; /* for when the collection has gone */
    uint8_t bytes[];            /* of its name, and of its value where that is no blob */
};

static void drop_repeated(struct client *client, void *state) {
    struct repeated *repeated = state;
    (void)client;
    if (repeated->kept.value.blob) blob_release(repeated->kept.value.blob);
    memory_free(repeated);
}

/* NULL: memory is exhausted. */
static struct repeated *repeated_new(const struct random_element *element) {
    size_t value_length = !element->value.blob ? element->value.length : 0;
    struct repeated *repeated = memory_alloc(sizeof *repeated + element->length + value_length);
    if (!repeated) return NULL;
    *repeated = (struct repeated){.kept = {.length = element->length, .score = element->score}};
    if (element->length > 0) memcpy(repeated->bytes, element->name, element->length);
    repeated->kept.name = repeated->bytes;
    struct string_view *value = &repeated->kept.value;
    value->length = element->value.length;
    value->data = repeated->bytes + element->length;
    if (value_length > 0) memcpy(repeated->bytes + element->length, element->value.data, value_length);
    if (element->value.blob) {
        value->blob = blob_retain(element->value.blob);
        value->data = value->blob->data;
    }
    return repeated;
}

/* The collection as long as it is there. */
static struct value *find_collection(struct client *client, enum value_type type) {
    const struct resp_argument *key = &client->argv[1];
    struct dict *keys = &client->server->store->databases[client->database].keys;
    const struct dict_entry *entry = dict_find(keys, dict_hash(key->data, key->length), key->data, key->length);
    return entry && store_value(entry)->type == type ? store_value(entry) : NULL;
}

static bool repeat_some(struct client *client) {
    struct repeated *repeated = client_state(client);
    const struct random_kind *kind = repeated->kind;
    struct value *collection = find_collection(client, kind->type);
    struct random_element picked;
    while (repeated->left > 0 && reply_is_wanted(client) && slices_have_time(client)) {
        for (int i = 0; i < SLICE_ELEMENTS && repeated->left > 0; i++, repeated->left--) {
            if (collection) kind->pick(client, collection, &picked);
            kind->reply(client, collection ? &picked : &repeated->kept, repeated->with_value);
        }
    }
    return repeated->left == 0 || !reply_is_wanted(client);
}

static void reply_head(struct client *client, uint64_t count, bool with_value) {
    reply_array(client, with_value && client->resp == 2 ? 2 * count : count);
}

static void reply_in_slices(struct client *client, struct value *collection, const struct random_kind *kind,
                            uint64_t count, bool with_value) {
    struct random_element element = {.length = 0};
    kind->pick(client, collection, &element);
    struct repeated *repeated = repeated_new(&element);
    if (!repeated) {
        reply_error(client, "OOM no memory to pick %llu elements", (unsigned long long)count);
        return;
    }
    repeated->left = count;
    repeated->kind = kind;
    repeated->with_value = with_value;
    reply_head(client, count, with_value);
    client_set_state(client, repeated, drop_repeated);
    slices_begin_reply(client, repeat_some);
}

bool random_count_arguments(struct client *client, const char *word, int64_t *count, bool *with_values) {
    if (!integer_argument(client, 2, count)) return false;
    if (*count == INT64_MIN) {
        reply_error(client, "ERR value is out of range, value must between %lld and %lld", -(long long)INT64_MAX,
                    (long long)INT64_MAX);
        return false;
    }
    *with_values = client->argc > 3;
    if (client->argc > 4 || (*with_values && !argument_is(&client->argv[3], word))) {
        reply_syntax_error(client);
        return false;
    }
    if (*with_values && (*count < -(INT64_MAX / 2) || *count > INT64_MAX / 2)) {
        reply_error(client, "ERR value is out of range");
        return false;
    }
    return true;
}

void reply_repeated(struct client *client, struct value *collection, const struct random_kind *kind, uint64_t count,
                    bool with_value) {
    /* What a subscriber or a monitor is sent meanwhile would stand in the midst of the reply. */
    bool is_told_more = pubsub_is_subscriber(client) || client->is_monitor;
    if (count > AT_ONCE && client_may_block(client) && !is_told_more) {
        reply_in_slices(client, collection, kind, count, with_value);
        return;
    }
    if (count > AT_ONCE_LIMIT) {
        reply_error(client,
                    "LIMIT %llu elements are too many in a transaction, in a script or for a subscriber: ask for %d "
                    "at most",
                    (unsigned long long)count, AT_ONCE_LIMIT);
        return;
    }
    reply_head(client, count, with_value);
    for (; count > 0 && reply_is_wanted(client); count--) {
        struct random_element element;
        kind->pick(client, collection, &element);
        kind->reply(client, &element, with_value);
    }
}
