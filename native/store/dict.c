/* dict: a chained hash table with incremental rehash and scan cursors that survive it. */
#include "store/dict.h"

#include <assert.h>
#include <string.h>

#include "base/memory.h"
#include "base/siphash.h"

#define DICT_SMALLEST 4
#define DICT_SHRINK_FACTOR 8        /* shrink when fewer than one bucket in eight is used */
#define DICT_EMPTY_VISITS 10        /* empty buckets passed over for each bucket that a rehash step may move */
#define BUCKET_BYTES (sizeof(struct dict_entry *) + 1) /* a chain and its length */
#define DICT_LARGEST (1ull << 32)   /* entries keep 32 bits of their hash */

static uint64_t hash_key[2];

void dict_seed(uint64_t first, uint64_t second) {
    hash_key[0] = first;
    hash_key[1] = second;
}

void dict_init(struct dict *dict) {
    memset(dict, 0, sizeof *dict);
}

uint32_t dict_hash(const void *key, size_t length) {
    return (uint32_t)siphash(key, length, hash_key);
}

static uint64_t size_for(uint64_t entries) {
    uint64_t size = DICT_SMALLEST;
    while (size < entries && size < DICT_LARGEST) size *= 2;
    return size;
}

/* Begins a move to `size` buckets. Failure is no harm: the old table goes on with longer chains. */
static bool resize(struct dict *dict, uint64_t size) {
    struct dict_entry **buckets = memory_calloc(size, BUCKET_BYTES);
    if (!buckets) return false;
    unsigned into = dict->tables[0].size == 0 ? 0 : 1;
    dict->tables[into] = (struct dict_table){.buckets = buckets, .lengths = (uint8_t *)(buckets + size), .size = size};
    dict->rehash_index = 0;
    return true;
}

static void finish_rehash(struct dict *dict) {
    memory_free(dict->tables[0].buckets);
    dict->tables[0] = dict->tables[1];
    memset(&dict->tables[1], 0, sizeof dict->tables[1]);
    dict->rehash_index = 0;
}

/* A length of 255 stands for more, too: those that a keyed hash does not make. */
static void count_chain(struct dict_table *table, uint64_t bucket) {
    uint8_t length = 0;
    for (const struct dict_entry *link = table->buckets[bucket]; link && length < UINT8_MAX; link = link->next)
        length++;
    table->lengths[bucket] = length;
}

static void link_entry(struct dict_table *table, struct dict_entry *entry) {
    uint64_t bucket = entry->hash & (table->size - 1);
    entry->next = table->buckets[bucket];
    table->buckets[bucket] = entry;
    table->used++;
    if (table->lengths[bucket] < UINT8_MAX) table->lengths[bucket]++;
    if (table->lengths[bucket] > table->longest) table->longest = table->lengths[bucket];
}

static void move_bucket(struct dict *dict) {
    struct dict_table *from = &dict->tables[0], *to = &dict->tables[1];
    struct dict_entry *entry = from->buckets[dict->rehash_index], *next;
    for (; entry; entry = next) {
        next = entry->next;
        link_entry(to, entry);
        from->used--;
    }
    from->lengths[dict->rehash_index] = 0;
    from->buckets[dict->rehash_index++] = NULL;
}

bool dict_rehash(struct dict *dict, unsigned buckets) {
    if (!dict_is_rehashing(dict)) return false;
    uint64_t empty_visits = (uint64_t)buckets * DICT_EMPTY_VISITS;
    while (buckets > 0 && dict->tables[0].used > 0) {
        if (!dict->tables[0].buckets[dict->rehash_index]) {
            dict->rehash_index++;
            if (--empty_visits == 0) return true;
            continue;
        }
        move_bucket(dict);
        buckets--;
    }
    if (dict->tables[0].used > 0) return true;
    finish_rehash(dict);
    return false;
}

