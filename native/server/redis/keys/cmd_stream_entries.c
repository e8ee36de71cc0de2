/* cmd_stream_entries: commands on the entries of streams: XADD, XLEN, XRANGE, XREVRANGE, XDEL, XTRIM, XSETID. Order of
 * checks and error texts follow Redis 7.0. */
#include <inttypes.h>
#include <stdio.h>

#include "base/memory.h"
#include "server/core/exclusive_execution.h"
#include "server/core/propagate.h"
#include "server/redis/keys/cmd_stream.h"
#include "server/redis/pubsub/notify.h"
#include "server/redis/redis_rows.h"
#include "server/redis/redis_subsystem.h"

/* ---- options of XADD and XTRIM ----------------------------------------------------------------------------------- */

#define TRIM_LIMIT_MOST 1000000
#define TRIM_LIMIT_UNBOUNDED 10000 /* where blocks have no bound */

struct add_options {
    bool trims, makes_no_stream, limited;
    uint32_t threshold; /* the argument behind MAXLEN or MINID */
    int64_t limit;
    struct xstream_trim trim;
    bool has_id, has_sequence;
    struct xstream_id id;
};

static bool is_byte(const struct resp_argument *argument, char byte) {
    return argument->length == 1 && argument->data[0] == (uint8_t)byte;
}

static bool at_least_0(struct client *client, uint32_t index, const char *name, int64_t *value) {
    if (!integer_argument(client, index, value)) return false;
    if (*value < 0) reply_error(client, "ERR The %s argument must be >= 0.", name);
    return *value >= 0;
}

/* MAXLEN or MINID at *at, which moves to its threshold. */
static bool parse_threshold(struct client *client, uint32_t *at, bool by_id, struct add_options *options) {
    if (options->trims) {
        reply_error(client, "ERR syntax error, MAXLEN and MINID options at the same time are not compatible");
        return false;
    }
    options->trims = true;
    options->trim.by_id = by_id;
    if (client->argc - *at > 2) {
        options->trim.approximate = is_byte(&client->argv[*at + 1], '~');
        if (options->trim.approximate || is_byte(&client->argv[*at + 1], '=')) *at += 1;
    }
    options->threshold = *at += 1;
    if (by_id) return stream_id_argument(client, *at, 0, &options->trim.least);
    int64_t most;
    if (!at_least_0(client, *at, "MAXLEN", &most)) return false;
    options->trim.most = (uint64_t)most;
    return true;
}

/* The id of XADD: ms-* too. */
static bool parse_new_id(struct client *client, uint32_t index, struct add_options *options) {
    struct resp_argument word = client->argv[index];
    options->has_id = options->has_sequence = true;
    if (word.length > 2 && word.data[word.length - 1] == '*' && word.data[word.length - 2] == '-') {
        options->has_sequence = false;
        word.length -= 2;
        for (size_t i = 0; i < word.length; i++)
            if (word.data[i] == '-') word.length = 0; /* more than one dash: nothing that parses */
    }
    if (stream_id_parse(&word, 0, &options->id)) return true;
    reply_error(client, STREAM_INVALID_ID);
    return false;
}

static bool settle_limit(struct client *client, bool adds, struct add_options *options) {
    if (options->limit > 0 && !options->trims) {
        reply_error(client, "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy");
        return false;
    }
    if (!adds && !options->trims) {
        reply_error(client, "ERR syntax error, XTRIM must be called with a trimming strategy");
        return false;
    }
    if (client->server->loading) return true; /* what was removed is known: no limit */
    if (options->limited && !options->trim.approximate) {
        reply_error(client, "ERR syntax error, LIMIT cannot be used without the special ~ option");
        return false;
    }
    if (!options->limited && options->trim.approximate) {
        int64_t entries = client->server->config.stream_node_max_entries;
        options->limit = entries > TRIM_LIMIT_MOST / 100 ? TRIM_LIMIT_MOST : 100 * entries;
        if (options->limit == 0) options->limit = TRIM_LIMIT_UNBOUNDED;
    }
    options->trim.limit = (uint64_t)options->limit;
    return true;
}

/* Reads the words from argument 2 on, up to XADD's id, whose place it returns. 0: the error is replied. */
static uint32_t parse_options(struct client *client, bool adds, struct add_options *options) {
    uint32_t i = 2;
    for (; i < client->argc; i++) {
        const struct resp_argument *word = &client->argv[i];
        bool more = i + 1 < client->argc;
        if (adds && is_byte(word, '*')) break;
        if (more && (argument_is(word, "maxlen") || argument_is(word, "minid"))) {
            if (!parse_threshold(client, &i, argument_is(word, "minid"), options)) return 0;
        } else if (more && argument_is(word, "limit")) {
            if (!at_least_0(client, ++i, "LIMIT", &options->limit)) return 0;
            options->limited = true;
        } else if (adds && argument_is(word, "nomkstream")) {
            options->makes_no_stream = true;
        } else if (adds) {
            if (!parse_new_id(client, i, options)) return 0;
            break;
        } else {
            reply_syntax_error(client);
            return 0;
        }
    }
    return settle_limit(client, adds, options) ? i : 0;
}

