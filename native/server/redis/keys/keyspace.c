#include "server/redis/keys/keyspace.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "server/core/exclusive_execution.h"
#include "server/core/propagate.h"
#include "server/redis/redis_subsystem.h"
#include "store/glob.h"

#define BYTES_AT_ONCE (1u << 20) /* of a string, that a command copies or clears without rests */
#define SCAN_COUNT_DEFAULT 10
#define SCAN_COUNT_MOST 1000 /* in one step, which takes up to a millisecond; COUNT is a hint, and the cursor goes on */
#define SCAN_VISITS_PER_COUNT 10 /* buckets, empty ones too, that a step looks into for each entry wanted */

struct dict_entry *keyspace_find(struct client *client, uint32_t index) {
    const struct resp_argument *key = &client->argv[index];
    return store_find(client->server->store, (unsigned)client->database, key->data, key->length);
}

void keyspace_use(struct client *client, const struct dict_entry *entry) {
    if (entry && !client->no_touch) store_touch(client->server->store, entry);
}

struct dict_entry *keyspace_find_read(struct client *client, uint32_t index) {
    struct dict_entry *entry = keyspace_find(client, index);
    struct store *store = client->server->store;
    *(entry ? &store->keyspace_hits : &store->keyspace_misses) += 1;
    keyspace_use(client, entry);
    const struct resp_argument *key = &client->argv[index];
    if (!entry && (client->server->redis->notify.flags & NOTIFY_MISS))
        notify_event(client->server, NOTIFY_MISS, "keymiss", (unsigned)client->database, key->data, key->length);
    return entry;
}

struct dict_entry *keyspace_find_write(struct client *client, uint32_t index) {
    struct dict_entry *entry = keyspace_find(client, index);
    if (!entry) return NULL;
    store_will_change(client->server->store, (unsigned)client->database, entry);
    keyspace_use(client, entry);
    return entry;
}

void keyspace_changed(struct client *client, const struct dict_entry *entry) {
    store_changed(client->server->store, (unsigned)client->database, entry->key, entry->key_length);
}

bool keyspace_type_is(struct client *client, const struct dict_entry *entry, enum value_type type) {
    if (!entry || store_value(entry)->type == type) return true;
    reply_error(client, "WRONGTYPE Operation against a key holding the wrong kind of value");
    return false;
}

struct dict_entry *keyspace_put(struct client *client, uint32_t index, struct value *value, bool keep_expiry) {
    const struct resp_argument *key = &client->argv[index];
    struct dict_entry *entry = NULL;
    if (value)
        entry =
            store_put(client->server->store, (unsigned)client->database, key->data, key->length, value, keep_expiry);
    if (!entry) {
        value_free(value);
        reply_out_of_memory(client);
    }
    return entry;
}

struct dict_entry *keyspace_set(struct client *client, uint32_t index, struct dict_entry *entry, struct value *value) {
    if (!entry || !value) return keyspace_put(client, index, value, true);
    store_replace(client->server->store, (unsigned)client->database, entry, value);
    return entry;
}

static void rest(void *server) {
    exclusive_rest(server);
}

bool keyspace_writes_much(const struct dict_entry *entry, size_t length, size_t more) {
    return string_writable_effort(entry ? store_value(entry) : NULL, length) + more > BYTES_AT_ONCE;
}

void keyspace_copy(struct client *client, uint8_t *to, const uint8_t *from, size_t bytes) {
    string_copy_in_pieces(to, from, bytes, rest, client->server);
}

uint8_t *keyspace_reserve(struct client *client, uint32_t index, struct dict_entry *entry, size_t length) {
    struct value *value = entry ? store_value(entry) : NULL;
    uint8_t *bytes = string_writable_in_pieces(&value, length, rest, client->server);
    if (!bytes) {
        reply_out_of_memory(client);
        return NULL;
    }
    if (entry) {
        entry->value = value;
        return bytes;
    }
    return keyspace_put(client, index, value, false) ? bytes : NULL;
}

uint8_t *keyspace_writable(struct client *client, uint32_t index, struct dict_entry *entry, size_t length) {
    uint8_t *bytes = keyspace_reserve(client, index, entry, length);
    if (bytes && entry) keyspace_changed(client, entry);
    return bytes;
}

void keyspace_remove(struct client *client, struct dict_entry *entry) {
    store_remove(client->server->store, (unsigned)client->database, entry);
}

struct value *keyspace_string(struct client *client, uint32_t index) {
    const struct resp_argument *argument = &client->argv[index];
    return string_new(argument->data, argument->length, argument->blob);
}

void reply_view(struct client *client, const struct string_view *view) {
    /* Short strings are cheaper to copy than to hold, whatever they lie in. */
    if (view->blob && view->length >= STRING_BLOB_BYTES)
        reply_blob(client, view->blob);
    else
        reply_bulk(client, view->data, view->length);
}

void reply_string(struct client *client, const struct value *value) {
    struct string_view view;
    string_view(value, &view);
    reply_view(client, &view);
}

void reply_popped(struct client *client, struct list *list, bool from_head) {
    struct value *element = list_pop(list, from_head);
    reply_string(client, element);
    string_free(element);
}

void reply_out_of_memory(struct client *client) {
    client->server->changes.out_of_memory = true;
    reply_error(client, "OOM the system has no memory left for this; free keys or lower maxmemory");
}

