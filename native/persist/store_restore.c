/* store_restore: pieces into keys; what comes in several pieces is kept apart until its last. */
#include "persist/store_restore.h"

#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "persist/snapshot_format.h"

#define MOST_OPEN 64u /* keys of which pieces came, but not the last; a writer has two or three */

struct open_key {
    struct open_key *next;
    unsigned database;
    struct value *value;
    uint64_t parts, total;
    bool expires;
    int64_t at_ms;
    size_t length;
    uint8_t key[];
};

struct store_restore {
    const struct store_keys_sink *sink; /* NULL: into the store */
    struct store_content content;
    struct open_key *open;
    uint32_t open_count;
    struct blob *blob; /* weights, gradients or a library of which pieces came */
    uint64_t blob_done;
    uint32_t blob_kind; /* of record */
};

struct store_restore *store_restore_begin(const struct store_keys_sink *sink) {
    struct store_restore *restore = memory_calloc(1, sizeof *restore);
    if (restore) restore->sink = sink;
    if (restore && sink) return restore;
    if (restore) restore->content.store = store_new();
    if (restore && restore->content.store) {
        restore->content.store->keeps_expired = true;
        return restore;
    }
    memory_free(restore);
    return NULL;
}

static void free_weights(struct store_weights *weights) {
    while (weights) {
        struct store_weights *next = weights->next;
        blob_release(weights->blob);
        memory_free(weights);
        weights = next;
    }
}

void store_content_free(struct store_content *content) {
    store_free(content->store);
    free_weights(content->weights);
    free_weights(content->gradients);
    free_weights(content->libraries);
    *content = (struct store_content){0};
}

static void drop_open(struct open_key **link) {
    struct open_key *open = *link;
    *link = open->next;
    value_free(open->value);
    memory_free(open);
}

void store_restore_free(struct store_restore *restore) {
    if (!restore) return;
    while (restore->open) drop_open(&restore->open);
    blob_release(restore->blob);
    store_content_free(&restore->content);
    memory_free(restore);
}

/* ---- keys ---------------------------------------------------------------------------------------------------------- */

static int put(struct store_restore *restore, unsigned database, const struct piece_key *key, struct value *value,
               struct error *error) {
    if (restore->sink) {
        int result = restore->sink->key(restore->sink->context, database, key, value, error);
        value_free(value);
        return result;
    }
    struct store *store = restore->content.store;
    if (store_find(store, database, key->key, key->length)) {
        value_free(value);
        return error_set(error, ERROR_GENERIC, "a key is there twice");
    }
    struct dict_entry *entry = store_put(store, database, key->key, key->length, value, false);
    if (!entry) {
        value_free(value);
        return error_set(error, ERROR_GENERIC, "no memory for a key");
    }
    restore->content.keys++;
    if (key->expires && !store_expire_at(store, database, entry, key->at_ms))
        return error_set(error, ERROR_GENERIC, "no memory for the end of a key");
    return 0;
}

static struct open_key **find_open(struct store_restore *restore, unsigned database, const struct piece_key *key) {
    struct open_key **link = &restore->open;
    while (*link && ((*link)->database != database || (*link)->length != key->length ||
                     memcmp((*link)->key, key->key, key->length) != 0))
        link = &(*link)->next;
    return link;
}

static struct open_key *open_new(struct store_restore *restore, unsigned database, const struct piece *piece) {
    const struct piece_key *key = &piece->key;
    struct open_key *open = restore->open_count < MOST_OPEN ? memory_calloc(1, sizeof *open + key->length) : NULL;
    if (!open) return NULL;
    *open = (struct open_key){.next = restore->open,
                              .database = database,
                              .total = piece->total,
                              .expires = key->expires,
                              .at_ms = key->at_ms,
                              .length = key->length};
    memcpy(open->key, key->key, key->length);
    restore->open = open;
    restore->open_count++;
    return open;
}

static int add_piece(struct store_restore *restore, unsigned database, const struct piece *piece, struct error *error) {
    const uint8_t flags = piece->head.flags;
    if ((flags & PIECE_FIRST) && (flags & PIECE_LAST)) {
        struct value *value = NULL;
        if (piece_add_parts(piece, &value, error)) {
            value_free(value);
            return -1;
        }
        return put(restore, database, &piece->key, value, error);
    }
    struct open_key **link = find_open(restore, database, &piece->key);
    if (!*link == !(flags & PIECE_FIRST)) return error_set(error, ERROR_GENERIC, "a part of a key is out of turn");
    struct open_key *open = *link ? *link : open_new(restore, database, piece);
    if (!open) return error_set(error, ERROR_GENERIC, "too many keys in parts, or no memory");
    if (open->value && open->value->type != piece->head.type)
        return error_set(error, ERROR_GENERIC, "a part of a key is of another type");
    if (piece_add_parts(piece, &open->value, error)) return -1;
    open->parts += piece->head.parts;
    if (!(flags & PIECE_LAST)) return 0;
    if (open->parts != open->total)
        return error_set(error, ERROR_GENERIC, "%" PRIu64 " parts of a key were written, %" PRIu64 " are here",
                         open->total, open->parts);
    struct piece_key key = {open->key, open->length, open->expires, open->at_ms};
    struct value *value = open->value;
    open->value = NULL;
    int result = put(restore, database, &key, value, error);
    drop_open(find_open(restore, database, &key));
    restore->open_count--;
    return result;
}

