/* cmd_bits: strings as arrays of bits, the highest of each byte first: GETBIT, SETBIT, BITCOUNT, BITPOS, BITOP. Order of
 * checks and error texts follow Redis 7.0's bitops.c. */
#include <string.h>

#include "base/memory.h"
#include "base/words.h"
#include "server/core/command_table.h"
#include "server/core/exclusive_execution.h"
#include "server/redis/keys/cmd_bits.h"
#include "server/redis/keys/keyspace.h"
#include "server/redis/pubsub/notify.h"
#include "server/redis/redis_rows.h"

bool bit_offset_argument(struct client *client, uint32_t index, uint64_t width, uint64_t *offset) {
    const struct resp_argument *argument = &client->argv[index];
    bool counted = width > 0 && argument->length > 0 && argument->data[0] == '#';
    int64_t number;
    bool valid = number_parse_int64(argument->data + counted, argument->length - counted, &number) && number >= 0;
    if (valid && counted) valid = !__builtin_mul_overflow(number, (int64_t)width, &number);
    if (valid && number >> 3 < client->server->config.max_bulk_bytes) {
        *offset = (uint64_t)number;
        return true;
    }
    reply_error(client, "ERR bit offset is not an integer or out of range");
    return false;
}

/* The key's bytes to be read; false: an error is replied. No key is an empty string. */
static bool view_of(struct client *client, const struct dict_entry *entry, struct string_view *view) {
    if (!keyspace_type_is(client, entry, VALUE_STRING)) return false;
    view->length = 0;
    if (entry) string_view(store_value(entry), view);
    return true;
}

static bool bit_at(const struct string_view *view, uint64_t offset) {
    uint64_t byte = offset >> 3;
    return byte < view->length && view->data[byte] >> (7 - (offset & 7)) & 1;
}

/* ---- one bit ----------------------------------------------------------------------------------------------------- */

static void getbit_command(struct client *client) {
    uint64_t offset;
    struct string_view view;
    if (!bit_offset_argument(client, 2, 0, &offset)) return;
    if (view_of(client, keyspace_find_read(client, 1), &view)) reply_integer(client, bit_at(&view, offset));
}

static void set_bit(struct client *client, struct dict_entry *entry, uint64_t offset, bool bit) {
    struct string_view view;
    if (!view_of(client, entry, &view)) return;
    size_t byte = (size_t)(offset >> 3);
    bool old = bit_at(&view, offset);
    if (!entry || byte >= view.length || old != bit) {
        uint8_t *bytes = keyspace_writable(client, 1, entry, byte + 1);
        if (!bytes) return;
        uint8_t mask = (uint8_t)(0x80 >> (offset & 7));
        bytes[byte] = (uint8_t)(bit ? bytes[byte] | mask : bytes[byte] & ~mask);
    }
    reply_integer(client, old);
}

static void set_bit_in_slices(struct client *client) {
    uint64_t offset;
    if (bit_offset_argument(client, 2, 0, &offset))
        set_bit(client, keyspace_find(client, 1), offset, argument_is(&client->argv[3], "1"));
}

static void setbit_command(struct client *client) {
    uint64_t offset;
    int64_t bit;
    if (!bit_offset_argument(client, 2, 0, &offset)) return;
    if (!number_parse_int64(client->argv[3].data, client->argv[3].length, &bit) || bit < 0 || bit > 1) {
        reply_error(client, "ERR bit is not an integer or out of range");
        return;
    }
    struct dict_entry *entry = keyspace_find_write(client, 1);
    if (!keyspace_type_is(client, entry, VALUE_STRING)) return;
    if (keyspace_writes_much(entry, (size_t)(offset >> 3) + 1, 0))
        exclusive_run_change(client, set_bit_in_slices);
    else
        set_bit(client, entry, offset, bit == 1);
}

/* ---- ranges of bits ---------------------------------------------------------------------------------------------- */

/* The byte without its bits before `first` and behind `last`, both counted from its highest. */
static uint8_t masked(uint8_t byte, uint64_t first, uint64_t last) {
    return (uint8_t)(byte & 0xff >> first & 0xff << (7 - last));
}

/* Bits that are set among first .. last. */
static uint64_t count_bits(const uint8_t *bytes, uint64_t first, uint64_t last) {
    uint64_t at = first >> 3, end = last >> 3, count;
    if (at == end) return (uint64_t)__builtin_popcount(masked(bytes[at], first & 7, last & 7));
    count = (uint64_t)__builtin_popcount(masked(bytes[at], first & 7, 7));
    count += (uint64_t)__builtin_popcount(masked(bytes[end], 0, last & 7));
    for (at++; at + 8 <= end; at += 8) count += (uint64_t)__builtin_popcountll(load_u64(bytes + at));
    for (; at < end; at++) count += (uint64_t)__builtin_popcount(bytes[at]);
    return count;
}