/* ---- what is recorded -------------------------------------------------------------------------------------------- */

/* The command as it came, but with what it came to: how much was trimmed, which id was given (`id_index` 0: none was). */
static void record_exactly(struct client *client, const struct xstream *stream, const struct add_options *options,
                           uint32_t id_index, struct xstream_id id) {
    char id_text[XSTREAM_ID_TEXT], threshold[XSTREAM_ID_TEXT];
    bool approximate = options->trims && options->trim.approximate;
    const struct {
        uint32_t index;
        const char *text;
    } changes[] = {
        {id_index, id_text},
        {approximate ? options->threshold : 0, threshold},
        {approximate ? options->threshold - 1 : 0, "="},
    };
    struct resp_argument kept[3];
    xstream_id_format(id, id_text);
    if (options->trim.by_id) /* nothing is left: all of it has gone, the new entry too */
        xstream_id_format(stream->length > 0 ? stream->first_id : XSTREAM_ID_LAST, threshold);
    else
        snprintf(threshold, sizeof threshold, "%" PRIu64, stream->length);
    for (size_t i = 0; i < 3; i++) {
        kept[i] = client->argv[changes[i].index];
        if (changes[i].index > 0) client->argv[changes[i].index] = stream_word(changes[i].text);
    }
    propagate_instead(client, client->argc, client->argv);
    for (size_t i = 0; i < 3; i++) client->argv[changes[i].index] = kept[i];
}

/* ---- XADD -------------------------------------------------------------------------------------------------------- */

#define PAIRS_AT_HAND 32

/* The id of the new entry. False: there is none behind the last, or the one asked for is not. */
static bool choose_id(struct client *client, const struct xstream *stream, const struct add_options *options,
                      struct xstream_id *id) {
    *id = options->id;
    if (!options->has_id) {
        int64_t now_ms = stream_now_ms(client);
        *id = (struct xstream_id){now_ms > 0 ? (uint64_t)now_ms : 0, 0};
        if (id->ms > stream->last_id.ms) return true;
        *id = stream->last_id;
        return xstream_id_increment(id);
    }
    if (!options->has_sequence && id->ms == stream->last_id.ms) {
        if (stream->last_id.sequence == UINT64_MAX) return false;
        id->sequence = stream->last_id.sequence + 1;
    }
    return xstream_id_compare(*id, stream->last_id) > 0;
}

static bool append(struct client *client, struct xstream *stream, struct xstream_id id, uint32_t first) {
    const struct server_config *config = &client->server->config;
    const struct xstream_bounds bounds = {(uint64_t)config->stream_node_max_bytes,
                                          (uint64_t)config->stream_node_max_entries};
    uint32_t count = client->argc - first;
    struct xstream_string few[2 * PAIRS_AT_HAND], *strings = few;
    if (count > 2 * PAIRS_AT_HAND) strings = memory_alloc(count * sizeof *strings);
    if (!strings) return false;
    for (uint32_t i = 0; i < count; i++)
        strings[i] = (struct xstream_string){client->argv[first + i].data, client->argv[first + i].length};
    bool appended = xstream_append(stream, id, strings, count / 2, &bounds);
    if (strings != few) memory_free(strings);
    return appended;
}

/* Whether the entry may be added with this id; false: an error is replied. */
static bool may_add(struct client *client, const struct xstream *stream, const struct add_options *options,
                    uint32_t first, struct xstream_id *id) {
    if (xstream_id_compare(stream->last_id, XSTREAM_ID_LAST) == 0) {
        reply_error(client, "ERR The stream has exhausted the last possible ID, unable to add more items");
        return false;
    }
    if (!choose_id(client, stream, options, id)) {
        reply_error(client, "ERR The ID specified in XADD is equal or smaller than the target stream top item");
        return false;
    }
    size_t bytes = 0;
    for (uint32_t i = first; i < client->argc; i++) bytes += client->argv[i].length;
    if (bytes <= XSTREAM_ENTRY_MOST_BYTES) return true;
    reply_error(client, "ERR Elements are too large to be stored");
    return false;
}

/* Adds to the stream that is there, or to a new one. NULL: an error is replied. */
static struct xstream *add(struct client *client, struct dict_entry *entry, const struct add_options *options,
                           uint32_t first, struct xstream_id *id) {
    struct xstream *stream = entry ? xstream_of(store_value(entry)) : xstream_new();
    bool added = false;
    if (!stream || (may_add(client, stream, options, first, id) && !(added = append(client, stream, *id, first))))
        reply_out_of_memory(client);
    if (added && (entry || keyspace_put(client, 1, &stream->head, false))) return stream;
    if (!entry && stream && !added) value_free(&stream->head);
    return NULL;
}