int store_restore_keys(struct store_restore *restore, uint32_t database, const uint8_t *body, size_t length,
                       struct error *error) {
    if (database >= STORE_DATABASES) return error_set(error, ERROR_GENERIC, "there is no database %" PRIu32, database);
    while (length > 0) {
        struct piece piece;
        if (piece_read(&body, &length, &piece, error) || add_piece(restore, database, &piece, error)) return -1;
    }
    return 0;
}

/* ---- weights, gradients, libraries ------------------------------------------------------------------------------------ */

static void append(struct store_weights **first, struct store_weights **last, struct store_weights *weights) {
    *(*last ? &(*last)->next : first) = weights;
    *last = weights;
}

static struct store_weights *new_weights(struct blob *blob, const void *key, size_t length, int64_t version) {
    struct store_weights *weights = memory_alloc(sizeof *weights + length);
    if (!weights) return NULL;
    *weights = (struct store_weights){.blob = blob, .version = version, .key_length = length};
    memcpy(weights->key, key, length);
    return weights;
}

bool store_content_add_library(struct store_content *content, const void *code, size_t length) {
    struct blob *blob = blob_new(length);
    struct store_weights *library = blob ? new_weights(blob, "", 0, 0) : NULL;
    if (!library) {
        blob_release(blob);
        return false;
    }
    memcpy(blob->data, code, length);
    append(&content->libraries, &content->last_library, library);
    return true;
}

/* What has come whole. */
static int put_beside(struct store_restore *restore, const struct piece_key *key, struct error *error) {
    if (restore->sink) {
        int result = restore->sink->library(restore->sink->context, restore->blob, error);
        blob_release(restore->blob);
        restore->blob = NULL;
        return result;
    }
    struct store_weights *weights = new_weights(restore->blob, key->key, key->length, key->at_ms);
    if (!weights) return error_set(error, ERROR_GENERIC, "no memory for the name of weights");
    restore->blob = NULL;
    struct store_content *content = &restore->content;
    if (restore->blob_kind == SNAPSHOT_RECORD_WEIGHTS) {
        weights->next = content->weights;
        content->weights = weights;
    } else if (restore->blob_kind == SNAPSHOT_RECORD_GRADIENTS) {
        append(&content->gradients, &content->last_gradient, weights);
    } else {
        append(&content->libraries, &content->last_library, weights);
    }
    return 0;
}

int store_restore_beside(struct store_restore *restore, uint32_t kind, const uint8_t *body, size_t length,
                         struct error *error) {
    struct piece piece;
    if (restore->sink && kind != SNAPSHOT_RECORD_LIBRARIES) return 0;
    if (piece_read(&body, &length, &piece, error)) return -1;
    if (length > 0 || piece.head.type != VALUE_STRING || !piece.key.expires || piece.key.at_ms < 0)
        return error_set(error, ERROR_GENERIC, "weights are malformed");
    if (!restore->blob == !(piece.head.flags & PIECE_FIRST) || (restore->blob && restore->blob_kind != kind))
        return error_set(error, ERROR_GENERIC, "a part of weights is out of turn");
    restore->blob_kind = kind;
    if (!restore->blob) {
        restore->blob = piece.total <= SIZE_MAX / 2 ? blob_new((size_t)piece.total) : NULL;
        restore->blob_done = 0;
        if (!restore->blob)
            return error_set(error, ERROR_GENERIC, "no memory for %" PRIu64 " bytes of weights", piece.total);
    }
    if (piece.length > restore->blob->length - restore->blob_done)
        return error_set(error, ERROR_GENERIC, "weights are longer than they were said to be");
    if (piece.length) memcpy(restore->blob->data + restore->blob_done, piece.data, piece.length);
    restore->blob_done += piece.length;
    if (!(piece.head.flags & PIECE_LAST)) return 0;
    if (restore->blob_done != restore->blob->length)
        return error_set(error, ERROR_GENERIC, "weights are shorter than they were said to be");
    return put_beside(restore, &piece.key, error);
}

int store_restore_finish(struct store_restore *restore, struct store_content *content, struct error *error) {
    bool whole = !restore->open && !restore->blob;
    if (restore->content.store) restore->content.store->keeps_expired = false;
    *content = restore->content;
    restore->content = (struct store_content){0};
    return whole ? 0 : error_set(error, ERROR_GENERIC, "a key, or weights, have no end");
}
