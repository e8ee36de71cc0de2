/* cmd_lcs: LCS: what two strings have in common, in order. Order of checks and error texts follow Redis 7.0's
 * t_string.c. */
#include <string.h>

#include "base/memory.h"
#include "server/core/command_table.h"
#include "server/core/exclusive_execution.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/redis_rows.h"

#define CELLS_TO_REST 16384
#define CELLS_AT_ONCE 262144 /* a larger table is filled in slices */

struct lcs_options {
    bool wants_length, wants_ranges, with_lengths;
    int64_t least; /* length of a range that is replied */
};

/* One of the two strings between `first` and behind, and a cell each of the table of lengths. */
struct lcs {
    struct string_view a, b;
    uint32_t *lengths; /* [a + 1][b + 1]: of what the first so many bytes have in common */
    struct client *client;
    struct server *server; /* which is there when the client has gone */
    size_t filled;         /* cells since the last rest */
};

static bool lcs_options_parse(struct client *client, struct lcs_options *options) {
    *options = (struct lcs_options){.least = 0};
    for (uint32_t i = 3; i < client->argc; i++) {
        const struct resp_argument *word = &client->argv[i];
        if (argument_is(word, "idx")) {
            options->wants_ranges = true;
        } else if (argument_is(word, "len")) {
            options->wants_length = true;
        } else if (argument_is(word, "withmatchlen")) {
            options->with_lengths = true;
        } else if (argument_is(word, "minmatchlen") && i + 1 < client->argc) {
            if (!integer_argument(client, ++i, &options->least)) return false;
        } else {
            reply_syntax_error(client);
            return false;
        }
    }
    if (options->wants_ranges && options->wants_length) {
        reply_error(client, "ERR If you want both the length and indexes, please just use IDX.");
        return false;
    }
    return true;
}

/* The two strings, empty where there is no key; false: an error is replied. */
static bool view_strings(struct client *client, struct lcs *lcs) {
    struct string_view *views[] = {&lcs->a, &lcs->b};
    bool strings = true;
    for (uint32_t i = 0; i < 2; i++) {
        const struct dict_entry *entry = keyspace_find_read(client, i + 1);
        views[i]->length = 0;
        if (entry && store_value(entry)->type == VALUE_STRING)
            string_view(store_value(entry), views[i]);
        else
            strings = strings && !entry;
    }
    if (!strings) reply_error(client, "ERR The specified keys must contain string values");
    return strings;
}

static uint32_t *cell(const struct lcs *lcs, size_t a, size_t b) {
    return &lcs->lengths[a * (lcs->b.length + 1) + b];
}

static void fill_cells(uint8_t byte, const struct string_view *b, const uint32_t *above, uint32_t *row, size_t from,
                       size_t to) {
    for (size_t i = from; i < to; i++)
        if (byte == b->data[i - 1])
            row[i] = above[i - 1] + 1;
        else
            row[i] = above[i] > row[i - 1] ? above[i] : row[i - 1];
}

/* A row of the table from the one before it. */
static void fill_row(struct lcs *lcs, uint8_t byte, const uint32_t *above, uint32_t *row) {
    row[0] = 0;
    for (size_t i = 1; i <= lcs->b.length;) {
        size_t left = lcs->b.length + 1 - i, count = left < CELLS_TO_REST ? left : CELLS_TO_REST;
        fill_cells(byte, &lcs->b, above, row, i, i + count);
        i += count;
        lcs->filled += count;
        if (lcs->filled < CELLS_TO_REST) continue;
        lcs->filled = 0;
        exclusive_rest(lcs->server);
    }
}

/* How long it is, for which two rows do. False: memory is exhausted. */
static bool lcs_length(struct lcs *lcs, uint32_t *length) {
    size_t row_length = lcs->b.length + 1;
    uint32_t *rows = memory_calloc(2 * row_length, sizeof *rows);
    if (!rows) return false;
    for (size_t i = 0; i < lcs->a.length && !exclusive_is_lost(lcs->client); i++)
        fill_row(lcs, lcs->a.data[i], rows + (i & 1) * row_length, rows + (~i & 1) * row_length);
    *length = rows[(lcs->a.length & 1) * row_length + lcs->b.length];
    memory_free(rows);
    return true;
}

/* Bytes of the whole table, which is made for a part of it alone too; it may be as large as a string. */
static bool table_bytes(const struct lcs *lcs, size_t *bytes) {
    return !__builtin_mul_overflow(lcs->a.length + 1, lcs->b.length + 1, bytes) &&
           !__builtin_mul_overflow(*bytes, sizeof *lcs->lengths, bytes) &&
           *bytes <= (uint64_t)lcs->server->config.max_bulk_bytes;
}

