/* t_zset: sorted sets, packed while small, as a dict and an index otherwise. */
#include "store/t_zset.h"

#include <assert.h>
#include <string.h>

#include "base/memory.h"

#define PACKED_HEADER 2  /* length, and form of the score */
#define PACKED_FRAME 3   /* the same and the size behind */
#define PACKED_STEP 16   /* what the buffer grows by, at least */
#define MEMORY_SAMPLES 64
#define ORDER_REST 256   /* members between two rests of zset_order */

_Static_assert(PACKED_FRAME + sizeof(double) + ZSET_PACKED_BYTES <= UINT8_MAX, "sizes are bytes");
_Static_assert((PACKED_FRAME + sizeof(double) + ZSET_PACKED_BYTES) * ZSET_PACKED_MEMBERS <= UINT16_MAX / 4 * 3,
               "offsets are 16 bits, also with room to grow");
_Static_assert(sizeof(double) == sizeof(void *), "an entry's value holds a score");

static bool is_packed(const struct zset *zset) {
    return zset->head.encoding == ENCODING_PACKED;
}

struct zset *zset_new(void) {
    struct zset *zset = memory_calloc(1, sizeof *zset);
    if (zset) zset->head = (struct value){.type = VALUE_SORTED_SET, .encoding = ENCODING_PACKED};
    return zset;
}

uint64_t zset_count(const struct zset *zset) {
    return is_packed(zset) ? zset->count : dict_count(&zset->large->members);
}

/* ---- the packed form --------------------------------------------------------------------------------------------- */

/* Most scores are small whole numbers: they take a byte, or two, or four. Short fractions are kept as floats where those
 * hold them exactly. −0 becomes 0, as in Redis's small sets. */
enum score_form { SCORE_INT8 = 1, SCORE_INT16 = 2, SCORE_INT32 = 4, SCORE_FLOAT = 5, SCORE_DOUBLE = 8 };

static enum score_form score_form(double score) {
    if (!(score >= INT32_MIN && score <= INT32_MAX)) return SCORE_DOUBLE;
    int32_t whole = (int32_t)score;
    if (whole != score) return (double)(float)score == score ? SCORE_FLOAT : SCORE_DOUBLE;
    return whole == (int8_t)whole ? SCORE_INT8 : whole == (int16_t)whole ? SCORE_INT16 : SCORE_INT32;
}

static uint32_t form_width(uint32_t form) {
    return form == SCORE_FLOAT ? sizeof(float) : form;
}

static void score_write(uint8_t *out, enum score_form form, double score) {
    int32_t whole = form == SCORE_FLOAT || form == SCORE_DOUBLE ? 0 : (int32_t)score;
    int16_t half = (int16_t)whole;
    float single = form == SCORE_FLOAT ? (float)score : 0;
    switch (form) {
    case SCORE_INT8: *out = (uint8_t)(int8_t)whole; break;
    case SCORE_INT16: memcpy(out, &half, sizeof half); break;
    case SCORE_INT32: memcpy(out, &whole, sizeof whole); break;
    case SCORE_FLOAT: memcpy(out, &single, sizeof single); break;
    case SCORE_DOUBLE: memcpy(out, &score, sizeof score); break;
    }
}

static double score_read(const uint8_t *record) {
    int16_t half;
    int32_t whole;
    float single;
    double score;
    switch ((enum score_form)record[1]) {
    case SCORE_INT8: return (int8_t)record[PACKED_HEADER];
    case SCORE_INT16: memcpy(&half, record + PACKED_HEADER, sizeof half); return half;
    case SCORE_INT32: memcpy(&whole, record + PACKED_HEADER, sizeof whole); return whole;
    case SCORE_FLOAT: memcpy(&single, record + PACKED_HEADER, sizeof single); return single;
    default: memcpy(&score, record + PACKED_HEADER, sizeof score); return score;
    }
}

