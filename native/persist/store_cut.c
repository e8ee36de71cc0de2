/* store_cut: walks of databases, what is copied before it changes, what is copied later. */
#include "persist/store_cut.h"

#include <assert.h>
#include <string.h>

#include "base/memory.h"
#include "persist/snapshot_format.h"
#include "persist/store_piece.h"
#include "store/dict_walk.h"
#include "store/t_string.h"

#define RECORD_BYTES 65536u       /* pieces are gathered into records of about so much */
#define BLOB_PIECE_BYTES (256u << 10)
#define BUCKETS 16u               /* walked between two looks at the clock */

/* One database: where its keys are, and how far they are walked. */
struct walk {
    struct dict_walk walk;
    struct dict *dict;
    const struct expire_heap *expiry;
    unsigned origin;              /* its number at the cut */
};

struct flushed {
    struct walk walk;
    struct dict keys;
    struct expire_heap expiry;
};

/* A value of many parts that is being copied, or waits for its turn. */
struct large {
    struct large *next;
    const struct dict_entry *entry;
    const struct dict *dict;      /* that it is in */
    struct piece_walk walk;
    unsigned origin;
    bool expires;
    int64_t at_ms;
};

/* A string that is kept by reference. */
struct kept {
    struct kept *next;
    struct blob *blob;
    size_t length, done;
    uint32_t kind;                /* of record */
    unsigned origin;
    bool expires;
    int64_t at_ms;                /* of weights: their version */
    size_t key_length;
    uint8_t key[];
};

enum cut_state { CUT_IDLE, CUT_HANDING_OUT, CUT_CLEARING };

struct store_cut {
    struct store *store;
    struct store_cut_sink *sink;
    enum cut_state state;
    bool failed;
    struct walk walks[STORE_DATABASES]; /* by number now */
    struct flushed flushed[STORE_DATABASES];
    uint32_t flushed_count;
    uint64_t keys, passed;        /* at the cut; by the walk, those that came later included */
    struct large *large;
    struct kept *kept, **kept_end;
    struct piece_bytes bytes;     /* the record being gathered */
    unsigned bytes_origin;
};

struct store_cut *store_cut_new(struct store *store) {
    struct store_cut *cut = memory_calloc(1, sizeof *cut);
    if (cut) {
        cut->store = store;
        cut->kept_end = &cut->kept;
    }
    return cut;
}

/* ---- records ------------------------------------------------------------------------------------------------------- */

static void fail(struct store_cut *cut) {
    cut->failed = true;
    cut->state = CUT_CLEARING;
}

static void put_record(struct store_cut *cut, uint32_t kind, unsigned origin, const void *data, size_t length,
                       const void *more, size_t more_length) {
    uint8_t *body = cut->sink->record(cut->sink, kind, origin, length + more_length);
    if (!body) {
        fail(cut);
        return;
    }
    memcpy(body, data, length);
    if (more_length) memcpy(body + length, more, more_length);
}

static void put_gathered(struct store_cut *cut) {
    struct piece_bytes *bytes = &cut->bytes;
    if (bytes->failed)
        fail(cut);
    else if (bytes->length > 0 && cut->state == CUT_HANDING_OUT)
        put_record(cut, SNAPSHOT_RECORD_KEYS, cut->bytes_origin, bytes->data, bytes->length, NULL, 0);
    bytes->length = 0;
}

static struct piece_bytes *gather(struct store_cut *cut, unsigned origin) {
    if (cut->bytes.length > 0 && (cut->bytes_origin != origin || cut->bytes.length >= RECORD_BYTES)) put_gathered(cut);
    cut->bytes_origin = origin;
    return &cut->bytes;
}

/* ---- strings by reference ------------------------------------------------------------------------------------------ */

static bool keep(struct store_cut *cut, const struct kept *as, const void *key, struct blob *blob) {
    struct kept *kept = memory_alloc(sizeof *kept + as->key_length);
    if (!kept) return false;
    *kept = *as;
    kept->next = NULL;
    kept->blob = blob_retain(blob);
    kept->length = blob->length;
    kept->done = 0;
    memcpy(kept->key, key, as->key_length);
    *cut->kept_end = kept;
    cut->kept_end = &kept->next;
    return true;
}

