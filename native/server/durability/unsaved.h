/* unsaved: how much of each table of experience a kill would lose, because tables are in snapshots only. */
#ifndef REPLAY_SERVER_UNSAVED_H
#define REPLAY_SERVER_UNSAVED_H

#include "base/text.h"
#include "replay/table.h"

struct client;
struct replay_registry;

/* A table's counters at a moment that is on the disk. */
struct saved_table {
    struct saved_table *next;
    uint64_t added, updated, removed;
    char name[TABLE_MAX_NAME + 1];
};

/* Of all tables, as they are now. Where memory is short some are left out: more is then said to be lost than is. */
struct saved_table *saved_tables_note(const struct replay_registry *registry);
void saved_tables_free(struct saved_table *saved);
/* "unsaved_table0:name=atari,added=12,updated=3,removed=0", a line for each table to which the client has any right. */
void unsaved_info(const struct client *client, const struct saved_table *saved, struct text *out);

#endif
