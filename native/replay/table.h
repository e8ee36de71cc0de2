/* table: items in slots, which of them may be sampled, which leaves first, and when a caller must wait. No sockets,
 * no RESP; one thread.
 *
 * An item is one value for each column. It lives in a slot. A table has slots for its capacity, TABLE_SPARE_SLOTS and
 * TABLE_HELD_SLOTS more. The values of small columns lie side by side in the slot's row, those of other columns in one
 * mapped array each (column_arrays.h), those of ragged columns in a store of their own (ragged_store.h). ADD reserves
 * slots, lets bytes land in them, and commits. A removed item leaves the index at once and its slot when the last pin
 * goes (slot_store.h). An item id is shard (8 bits) | generation (24) | slot (32): the id of an item that has left
 * never matches its successor.
 *
 * Functions that can refuse return 0, or -1 with `error` set and nothing changed. Predicates return true for what
 * their name says. Those that take an error set it to the reason when they return false. */
#ifndef REPLAY_REPLAY_TABLE_H
#define REPLAY_REPLAY_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define TABLE_MAX_COLUMNS 256
#define TABLE_MAX_NAME 255
#define TABLE_MAX_REASON 127 /* bytes that say why a table is closed */
#define TABLE_MAX_DIMENSIONS 8
#define TABLE_MAX_BATCH (1u << 20)
#define TABLE_MAX_CAPACITY (1ull << 31)
#define TABLE_MAX_ITEM_BYTES (512ull << 20) /* all columns of one item together */
#define TABLE_DEFAULT_MAX_LENGTH 65536u /* rows of a ragged value */
#define TABLE_MAX_LENGTH (1u << 30)
#define TABLE_MAX_EXPONENT 100.0 /* of priorities (alpha) and of importance weights (beta) */
#define TABLE_MAX_STAGING_BYTES (2ull << 30) /* of one table, for ADDs that found no spare slots */
#define TABLE_MAX_RAGGED_RESERVED_BYTES (1ull << 30) /* of one table's ragged columns, on their way in */
#define TABLE_KEPT_STAGING_BYTES (64ull << 20) /* kept for the next such ADD */
#define TABLE_MAX_STREAM_STEPS (1u << 22) /* the histories of a table's streams together */
#define TABLE_MAX_WIDTH 65535u /* bytes of one value of fixed-length bytes */
#define TABLE_MAX_WINDOW 16384u /* steps of a window, and how far it may lie from its item */
#define TABLE_VERSION_COLUMN "policy_version" /* int64, a single number: items then have a freshness */
#define TABLE_SPARE_SLOTS 32768u /* beyond capacity: half for reservations, half for items removed while pinned */
#define TABLE_PRIORITY_BUCKETS 65u /* that priorities are counted in */
#define TABLE_PRIORITY_LEAST (-32) /* the smallest power of two among them */
#define TABLE_HELD_SLOTS 4096u /* beyond those: for items that left and that a snapshot has still to write */

enum column_type {
    COLUMN_BOOL,
    COLUMN_INT8,
    COLUMN_INT16,
    COLUMN_INT32,
    COLUMN_INT64,
    COLUMN_UINT8,
    COLUMN_UINT16,
    COLUMN_UINT32,
    COLUMN_UINT64,
    COLUMN_FLOAT16,
    COLUMN_FLOAT32,
    COLUMN_FLOAT64,
    COLUMN_BFLOAT16,
    COLUMN_COMPLEX64,
    COLUMN_COMPLEX128,
    COLUMN_BYTES, /* of a fixed number, the column's width */
    COLUMN_TYPES
};

/* COLUMN_ITEM: a value of each item. COLUMN_STEP: a value of each step, seen only through windows. COLUMN_WINDOW: what an
 * item sees of a step column: `length` steps up to the step that lies `offset` after the item's own; or, if it is ragged, the
 * steps that the item was made with. */
enum column_kind { COLUMN_ITEM, COLUMN_STEP, COLUMN_WINDOW };