/* The first of first .. last that is set, or clear; last + 1: none. */
static uint64_t find_bit(const uint8_t *bytes, bool set, uint64_t first, uint64_t last) {
    uint64_t at = first >> 3, end = last >> 3;
    const uint8_t flip = set ? 0 : 0xff; /* a clear bit is sought as a set one of what is flipped */
    uint8_t found = masked((uint8_t)(bytes[at] ^ flip), first & 7, 7);
    if (found == 0) {
        const uint64_t same = set ? 0 : UINT64_MAX;
        for (at++; at + 8 <= end && load_u64(bytes + at) == same; at += 8) continue;
        while (at <= end && (found = (uint8_t)(bytes[at] ^ flip)) == 0) at++;
    }
    if (found == 0) return last + 1;
    uint64_t bit = at * 8 + (uint64_t)__builtin_clz(found) - 24;
    return bit <= last ? bit : last + 1;
}

/* BYTE or BIT; false: the error is replied. */
static bool unit_argument(struct client *client, uint32_t index, bool *is_bit) {
    *is_bit = argument_is(&client->argv[index], "bit");
    if (*is_bit || argument_is(&client->argv[index], "byte")) return true;
    reply_syntax_error(client);
    return false;
}

/* Turns bounds in bytes or bits, which may count from the end, into first .. last in bits; false: it is empty. */
static bool clamp_bits(size_t length, bool is_bit, int64_t start, int64_t end, uint64_t *first, uint64_t *last) {
    int64_t total = (int64_t)length * (is_bit ? 8 : 1);
    if (start < 0) start += total;
    if (end < 0) end += total;
    if (start < 0) start = 0;
    if (end < 0) end = 0;
    if (end >= total) end = total - 1;
    if (start > end) return false;
    *first = (uint64_t)start * (is_bit ? 1 : 8);
    *last = is_bit ? (uint64_t)end : (uint64_t)end * 8 + 7;
    return true;
}

static void bitcount_command(struct client *client) {
    struct dict_entry *entry = keyspace_find_read(client, 1);
    struct string_view view;
    if (!view_of(client, entry, &view)) return;
    int64_t start = 0, end = -1;
    bool is_bit = false;
    if (!entry) {
        reply_integer(client, 0); /* Redis does not look at the range of nothing */
        return;
    }
    if (client->argc == 3 || client->argc > 5) {
        reply_syntax_error(client);
        return;
    }
    if (client->argc > 3) {
        if (!integer_argument(client, 2, &start) || !integer_argument(client, 3, &end)) return;
        if (start < 0 && end < 0 && start > end) {
            reply_integer(client, 0); /* whatever the unit is */
            return;
        }
        if (client->argc == 5 && !unit_argument(client, 4, &is_bit)) return;
    }
    uint64_t first, last;
    bool empty = !clamp_bits(view.length, is_bit, start, end, &first, &last);
    reply_integer(client, empty ? 0 : (int64_t)count_bits(view.data, first, last));
}

static void bitpos_command(struct client *client) {
    int64_t bit, start = 0, end = -1;
    if (!integer_argument(client, 2, &bit)) return;
    if (bit != 0 && bit != 1) {
        reply_error(client, "ERR The bit argument must be 1 or 0.");
        return;
    }
    struct dict_entry *entry = keyspace_find_read(client, 1);
    struct string_view view;
    bool is_bit = false, has_end = client->argc > 4;
    if (!view_of(client, entry, &view)) return;
    if (!entry) {
        reply_integer(client, bit ? -1 : 0);
        return;
    }
    if (client->argc > 6) {
        reply_syntax_error(client);
        return;
    }
    if (client->argc > 3 && !integer_argument(client, 3, &start)) return;
    if (client->argc == 6 && !unit_argument(client, 5, &is_bit)) return;
    if (has_end && !integer_argument(client, 4, &end)) return;
    uint64_t first, last;
    if (!clamp_bits(view.length, is_bit, start, end, &first, &last)) {
        reply_integer(client, -1);
        return;
    }
    uint64_t found = find_bit(view.data, bit == 1, first, last);
    /* Behind a string whose end was not given there are clear bits without end. */
    bool none = found > last && (bit == 1 || has_end);
    reply_integer(client, none ? -1 : (int64_t)found);
}

/* ---- BITOP ------------------------------------------------------------------------------------------------------- */

enum bit_operation { BITS_AND, BITS_OR, BITS_XOR, BITS_NOT, BITS_UNKNOWN };

static enum bit_operation operation_of(const struct resp_argument *word) {
    return argument_is(word, "and")   ? BITS_AND
           : argument_is(word, "or")  ? BITS_OR
           : argument_is(word, "xor") ? BITS_XOR
           : argument_is(word, "not") ? BITS_NOT
                                      : BITS_UNKNOWN;
}

/* out[0 .. length) with more bytes; loops that a compiler makes vectors of. */
static void combine(enum bit_operation operation, uint8_t *restrict out, const uint8_t *restrict bytes, size_t length) {
    switch (operation) {
    case BITS_AND:
        for (size_t i = 0; i < length; i++) out[i] &= bytes[i];
        break;
    case BITS_OR:
        for (size_t i = 0; i < length; i++) out[i] |= bytes[i];
        break;
    default:
        for (size_t i = 0; i < length; i++) out[i] ^= bytes[i];
        break;
    }
}

