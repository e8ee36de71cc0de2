/* replay_registry: the server's tables by name, the clients that wait at them, and the replies in flight that pin
 * their items. */
#ifndef REPLAY_SERVER_REPLAY_REGISTRY_H
#define REPLAY_SERVER_REPLAY_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"
#include "replay/column_set.h"
#include "replay/table.h"
#include "replay/table_journal.h"
#include "server/core/command.h"

#define REPLAY_MAX_TABLES 256u
#define REPLAY_AT_ONCE_ITEMS 1024u /* what has to do with more is done in slices */
#define REPLAY_TABLE_PINNED_LIMIT (TABLE_SPARE_SLOTS / 2)  /* items held by replies in flight, of one table */
#define REPLAY_CLIENT_PINNED_LIMIT (TABLE_SPARE_SLOTS / 4) /* and by those of one client */
#define REPLAY_MOST_UNUSED (1024 * REPLAY_CLIENT_PINNED_LIMIT) /* that are given back at once */
/* A larger reply leaves a quarter of the table's pins to smaller ones, or waits until it does. */
#define REPLAY_SMALL_REPLY_ITEMS 1024u
#define REPLAY_GATHER_ITEM_BYTES 2048u        /* columns of at least this go from storage to the socket */
#define REPLAY_COPY_BYTES (4u << 20)          /* as do longer columns, however small their items */
#define REPLAY_SHARE_COLUMN_BYTES 65536u     /* smaller columns go through the socket even where memory is shared */
#define REPLAY_SHARE_ITEM_BYTES (1u << 20)   /* as do those of larger items: one is gathered in one go */
#define REPLAY_SHARE_ALIGNMENT 64u           /* of columns in a region */
#define REPLAY_POOLED_OBJECTS 256u            /* requests and replies kept for reuse, each */
#define REPLAY_POOLED_BYTES (32u << 20)       /* memory of the replies kept */

struct server;
struct client;

/* A table in service. It outlives its name: a dropped table goes when nothing refers to it any more. */
struct replay_entry {
    struct replay_registry *registry;
    struct replay_entry *next;
    struct table *table;
    uint64_t sequence;    /* 1 for the first entry ever made, one more for each that followed */
    uint64_t incarnation; /* random: no table made anew under the same name has it; 19 decimal digits */
    uint32_t references; /* requests in progress and replies in flight */
    bool dropped;
    /* What happens to it is told to the append-only file and to replicas (replay_log.h). */
    struct table_journal_sink journal;
    bool streamed; /* replicas have the table */
    bool followed; /* it is made of what the primary tells: records alone change it (replay_follow.h) */
    bool logged; /* the file has the table … */
    uint64_t logged_from; /* … if this base of it was finished; 0: it has it in any case */
    bool former_logged; /* while it is not, the file has the table that it replaced */
    bool lacks_pins; /* somebody was refused, or waits, for want of items that may be pinned */
    bool replaced; /* dropped for another table of its name */
    uint32_t amid; /* requests between two parts of their batches: settings stay, and no reset begins */
    struct wait_queue adders, samplers;
    bool adder_has_work; /* the first of them is still to be made ready, by replay_adders_step */
    struct wait_queue changers; /* RESET and CONFIG, until their work is done */
    struct wait_queue watchers; /* AWAIT */
    struct replay_streams *streams; /* of all clients that append to it */
};

enum replay_request_kind {
    REPLAY_REQUEST_ADD,
    REPLAY_REQUEST_APPEND,
    REPLAY_REQUEST_ITEM,
    REPLAY_REQUEST_SAMPLE,
    REPLAY_REQUEST_GET,
    REPLAY_REQUEST_UPDATE,
    REPLAY_REQUEST_DEL,
    REPLAY_REQUEST_RESET,
    REPLAY_REQUEST_CONFIG,
    REPLAY_REQUEST_AWAIT
};

struct replay_batch;
struct replay_request;

/* A batch on its way into shared memory. */
struct replay_gather {
    struct replay_batch *batch;  /* NULL: there is none */
    uint64_t lease;
    size_t region, offset;       /* of the region in the arena; of the column at `place`, in the region */
    uint32_t place, item;        /* the first column, of those asked for, that is not complete, and its next item */
    size_t ragged_done;          /* bytes that are gathered, if that column is ragged */
};