static void drop_kept(struct store_cut *cut) {
    struct kept *kept = cut->kept;
    cut->kept = kept->next;
    if (!cut->kept) cut->kept_end = &cut->kept;
    blob_release(kept->blob);
    memory_free(kept);
}

static void copy_kept(struct store_cut *cut) {
    struct kept *kept = cut->kept;
    size_t length = kept->length - kept->done;
    if (length > BLOB_PIECE_BYTES) length = BLOB_PIECE_BYTES;
    bool last = kept->done + length == kept->length;
    struct piece_key key = {kept->key, kept->key_length, kept->expires, kept->at_ms};
    struct piece_bytes head = {0};
    piece_string_head(&head, &key, (uint8_t)((kept->done == 0 ? PIECE_FIRST : 0) | (last ? PIECE_LAST : 0)), length,
                      kept->length);
    if (head.failed)
        fail(cut);
    else
        put_record(cut, kept->kind, kept->origin, head.data, head.length, kept->blob->data + kept->done, length);
    piece_bytes_free(&head);
    kept->done += length;
    if (last) drop_kept(cut);
}

bool store_cut_add_weights(struct store_cut *cut, const void *key, size_t length, int64_t version, struct blob *blob) {
    struct kept as = {.kind = SNAPSHOT_RECORD_WEIGHTS, .expires = true, .at_ms = version, .key_length = length};
    return keep(cut, &as, key, blob);
}

bool store_cut_add_gradients(struct store_cut *cut, const void *key, size_t length, int64_t version,
                             struct blob *blob) {
    struct kept as = {.kind = SNAPSHOT_RECORD_GRADIENTS, .expires = true, .at_ms = version, .key_length = length};
    return keep(cut, &as, key, blob);
}

bool store_cut_add_library(struct store_cut *cut, const void *name, size_t length, struct blob *code) {
    struct kept as = {.kind = SNAPSHOT_RECORD_LIBRARIES, .expires = true, .key_length = length};
    return keep(cut, &as, name, code);
}

/* ---- values -------------------------------------------------------------------------------------------------------- */

static struct piece_key key_of(const struct dict_entry *entry, bool expires, int64_t at_ms) {
    return (struct piece_key){.key = entry->key, .length = entry->key_length, .expires = expires, .at_ms = at_ms};
}

/* Copies a small value; takes a large one into hand. */
static void hand_out(struct store_cut *cut, const struct walk *walk, const struct dict_entry *entry) {
    struct value *value = entry->value;
    int64_t at_ms = 0;
    bool expires = expire_get(walk->expiry, entry, &at_ms);
    if (value->type == VALUE_STRING && value->encoding == ENCODING_BLOB) {
        struct kept as = {.kind = SNAPSHOT_RECORD_KEYS,
                          .origin = walk->origin,
                          .expires = expires,
                          .at_ms = at_ms,
                          .key_length = entry->key_length};
        if (!keep(cut, &as, entry->key, ((struct string_blob *)value)->blob)) fail(cut);
        return;
    }
    if (piece_is_small(value) || value->type == VALUE_STRING) {
        struct piece_key key = key_of(entry, expires, at_ms);
        piece_write(gather(cut, walk->origin), &key, value);
        return;
    }
    struct large *large = memory_calloc(1, sizeof *large);
    if (!large) {
        fail(cut);
        return;
    }
    *large = (struct large){.next = cut->large,
                            .entry = entry,
                            .dict = walk->dict,
                            .origin = walk->origin,
                            .expires = expires,
                            .at_ms = at_ms};
    /* One that has begun stays first: its pieces follow one another. */
    if (cut->large && cut->large->walk.begun) {
        large->next = cut->large->next;
        cut->large->next = large;
    } else {
        cut->large = large;
    }
}

/* False: that was its last piece. */
static bool copy_some(struct store_cut *cut, struct large *large) {
    struct piece_key key = key_of(large->entry, large->expires, large->at_ms);
    return piece_write_some(gather(cut, large->origin), &key, large->entry->value, &large->walk);
}