struct column {
    char name[TABLE_MAX_NAME + 1];
    enum column_kind kind;
    enum column_type type;
    uint32_t width; /* COLUMN_BYTES: of one value */
    uint32_t dimensions;
    uint64_t shape[TABLE_MAX_DIMENSIONS];
    size_t
        item_bytes; /* of one item (a window's: all its steps together); COLUMN_STEP: of one step; ragged: in its slot */
    size_t row_bytes; /* ragged: of one row, of which each item has as many as it likes; shape[0] is 0 then */
    uint32_t max_length; /* ragged: rows of an item, or steps of a window, at most; 0: not ragged */
    bool in_steps; /* steps have it: COLUMN_STEP, or COLUMN_ITEM that a window looks at (it is then in both) */
    uint32_t source; /* COLUMN_WINDOW: the column looked at, with in_steps */
    uint32_t length; /* COLUMN_WINDOW: steps; 0: a single one, without a dimension of its own; or ragged */
    int32_t offset; /* COLUMN_WINDOW: of its last step against the item's own */
};

/* Whether each item has rows of its own number (table_ragged.h). */
static inline bool column_is_ragged(const struct column *column) {
    return column->max_length > 0;
}

/* A window whose items show as many steps as they were made with. */
static inline bool column_is_ragged_window(const struct column *column) {
    return column->kind == COLUMN_WINDOW && column->max_length > 0;
}

/* Steps of a window; 1: of a column that is none, or is ragged. */
static inline uint32_t column_steps(const struct column *column) {
    return column->kind == COLUMN_WINDOW && column->length ? column->length : 1;
}

/* What decides which item is drawn, or leaves, next. Heaps go by raw priority, and take the oldest of equal ones
 * first. */
enum selector_kind {
    SELECTOR_PRIORITIZED,
    SELECTOR_UNIFORM,
    SELECTOR_FIFO,
    SELECTOR_LIFO,
    SELECTOR_MAX_HEAP,
    SELECTOR_MIN_HEAP
};
#define SELECTOR_KINDS 6
enum step_codec { CODEC_NONE, CODEC_LZ4, CODEC_ZSTD };
/* STORAGE_DISK: large columns lie in a file in the process's folder, of which the system keeps in memory what fits. */
enum table_storage { STORAGE_MEMORY, STORAGE_DISK };
enum limiter_kind { LIMITER_MIN_SIZE, LIMITER_SAMPLE_TO_INSERT_RATIO, LIMITER_QUEUE };

struct table_config {
    char name[TABLE_MAX_NAME + 1];
    uint64_t capacity; /* items */
    uint32_t columns;
    struct column column[TABLE_MAX_COLUMNS];
    enum selector_kind sampler;
    double priority_exponent; /* alpha; of a prioritized sampler */
    bool independent; /* its draws are not stratified */
    enum selector_kind remover;
    double remover_exponent; /* of a prioritized remover */
    enum limiter_kind limiter;
    uint64_t min_size_to_sample;
    double samples_per_insert, error_buffer;
    uint64_t queue_size;
    uint32_t max_times_sampled; /* 0 = no limit */
    uint64_t max_bytes; /* 0 = no limit; bytes of live items and steps */
    int64_t max_staleness; /* policy versions behind the newest that an item may be; -1 = any number */
    uint64_t seed; /* 0 = from the operating system */
    enum step_codec codec; /* of step columns */
    enum table_storage storage;
    bool durable; /* an append-only file has what happens to it, where there is one … */
    bool log_priorities; /* … updates of priorities included */
    char steps_of[TABLE_MAX_NAME + 1]; /* the table whose steps it shares (table_share.c); empty: it has its own */
};

struct table;
struct reservation;

