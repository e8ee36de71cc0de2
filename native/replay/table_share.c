/* table_share: tables that share the steps of another one, their owner.
 *
 * Streams and the store of steps are the owner's; a table that shares them has items of its own. Why neither touches what
 * the other shows:
 *   - A step stays while a stream keeps it or an item of any of these tables shows it: all of them count in the same
 *     references (slot_store.h), and an item that leaves drops its own.
 *   - The owner's memory goes with the last of those that share: until then table_free only marks it.
 *   - There is room for the steps of all, since no table is let in whose items could show more than the store holds. A
 *     dropped one counts until it is freed.
 * A snapshot cuts all tables at one moment. Its owner's cut has the steps, and each table's items name them by slot.
 * Records (table_journal.h) need no such order: each table tells a step with the first of its own items that shows it,
 * whatever the others have told, so a shared step may be told once for each table. Whoever applies them has the slot
 * once. It is used for another step only after the items that showed the former have left, and of these the records were
 * written when they left, in whichever table. The items of a dropped table let go later than its record says. So where
 * records are applied, a slot may be used for another step while they still refer to it. Only a snapshot still reads
 * their steps, and its cut hands out what the slot had (slot_cut_before_rewrite). */
#include "replay/table_state.h"

#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "replay/spec_signature.h"

struct table *table_owner_of_steps(struct table *table) {
    return table->owner ? table->owner : table;
}

/* Whether items of both can see the same steps in the same way. */
static bool same_steps(const struct table_config *left, const struct table_config *right) {
    struct msgpack_writer a = {0}, b = {0};
    spec_write_signature(&a, left);
    spec_write_signature(&b, right);
    bool same = !a.failed && !b.failed && a.length == b.length && memcmp(a.data, b.data, a.length) == 0;
    memory_free(a.data);
    memory_free(b.data);
    return same && left->codec == right->codec;
}

/* Where records are applied, what is dropped does not count: the table that they tell of was let in when it was gone. */
static int check_room(const struct table *table, const struct table *owner, struct error *error) {
    uint64_t none = table_step_slots(&owner->config, 0), each = table_step_slots(&owner->config, 1) - none;
    uint64_t room = owner->own_steps.slots > none ? (owner->own_steps.slots - none) / each : 0;
    uint64_t slots = (uint64_t)owner->items.slots + owner->sharing_slots + table->items.slots;
    uint64_t leaving = owner->own_steps.takes_by_number ? 0 : owner->leaving_slots;
    const char *name = owner->config.name;
    if (slots > room)
        return error_set(error, ERROR_BADSCHEMA,
                         "steps_of: table '%s' has room for the steps of %" PRIu64
                         " slots of items, its own among them, and with this table there would be %" PRIu64
                         "; each table has its capacity and %u slots more, so lower a capacity, share with fewer "
                         "tables, or have the largest table own the steps",
                         name, room, slots, TABLE_SPARE_SLOTS + TABLE_HELD_SLOTS);
    if (slots + leaving > room)
        return error_set(error, ERROR_LIMIT,
                         "steps_of: a dropped table still holds steps of table '%s', for a reply or a snapshot; create "
                         "this table again once that has ended",
                         name);
    return 0;
}

static int check(const struct table *table, const struct table *owner, struct error *error) {
    const struct table_config *config = &table->config, *other = &owner->config;
    if (*other->steps_of)
        return error_set(error, ERROR_BADSCHEMA,
                         "steps_of: expected a table with steps of its own, got '%s', which shares those of '%s'; name "
                         "that one",
                         other->name, other->steps_of);
    if (!same_steps(config, other))
        return error_set(error, ERROR_BADSCHEMA,
                         "steps_of: expected the signature and the compression of table '%s', got others; a table that "
                         "shares steps has the same columns",
                         other->name);
    if (other->storage != STORAGE_MEMORY)
        return error_set(error, ERROR_BADSCHEMA,
                         "steps_of: expected a table whose storage is memory, got '%s', which lies on disk",
                         other->name);
    if (config->durable != other->durable)
        return error_set(error, ERROR_BADSCHEMA,
                         "steps_of: expected durable as table '%s' has it, %s, got %s; the append-only file has both "
                         "tables or neither",
                         other->name, other->durable ? "true" : "false", config->durable ? "true" : "false");
    return check_room(table, owner, error);
}

int table_share_steps(struct table *table, struct table *owner, struct error *error) {
    assert(*table->config.steps_of && !table->owner && table->items.occupied == 0);
    if (check(table, owner, error)) return -1;
    table->owner = owner;
    table->steps = table->items.seen = &owner->own_steps;
    owner->sharers++;
    owner->sharing_slots += table->items.slots;
    return 0;
}

bool table_let_go_some(struct table *table, uint32_t most) {
    const struct slot_store *items = &table->items;
    if (!table->owner || table->lacks_references) return false;
    for (uint32_t done = 0; done < most && table->let_go < items->fresh; done += 1 + items->list_length) {
        uint32_t slot = table->let_go++;
        if (slot_is_occupied(items, slot)) slot_store_drop_list(items, slot_list(items, slot));
    }
    return table->let_go < items->fresh;
}

void table_share_leave(struct table *table) {
    if (!table->owner || table->leaves) return;
    table->leaves = true;
    table->owner->sharing_slots -= table->items.slots;
    table->owner->leaving_slots += table->items.slots;
}

void table_share_end(struct table *table) {
    struct table *owner = table->owner;
    if (!owner) return;
    while (table_let_go_some(table, UINT32_MAX)) continue;
    *(table->leaves ? &owner->leaving_slots : &owner->sharing_slots) -= table->items.slots;
    if (--owner->sharers == 0 && owner->freed) table_free(owner);
}
