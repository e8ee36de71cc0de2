/* cmd_bitfield: BITFIELD: integers of 1 to 64 bits at any bit of a string. Order of checks and error texts follow Redis
 * 7.0's bitops.c. */

#include "base/memory.h"
#include "server/redis/keys/cmd_bits.h"
#include "server/redis/keys/keyspace.h"

enum overflow { OVERFLOW_WRAP, OVERFLOW_SATURATE, OVERFLOW_FAIL };
enum field_action { FIELD_GET, FIELD_SET, FIELD_INCREMENT };

struct field_operation {
    uint64_t offset; /* in bits */
    int64_t operand;
    enum field_action action;
    enum overflow overflow;
    uint8_t width;
    bool is_signed;
};

struct field_operations {
    struct field_operation *items;
    size_t count;
    uint64_t end; /* bits that the string must have for what is written */
    bool writes;
};

/* ---- parsing ----------------------------------------------------------------------------------------------------- */

static bool type_argument(struct client *client, uint32_t index, struct field_operation *operation) {
    const struct resp_argument *argument = &client->argv[index];
    int64_t width;
    bool valid = argument->length > 1 && (argument->data[0] == 'i' || argument->data[0] == 'u') &&
                 number_parse_int64(argument->data + 1, argument->length - 1, &width) && width >= 1;
    if (valid) {
        operation->is_signed = argument->data[0] == 'i';
        valid = width <= (operation->is_signed ? 64 : 63);
    }
    if (valid)
        operation->width = (uint8_t)width;
    else
        reply_error(client, "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but "
                            "i64 is.");
    return valid;
}

static bool overflow_argument(struct client *client, uint32_t index, enum overflow *overflow) {
    const struct resp_argument *word = &client->argv[index];
    if (argument_is(word, "wrap"))
        *overflow = OVERFLOW_WRAP;
    else if (argument_is(word, "sat"))
        *overflow = OVERFLOW_SATURATE;
    else if (argument_is(word, "fail"))
        *overflow = OVERFLOW_FAIL;
    else {
        reply_error(client, "ERR Invalid OVERFLOW type specified");
        return false;
    }
    return true;
}

/* Reads the operation at argument *at and steps behind it; false: the error is replied. */
static bool operation_parse(struct client *client, uint32_t *at, struct field_operation *operation) {
    const struct resp_argument *word = &client->argv[*at];
    uint32_t behind = client->argc - *at - 1;
    if (behind >= 2 && argument_is(word, "get")) {
        operation->action = FIELD_GET;
    } else if (behind >= 3 && argument_is(word, "set")) {
        operation->action = FIELD_SET;
    } else if (behind >= 3 && argument_is(word, "incrby")) {
        operation->action = FIELD_INCREMENT;
    } else {
        reply_syntax_error(client);
        return false;
    }
    if (!type_argument(client, *at + 1, operation)) return false;
    if (!bit_offset_argument(client, *at + 2, operation->width, &operation->offset)) return false;
    operation->operand = 0;
    bool writes = operation->action != FIELD_GET;
    if (writes && !integer_argument(client, *at + 3, &operation->operand)) return false;
    *at += writes ? 4 : 3;
    return true;
}

/* Reads all operations; false: the error is replied. */
static bool operations_parse(struct client *client, struct field_operations *operations) {
    enum overflow overflow = OVERFLOW_WRAP;
    for (uint32_t at = 2; at < client->argc;) {
        if (argument_is(&client->argv[at], "overflow") && at + 1 < client->argc) {
            if (!overflow_argument(client, at + 1, &overflow)) return false;
            at += 2;
            continue;
        }
        struct field_operation *operation = &operations->items[operations->count];
        if (!operation_parse(client, &at, operation)) return false;
        operation->overflow = overflow;
        operations->count++;
        if (operation->action == FIELD_GET) continue;
        operations->writes = true;
        uint64_t end = operation->offset + operation->width;
        if (end > operations->end) operations->end = end;
    }
    return true;
}

/* ---- numbers in bits --------------------------------------------------------------------------------------------- */

static uint64_t width_mask(unsigned width) {
    return width == 64 ? UINT64_MAX : (UINT64_C(1) << width) - 1;
}

/* The unsigned number at this bit; behind the end there are zeros. */
static uint64_t field_read(const uint8_t *bytes, size_t length, uint64_t offset, unsigned width) {
    unsigned before = offset & 7, span = (before + width + 7) / 8;
    size_t at = (size_t)(offset >> 3);
    unsigned __int128 window = 0; /* of up to nine bytes */
    for (unsigned i = 0; i < span; i++) window = window << 8 | (at + i < length ? bytes[at + i] : 0);
    return (uint64_t)(window >> (span * 8 - before - width)) & width_mask(width);
}