/* How a batch that waits for the disk goes on: all of it is in memory; or the wait was cut short. Both take the batch over. */
struct replay_cold_ways {
    void (*finish)(struct client *client, struct replay_request *request, struct replay_batch *batch);
    void (*at_once)(struct client *client, struct replay_request *request, struct replay_batch *batch);
};

/* A batch that waits for what it reads of a disk. */
struct replay_cold {
    struct cold_read *read;
    struct replay_batch *batch; /* NULL: there is none */
    const struct replay_cold_ways *ways;
};

/* A request for a table, from its header until it is answered: while its columns land, and while it waits. */
struct replay_request {
    struct replay_request *next; /* in the pool */
    struct replay_entry *entry;
    enum replay_request_kind kind;
    struct error error;          /* why it was refused while its columns came */
    struct reservation *reservation;
    uint32_t n;
    bool blocks;
    bool partial; /* ADD, ITEM: fewer than n will do */
    int64_t block_ms;
    uint32_t priorities;         /* ADD, ITEM: argument index of the priorities */
    bool amid;                   /* counted in the entry's */
    uint32_t checked;            /* ADD, ITEM, UPDATE: of n, priorities that are good … */
    double checked_limit;        /* … up to this one, which may change while they wait */
    uint32_t entered;            /* ADD, ITEM, APPEND: of n, items or steps that are in the table */
    uint64_t deadline_us;        /* ADD, ITEM: of the wait */
    struct blob *ids;            /* ADD, ITEM: of those that entered, where they enter in parts */
    uint32_t done;               /* UPDATE, DEL: of n; ITEM: of n, items that are bound to their steps */
    uint32_t opened;             /* APPEND: of n, steps whose streams are open */
    uint64_t applied, stale;
    struct replay_parts *parts;  /* SAMPLE, GET: a batch that is drawn or copied in parts */
    uint32_t first_column;       /* argument index of the first column's name */
    struct column_set expected;  /* columns that must be given */
    struct column_set landed;    /* those that are in place */
    uint32_t history;            /* APPEND: of streams that it opens */
    bool ragged;                 /* ADD, ITEM: ragged columns came that are not all in place */
    uint32_t to_fill;            /* argument index of the first coded or ragged column that is not in place */
    bool behind_streams;         /* APPEND: waits until the steps of closed streams are given back */
    bool coded;                  /* APPEND: columns come as blocks; SAMPLE: windows go as steps and places */
    double beta;
    bool replace;                /* SAMPLE: with replacement */
    bool timed;                  /* SAMPLE: one shard's part of a sample, what arrives between these times */
    double from, to;
    int64_t unused; /* SAMPLE: draws of earlier answers that were left over */
    bool begun;                  /* RESET, CONFIG: the table is at work; ADD, ITEM, APPEND: all are let through */
    bool since; /* AWAIT: `wanted` are those that the client knows of; else those that must be there */
    int64_t wanted;
    uint32_t column_count; /* SAMPLE: columns asked for, in order */
    uint8_t columns[TABLE_MAX_COLUMNS];
    bool shared; /* SAMPLE: by shared memory where there is room */
    bool detailed; /* SAMPLE: with what the table knows of each item */
    struct replay_gather gather;
    struct replay_cold cold;
};

struct replay_registry {
    struct server *server;
    uint64_t pins_lacked_us; /* when a reply last found no items that may be pinned; 0: never */
    struct replay_entry *entries; /* in order of creation: what shares steps comes after their owner */
    uint32_t count;
    uint64_t entered; /* entries that there have ever been */
    struct replay_entry *dropped;
    struct replay_request *requests; /* pools */
    uint32_t requests_pooled;
    struct replay_batch *batches;
    uint32_t batches_pooled;
    size_t batch_bytes_pooled;
    struct closed_stream *closed; /* streams that still have steps to give back */
    uint32_t closed_count, closed_room;
    void *scratch; /* aligned copies of ids and priorities, for one command */
    size_t scratch_bytes;
    /* At the start, after a restore: a table created again takes the settings given, and says so here. */
    struct text *adopting;
    bool held_back; /* clients that wait may go on once writes may */
    uint64_t adder_served; /* the sequence of the table whose batch was made ready last */
    bool logs; /* there is an append-only file */
    uint32_t unlogged; /* durable tables that it lacks */
};