static void drop_large(struct large **link) {
    struct large *large = *link;
    *link = large->next;
    memory_free(large);
}

/* ---- walking ------------------------------------------------------------------------------------------------------- */

struct visiting {
    struct store_cut *cut;
    const struct walk *walk;
};

static void visit(void *context, struct dict_entry *entry) {
    const struct visiting *visiting = context;
    struct value *value = entry->value;
    bool passed_over = value->cut_mark;
    value->cut_mark = false;
    visiting->cut->passed++;
    if (!passed_over && visiting->cut->state == CUT_HANDING_OUT) hand_out(visiting->cut, visiting->walk, entry);
}

static bool walk_some(struct store_cut *cut, struct walk *walk) {
    if (walk->walk.ended) return false;
    struct visiting visiting = {cut, walk};
    for (unsigned i = 0; i < BUCKETS && !cut->large; i++)
        if (!dict_walk_step(&walk->walk, walk->dict, visit, &visiting)) break;
    return true;
}

static bool walk_databases(struct store_cut *cut) {
    while (cut->flushed_count > 0) {
        struct flushed *flushed = &cut->flushed[cut->flushed_count - 1];
        if (walk_some(cut, &flushed->walk)) return true;
        store_discard_keys(cut->store, &flushed->keys);
        expire_free(&flushed->expiry);
        cut->flushed_count--;
    }
    for (unsigned d = 0; d < STORE_DATABASES; d++)
        if (walk_some(cut, &cut->walks[d])) return true;
    return false;
}

static void drop_waiting(struct store_cut *cut) {
    while (cut->kept) drop_kept(cut);
    while (cut->large) drop_large(&cut->large);
    cut->bytes.length = 0;
}

bool store_cut_step(struct store_cut *cut) {
    if (cut->state == CUT_IDLE) return false;
    if (cut->state == CUT_CLEARING) drop_waiting(cut);
    if (cut->kept) {
        copy_kept(cut);
    } else if (cut->large) {
        if (!copy_some(cut, cut->large)) drop_large(&cut->large);
    } else if (!walk_databases(cut)) {
        put_gathered(cut);
        cut->state = CUT_IDLE;
        return false;
    }
    if (cut->bytes.failed) fail(cut);
    return true;
}

/* ---- begin and end ------------------------------------------------------------------------------------------------- */

bool store_cut_may_begin(const struct store_cut *cut) {
    return cut->state == CUT_IDLE;
}

void store_cut_begin(struct store_cut *cut, struct store_cut_sink *sink) {
    assert(cut->state == CUT_IDLE && !cut->kept && !cut->large && cut->flushed_count == 0);
    cut->sink = sink;
    cut->state = CUT_HANDING_OUT;
    cut->failed = false;
    cut->keys = cut->passed = 0;
    piece_bytes_free(&cut->bytes);
    for (unsigned d = 0; d < STORE_DATABASES; d++) {
        struct store_database *database = &cut->store->databases[d];
        cut->walks[d] = (struct walk){.dict = &database->keys, .expiry = &database->expiry, .origin = d};
        cut->walks[d].walk.ended = dict_count(&database->keys) == 0;
        cut->keys += dict_count(&database->keys);
    }
}

bool store_cut_failed(const struct store_cut *cut) {
    return cut->failed;
}

void store_cut_end(struct store_cut *cut) {
    if (cut->state == CUT_IDLE) return;
    cut->state = CUT_CLEARING;
    drop_waiting(cut);
}

void store_cut_free(struct store_cut *cut) {
    if (!cut) return;
    store_cut_end(cut);
    while (store_cut_step(cut)) continue;
    piece_bytes_free(&cut->bytes);
    memory_free(cut);
}

void store_cut_progress(const struct store_cut *cut, uint64_t *keys, uint64_t *passed) {
    bool runs = cut->state == CUT_HANDING_OUT;
    *keys = runs ? cut->keys : 0;
    *passed = !runs ? 0 : cut->passed < cut->keys ? cut->passed : cut->keys;
}

bool store_cut_hands_out(const struct store_cut *cut) {
    return cut->state == CUT_HANDING_OUT;
}

