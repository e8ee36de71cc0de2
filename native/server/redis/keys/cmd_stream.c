/* cmd_stream: what the commands on streams share: ids as words, entries as replies, changes as commands. */
#include "server/redis/keys/cmd_stream.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/exclusive_execution.h"
#include "server/core/propagate.h"
#include "server/redis/pubsub/notify.h"

/* ---- keys -------------------------------------------------------------------------------------------------------- */

bool stream_for_reading(struct client *client, uint32_t index, struct xstream **stream) {
    struct dict_entry *entry = keyspace_find_read(client, index);
    if (!keyspace_type_is(client, entry, VALUE_STREAM)) return false;
    *stream = entry ? xstream_of(store_value(entry)) : NULL;
    return true;
}

struct xstream_group *stream_group_named(const struct xstream *stream, const struct resp_argument *name) {
    return stream ? xstream_group_find(&stream->groups, name->data, name->length) : NULL;
}

static int shown(size_t length) {
    return length < 400 ? (int)length : 400;
}

void reply_no_such_group(struct client *client, const struct resp_argument *key, const struct resp_argument *name) {
    reply_error(client, "NOGROUP No such consumer group '%.*s' for key name '%.*s'",
                name->length < 256 ? (int)name->length : 256, (const char *)name->data,
                key->length < 256 ? (int)key->length : 256, (const char *)key->data);
}

bool stream_group_argument(struct client *client, uint32_t index, bool writes, struct stream_place *place) {
    const struct resp_argument *key = &client->argv[index], *name = &client->argv[index + 1];
    *place = (struct stream_place){.entry = keyspace_find_read(client, index)};
    if (!keyspace_type_is(client, place->entry, VALUE_STREAM)) return false;
    if (place->entry) place->stream = xstream_of(store_value(place->entry));
    place->group = stream_group_named(place->stream, name);
    if (!place->group) {
        reply_error(client, "NOGROUP No such key '%.*s' or consumer group '%.*s'", shown(key->length),
                    (const char *)key->data, shown(name->length), (const char *)name->data);
        return false;
    }
    if (writes) store_will_change(client->server->store, (unsigned)client->database, place->entry);
    return true;
}

int64_t stream_now_ms(const struct client *client) {
    int64_t told_ms = client->server->store->told_ms;
    return told_ms != 0 ? told_ms : clock_unix_ms();
}

void stream_changed_aside(struct client *client, const char *event, uint32_t key_index) {
    const struct resp_argument *key = &client->argv[key_index];
    client->server->store->changes++;
    if (event) notify_event(client->server, NOTIFY_STREAM, event, (unsigned)client->database, key->data, key->length);
}

struct xstream_consumer *stream_consumer_named(struct client *client, uint32_t key_index, struct xstream_group *group,
                                               const struct resp_argument *name, bool *created) {
    struct xstream_consumer *consumer = xstream_consumer_find(group, name->data, name->length);
    *created = !consumer;
    if (consumer) {
        consumer->seen_ms = stream_now_ms(client);
        return consumer;
    }
    consumer = xstream_consumer_add(group, name->data, name->length, stream_now_ms(client));
    if (consumer) stream_changed_aside(client, "xgroup-createconsumer", key_index);
    return consumer;
}

/* ---- ids as words ------------------------------------------------------------------------------------------------ */

/* What Redis takes: an int64 that is not negative, or whatever strtoull takes whole. */
static bool parse_uint64(const char *text, uint64_t *number) {
    int64_t canonical;
    if (number_parse_int64((const uint8_t *)text, strlen(text), &canonical)) {
        *number = (uint64_t)canonical;
        return canonical >= 0;
    }
    char *end;
    errno = 0;
    *number = strtoull(text, &end, 10);
    return errno != ERANGE && *text != '\0' && *end == '\0';
}

bool stream_id_parse(const struct resp_argument *argument, uint64_t sequence, struct xstream_id *id) {
    char text[128];
    if (argument->length >= sizeof text || memchr(argument->data, '\0', argument->length)) return false;
    memcpy(text, argument->data, argument->length);
    text[argument->length] = '\0';
    char *dash = strchr(text, '-');
    if (dash) *dash = '\0';
    id->sequence = sequence;
    return parse_uint64(text, &id->ms) && (!dash || parse_uint64(dash + 1, &id->sequence));
}

static bool valid_or_replied(struct client *client, bool valid) {
    if (!valid) reply_error(client, STREAM_INVALID_ID);
    return valid;
}

bool stream_id_argument(struct client *client, uint32_t index, uint64_t sequence, struct xstream_id *id) {
    return valid_or_replied(client, stream_id_parse(&client->argv[index], sequence, id));
}

static bool is_byte(const struct resp_argument *argument, uint8_t byte) {
    return argument->length == 1 && argument->data[0] == byte;
}

bool stream_id_or_end_argument(struct client *client, uint32_t index, uint64_t sequence, struct xstream_id *id) {
    const struct resp_argument *argument = &client->argv[index];
    bool first = is_byte(argument, '-'), last = is_byte(argument, '+');
    if (!first && !last) return stream_id_argument(client, index, sequence, id);
    *id = first ? XSTREAM_ID_FIRST : XSTREAM_ID_LAST;
    return true;
}

bool stream_bound_argument(struct client *client, uint32_t index, bool is_end, struct xstream_id *id) {
    struct resp_argument rest = client->argv[index];
    uint64_t sequence = is_end ? UINT64_MAX : 0;
    if (rest.length < 2 || rest.data[0] != '(') return stream_id_or_end_argument(client, index, sequence, id);
    rest.data++;
    rest.length--;
    if (!valid_or_replied(client, stream_id_parse(&rest, sequence, id))) return false;
    if (is_end ? xstream_id_decrement(id) : xstream_id_increment(id)) return true;
    reply_error(client, "ERR invalid %s ID for the interval", is_end ? "end" : "start");
    return false;
}

