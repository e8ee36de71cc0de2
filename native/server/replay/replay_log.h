/* replay_log: tables in the append-only file, and in what replicas are sent. Each change of a durable table is a record there
 * (replay/table_journal.h), in one order with the changes of keys, weights and gradients, and in the same transactions.
 *
 * A table is `logged` once the file contains its creation, or a base with the table in it. Before that, its changes are not
 * recorded, and the file's writer begins another base. The table's first record after that names the base. If the base was
 * never finished, so that older files count, a reader skips the table's records (replay_log_apply). */
#ifndef REPLAY_SERVER_REPLAY_LOG_H
#define REPLAY_SERVER_REPLAY_LOG_H

#include "base/text.h"
#include "server/replay/replay_registry.h"

/* ---- for the registry ---- */
int replay_log_begin(struct replay_entry *entry, struct error *error); /* of a new table; -1: no memory to log it */
void replay_log_created(struct replay_entry *entry); /* it is in service */
/* Whether the file can have a new table from its creation on; else the next base has it. */
bool replay_log_takes_new(const struct replay_entry *entry);
void replay_log_restored(struct replay_entry *entry); /* as is one out of a snapshot */
/* Before `former` is dropped for `entry`, a restored table of its name. */
void replay_log_replaced(struct replay_entry *former, struct replay_entry *entry);
void replay_log_dropped(struct replay_entry *entry);

/* ---- for whoever keeps the file ---- */
void replay_log_on(struct replay_registry *registry); /* there is one; it has the tables that were loaded from it */
void replay_log_off(struct replay_registry *registry);
bool replay_log_holds_something(const struct replay_registry *registry); /* there are durable tables */
bool replay_log_lacks_tables(const struct replay_registry *registry);
/* There are tables that are in no base yet, or only in this one, which is not finished; 0: none is being written. */
bool replay_log_awaits_base(const struct replay_registry *registry, uint64_t base);
/* No durable table is being changed: one may be cut. */
bool replay_log_is_whole(const struct replay_registry *registry);
void replay_log_cut(struct replay_registry *registry, uint64_t base); /* the base has all durable tables from here on */
void replay_log_cut_failed(struct replay_registry *registry, uint64_t base);

/* ---- for whoever has replicas ---- */
/* Durable tables are told of from now on, and a cut of them all may follow. False: memory is exhausted for one of them. */
bool replay_log_begin_stream(struct replay_registry *registry);
void replay_log_stream(struct replay_registry *registry); /* the cut is made: replicas have them from here on */
void replay_log_end_stream(struct replay_registry *registry);

/* Begins to tell of a table. False: memory is exhausted, and neither files nor replicas will have it. */
bool replay_log_open(struct replay_entry *entry);
/* Whether files and replicas have the table. */
bool replay_log_has(const struct replay_entry *entry);
/* An entry has come or gone, or is another's follower now. */
void replay_log_recount(struct replay_registry *registry);

/* ---- reading it, before anyone is served ---- */
void replay_log_adopt(struct replay_registry *registry, struct replay_entry *entry); /* a table of the base */
/* A table of the record of its creation, which is not in the registry yet. NULL: it is refused; ERROR_NOTABLE: it shares
 * steps of a table that is not there, or that is among `skipped` (NULL: none is, see below). */
struct replay_entry *replay_log_make(struct replay_registry *registry, const char *name, const uint8_t *record,
                                     size_t length, const struct text *skipped, struct error *error);
/* A record of a table, read from files with this base. `skipped`: names of tables whose base was not finished, and of those
 * that share their steps, each between two line feeds. -1: it is refused. */
int replay_log_apply(struct replay_registry *registry, const char *name, const uint8_t *record, size_t length,
                     uint64_t base, struct text *skipped, struct error *error);
/* All is read: says what there is. */
void replay_log_loaded(struct replay_registry *registry, struct text *said);

#endif