static void field_write(uint8_t *bytes, uint64_t offset, unsigned width, uint64_t number) {
    unsigned before = offset & 7, span = (before + width + 7) / 8, behind = span * 8 - before - width;
    uint8_t *at = bytes + (offset >> 3);
    unsigned __int128 mask = (unsigned __int128)width_mask(width) << behind;
    unsigned __int128 window = (unsigned __int128)(number & width_mask(width)) << behind;
    for (unsigned i = 0; i < span; i++) {
        unsigned shift = (span - 1 - i) * 8;
        at[i] = (uint8_t)((at[i] & ~(uint8_t)(mask >> shift)) | (uint8_t)(window >> shift));
    }
}

/* The bits as the number that they mean. */
static int64_t field_number(const struct field_operation *operation, uint64_t bits) {
    if (!operation->is_signed || operation->width == 64 || !(bits >> (operation->width - 1))) return (int64_t)bits;
    return (int64_t)(bits | ~width_mask(operation->width));
}

/* What is stored for `number`, an int64 or the sum of two; false: it does not fit, and the operation fails. A SET of an
 * unsigned field takes its operand for an unsigned number, as Redis does. */
static bool field_fit(const struct field_operation *operation, __int128 number, uint64_t *bits) {
    __int128 least = operation->is_signed ? -((__int128)1 << (operation->width - 1)) : 0;
    __int128 most =
        operation->is_signed ? ((__int128)1 << (operation->width - 1)) - 1 : ((__int128)1 << operation->width) - 1;
    bool fits = number >= least && number <= most;
    if (!fits && operation->overflow == OVERFLOW_FAIL) return false;
    /* So far below that the distance is no int64: Redis takes that of an operand for above. */
    bool far_below =
        operation->action == FIELD_SET && operation->is_signed && operation->width < 64 && most - number > INT64_MAX;
    if (!fits && operation->overflow == OVERFLOW_SATURATE) number = number < least && !far_below ? least : most;
    *bits = (uint64_t)number & width_mask(operation->width);
    return true;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* Changes the field, and replies what it was (SET) or is (INCRBY). False: it is as it was. */
static bool field_change(struct client *client, const struct field_operation *operation, uint8_t *bytes,
                         size_t length) {
    uint64_t old = field_read(bytes, length, operation->offset, operation->width), bits;
    int64_t before = field_number(operation, old);
    bool increments = operation->action == FIELD_INCREMENT;
    __int128 number = operation->operand;
    if (increments)
        number += before;
    else if (!operation->is_signed)
        number = (uint64_t)operation->operand;
    if (!field_fit(operation, number, &bits)) {
        reply_null(client);
        return false;
    }
    field_write(bytes, operation->offset, operation->width, bits);
    reply_integer(client, increments ? field_number(operation, bits) : before);
    return bits != old;
}

static void run_operations(struct client *client, struct dict_entry *entry, const struct field_operations *operations) {
    struct string_view view = {.length = 0};
    if (entry) string_view(store_value(entry), &view);
    uint8_t *bytes = NULL;
    size_t length = view.length;
    bool changed = false;
    if (operations->writes) {
        size_t needed = (size_t)((operations->end + 7) / 8);
        bytes = keyspace_reserve(client, 1, entry, needed);
        if (!bytes) return;
        changed = needed > length;
        if (changed) length = needed;
    }
    reply_array(client, operations->count);
    for (size_t i = 0; i < operations->count; i++) {
        const struct field_operation *operation = &operations->items[i];
        if (operation->action == FIELD_GET)
            reply_integer(client, field_number(operation, field_read(bytes ? bytes : view.data, length,
                                                                     operation->offset, operation->width)));
        else
            changed |= field_change(client, operation, bytes, length);
    }
    if (changed && entry) keyspace_changed(client, entry);
}

static void bitfield(struct client *client, bool reads_only) {
    struct field_operations operations = {.items = memory_alloc((client->argc / 3 + 1) * sizeof *operations.items)};
    if (!operations.items) {
        reply_out_of_memory(client);
        return;
    }
    if (!operations_parse(client, &operations)) {
    } else if (reads_only && operations.writes) {
        reply_error(client, "ERR BITFIELD_RO only supports the GET subcommand");
    } else {
        struct dict_entry *entry = operations.writes ? keyspace_find_write(client, 1) : keyspace_find_read(client, 1);
        if (keyspace_type_is(client, entry, VALUE_STRING)) run_operations(client, entry, &operations);
    }
    memory_free(operations.items);
}

void bitfield_command(struct client *client) {
    bitfield(client, false);
}

void bitfield_ro_command(struct client *client) {
    bitfield(client, true);
}