static bool fill_table(struct lcs *lcs, size_t bytes) {
    lcs->lengths = memory_alloc(bytes);
    if (!lcs->lengths) return false;
    memset(lcs->lengths, 0, (lcs->b.length + 1) * sizeof *lcs->lengths);
    for (size_t i = 0; i < lcs->a.length && !exclusive_is_lost(lcs->client); i++)
        fill_row(lcs, lcs->a.data[i], cell(lcs, i, 0), cell(lcs, i + 1, 0));
    return true;
}

/* Bytes that follow each other in both strings: of each from `a` and `b` on. */
struct lcs_range {
    size_t a, b, length;
};

/* Walks the table from its end: gives the range that ends before *a and *b, and steps before it. False: none is left. */
static bool range_before(const struct lcs *lcs, size_t *a, size_t *b, struct lcs_range *range) {
    range->length = 0;
    while (*a > 0 && *b > 0) {
        if (lcs->a.data[*a - 1] == lcs->b.data[*b - 1]) {
            (*a)--;
            (*b)--;
            *range = (struct lcs_range){*a, *b, range->length + 1};
        } else if (range->length > 0) {
            return true;
        } else if (*cell(lcs, *a - 1, *b) > *cell(lcs, *a, *b - 1)) {
            (*a)--;
        } else {
            (*b)--;
        }
    }
    return range->length > 0;
}

static void reply_pair(struct client *client, size_t first, size_t length) {
    reply_array(client, 2);
    reply_integer(client, (int64_t)first);
    reply_integer(client, (int64_t)(first + length - 1));
}

static void reply_ranges(struct client *client, const struct lcs *lcs, const struct lcs_options *options) {
    size_t a = lcs->a.length, b = lcs->b.length, count = 0;
    uint32_t length = *cell(lcs, a, b);
    reply_map(client, 2);
    reply_bulk_string(client, "matches");
    size_t mark = reply_array_deferred(client);
    struct lcs_range range;
    while (range_before(lcs, &a, &b, &range)) {
        if (options->least > 0 && range.length < (uint64_t)options->least) continue;
        reply_array(client, options->with_lengths ? 3 : 2);
        reply_pair(client, range.a, range.length);
        reply_pair(client, range.b, range.length);
        if (options->with_lengths) reply_integer(client, (int64_t)range.length);
        count++;
    }
    reply_set_array_length(client, mark, count);
    reply_bulk_string(client, "len");
    reply_integer(client, length);
}

/* Its bytes, put together from the end. */
static void reply_bytes(struct client *client, const struct lcs *lcs) {
    size_t a = lcs->a.length, b = lcs->b.length, left = *cell(lcs, a, b), length = left;
    uint8_t *bytes = memory_alloc(length > 0 ? length : 1);
    if (!bytes) {
        reply_out_of_memory(client);
        return;
    }
    struct lcs_range range;
    while (range_before(lcs, &a, &b, &range)) {
        left -= range.length;
        memcpy(bytes + left, lcs->a.data + range.a, range.length);
    }
    reply_bulk(client, bytes, length);
    memory_free(bytes);
}

/* What the client has asked for; nothing where it is lost meanwhile. */
static void reply_common(struct client *client, struct lcs *lcs, const struct lcs_options *options, size_t bytes) {
    uint32_t length = 0;
    bool filled = options->wants_length ? lcs_length(lcs, &length) : fill_table(lcs, bytes);
    if (exclusive_is_lost(client)) {
    } else if (!filled) {
        reply_error(client, "ERR Insufficient memory, failed allocating transient memory for LCS");
    } else if (options->wants_length) {
        reply_integer(client, length);
    } else if (options->wants_ranges) {
        reply_ranges(client, lcs, options);
    } else {
        reply_bytes(client, lcs);
    }
    memory_free(lcs->lengths);
}

/* Within the slices: the arguments are good, and the strings stay what they are. */
static void lcs_in_slices(struct client *client) {
    struct lcs lcs = {.client = client, .server = client->server};
    struct lcs_options options;
    size_t bytes;
    if (view_strings(client, &lcs) && lcs_options_parse(client, &options) && table_bytes(&lcs, &bytes))
        reply_common(client, &lcs, &options, bytes);
}

static void lcs_command(struct client *client) {
    struct lcs lcs = {.client = client, .server = client->server};
    struct lcs_options options;
    size_t bytes;
    if (!view_strings(client, &lcs) || !lcs_options_parse(client, &options)) return;
    if (!table_bytes(&lcs, &bytes))
        reply_error(client, "ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len");
    else if (bytes > CELLS_AT_ONCE * sizeof *lcs.lengths && !client->server->exclusive.inside)
        exclusive_run_command(client, lcs_in_slices);
    else
        reply_common(client, &lcs, &options, bytes);
}

const struct command commands_lcs[] = {
    {"lcs", lcs_command, -3, COMMAND_READONLY, &group_string, "Finds what two strings have in common, in order.",
     "7.0.0", .keys = two_keys_read},
    {0},
};