/* Puts restored tables into service, in the places of those of their names; all of them or, with `error`, none. A table in
 * service must be the same but for what can be changed in it, which wins; what that changes is written to `said`, line by line. Waiters and
 * requests in progress are told that their table was made anew. */
int replay_registry_install(struct replay_registry *registry, struct table *const *tables, uint32_t count,
                            struct text *said, struct error *error);

/* Puts the settings of `given` over those of a table that differs from it in nothing else; says so when they changed. The
 * table may then have work left. */
int replay_registry_adopt(struct table *table, const struct table_config *given, struct text *said,
                          struct error *error);
/* With maxmemory set: whether a table of this config, when full, fits beside the others when they are full, and beside so many
 * bytes of tables that enter with it. */
int replay_registry_check_memory(const struct replay_registry *registry, const struct table_config *config,
                                 uint64_t beside_bytes, struct error *error);
/* An entry for a table, NULL: memory is exhausted; and its entering service, as the last. */
struct replay_entry *replay_registry_entry_new(struct replay_registry *registry, struct table *table);
void replay_registry_enter(struct replay_registry *registry, struct replay_entry *entry);
/* A table in service that shares the steps of this one; NULL: there is none. */
struct replay_entry *replay_registry_sharer(const struct replay_registry *registry, const struct replay_entry *owner);
/* Gives a new table with steps_of the steps of that table, if it is in service. ERROR_NOTABLE: it is not. */
int replay_registry_share_steps(struct replay_registry *registry, struct table *table, struct error *error);

/* Why the client that waits longest waits, or why a single item would have to. An empty message: it would not. */
void replay_waiting_reason(const struct replay_entry *entry, bool sampling, struct error *error);

struct replay_registry *replay_registry_new(struct server *server); /* NULL: memory is exhausted */
void replay_registry_free(struct replay_registry *registry);
/* Creates a table from a spec that holds its name. An identical table that exists already is success. */
int replay_registry_create(struct replay_registry *registry, const uint8_t *spec, size_t length, struct error *error);
/* As above, from a spec that was parsed. */
int replay_registry_create_parsed(struct replay_registry *registry, const struct table_config *config,
                                  struct error *error);
struct replay_entry *replay_registry_named(struct replay_registry *registry, const char *name); /* NULL: none */
/* NULL with ERROR_NOTABLE. */
struct replay_entry *replay_registry_find(struct replay_registry *registry, const void *name, size_t length,
                                          struct error *error);
/* Takes a table out of service, and with it those that share its steps: their waiters are answered NOTABLE. */
void replay_registry_drop(struct replay_registry *registry, struct replay_entry *entry);
/* Frees dropped tables that nothing refers to, as much as one piece of work may: true if there is more to do at once. */
bool replay_registry_sweep_dropped(struct replay_registry *registry);
bool replay_entry_missing(const struct replay_entry *entry, struct error *error); /* sets NOTABLE for a dropped one */
void replay_entry_retain(struct replay_entry *entry);
void replay_entry_release(struct replay_entry *entry);
void *replay_registry_scratch(struct replay_registry *registry,
                              size_t bytes); /* valid until the next call; NULL: exhausted */

/* The client's request state: made with its table retained, given back by the server when the command has replied or the
 * client went. NULL when memory is exhausted. */
struct replay_request *replay_request_new(struct client *client, struct replay_registry *registry,
                                          enum replay_request_kind kind);
void replay_request_set_entry(struct replay_request *request, struct replay_entry *entry);
void replay_request_release(struct replay_request *request); /* gives back what it has reserved */
/* From now on until the request is over, however it ends, it is between two parts of its batch. */
void replay_request_begin_parts(struct replay_request *request);
/* Whether one that has waited, or has been served in slices, must not begin with its change now: a pause of writes, a
 * stop or a failover has begun meanwhile. It is tried again after that. */
bool replay_request_is_held_back(const struct client *client);
#define REPLAY_HELD_BACK "waits until writes go on, which a pause, a failover or a stop holds back"
/* Says why one that its table would let through waits: it is held back, or behind others of its command. */
void replay_request_say_wait(struct client *client, const char *others, struct error *error);
/* Whether a request is between two parts of its batch. */
bool replay_registry_is_amid(const struct replay_registry *registry);