static uint32_t record_size(const uint8_t *record) {
    return PACKED_FRAME + (uint32_t)record[0] + form_width(record[1]);
}

static const uint8_t *record_member(const uint8_t *record) {
    return record + PACKED_HEADER + form_width(record[1]);
}

static bool record_is_before(const uint8_t *record, const struct zset_bound *bound) {
    return zset_is_before(bound, score_read(record), record_member(record), record[0]);
}

static bool packed_find(const struct zset *zset, const uint8_t *member, size_t length, struct zset_place *place) {
    for (uint32_t offset = 0; offset < zset->used;) {
        const uint8_t *record = zset->packed + offset;
        if (record[0] == length && memcmp(record_member(record), member, length) == 0) {
            *place = (struct zset_place){.found = true, .score = score_read(record), .offset = offset};
            return true;
        }
        offset += record_size(record);
    }
    *place = (struct zset_place){0};
    return false;
}

static bool packed_reserve(struct zset *zset, uint32_t bytes) {
    if (bytes <= zset->capacity) return true;
    uint32_t step = bytes / 8 > PACKED_STEP ? bytes / 8 : PACKED_STEP;
    uint32_t capacity = (bytes + step - 1) / PACKED_STEP * PACKED_STEP + 8; /* fills what the allocator gives */
    uint8_t *grown = memory_realloc(zset->packed, capacity);
    if (!grown) return false;
    zset->packed = grown;
    zset->capacity = (uint16_t)capacity;
    return true;
}

static void packed_cut(struct zset *zset, uint32_t offset, uint32_t bytes, uint32_t members) {
    memmove(zset->packed + offset, zset->packed + offset + bytes, zset->used - offset - bytes);
    zset->used = (uint16_t)(zset->used - bytes);
    zset->count = (uint16_t)(zset->count - members);
}

/* Puts a member that is not there in its place; the buffer has room. */
static void packed_insert(struct zset *zset, const uint8_t *member, size_t length, double score) {
    struct zset_bound bound = {.kind = ZSET_BOUND_ITEM, .score = score, .member = member, .length = length};
    uint32_t offset = 0;
    while (offset < zset->used && record_is_before(zset->packed + offset, &bound))
        offset += record_size(zset->packed + offset);
    enum score_form form = score_form(score);
    uint32_t width = form_width(form), size = PACKED_FRAME + width + (uint32_t)length;
    uint8_t *record = zset->packed + offset;
    memmove(record + size, record, zset->used - offset);
    record[0] = (uint8_t)length;
    record[1] = (uint8_t)form;
    score_write(record + PACKED_HEADER, form, score);
    if (length > 0) memcpy(record + PACKED_HEADER + width, member, length);
    record[size - 1] = (uint8_t)size;
    zset->used = (uint16_t)(zset->used + size);
    zset->count++;
}

static bool packed_put(struct zset *zset, const struct zset_place *place, const uint8_t *member, size_t length,
                       double score) {
    uint32_t old_size = place->found ? record_size(zset->packed + place->offset) : 0;
    uint32_t size = PACKED_FRAME + form_width(score_form(score)) + (uint32_t)length;
    if (!packed_reserve(zset, zset->used + size - old_size)) return false;
    if (place->found) packed_cut(zset, place->offset, old_size, 1);
    packed_insert(zset, member, length, score);
    return true;
}

/* ---- the large form ---------------------------------------------------------------------------------------------- */

static void entry_set_score(struct dict_entry *entry, double score) {
    union {
        double score;
        void *value;
    } slot = {.score = score};
    entry->value = slot.value;
}

static bool large_release(struct zset_large *large, size_t *steps) {
    if (!zset_index_release(&large->order, steps)) return false;
    if (!dict_release(&large->members, steps, NULL, NULL)) return false;
    memory_free(large);
    return true;
}