/* The entry of this key, in whichever of the tables it is. */
static inline struct dict_entry *find(const struct dict *dict, uint32_t hash, const void *key, size_t length) {
    for (unsigned t = 0; t < 2 && dict->tables[t].size > 0; t++) {
        const struct dict_table *table = &dict->tables[t];
        struct dict_entry *entry = table->buckets[hash & (table->size - 1)];
        for (; entry; entry = entry->next)
            if (entry->hash == hash && entry->key_length == length && memcmp(entry->key, key, length) == 0)
                return entry;
    }
    return NULL;
}

struct dict_entry *dict_find(struct dict *dict, uint32_t hash, const void *key, size_t length) {
    dict_rehash(dict, 1);
    return find(dict, hash, key, length);
}

const struct dict_entry *dict_peek(const struct dict *dict, uint32_t hash, const void *key, size_t length) {
    return find(dict, hash, key, length);
}

struct dict_entry *dict_find_hash(struct dict *dict, uint32_t hash) {
    for (unsigned t = 0; t < 2 && dict->tables[t].size > 0; t++) {
        struct dict_entry *entry = dict->tables[t].buckets[hash & (dict->tables[t].size - 1)];
        for (; entry; entry = entry->next)
            if (entry->hash == hash) return entry;
    }
    return NULL;
}

struct dict_entry *dict_add(struct dict *dict, uint32_t hash, const void *key, size_t length) {
    assert(length <= UINT32_MAX);
    dict_rehash(dict, 1);
    struct dict_table *table = &dict->tables[0];
    if (table->size == 0 && !resize(dict, DICT_SMALLEST)) return NULL;
    if (!dict_is_rehashing(dict) && table->used >= table->size && table->size < DICT_LARGEST)
        resize(dict, size_for(table->used + 1));
    if (dict_is_rehashing(dict)) table = &dict->tables[1];
    struct dict_entry *entry = memory_alloc(sizeof *entry + length);
    if (!entry) return NULL;
    *entry = (struct dict_entry){.hash = hash, .key_length = (uint32_t)length};
    memcpy(entry->key, key, length);
    link_entry(table, entry);
    return entry;
}

static void shrink_if_sparse(struct dict *dict) {
    struct dict_table *table = &dict->tables[0];
    if (!dict_is_rehashing(dict) && table->size > DICT_SMALLEST && table->used < table->size / DICT_SHRINK_FACTOR)
        resize(dict, size_for(table->used));
}

void dict_unlink(struct dict *dict, struct dict_entry *entry) {
    bool unlinked = false;
    for (unsigned t = 0; t < 2 && !unlinked && dict->tables[t].size > 0; t++) {
        struct dict_table *table = &dict->tables[t];
        uint64_t bucket = entry->hash & (table->size - 1);
        struct dict_entry **link = &table->buckets[bucket];
        while (*link && *link != entry) link = &(*link)->next;
        if (*link == entry) {
            *link = entry->next;
            entry->next = NULL;
            table->used--;
            if (table->lengths[bucket] < UINT8_MAX)
                table->lengths[bucket]--;
            else
                count_chain(table, bucket);
            unlinked = true;
        }
    }
    assert(unlinked);
    dict_rehash(dict, 1);
    shrink_if_sparse(dict);
}

void dict_entry_free(struct dict_entry *entry) {
    memory_free(entry);
}

/* A place is a bucket and a depth, less than the longest chain has. Places are drawn until there is an entry at one: each
 * entry has one place, so that all have the same chance, in each try and therefore in the end. With as many buckets as
 * entries a draw takes about as many tries as the longest chain has links: 6 for a thousand entries, 9 for a million.
 * Each try moves a dict that is sparse, or was, towards its size: the tries that this costs are paid for by what was taken
 * out before. */