/* The result over `count` strings, the shorter ones followed by zeros, in out[0 .. length). */
static void combine_all(enum bit_operation operation, const struct string_view *views, size_t count, uint8_t *out,
                        size_t length) {
    if (views[0].length > 0) memcpy(out, views[0].data, views[0].length);
    memset(out + views[0].length, 0, length - views[0].length);
    if (operation == BITS_NOT)
        for (size_t i = 0; i < length; i++) out[i] = (uint8_t)~out[i];
    for (size_t v = 1; v < count; v++) {
        combine(operation, out, views[v].data, views[v].length);
        if (operation == BITS_AND) memset(out + views[v].length, 0, length - views[v].length);
    }
}

/* A string of `length` bytes. NULL: memory is exhausted. */
static struct value *combined(enum bit_operation operation, const struct string_view *views, size_t count,
                              size_t length) {
    if (length >= STRING_BLOB_BYTES) {
        struct value *value = NULL;
        uint8_t *out = string_writable(&value, length);
        if (out) combine_all(operation, views, count, out, length);
        return value;
    }
    uint8_t out[STRING_BLOB_BYTES];
    combine_all(operation, views, count, out, length);
    return string_new(out, length, NULL);
}

/* The sources; false: an error is replied. */
static bool view_sources(struct client *client, struct string_view *views, size_t *longest) {
    *longest = 0;
    for (uint32_t i = 3; i < client->argc; i++) {
        struct string_view *view = &views[i - 3];
        if (!view_of(client, keyspace_find_read(client, i), view)) return false;
        if (view->length > *longest) *longest = view->length;
    }
    return true;
}

static void store_combined(struct client *client, enum bit_operation operation, const struct string_view *views,
                           size_t length) {
    if (length == 0) {
        struct dict_entry *old = keyspace_find(client, 2);
        if (old) keyspace_remove(client, old);
    } else if (!keyspace_put(client, 2, combined(operation, views, client->argc - 3, length), false)) {
        return;
    }
    reply_integer(client, (int64_t)length);
}

static void bitop_command(struct client *client) {
    enum bit_operation operation = operation_of(&client->argv[1]);
    if (operation == BITS_UNKNOWN) {
        reply_syntax_error(client);
        return;
    }
    if (operation == BITS_NOT && client->argc != 4) {
        reply_error(client, "ERR BITOP NOT must be called with a single source key.");
        return;
    }
    size_t longest;
    struct string_view *views = memory_alloc((client->argc - 3) * sizeof *views);
    if (!views)
        reply_out_of_memory(client);
    else if (view_sources(client, views, &longest))
        store_combined(client, operation, views, longest);
    memory_free(views);
}

/* BITFIELD that only reads needs no right to write. Whatever is malformed is taken for a write, as in Redis. */
static int bitfield_keys(uint32_t argc, const struct resp_argument *argv, struct key_place *places, int max) {
    uint32_t access = KEY_READ;
    for (uint32_t i = 2; i < argc;) {
        bool gets = argument_is(&argv[i], "get") && argc - i > 2;
        bool says = argument_is(&argv[i], "overflow") && argc - i > 1;
        if (!gets && !says) access = KEY_READ | KEY_WRITE;
        i += gets ? 3 : says ? 2 : argc;
    }
    if (max > 0) places[0] = (struct key_place){1, access, NULL};
    return 1;
}

#define WRITE (COMMAND_WRITE | COMMAND_DENYOOM)
#define READ COMMAND_READONLY

const struct command commands_bits[] = {
    {"bitcount", bitcount_command, -2, READ, &group_bitmap, "Counts the bits that are set in a string.", "2.6.0",
     .keys = key_read},
    {"bitfield", bitfield_command, -2, WRITE, &group_bitmap, "Reads and changes integers of any width in a string.",
     "3.2.0", .keys = key_used_as_asked, .find_keys = bitfield_keys, .event = KEY_EVENT(STRING, "setbit", IN_PLACE)},
    {"bitfield_ro", bitfield_ro_command, -2, READ | COMMAND_FAST, &group_bitmap,
     "Reads integers of any width in a string.", "6.0.0", .keys = key_read},
    {"bitop", bitop_command, -4, WRITE, &group_bitmap, "Combines strings bit by bit, and stores the result.", "2.6.0",
     .keys = second_key_set_from_keys, .event = KEY_EVENT(STRING, "set", STORES)},
    {"bitpos", bitpos_command, -3, READ, &group_bitmap, "Finds the first bit that is set, or clear, in a string.",
     "2.8.7", .keys = key_read},
    {"getbit", getbit_command, 3, READ | COMMAND_FAST, &group_bitmap, "Returns a bit of a string.", "2.2.0",
     .keys = key_read},
    {"setbit", setbit_command, 4, WRITE, &group_bitmap,
     "Sets or clears a bit of a string. Creates the key if it doesn't exist.", "2.2.0", .keys = key_changed,
     .event = KEY_EVENT(STRING, "setbit", IN_PLACE)},
    {0},
};