struct table_info {
    uint64_t size, capacity, bytes; /* bytes: payload of live items and steps */
    uint64_t added, sampled, removed, stale_updates, updates_applied;
    uint64_t unused; /* of those sampled: draws that were given back (table_not_used) */
    uint64_t stale_items; /* of those removed: left because their policy was too old */
    int64_t newest_version; /* of the policy, seen by adds or samples; INT64_MIN: none yet */
    uint64_t reserved_slots, pinned_slots, free_slots, retired_slots, item_bytes;
    uint64_t steps, step_bytes, streams; /* steps in memory, their payload */
    uint64_t disk_bytes,
        cold_pages; /* storage on disk: space that its file takes; pages that replies had to wait for */
    bool closed;
    char closed_reason[TABLE_MAX_REASON + 1]; /* "": none was given, or it is open */
    double max_priority; /* raw, over live items; 0 if none */
    double total_priority; /* sum of p^alpha */
};

/* Parses a msgpack map with the keys of rs.Table (docs/protocol.md); `name` overrides or supplies the name when not NULL. */
int table_config_parse(struct table_config *config, const char *name, const uint8_t *spec, size_t length,
                       struct error *error);
/* Writes the config back as msgpack into memory from memory_alloc. */
int table_config_write(const struct table_config *config, uint8_t **spec, size_t *length, struct error *error);
/* Whether two are written as the same bytes. -1 with `error`: out of memory. */
int table_config_compare(const struct table_config *left, const struct table_config *right, bool *same,
                         struct error *error);
/* Changes sampler, remover, limiter and limits of `config` from a msgpack map of such keys; on refusal it is as before. */
int table_config_change(struct table_config *config, const uint8_t *spec, size_t length, struct error *error);
/* Writes those settings of `config` in that form; and puts them over another config. */
int table_config_write_changeable(const struct table_config *config, uint8_t **spec, size_t *length,
                                  struct error *error);
void table_config_take_changeable(struct table_config *config, const struct table_config *from);
#define COLUMN_DTYPE_ROOM 16
/* NumPy's name: "uint8", "float32", …; of COLUMN_BYTES "S16" and the like. Returns `name`. */
const char *column_dtype(const struct column *column, char name[COLUMN_DTYPE_ROOM]);
const char *selector_name(enum selector_kind kind); /* "prioritized", "max_heap", … */

uint64_t table_effective_capacity(const struct table_config *config); /* capacity, or fewer where max_bytes binds */
uint64_t table_full_bytes(const struct table_config *config); /* payload when it holds all that it may */
uint64_t table_full_memory_bytes(const struct table_config *config); /* of that, what must lie in memory */
const char *table_storage_name(enum table_storage storage);

struct table *table_new(const struct table_config *config, struct error *error);
void table_free(struct table *table); /* no reservation and no pin may be left; its streams go with it */
/* Part of that, with as little left: items let go of about `most` steps that they share. True while there are more.
 * Nothing else may be done with the table. */
bool table_let_go_some(struct table *table, uint32_t most);
/* Gives a new table with steps_of the steps of their owner, which outlives it even if it is freed first. Needed before
 * anything else is done with the table. ERROR_BADSCHEMA: they do not fit together. ERROR_LIMIT: not before a dropped one is
 * freed. */
int table_share_steps(struct table *table, struct table *owner, struct error *error);
/* The table was dropped, and whoever refers to it still reads it: it holds its steps until it is freed. */
void table_share_leave(struct table *table);
/* Whose streams its items are made from: itself where it shares none. */
struct table *table_owner_of_steps(struct table *table);
const struct table_config *table_config(const struct table *table);
void table_info(const struct table *table, struct table_info *info);
/* Live items by priority: counts[0] of priority zero, counts[i] with 2^e <= p < 2^(e + 1), e = i - 1 + TABLE_PRIORITY_LEAST;
 * counts[1] and the last also of what is smaller and larger. */
void table_priorities(const struct table *table, uint64_t counts[TABLE_PRIORITY_BUCKETS]);
void table_seed(struct table *table, uint64_t seed);
/* The shard's number in every id, 0 unless it is set. Ids that were given under another number are not this table's: those
 * items count as left. To be set before the first id is given. */
