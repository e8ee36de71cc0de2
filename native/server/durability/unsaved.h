/* unsaved: how far each table of experience has changed since the last snapshot. A kill loses those changes, except of
 * durable tables while there is an append-only file. */
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

/* The counters of all tables, as they are now. Tables for which memory is short are left out: all their changes then
 * count as unsaved. */
struct saved_table *saved_tables_note(const struct replay_registry *registry);
void saved_tables_free(struct saved_table *saved);
/* "unsaved_table0:name=atari,added=12,updated=3,removed=0,size=100", a line for each table to which the client has any
 * right. `size` is the number of items now. */
void unsaved_info(const struct client *client, const struct saved_table *saved, struct text *out);

#endif