void reply_no_such_key(struct client *client) {
    reply_error(client, "ERR no such key");
}

void reply_not_an_integer(struct client *client) {
    reply_error(client, "ERR value is not an integer or out of range");
}

void reply_empty_bulk(struct client *client) {
    reply_bulk(client, "", 0);
}

void keyspace_propagate_expiry(struct client *client, uint32_t index, int64_t at_ms) {
    char text[NUMBER_INT64_TEXT];
    text[number_format_int64(at_ms, text)] = '\0';
    propagate_key_words(client, "PEXPIREAT", index, text, NULL);
}

bool integer_argument(struct client *client, uint32_t index, int64_t *value) {
    if (number_parse_int64(client->argv[index].data, client->argv[index].length, value)) return true;
    reply_not_an_integer(client);
    return false;
}

bool float_argument(struct client *client, uint32_t index, long double *value) {
    if (number_parse_long_double(client->argv[index].data, client->argv[index].length, value)) return true;
    reply_error(client, "ERR value is not a valid float");
    return false;
}

/* What strtoul takes whole, as in Redis: also a sign, and nothing at all. */
bool scan_cursor_argument(struct client *client, uint32_t index, uint64_t *cursor) {
    const struct resp_argument *argument = &client->argv[index];
    char text[64], *end;
    if (argument->length < sizeof text) {
        memcpy(text, argument->data, argument->length);
        text[argument->length] = '\0';
        errno = 0;
        *cursor = strtoull(text, &end, 10);
        if (!isspace((unsigned char)text[0]) && *end == '\0' && errno != ERANGE) return true;
    }
    reply_error(client, "ERR invalid cursor");
    return false;
}

bool scan_options_parse(struct client *client, uint32_t first, bool with_type, struct scan_options *options) {
    *options = (struct scan_options){.count = SCAN_COUNT_DEFAULT};
    for (uint32_t i = first; i < client->argc; i += 2) {
        const struct resp_argument *word = &client->argv[i];
        bool has_value = i + 1 < client->argc;
        if (has_value && argument_is(word, "count")) {
            if (!integer_argument(client, i + 1, &options->count)) return false;
            if (options->count < 1) {
                reply_syntax_error(client);
                return false;
            }
        } else if (has_value && argument_is(word, "match")) {
            options->pattern = &client->argv[i + 1];
        } else if (has_value && with_type && argument_is(word, "type")) {
            options->type = &client->argv[i + 1];
        } else {
            reply_syntax_error(client);
            return false;
        }
    }
    return true;
}

bool scan_matches(const struct scan_options *options, const uint8_t *name, size_t length) {
    const struct resp_argument *pattern = options->pattern;
    bool all = !pattern || (pattern->length == 1 && pattern->data[0] == '*');
    return all || glob_match(pattern->data, pattern->length, name, length);
}

static void collect(void *context, struct dict_entry *entry) {
    struct scan_found *found = context;
    if (found->count == found->capacity && !found->failed) {
        size_t capacity = found->capacity == 0 ? 32 : found->capacity * 2;
        const struct dict_entry **grown = memory_realloc(found->entries, capacity * sizeof *grown);
        found->failed = !grown;
        if (grown) {
            found->entries = grown;
            found->capacity = capacity;
        }
    }
    if (!found->failed) found->entries[found->count++] = entry;
}

bool scan_dict(struct client *client, struct dict *dict, const struct scan_options *options, uint64_t *cursor,
               struct scan_found *found) {
    *found = (struct scan_found){0};
    uint64_t wanted = options->count < SCAN_COUNT_MOST ? (uint64_t)options->count : SCAN_COUNT_MOST;
    uint64_t visits = wanted * SCAN_VISITS_PER_COUNT;
    do {
        *cursor = dict_scan(dict, *cursor, collect, found);
    } while (*cursor != 0 && !found->failed && --visits > 0 && found->count < wanted);
    if (found->failed) {
        scan_found_free(found);
        reply_out_of_memory(client);
        return false;
    }
    size_t kept = 0;
    for (size_t i = 0; i < found->count; i++)
        if (scan_matches(options, found->entries[i]->key, found->entries[i]->key_length))
            found->entries[kept++] = found->entries[i];
    found->count = kept;
    return true;
}

void scan_found_free(struct scan_found *found) {
    memory_free(found->entries);
    *found = (struct scan_found){0};
}

void reply_scan_cursor(struct client *client, uint64_t cursor) {
    reply_array(client, 2);
    reply_bulk_format(client, "%" PRIu64, cursor);
}

void keyspace_info(const struct client *client, struct text *out) {
    int64_t now_ms = clock_unix_ms();
    text_append(out, "# Keyspace\r\n");
    for (unsigned d = 0; d < STORE_DATABASES; d++) {
        const struct store_database *database = &client->server->store->databases[d];
        uint64_t keys = dict_count(&database->keys);
        if (keys == 0) continue;
        uint32_t ending = database->expiry.count;
        double left_ms = ending > 0 ? database->expiry.sum_ms / ending - (double)now_ms : 0;
        text_append(out, "db%u:keys=%" PRIu64 ",expires=%" PRIu32 ",avg_ttl=%.0f\r\n", d, keys, ending,
                    left_ms > 0 ? left_ms : 0);
    }
}