void table_set_shard(struct table *table, uint8_t shard);
uint64_t table_newest_id(const struct table *table); /* of live items; 0: there are none */
int table_column_index(const struct table *table, const char *name, size_t length); /* -1: no such column */

/* Whether n items may be added / sampled now. Otherwise `error` says why not: ERROR_TIMEOUT and the reason (a wait may help),
 * ERROR_LIMIT (it never can, e.g. n above capacity, or a batch larger than the limiter's error buffer allows), or
 * ERROR_CLOSED (the table is closed, and only items that were added could help). */
bool table_can_add(const struct table *table, uint64_t n, struct error *error);
bool table_can_sample(const struct table *table, uint64_t n, bool replace, struct error *error);
/* How many of n items may be added now, at once: the first of them. 0: table_can_add of one item says why. */
uint32_t table_admits(const struct table *table, uint32_t n);

/* Whether every priority is finite, >= 0 and small enough for the exponent; -1 with ERROR_BADPRIORITY, which counts them
 * from `first` on. */
int table_check_priorities(const struct table *table, const double *priorities, uint32_t n, uint32_t first,
                           struct error *error);

/* ---- add: reserve, land, validate, commit ---- */
struct reservation *table_reserve(struct table *table, uint32_t n, struct error *error);
/* Where column `column` of the reservation lands: value i at base + slots[i] * stride. slots is NULL where spare slots of
 * items ran out, or the column is of steps and compressed: then base is a pooled staging area, value i at base + i * stride,
 * which is copied or compressed once. */
void reservation_landing(struct reservation *reservation, uint32_t column, uint8_t **base, size_t *stride,
                         const uint32_t **slots);
void reservation_fill(struct reservation *reservation, uint32_t column,
                      const void *values); /* copies n packed ones in */
/* Of a ragged column instead: int64 offsets[n + 1], of any alignment, and as many rows as the last of them says, in `length`
 * bytes; until the clock passes the deadline. 0: the column is filled; 1: there is more to do, by the same call, before
 * another column; -1: the offsets cannot be, or there is no room. */
int reservation_fill_ragged(struct reservation *reservation, uint32_t column, const void *offsets, const uint8_t *rows,
                            size_t length, uint64_t deadline_us, struct error *error);
void reservation_release(struct reservation *reservation); /* gives the slots back, nothing enters */
/* Keeps the first n items, at least one; the others' slots go back. After everything has landed. */
void reservation_shorten(struct reservation *reservation, uint32_t n);
/* Checks priorities (NULL: the maximum over live items, 1.0 if none) and table_can_add, then enters all n items, removing
 * as many old ones as capacity and max_bytes demand; writes n ids. On success the reservation is gone; on refusal it stays. */
int table_commit(struct table *table, struct reservation *reservation, const double *priorities, uint64_t *ids,
                 struct error *error);
/* The same in parts, between which the table may be used (table_add.c): first all that may refuse, but for priorities,
 * which table_check_priorities must have found good. From then on nothing refuses it. -1: it is refused, nothing has
 * changed. */
int table_begin_commit(struct table *table, struct reservation *reservation, struct error *error);
/* How many items the next part has: at most 1024, in a time that does not depend on how many there are in all. */
uint32_t reservation_part(const struct reservation *reservation);
/* Enters the next part: priorities and ids are of its items alone. How many entered; 0: some old items have left, and more
 * must before any enters; -1: no slots are free just now, since others hold them. The reservation is gone with the last
 * part. */
int table_commit_part(struct table *table, struct reservation *reservation, const double *priorities, uint64_t *ids);
double table_priority_limit(const struct table *table); /* the largest that table_check_priorities finds good */