static struct large **find_large(struct store_cut *cut, const struct dict_entry *entry) {
    struct large **link = &cut->large;
    while (*link && (*link)->entry != entry) link = &(*link)->next;
    return link;
}

bool store_cut_copies_first(struct store_cut *cut, unsigned database, const uint8_t *key, size_t length) {
    if (cut->state != CUT_HANDING_OUT) return false;
    const struct dict_entry *entry =
        dict_peek(&cut->store->databases[database].keys, dict_hash(key, length), key, length);
    struct value *value = entry ? entry->value : NULL;
    if (!value || value->type == VALUE_STRING || piece_is_small(value)) return false;
    if (*find_large(cut, entry)) return true;
    const struct walk *walk = &cut->walks[database];
    if (value->cut_mark || dict_walk_has_passed(&walk->walk, entry)) return false;
    value->cut_mark = true;
    hand_out(cut, walk, entry);
    return *find_large(cut, entry);
}

/* ---- events -------------------------------------------------------------------------------------------------------- */

void store_cut_will_change(struct store_cut *cut, unsigned database, struct dict_entry *entry) {
    if (cut->state != CUT_HANDING_OUT) return;
    struct large **link = find_large(cut, entry);
    const struct walk *walk = &cut->walks[database];
    struct value *value = entry->value;
    if (!*link && !value->cut_mark && !dict_walk_has_passed(&walk->walk, entry)) {
        value->cut_mark = true;
        hand_out(cut, walk, entry);
        link = find_large(cut, entry);
    }
    /* What waits for its turn must not: it is about to change. */
    if (!*link) return;
    while (copy_some(cut, *link)) continue;
    drop_large(link);
}

/* Whatever value the key has now is of after the cut. */
void store_cut_changed(struct store_cut *cut, unsigned database, const uint8_t *key, size_t length) {
    if (cut->state == CUT_IDLE) return;
    const struct dict_entry *entry =
        dict_peek(&cut->store->databases[database].keys, dict_hash(key, length), key, length);
    if (!entry) return;
    struct value *value = entry->value;
    value->cut_mark = !dict_walk_has_passed(&cut->walks[database].walk, entry);
}

void store_cut_will_flush(struct store_cut *cut, unsigned database) {
    struct walk *walk = &cut->walks[database];
    if (cut->state == CUT_IDLE) return;
    bool in_hand = false; /* a large value of it may be, though it was walked to its end */
    for (const struct large *large = cut->large; large; large = large->next) in_hand |= large->dict == walk->dict;
    if (walk->walk.ended && !in_hand) return;
    if (cut->state == CUT_CLEARING) { /* its marks go with it */
        walk->walk.ended = true;
        return;
    }
    struct store_database *from = &cut->store->databases[database];
    struct flushed *flushed = &cut->flushed[cut->flushed_count++];
    for (struct large *large = cut->large; large; large = large->next)
        if (large->dict == walk->dict) large->dict = &flushed->keys;
    flushed->keys = from->keys;
    flushed->expiry = from->expiry;
    flushed->walk = *walk;
    flushed->walk.dict = &flushed->keys;
    flushed->walk.expiry = &flushed->expiry;
    dict_init(&from->keys);
    memset(&from->expiry, 0, sizeof from->expiry);
    walk->walk.ended = true;
}

void store_cut_will_exchange(struct store_cut *cut, unsigned first, unsigned second) {
    if (cut->state == CUT_IDLE) return;
    struct walk one = cut->walks[first], other = cut->walks[second];
    struct dict *dicts[2] = {one.dict, other.dict};
    const struct expire_heap *heaps[2] = {one.expiry, other.expiry};
    cut->walks[first] = other;
    cut->walks[second] = one;
    cut->walks[first].dict = dicts[0];
    cut->walks[first].expiry = heaps[0];
    cut->walks[second].dict = dicts[1];
    cut->walks[second].expiry = heaps[1];
    for (struct large *large = cut->large; large; large = large->next)
        if (large->dict == dicts[0])
            large->dict = dicts[1];
        else if (large->dict == dicts[1])
            large->dict = dicts[0];
}