struct dict_entry *dict_random(struct dict *dict, struct random_state *random) {
    if (dict_count(dict) == 0) return NULL;
    const struct dict_table *first = &dict->tables[0], *second = &dict->tables[1];
    for (;;) {
        dict_rehash(dict, 1);
        shrink_if_sparse(dict);
        uint64_t moved = dict_is_rehashing(dict) ? dict->rehash_index : 0, left = first->size - moved;
        uint64_t buckets = left + second->size, longest = first->longest;
        if (second->longest > longest) longest = second->longest;
        uint64_t place = random_below(random, buckets * longest);
        uint64_t bucket = place % buckets, depth = place / buckets;
        const struct dict_table *table = bucket < left ? first : second;
        bucket = bucket < left ? bucket + moved : bucket - left;
        if (depth >= table->lengths[bucket]) continue;
        struct dict_entry *entry = table->buckets[bucket];
        for (; depth > 0; depth--) entry = entry->next;
        return entry;
    }
}

static uint64_t reverse_bits(uint64_t word) {
    word = (word >> 1 & 0x5555555555555555u) | (word & 0x5555555555555555u) << 1;
    word = (word >> 2 & 0x3333333333333333u) | (word & 0x3333333333333333u) << 2;
    word = (word >> 4 & 0x0f0f0f0f0f0f0f0fu) | (word & 0x0f0f0f0f0f0f0f0fu) << 4;
    return __builtin_bswap64(word);
}

static void visit_bucket(const struct dict_table *table, uint64_t cursor, dict_visit visit, void *context) {
    struct dict_entry *entry = table->buckets[cursor & (table->size - 1)], *next;
    for (; entry; entry = next) {
        next = entry->next;
        visit(context, entry);
    }
}

/* Increments the cursor from its highest bit under `mask` downwards: buckets that a growing table splits one into, or
 * that a shrinking one joins, follow each other, so that what was visited stays visited. */
static uint64_t next_cursor(uint64_t cursor, uint64_t mask) {
    return reverse_bits(reverse_bits(cursor | ~mask) + 1);
}

uint64_t dict_scan(struct dict *dict, uint64_t cursor, dict_visit visit, void *context) {
    if (dict_count(dict) == 0) return 0;
    if (!dict_is_rehashing(dict)) {
        visit_bucket(&dict->tables[0], cursor, visit, context);
        return next_cursor(cursor, dict->tables[0].size - 1);
    }
    bool growing = dict->tables[0].size <= dict->tables[1].size;
    const struct dict_table *small = &dict->tables[growing ? 0 : 1], *large = &dict->tables[growing ? 1 : 0];
    uint64_t differing = (small->size - 1) ^ (large->size - 1);
    visit_bucket(small, cursor, visit, context);
    do {
        visit_bucket(large, cursor, visit, context);
        cursor = next_cursor(cursor, large->size - 1);
    } while (cursor & differing);
    return cursor;
}

struct dict_entry *dict_next(const struct dict *dict, struct dict_position *position) {
    struct dict_entry *entry = position->next;
    while (!entry) {
        if (position->table > 1) return NULL;
        const struct dict_table *table = &dict->tables[position->table];
        if (position->bucket >= table->size) {
            position->table++;
            position->bucket = 0;
            continue;
        }
        entry = table->buckets[position->bucket++];
    }
    position->next = entry->next;
    return entry;
}

bool dict_release(struct dict *dict, size_t *steps, dict_drop drop, void *context) {
    for (unsigned t = 0; t < 2; t++) {
        struct dict_table *table = &dict->tables[t];
        while (table->size > 0) {
            if (*steps == 0) return false;
            (*steps)--;
            struct dict_entry **bucket = &table->buckets[table->size - 1], *entry = *bucket;
            if (!entry) {
                table->size--;
                continue;
            }
            *bucket = entry->next;
            table->used--;
            if (drop) drop(context, entry->value);
            dict_entry_free(entry);
        }
        memory_free(table->buckets);
        table->buckets = NULL;
    }
    dict_init(dict);
    return true;
}

void dict_clear(struct dict *dict, dict_drop drop, void *context) {
    size_t steps = SIZE_MAX;
    dict_release(dict, &steps, drop, context);
}

size_t dict_overhead_bytes(const struct dict *dict) {
    return (dict->tables[0].size + dict->tables[1].size) * BUCKET_BYTES;
}