/* ---- the end of its data ----
 * Nothing enters a closed table, neither items nor steps: ERROR_CLOSED, with the reason. Samples, updates, deletions and
 * changes go on. A sample that would have to wait for items is refused; one that waits for a change to be done, or that an
 * update of priorities may let through, goes on waiting. A reset leaves the table closed. */
int table_close(struct table *table, const char *reason, size_t length, struct error *error); /* replaces the reason */
void table_open(struct table *table);
int table_check_open(const struct table *table, struct error *error); /* -1 with ERROR_CLOSED */

/* ---- sample ---- */
/* What a table knows of an item at a draw of it. The wire has it like this, little-endian. */
struct table_detail {
    double priority; /* raw */
    uint64_t times_sampled; /* this draw included */
    uint64_t age; /* items that entered the table after it */
    uint64_t size; /* live items, before this draw */
};
/* Draws n items into caller's arrays of n; without `replace` no item twice (fifo never does), and probabilities are those
 * of a draw with replacement. weights: (N P)^-beta over the batch's maximum;
 * any of ids, probabilities, weights, details may be NULL. Pins every drawn slot once per occurrence: the caller must table_unpin.
 * Counts towards max_times_sampled and the rate limiter. */
int table_sample(struct table *table, uint32_t n, double beta, bool replace, uint32_t *slots, uint64_t *ids,
                 double *probabilities, float *weights, struct table_detail *details, struct error *error);
void table_unpin(struct table *table, const uint32_t *slots, uint32_t n);
/* The same in parts, between which the table may be used: first all that may refuse, for all n; then parts, each of them
 * stratified by itself; then the weights, which need the least probability of all parts. Where items leave meanwhile that
 * would have been drawn, a part is refused, with ERROR_GENERIC. table_end_sample gives up the draws that are left. */
bool table_samples_in_parts(const struct table *table, bool replace); /* false: such samples are drawn at once */
int table_begin_sample(struct table *table, uint32_t n, double beta, bool replace, struct error *error);
/* 1: items that are too old have still to leave, nothing was drawn. */
int table_sample_part(struct table *table, uint32_t n, uint32_t *slots, uint64_t *ids, double *probabilities,
                      struct table_detail *details, struct error *error);
void table_end_sample(struct table *table, uint32_t left);
double table_least_probability(uint32_t n, const double *probabilities);
void table_weigh(const struct table *table, uint32_t n, double beta, double least, const double *probabilities,
                 float *weights);
/* ---- one sample of many shards (table_timed.c) ----
 * What a shard adds to its draws, so that several can be merged into one exact sample. */
struct table_arrivals {
    double until; /* draws of later times are not among them */
    double sum; /* of p^alpha over live items, or of items where the sampler is uniform */
    uint64_t size; /* live items */
    struct error limit; /* ERROR_NONE, or why the rate limiter let no more of them through */
};
/* Whether that can be done now. Otherwise `error` is as that of table_can_sample: ERROR_TIMEOUT where a wait may help,
 * ERROR_BADSCHEMA where this table's settings do not allow it. An empty table, and one whose limiter lets nothing
 * through, can be sampled so: they answer with no draws. */
bool table_can_sample_timed(const struct table *table, uint64_t n, struct error *error);
/* Draws what arrives after `from`, up to `to`, in a Poisson process whose rate is the sum: the earliest n at most, into
 * caller's arrays of n, in the order of their times. Returns how many. `powers` are the items' p^alpha, 1 where the sampler
 * is uniform. Without `replace`, only the first arrival of an item. Pins, and counts, as table_sample. To be called only
 * where table_can_sample_timed is true. */
uint32_t table_sample_timed(struct table *table, uint32_t n, double from, double to, bool replace, uint32_t *slots,
                            uint64_t *ids, double *powers, double *times, struct table_detail *details,
                            struct table_arrivals *arrivals);
/* So many draws that table_sample_timed gave were left over from the merge: for the rate limiter they were not made. */
void table_not_used(struct table *table, uint64_t n);
/* Live items by id, pinned as by table_sample; probabilities as of now, weights all 1. ERROR_GENERIC if any id has left, which
 * counts them from `first` on. */