static void xadd_command(struct client *client) {
    struct add_options options = {0};
    uint32_t id_index = parse_options(client, true, &options), first = id_index + 1;
    if (id_index == 0) return;
    if (client->argc < first + 2 || (client->argc - first) % 2 == 1) {
        reply_arity_error(client);
        return;
    }
    if (options.has_id && options.has_sequence && xstream_id_is_zero(options.id)) {
        reply_error(client, "ERR The ID specified in XADD must be greater than 0-0");
        return;
    }
    struct dict_entry *entry = keyspace_find_write(client, 1);
    if (!keyspace_type_is(client, entry, VALUE_STREAM)) return;
    if (!entry && options.makes_no_stream) {
        reply_null(client);
        return;
    }
    struct xstream_id id;
    struct xstream *stream = add(client, entry, &options, first, &id);
    if (!stream) return;
    reply_stream_id(client, id);
    if (options.trims && xstream_trim(stream, &options.trim) > 0) notify_also(client->server, "xtrim");
    if (entry) keyspace_changed(client, entry);
    record_exactly(client, stream, &options, id_index, id);
}

/* ---- XLEN, XRANGE ------------------------------------------------------------------------------------------------ */

static void xlen_command(struct client *client) {
    struct xstream *stream;
    if (stream_for_reading(client, 1, &stream)) reply_integer(client, stream ? (int64_t)stream->length : 0);
}

struct range {
    struct xstream_id from, until;
    int64_t count; /* -1: all */
};

static bool parse_range(struct client *client, bool backwards, struct range *range) {
    range->count = -1;
    if (!stream_bound_argument(client, backwards ? 3 : 2, false, &range->from) ||
        !stream_bound_argument(client, backwards ? 2 : 3, true, &range->until))
        return false;
    for (uint32_t i = 4; i < client->argc; i += 2) {
        if (i + 1 == client->argc || !argument_is(&client->argv[i], "count")) {
            reply_syntax_error(client);
            return false;
        }
        if (!integer_argument(client, i + 1, &range->count)) return false;
        if (range->count < 0) range->count = 0;
    }
    return true;
}

static void range_command(struct client *client, bool backwards, bool in_slices, void (*go_on)(struct client *client)) {
    struct range range;
    struct xstream *stream;
    if (!parse_range(client, backwards, &range) || !stream_for_reading(client, 1, &stream)) return;
    if (!stream) {
        reply_array(client, 0);
    } else if (range.count == 0) {
        reply_null_array(client);
    } else if (!in_slices && stream->length > EXCLUSIVE_PARTS_AT_ONCE &&
               (range.count < 0 || range.count > EXCLUSIVE_PARTS_AT_ONCE) && !client->server->exclusive.inside) {
        exclusive_run_command(client, go_on);
    } else {
        reply_stream_range(client, stream, range.from, range.until,
                           range.count < 0 ? UINT64_MAX : (uint64_t)range.count, backwards);
    }
}

static void xrange_in_slices(struct client *client) {
    range_command(client, false, true, NULL);
}

static void xrevrange_in_slices(struct client *client) {
    range_command(client, true, true, NULL);
}

static void xrange_command(struct client *client) {
    range_command(client, false, false, xrange_in_slices);
}

static void xrevrange_command(struct client *client) {
    range_command(client, true, false, xrevrange_in_slices);
}

/* ---- XDEL, XTRIM, XSETID ----------------------------------------------------------------------------------------- */

static void xdel_command(struct client *client) {
    struct dict_entry *entry = keyspace_find_write(client, 1);
    if (!keyspace_type_is(client, entry, VALUE_STREAM)) return;
    struct xstream_id id;
    if (!entry) {
        reply_integer(client, 0);
        return;
    }
    for (uint32_t i = 2; i < client->argc && exclusive_goes_on_at(client, i); i++)
        if (!stream_id_argument(client, i, 0, &id)) return;
    int64_t deleted = 0;
    for (uint32_t i = 2; i < client->argc && exclusive_goes_on_at(client, i); i++) {
        stream_id_parse(&client->argv[i], 0, &id);
        deleted += xstream_delete(xstream_of(store_value(entry)), id);
    }
    if (deleted > 0) keyspace_changed(client, entry);
    reply_integer(client, deleted);
}

