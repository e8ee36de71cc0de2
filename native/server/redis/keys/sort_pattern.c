/* sort_pattern: from an element to another key, or to a field of a hash there. */
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "server/redis/keys/sort.h"

/* Redis looks for the star and the arrow as in a C string: up to a zero byte. */
void sort_pattern_parse(const struct resp_argument *argument, struct sort_pattern *pattern) {
    const uint8_t *text = argument->data;
    size_t length = argument->length, searched = strnlen((const char *)text, length);
    *pattern = (struct sort_pattern){.is_element = searched == 1 && text[0] == '#'};
    const uint8_t *star = searched > 0 ? memchr(text, '*', searched) : NULL;
    if (!star) return;
    pattern->has_star = true;
    pattern->prefix = text;
    pattern->prefix_length = (size_t)(star - text);
    pattern->suffix = star + 1;
    pattern->suffix_length = length - pattern->prefix_length - 1;
    const uint8_t *arrow = memmem(star + 1, (size_t)(text + searched - (star + 1)), "->", 2);
    if (!arrow || arrow + 2 == text + searched) return;
    pattern->field = arrow + 2;
    pattern->field_length = (size_t)(text + length - pattern->field);
    pattern->suffix_length = (size_t)(arrow - pattern->suffix);
}

static bool compose(const struct sort_pattern *pattern, const struct sort_text *element, struct sort_key_buffer *buffer,
                    size_t *length) {
    *length = pattern->prefix_length + element->length + pattern->suffix_length;
    if (!buffer->bytes || *length > buffer->capacity) {
        uint8_t *grown = memory_realloc(buffer->bytes, *length * 2 + 1);
        if (!grown) return false;
        buffer->bytes = grown;
        buffer->capacity = *length * 2;
    }
    uint8_t *end = buffer->bytes;
    if (pattern->prefix_length > 0) end = mempcpy(end, pattern->prefix, pattern->prefix_length);
    if (element->length > 0) end = mempcpy(end, element->data, element->length);
    if (pattern->suffix_length > 0) memcpy(end, pattern->suffix, pattern->suffix_length);
    return true;
}

/* A key that has run out counts as gone, but is not removed: it may be one that is being sorted, or sorted by. */
static struct value *look_up(struct client *client, const uint8_t *key, size_t length) {
    struct store *store = client->server->store;
    unsigned database = (unsigned)client->database;
    struct dict_entry *entry = dict_find(&store->databases[database].keys, dict_hash(key, length), key, length);
    if (entry && store_value(entry)->expiry != 0 && store_has_expired(store, database, entry, clock_unix_ms()))
        entry = NULL;
    *(entry ? &store->keyspace_hits : &store->keyspace_misses) += 1;
    return entry ? store_value(entry) : NULL;
}

enum sort_found sort_pattern_find(struct client *client, const struct sort_pattern *pattern,
                                  const struct sort_text *element, struct sort_key_buffer *buffer,
                                  struct string_view *view) {
    if (pattern->is_element) {
        *view = (struct string_view){.data = element->data, .length = element->length};
        return SORT_FOUND;
    }
    size_t length;
    if (!pattern->has_star) return SORT_MISSING;
    if (!compose(pattern, element, buffer, &length)) return SORT_EXHAUSTED;
    struct value *value = look_up(client, buffer->bytes, length);
    if (!value || value->type != (pattern->field_length > 0 ? VALUE_HASH : VALUE_STRING)) return SORT_MISSING;
    if (pattern->field_length == 0) {
        string_view(value, view);
        return SORT_FOUND;
    }
    bool found = hash_get((struct hash *)value, pattern->field, pattern->field_length, view);
    return found ? SORT_FOUND : SORT_MISSING;
}
