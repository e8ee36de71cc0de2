/* t_stream: streams: entries of fields and values in the order of their ids.
 *
 * Entries lie in blocks of up to about a hundred, each a listpack in Redis's layout:
 *
 *   live | deleted | n | field … (n) | 0                        the master: what the block holds, the fields of its first entry
 *   flags | ms | sequence | n | field | value … (n) | elements  an entry; ms and sequence less those of the block's id
 *   flags | ms | sequence | value … | elements                  one with the master's fields
 *
 * The last number of an entry says how many elements are before it, for walks backwards. A deleted entry keeps its
 * place, with a flag; a block without live entries is freed. A block is found by the id of its first entry, in an
 * id_index. Each block has just the size of its contents, except the last, which has room to grow.
 *
 * Names begin with xstream, after the commands (XADD …): a `stream` in this code is that of an environment's steps. */
#ifndef REPLAY_STORE_T_STREAM_H
#define REPLAY_STORE_T_STREAM_H

#include "store/id_index.h"
#include "store/listpack.h"
#include "store/stream_groups.h"
#include "store/value.h"

#define XSTREAM_ENTRY_MOST_BYTES (1u << 30) /* of fields and values together */

struct xstream {
    struct value head;
    uint32_t last_capacity; /* bytes that the last block may take before it is moved */
    struct id_index blocks; /* of listpacks */
    uint64_t length;        /* live entries */
    uint64_t entries_added; /* ever, or as XSETID said */
    struct xstream_id first_id, last_id, max_deleted_id;
    size_t block_bytes; /* of memory */
    struct xstream_groups groups;
};

static inline struct xstream *xstream_of(const struct value *value) {
    return (struct xstream *)(uintptr_t)value;
}

/* Of an entry. */
enum xstream_flags { XSTREAM_DELETED = 1, XSTREAM_SAME_FIELDS = 2 };

struct xstream_string {
    const uint8_t *data;
    size_t length;
};

/* Where blocks end: settings stream-node-max-bytes and -entries; 0: no bound. */
struct xstream_bounds {
    uint64_t block_bytes, block_entries;
};

struct xstream *xstream_new(void); /* NULL: memory is exhausted */

/* Appends an entry of `pairs` fields and values (2 * pairs strings), whose id is greater than last_id. False: memory is
 * exhausted, nothing has changed. */
bool xstream_append(struct xstream *stream, struct xstream_id id, const struct xstream_string *strings, uint32_t pairs,
                    const struct xstream_bounds *bounds);
/* Deletes the entry of this id; false: there is none. */
bool xstream_delete(struct xstream *stream, struct xstream_id id);

/* Removes entries from the front: until `most` are left, or (by_id) those before `least`. */
struct xstream_trim {
    bool by_id, approximate; /* approximate: whole blocks only */
    uint64_t most;
    struct xstream_id least;
    uint64_t limit; /* entries looked at; 0: all */
};
/* Returns how many entries were removed. */
uint64_t xstream_trim(struct xstream *stream, const struct xstream_trim *trim);

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* A walk over the live entries with ids in [from, until], forwards or backwards. It holds until the stream changes. */
struct xstream_walk {
    struct xstream_id from, until;
    bool backwards;
    struct id_position block;
    struct xstream_id master; /* the block's id */
    const uint8_t *fields; /* the master's first field */
    uint32_t field_count;
    const uint8_t *entries; /* where the block's entries begin */
    const uint8_t *at; /* the next entry; backwards, what follows it; NULL: the block is to be entered */
};

struct xstream_entry {
    struct xstream_id id;
    uint8_t *flags; /* the entry's first element */
    uint32_t fields; /* how many */
    const uint8_t *field; /* the next one */
    const uint8_t *value; /* and its value; NULL: behind the field */
};

void xstream_walk_begin(const struct xstream *stream, struct xstream_id from, struct xstream_id until, bool backwards,
                        struct xstream_walk *walk);
bool xstream_walk_next(struct xstream_walk *walk, struct xstream_entry *entry);
/* The next of the entry's `fields` pairs. */
void xstream_entry_pair(struct xstream_entry *entry, struct listpack_element *field, struct listpack_element *value);
bool xstream_has(const struct xstream *stream, struct xstream_id id);
/* The first live entry's id, or the last one's; zeros where the stream is empty. */
struct xstream_id xstream_edge(const struct xstream *stream, bool last);

/* ---- how far groups have come ------------------------------------------------------------------------------------- */

/* How many entries were added up to the id, or XSTREAM_READ_UNKNOWN. */
int64_t xstream_count_until(const struct xstream *stream, struct xstream_id id);
/* The group is given the entry next. */
void xstream_group_read(const struct xstream *stream, struct xstream_group *group, struct xstream_id id);
/* Entries that the group has still to be given; false: nobody knows. */
bool xstream_group_lag(const struct xstream *stream, const struct xstream_group *group, int64_t *lag);

/* ---- as a value --------------------------------------------------------------------------------------------------- */

/* NULL where the bytes are a block of this id; else what is wrong with them. */
const char *xstream_block_check(struct xstream_id id, const uint8_t *listpack, size_t bytes);
/* Appends a block as it stands in Redis's files: the listpack is copied. `id` is greater than those of all blocks before.
 * NULL; else what is wrong with it. The stream's length and first id follow it, its other numbers
 * are the caller's to set. */
const char *xstream_append_block(struct xstream *stream, struct xstream_id id, const uint8_t *listpack, size_t bytes);
struct xstream *xstream_copy(const struct xstream *stream); /* NULL: memory is exhausted */
size_t xstream_free_effort(const struct xstream *stream);
bool xstream_release(struct xstream *stream, size_t *steps);
size_t xstream_memory_bytes(const struct xstream *stream);

#endif