/* ---- replies ----------------------------------------------------------------------------------------------------- */

void reply_stream_id(struct client *client, struct xstream_id id) {
    char text[XSTREAM_ID_TEXT];
    reply_bulk(client, text, xstream_id_format(id, text));
}

static void reply_element(struct client *client, const struct listpack_element *element) {
    char text[LISTPACK_INTEGER_TEXT];
    size_t length;
    const uint8_t *bytes = listpack_text(element, text, &length);
    reply_bulk(client, bytes, length);
}

void reply_stream_entry(struct client *client, struct xstream_entry *entry) {
    reply_array(client, 2);
    reply_stream_id(client, entry->id);
    reply_array(client, 2 * (size_t)entry->fields);
    for (uint32_t left = entry->fields; left > 0; left--) {
        struct listpack_element field, value;
        xstream_entry_pair(entry, &field, &value);
        reply_element(client, &field);
        reply_element(client, &value);
    }
}

bool reply_stream_entry_of(struct client *client, const struct xstream *stream, struct xstream_id id) {
    struct xstream_walk walk;
    struct xstream_entry entry;
    xstream_walk_begin(stream, id, id, false, &walk);
    if (!xstream_walk_next(&walk, &entry)) return false;
    reply_stream_entry(client, &entry);
    return true;
}

/* Counts the entries of a range, at most `most`. False: the client was lost meanwhile. */
static bool count_range(struct client *client, struct xstream_walk walk, uint64_t most, uint64_t *count) {
    struct xstream_entry entry;
    for (*count = 0; *count < most && xstream_walk_next(&walk, &entry);)
        if (++*count % EXCLUSIVE_PARTS_TO_REST == 0 && !exclusive_goes_on(client)) return false;
    return true;
}

bool reply_stream_range(struct client *client, const struct xstream *stream, struct xstream_id from,
                        struct xstream_id until, uint64_t most, bool backwards) {
    struct xstream_walk walk;
    struct xstream_entry entry;
    uint64_t count = 0, counted = UINT64_MAX;
    xstream_walk_begin(stream, from, until, backwards, &walk);
    /* Between two slices what is replied is sent: the number of entries must be known before. */
    bool in_slices = client->server->exclusive.inside;
    size_t mark = 0;
    if (!in_slices)
        mark = reply_array_deferred(client);
    else if (!count_range(client, walk, most, &counted))
        return false;
    else
        reply_array(client, counted);
    while (count < most && count < counted && xstream_walk_next(&walk, &entry)) {
        reply_stream_entry(client, &entry);
        if (++count % EXCLUSIVE_PARTS_TO_REST == 0 && !exclusive_goes_on(client)) return false;
    }
    if (!in_slices) reply_set_array_length(client, mark, count);
    return true;
}

/* ---- what is recorded -------------------------------------------------------------------------------------------- */

struct resp_argument stream_word(const char *text) {
    return (struct resp_argument){.data = (uint8_t *)(uintptr_t)text, .length = strlen(text)};
}

static struct resp_argument stream_name_word(const struct xstream_name *name) {
    return (struct resp_argument){.data = (uint8_t *)(uintptr_t)name->bytes, .length = name->length};
}

static void record(struct client *client, const struct resp_argument *words, size_t count) {
    propagate_instead(client, (uint32_t)count, words);
}
#define RECORD(client, words) record(client, words, sizeof(words) / sizeof *(words))

void stream_record_pending(struct client *client, const struct resp_argument *key, const struct xstream_group *group,
                           struct xstream_id id, const struct xstream_pending *pending) {
    char text[XSTREAM_ID_TEXT], last[XSTREAM_ID_TEXT], time[NUMBER_INT64_TEXT], count[NUMBER_INT64_TEXT];
    xstream_id_format(id, text);
    xstream_id_format(group->last_id, last);
    snprintf(time, sizeof time, "%" PRId64, pending->delivered_ms);
    snprintf(count, sizeof count, "%" PRIu64, pending->deliveries);
    const struct resp_argument words[] = {
        stream_word("XCLAIM"),
        *key,
        stream_name_word(&group->name),
        stream_name_word(&pending->consumer->name),
        stream_word("0"),
        stream_word(text),
        stream_word("TIME"),
        stream_word(time),
        stream_word("RETRYCOUNT"),
        stream_word(count),
        stream_word("FORCE"),
        stream_word("JUSTID"),
        stream_word("LASTID"),
        stream_word(last),
    };
    RECORD(client, words);
}

void stream_record_group(struct client *client, const struct resp_argument *key, const struct xstream_group *group) {
    char last[XSTREAM_ID_TEXT], read[NUMBER_INT64_TEXT];
    xstream_id_format(group->last_id, last);
    snprintf(read, sizeof read, "%" PRId64, group->entries_read);
    const struct resp_argument words[] = {
        stream_word("XGROUP"),      stream_word("SETID"), *key, stream_name_word(&group->name), stream_word(last),
        stream_word("ENTRIESREAD"), stream_word(read),
    };
    RECORD(client, words);
}

void stream_record_consumer(struct client *client, const struct resp_argument *key, const struct xstream_group *group,
                            const struct xstream_consumer *consumer) {
    const struct resp_argument words[] = {stream_word("XGROUP"), stream_word("CREATECONSUMER"), *key,
                                          stream_name_word(&group->name), stream_name_word(&consumer->name)};
    RECORD(client, words);
}