int table_get(struct table *table, uint32_t n, const uint64_t *ids, uint32_t first, uint32_t *slots,
              double *probabilities, struct error *error);
/* A COLUMN_ITEM of n slots: item i at base + slots[i] * stride; in C order, item_bytes each. */
void table_column_view(const struct table *table, uint32_t column, const uint8_t **base, size_t *stride);
/* Copies a column of n slots out, windows and compressed steps included, but no ragged one (table_ragged.h). */
void table_gather(const struct table *table, uint32_t column, const uint32_t *slots, uint32_t n, void *out);
/* As table_gather, of a few of the slots of a result of so many bytes: a large one is copied past the caches. */
void table_gather_part(const struct table *table, uint32_t column, const uint32_t *slots, uint32_t n, void *out,
                       size_t result_bytes);

/* ---- steps and windows ----
 * A table whose signature has windows keeps steps beside items. A stream is one writer's sequence of steps, cut into
 * episodes; steps are numbered from 0 on over all its episodes. A step stays while an item's windows need it or while it
 * is among the last `history` of its stream. The window (length, offset) of an item at step t ends at step
 * min(t + offset, last of the episode), and steps before the first of the episode are the first
 * (gymnasium.wrappers.FrameStackObservation). An item can be made once the last step that its windows reach is there, or
 * the episode has ended. */
#define STEP_FIRST 1u /* begins an episode; the stream's open one, if any, ends before it */
#define STEP_LAST 2u /* ends the episode */
#define STREAM_MAX_HISTORY 65536u

struct stream;

bool table_has_windows(const struct table *table);
struct stream *table_stream_new(struct table *table, uint32_t history, struct error *error);
void table_stream_free(struct table *table, struct stream *stream); /* steps that no item needs leave */
/* The same in slices of `most` >= 1 steps: true while there is more to do. Nothing else may be done with the stream. */
bool table_stream_free_some(struct table *table, struct stream *stream, uint32_t most);
uint64_t stream_steps(const struct stream *stream); /* how many were appended so far */
void stream_end_episode(struct stream *stream); /* the newest step was the last of its episode after all */

/* Reserve, land, validate, commit, as for items; `column` is an index of the table's columns, with in_steps. */
struct reservation *table_reserve_steps(struct table *table, uint32_t n, struct error *error);
/* As fill, for a compressed table: n blocks one after the other, as the table's codec makes them, and their sizes, uint32[n]
 * of any alignment; until the clock passes the deadline. 0: the column is filled; 1: there is more to do, by the same call,
 * before another column; -1: the sizes, or their sum, cannot be. */
int reservation_fill_coded(struct reservation *reservation, uint32_t column, const void *sizes, const uint8_t *blocks,
                           size_t length, uint64_t deadline_us, struct error *error);
/* Of more steps than get slots at once: gives some of the others theirs. 0: all have them; 1: there is more to do; -1: none are
 * left. To be called before fill_coded and code; table_append does the rest itself. */
int reservation_place_steps(struct reservation *reservation, struct error *error);
/* Compresses the values of a compressed column that landed as they were, and checks the blocks that came, until the
 * clock passes the deadline. 0: all is done; 1: there is more to do; -1: something is no block. table_append does
 * the rest itself, however long it takes. */
int reservation_code(struct reservation *reservation, uint64_t deadline_us, struct error *error);
/* Appends step i to streams[i]; flags (NULL: none) are of STEP_FIRST and STEP_LAST. On success the reservation is gone. */
int table_append(struct table *table, struct reservation *reservation, struct stream *const *streams,
                 const uint8_t *flags, struct error *error);
/* The same in parts, between which the table may be used. First the steps are expected: the next n in these streams, and
 * so on for all. Then all that may refuse comes: where it does, or another part of the caller's, nothing is to be expected any
 * more. Then parts enter, in order, with flags that are good; with the last one the reservation is gone. */