static void xtrim_command(struct client *client) {
    struct add_options options = {0};
    if (parse_options(client, false, &options) == 0) return;
    struct dict_entry *entry = keyspace_find_write(client, 1);
    if (!keyspace_type_is(client, entry, VALUE_STREAM)) return;
    struct xstream *stream = entry ? xstream_of(store_value(entry)) : NULL;
    uint64_t removed = stream ? xstream_trim(stream, &options.trim) : 0;
    if (removed > 0) {
        keyspace_changed(client, entry);
        if (options.trim.approximate) record_exactly(client, stream, &options, 0, XSTREAM_ID_FIRST);
    }
    reply_integer(client, (int64_t)removed);
}

struct set_id {
    struct xstream_id id, max_deleted_id;
    int64_t entries_added; /* -1: as it is */
};

static bool parse_set_id(struct client *client, struct set_id *set) {
    *set = (struct set_id){.entries_added = -1};
    if (!stream_id_argument(client, 2, 0, &set->id)) return false;
    for (uint32_t i = 3; i < client->argc; i += 2) {
        const struct resp_argument *word = &client->argv[i];
        bool more = i + 1 < client->argc;
        if (more && argument_is(word, "entriesadded")) {
            if (!integer_argument(client, i + 1, &set->entries_added)) return false;
            if (set->entries_added < 0) {
                reply_error(client, "ERR entries_added must be positive");
                return false;
            }
        } else if (more && argument_is(word, "maxdeletedid")) {
            if (!stream_id_argument(client, i + 1, 0, &set->max_deleted_id)) return false;
            if (xstream_id_compare(set->id, set->max_deleted_id) < 0) {
                reply_error(client, "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id");
                return false;
            }
        } else {
            reply_syntax_error(client);
            return false;
        }
    }
    return true;
}

/* Why the stream may not be set to these; NULL: it may. */
static const char *why_not(const struct xstream *stream, const struct set_id *set) {
    if (stream->length > 0 && xstream_id_compare(set->id, xstream_edge(stream, true)) < 0)
        return "The ID specified in XSETID is smaller than the target stream top item";
    if (set->entries_added != -1 && stream->length > (uint64_t)set->entries_added)
        return "The entries_added specified in XSETID is smaller than the target stream length";
    if (xstream_id_compare(set->id, stream->max_deleted_id) < 0)
        return "The ID specified in XSETID is smaller than current max_deleted_entry_id";
    return NULL;
}

static void xsetid_command(struct client *client) {
    struct set_id set;
    if (!parse_set_id(client, &set)) return;
    struct dict_entry *entry = keyspace_find_write(client, 1);
    if (!entry) {
        reply_no_such_key(client);
        return;
    }
    if (!keyspace_type_is(client, entry, VALUE_STREAM)) return;
    struct xstream *stream = xstream_of(store_value(entry));
    const char *reason = why_not(stream, &set);
    if (reason) {
        reply_error(client, "ERR %s", reason);
        return;
    }
    stream->last_id = set.id;
    if (set.entries_added != -1) stream->entries_added = (uint64_t)set.entries_added;
    if (!xstream_id_is_zero(set.max_deleted_id)) stream->max_deleted_id = set.max_deleted_id;
    reply_status(client, "OK");
    stream_changed_aside(client, "xsetid", 1);
}

#define WRITE COMMAND_WRITE
#define READ COMMAND_READONLY
#define FAST COMMAND_FAST

const struct command commands_stream_entries[] = {
    {"xadd", xadd_command, -5, WRITE | COMMAND_DENYOOM | FAST, &group_stream,
     "Appends an entry to a stream. Creates the key if needed.", "5.0.0", .tips = "nondeterministic_output",
     .keys = key_updated, .event = KEY_EVENT(STREAM, "xadd", IN_PLACE)},
    {"xdel", xdel_command, -3, WRITE | FAST | COMMAND_RESTS, &group_stream, "Removes entries of a stream by their ids.",
     "5.0.0", .keys = key_removed_from, .event = KEY_EVENT(STREAM, "xdel", IN_PLACE)},
    {"xlen", xlen_command, 2, READ | FAST, &group_stream, "Returns the number of entries in a stream.", "5.0.0",
     .keys = key_known},
    {"xrange", xrange_command, -4, READ, &group_stream, "Returns the entries of a stream between two ids.", "5.0.0",
     .keys = key_read},
    {"xrevrange", xrevrange_command, -4, READ, &group_stream,
     "Returns the entries of a stream between two ids, the last first.", "5.0.0", .keys = key_read},
    {"xsetid", xsetid_command, -3, WRITE | COMMAND_DENYOOM | FAST, &group_stream,
     "Sets what a stream remembers of entries that are gone: its last id, how many were added.", "5.0.0",
     .keys = key_updated},
    {"xtrim", xtrim_command, -4, WRITE, &group_stream, "Removes entries from the front of a stream.", "5.0.0",
     .tips = "nondeterministic_output", .keys = key_removed_from, .event = KEY_EVENT(STREAM, "xtrim", IN_PLACE)},
    {0},
};