/* A batch being answered: slots, and for the client ids, probabilities and weights. */
struct replay_batch {
    struct replay_batch *next; /* in the pool */
    struct replay_registry *registry;
    struct replay_entry *entry;
    struct client *client;
    uint32_t n, room;
    uint32_t pinned; /* items counted against the client */
    uint32_t references; /* columns on their way, and the handler */
    uint64_t *ids;
    double *probabilities; /* timed: p^alpha instead */
    double *times; /* timed: of arrival */
    float *weights; /* timed: none */
    struct table_detail *details; /* NULL: they were not asked for */
    uint32_t *slots;
    bool timed; /* one shard's part of a sample */
    struct table_arrivals arrivals; /* timed */
    uint8_t *memory;
    size_t memory_bytes;
    struct replay_column_source *sources; /* one for each column asked for, in `memory` */
    uint8_t *extra; /* bounce buffers of its sources */
    size_t extra_bytes;
};

/* Room for the items asked for; the table is retained. NULL: memory is exhausted. */
struct replay_batch *replay_batch_new(const struct replay_request *request, struct client *client);
/* Makes room for `bytes` of extra memory; false: memory is exhausted. */
bool replay_batch_reserve(struct replay_batch *batch, size_t bytes);
/* Gives up the handler's reference. With the last reference, that of the last column to be sent, the items are
 * unpinned. */
void replay_batch_release(struct replay_batch *batch);
/* Whether the request's columns and items may be answered now. Otherwise ERROR_LIMIT: it asks for too much; or
 * ERROR_TIMEOUT: replies in flight hold too much, and the entry's `samplers` are woken when one of them has gone. */
bool replay_batch_allowed(const struct replay_request *request, const struct client *client, struct error *error);
/* Whether the items of the request, which were just drawn, may stay pinned for some turns. */
bool replay_may_stay_pinned(const struct replay_request *request, const struct client *client);
/* Counts the items, whose slots are pinned, against the client. replay_batch_reply does it where it was not done. */
void replay_batch_pin(struct replay_batch *batch);

/* Where in the client's arena a batch's large columns lie. */
struct replay_region {
    uint64_t lease;
    size_t offset;
};

/* How many elements come before the columns. */
size_t replay_batch_heads(const struct replay_batch *batch);
/* Replies [ids, probabilities, weights, name, bytes, …] (timed: [ids, powers, times, state, reason, name, bytes, …]) of a batch whose slots are pinned. With a region (else NULL) a
 * column that lies there is [lease, offset, bytes]. `copied` (else NULL): by column asked for, those that were copied out
 * before. */
void replay_batch_reply(struct client *client, struct replay_batch *batch, const uint8_t *columns,
                        uint32_t column_count, const struct replay_region *region, struct blob *const *copied);
/* What it is made of, for other replies: the extra memory that these columns need, and [ids, probabilities, weights, name,
 * bytes, …] without the array's head. */
size_t replay_columns_extra(const struct replay_batch *batch, const uint8_t *columns, uint32_t column_count,
                            const struct replay_region *region);
void replay_columns_reply(struct client *client, struct replay_batch *batch, const uint8_t *columns,
                          uint32_t column_count, const struct replay_region *region, struct blob *const *copied,
                          uint8_t *extra);

/* ---- through shared memory ---- */
/* Bytes of a column of a batch, as its region has it; 0: it goes through the socket. */
size_t replay_shared_column_bytes(const struct replay_batch *batch, uint32_t column);
/* Takes the handler's batch over, and blocks the client until it is gathered and replied; false: there is no room, or
 * nothing worth it, and the batch is as it was. */
bool replay_share_batch(struct client *client, struct replay_request *request, struct replay_batch *batch);
/* The client went, or its wait was cut short: gives back what the request holds of a gather. */
void replay_share_drop(struct client *client, struct replay_request *request);

/* ---- slow readers ---- */
/* Whether the client holds items of replies that it does not take, or takes too slowly, while others lack them. */
bool replay_holds_back_others(const struct client *client);

#endif