void reservation_expect(struct reservation *reservation, uint32_t n, struct stream *const *streams);
void reservation_expect_nothing(struct reservation *reservation);
void table_stream_expect_nothing(struct stream *stream); /* for each of these streams, beside that */
/* 1: not yet, as items have still to leave, which is work of table_step; -1: refused. */
int table_begin_append(struct table *table, struct reservation *reservation, struct error *error);
void table_append_part(struct table *table, struct reservation *reservation, uint32_t n, struct stream *const *streams,
                       const uint8_t *flags);
/* More items have to leave for max_bytes than leave with a part: that is work of table_step, and the next part waits for it. */
bool table_is_shrinking(const struct table *table);
/* What a ragged window shows of an item: steps of one episode of its stream, consecutive ones. */
struct table_span {
    uint64_t first, count;
};
/* Of many items: by column, for each ragged window its table_span for each item, of any alignment. */
struct table_spans {
    const uint8_t *of[TABLE_MAX_COLUMNS];
};
/* Binds the items of a reservation to the steps that their windows see: item i at step steps[i] of streams[i], which are
 * those of table_owner_of_steps. The steps stay until the reservation is released or its items have gone. Needed before
 * table_commit in a table with windows. */
int table_resolve(struct table *table, struct reservation *reservation, struct stream *const *streams,
                  const uint64_t *steps, const struct table_spans *spans, struct error *error);
/* The same in parts: some of the next n, whose streams and steps these are. `spans` are of all items. Returns how many,
 * at least one; -1: none is bound any more. */
int table_resolve_part(struct table *table, struct reservation *reservation, uint32_t n, struct stream *const *streams,
                       const uint64_t *steps, const struct table_spans *spans, struct error *error);
/* Where step `index` (0 … max(length, 1) - 1) of a window lies: its bytes, or with compression its block and the block's
 * size. NULL never. */
const uint8_t *table_window_step(const struct table *table, uint32_t column, uint32_t slot, uint32_t index,
                                 size_t *size_bytes);
/* Copies that step out. */
void table_window_read(const struct table *table, uint32_t column, uint32_t slot, uint32_t index, void *out);
/* A number for that step: equal for equal steps of one table while they are pinned. */
uint32_t table_window_step_number(const struct table *table, uint32_t column, uint32_t slot, uint32_t index);

/* ---- update, delete ---- */
int table_update(struct table *table, uint32_t n, const uint64_t *ids, const double *priorities, uint64_t *applied,
                 uint64_t *stale, struct error *error);
uint64_t table_delete(struct table *table, uint32_t n, const uint64_t *ids); /* how many were live */

/* ---- changing a live table ----
 * A reset or a change of settings may have to look at every item. It is begun by one call and carried on by table_step, in
 * slices; until it is done adding and sampling are refused with ERROR_TIMEOUT and the reason. */
void table_begin_reset(struct table *table); /* removes every item; pinned bytes stay until unpinned; ids stay unique */
/* Changes sampler, remover, limiter, max_times_sampled, max_bytes, max_staleness from a msgpack map of such keys; items
 * beyond new limits leave, as the remover chooses. Refused while an earlier change is not done. */
int table_begin_configure(struct table *table, const uint8_t *spec, size_t length, struct error *error);
bool table_has_work(const struct table *table);
/* Does such work until `deadline_us` of the monotonic clock, or a little longer (CLOCK_NEVER: all); true if some is left. */
bool table_step(struct table *table, uint64_t deadline_us);
/* The same with all the work done at once. */
void table_reset(struct table *table);
int table_configure(struct table *table, const uint8_t *spec, size_t length, struct error *error);

/* Says that the policy's version is `version` or newer: items more than max_staleness behind it leave. Where there
 * are many, table_step removes the rest, and until then sampling waits. ERROR_BADSCHEMA without the column. */
int table_see_version(struct table *table, int64_t version, struct error *error);

#endif