static bool large_add(struct zset_large *large, uint32_t hash, const uint8_t *member, size_t length, double score) {
    struct dict_entry *entry = dict_add(&large->members, hash, member, length);
    if (!entry) return false;
    entry_set_score(entry, score);
    if (zset_index_insert(&large->order, score, entry)) return true;
    dict_unlink(&large->members, entry);
    dict_entry_free(entry);
    return false;
}

static struct zset_large *large_of(const struct zset *zset) {
    struct zset_large *large = memory_alloc(sizeof *large);
    if (!large) return NULL;
    dict_init(&large->members);
    zset_index_init(&large->order);
    struct zset_position position = {0};
    struct zset_item item;
    while (zset_next(zset, &position, &item)) {
        if (large_add(large, dict_hash(item.member, item.length), item.member, item.length, item.score)) continue;
        size_t steps = SIZE_MAX;
        large_release(large, &steps);
        return NULL;
    }
    return large;
}

static bool unpack(struct zset *zset) {
    struct zset_large *large = large_of(zset);
    if (!large) return false;
    memory_free(zset->packed);
    zset->large = large;
    zset->used = zset->capacity = zset->count = 0;
    zset->head.encoding = ENCODING_DICT;
    return true;
}

bool zset_pack(struct zset *zset) {
    struct zset packed = {.head = {.encoding = ENCODING_PACKED}};
    struct zset_position position = {0};
    struct zset_item item;
    uint32_t bytes = 0;
    if (is_packed(zset) || zset_count(zset) > ZSET_PACKED_MEMBERS) return true;
    while (zset_next(zset, &position, &item)) {
        if (item.length > ZSET_PACKED_BYTES) return true;
        bytes += PACKED_FRAME + form_width(score_form(item.score)) + (uint32_t)item.length;
    }
    if (!packed_reserve(&packed, bytes)) return false;
    position = (struct zset_position){0};
    while (zset_next(zset, &position, &item)) packed_insert(&packed, item.member, item.length, item.score);
    size_t steps = SIZE_MAX;
    large_release(zset->large, &steps);
    zset->packed = packed.packed;
    zset->used = packed.used;
    zset->capacity = packed.capacity;
    zset->count = packed.count;
    zset->head.encoding = ENCODING_PACKED;
    return true;
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

bool zset_find(struct zset *zset, const uint8_t *member, size_t length, struct zset_place *place) {
    if (is_packed(zset)) return packed_find(zset, member, length, place);
    uint32_t hash = dict_hash(member, length);
    struct dict_entry *entry = dict_find(&zset->large->members, hash, member, length);
    *place = (struct zset_place){.found = entry, .hash = hash, .entry = entry};
    if (entry) place->score = zset_entry_score(entry);
    return entry;
}

bool zset_put(struct zset *zset, const struct zset_place *place, const uint8_t *member, size_t length, double score) {
    if (is_packed(zset)) {
        bool fits = length <= ZSET_PACKED_BYTES && (place->found || zset->count < ZSET_PACKED_MEMBERS);
        if (fits) return packed_put(zset, place, member, length, score);
        assert(!place->found);
        return unpack(zset) && large_add(zset->large, dict_hash(member, length), member, length, score);
    }
    if (!place->found) return large_add(zset->large, place->hash, member, length, score);
    if (!zset_index_move(&zset->large->order, place->score, score, place->entry)) return false;
    entry_set_score(place->entry, score);
    return true;
}

static void large_drop(struct zset_large *large, struct dict_entry *entry) {
    dict_unlink(&large->members, entry);
    dict_entry_free(entry);
}

void zset_take(struct zset *zset, const struct zset_place *place) {
    if (is_packed(zset)) {
        packed_cut(zset, place->offset, record_size(zset->packed + place->offset), 1);
        return;
    }
    zset_index_remove(&zset->large->order, place->score, place->entry);
    large_drop(zset->large, place->entry);
}

void zset_remove_range(struct zset *zset, uint64_t rank, uint64_t count) {
    uint64_t all = zset_count(zset);
    if (rank >= all) return;
    if (count > all - rank) count = all - rank;
    if (is_packed(zset)) {
        struct zset_position from, to;
        zset_seek(zset, rank, &from);
        zset_seek(zset, rank + count, &to);
        packed_cut(zset, from.at, to.at - from.at, (uint32_t)count);
        return;
    }
    while (count > 0) {
        struct dict_entry *entries[ZSET_LEAF_SLOTS];
        uint32_t cut = zset_index_cut(&zset->large->order, rank, count, entries);
        for (uint32_t i = 0; i < cut; i++) large_drop(zset->large, entries[i]);
        count -= cut;
    }
}

uint64_t zset_rank(const struct zset *zset, const struct zset_place *place, const uint8_t *member, size_t length) {
    if (!is_packed(zset)) {
        struct zset_bound bound = {.kind = ZSET_BOUND_ITEM, .score = place->score, .member = member, .length = length};
        return zset_index_rank(&zset->large->order, &bound);
    }
    uint64_t rank = 0;
    for (uint32_t offset = 0; offset < place->offset; rank++) offset += record_size(zset->packed + offset);
    return rank;
}

/* How many members in a row are before the bound, from the one at `offset` on, which moves behind them. */
static uint64_t packed_run(const struct zset *zset, const struct zset_bound *bound, uint32_t *offset) {
    uint64_t count = 0;
    for (; *offset < zset->used && record_is_before(zset->packed + *offset, bound); count++)
        *offset += record_size(zset->packed + *offset);
    return count;
}

/* How many members in a row are not before the bound, seen from `offset` backwards, which moves before them. */
static uint64_t packed_run_back(const struct zset *zset, const struct zset_bound *bound, uint32_t *offset) {
    uint64_t count = 0;
    for (; *offset > 0; count++) {
        uint32_t start = *offset - zset->packed[*offset - 1];
        if (record_is_before(zset->packed + start, bound)) break;
        *offset = start;
    }
    return count;
}

void zset_range(const struct zset *zset, const struct zset_bound *least, const struct zset_bound *greatest,
                bool backwards, uint64_t *first, uint64_t *last) {
    if (!is_packed(zset)) {
        *first = zset_index_rank(&zset->large->order, least);
        *last = zset_index_rank(&zset->large->order, greatest);
    } else if (backwards) {
        uint32_t offset = zset->used;
        *last = zset->count - packed_run_back(zset, greatest, &offset);
        *first = *last - packed_run_back(zset, least, &offset);
    } else {
        uint32_t offset = 0;
        *first = packed_run(zset, least, &offset);
        *last = *first + packed_run(zset, greatest, &offset);
    }
    if (*last < *first) *last = *first;
}

void zset_seek(const struct zset *zset, uint64_t rank, struct zset_position *position) {
    *position = (struct zset_position){0};
    if (!is_packed(zset)) {
        position->leaf = zset_index_at(&zset->large->order, rank, &position->at);
        return;
    }
    if (rank >= zset->count) {
        position->at = zset->used;
        return;
    }
    for (; rank > 0; rank--) position->at += record_size(zset->packed + position->at);
}

static void record_view(const uint8_t *record, struct zset_item *item) {
    *item = (struct zset_item){score_read(record), record_member(record), record[0]};
}

static void slot_view(const struct zset_slot *slot, struct zset_item *item) {
    *item = (struct zset_item){slot->score, slot->entry->key, slot->entry->key_length};
}

bool zset_next(const struct zset *zset, struct zset_position *position, struct zset_item *item) {
    if (is_packed(zset)) {
        if (position->at >= zset->used) return false;
        record_view(zset->packed + position->at, item);
        position->at += record_size(zset->packed + position->at);
        return true;
    }
    if (!position->leaf) position->leaf = zset->large->order.first;
    if (!position->leaf) return false;
    if (position->at == position->leaf->head.count) {
        if (!position->leaf->next) return false;
        *position = (struct zset_position){position->leaf->next, 0};
    }
    slot_view(&position->leaf->slots[position->at++], item);
    return true;
}

bool zset_previous(const struct zset *zset, struct zset_position *position, struct zset_item *item) {
    if (is_packed(zset)) {
        if (position->at == 0) return false;
        position->at -= zset->packed[position->at - 1];
        record_view(zset->packed + position->at, item);
        return true;
    }
    if (!position->leaf) return false;
    if (position->at == 0) {
        if (!position->leaf->previous) return false;
        *position = (struct zset_position){position->leaf->previous, position->leaf->previous->head.count};
    }
    slot_view(&position->leaf->slots[--position->at], item);
    return true;
}

/* ---- filled first, put in order later ---------------------------------------------------------------------------- */

struct zset *zset_new_unordered(void) {
    struct zset *zset = zset_new();
    if (!zset || unpack(zset)) return zset;
    memory_free(zset);
    return NULL;
}

bool zset_note(struct zset *zset, const struct zset_place *place, const uint8_t *member, size_t length, double score) {
    struct dict_entry *entry =
        place->found ? place->entry : dict_add(&zset->large->members, place->hash, member, length);
    if (entry) entry_set_score(entry, score);
    return entry;
}

bool zset_order(struct zset *zset, void (*rest)(void *context), void *context) {
    struct zset_large *large = zset->large;
    uint64_t count = dict_count(&large->members), filled = 0;
    struct zset_slot *slots = memory_alloc((count + 1) * sizeof *slots);
    if (!slots) return false;
    struct dict_position position = {0};
    for (struct dict_entry *entry; (entry = dict_next(&large->members, &position)); filled++) {
        slots[filled] = (struct zset_slot){zset_entry_score(entry), entry};
        if (filled % ORDER_REST == 0 && rest) rest(context);
    }
    bool ordered = zset_sort(slots, count, rest, context);
    for (uint64_t i = 0; ordered && i < count; i++) {
        ordered = zset_index_insert(&large->order, slots[i].score, slots[i].entry);
        if (i % ORDER_REST == 0 && rest) rest(context);
    }
    memory_free(slots);
    return ordered;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

struct zset *zset_copy(const struct zset *zset) {
    struct zset *copy = zset_new();
    if (!copy) return NULL;
    bool copied;
    if (is_packed(zset)) {
        copied = packed_reserve(copy, zset->used);
        if (copied && zset->used > 0) memcpy(copy->packed, zset->packed, zset->used);
        copy->used = zset->used;
        copy->count = zset->count;
    } else {
        struct zset_large *large = large_of(zset);
        copied = large;
        copy->large = large;
        if (copied) copy->head.encoding = ENCODING_DICT;
    }
    if (copied) return copy;
    memory_free(copy);
    return NULL;
}

size_t zset_free_effort(const struct zset *zset) {
    return is_packed(zset) ? 1 : zset_count(zset);
}

bool zset_release(struct zset *zset, size_t *steps) {
    if (is_packed(zset))
        memory_free(zset->packed);
    else if (!large_release(zset->large, steps))
        return false;
    memory_free(zset);
    return true;
}

size_t zset_memory_bytes(const struct zset *zset) {
    if (is_packed(zset)) return sizeof *zset + zset->capacity;
    const struct zset_large *large = zset->large;
    struct zset_position position = {0};
    struct zset_item item;
    size_t bytes = 0, samples = 0;
    while (samples < MEMORY_SAMPLES && zset_next(zset, &position, &item)) {
        bytes += sizeof(struct dict_entry) + item.length;
        samples++;
    }
    double mean = samples > 0 ? (double)bytes / (double)samples : 0;
    return sizeof *zset + sizeof *large + dict_overhead_bytes(&large->members) + zset_index_bytes(&large->order) +
           (size_t)(mean * (double)zset_count(zset));
}
