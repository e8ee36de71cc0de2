/* families: every metric, and for which things it is counted (the server, each table, each command, …). */
#ifndef REPLAY_SERVER_FAMILIES_H
#define REPLAY_SERVER_FAMILIES_H

#include <stdbool.h>
#include <stdint.h>

#include "replay/table.h"
#include "server/metrics/exposition.h"

struct server;

/* What one family has samples of. */
enum metric_each {
    EACH_SERVER,
    EACH_TABLE,
    EACH_COMMAND,  /* that was called */
    EACH_WEIGHTS,
    EACH_GRADIENTS,
    EACH_DATABASE, /* that has keys */
    EACH_ERROR,
    EACH_TRANSPORT,
    EACH_KINDS
};

struct family;

/* One of those, while its samples are written. */
struct metric_item {
    const struct server *server;
    const void *what; /* the table's entry, the command's, … */
    /* Its place in the order of the family's samples, from 1 on; those of tables and keys may have gaps. */
    uint64_t sequence;
    struct label labels[LABELS_MOST + 1]; /* the first names the item, but for EACH_SERVER; ended by a NULL name */
    struct table_info table; /* EACH_TABLE */
};

struct family {
    const char *name;
    enum metric_type type;
    enum metric_each each;
    const char *help;
    double (*value)(const struct metric_item *item); /* a single sample; NaN: none. NULL: `write` does it */
    void (*write)(struct exposition *exposition, const struct family *family, struct metric_item *item);
};

/* One file of families per subject, each ended by a NULL name; and all of them in the order in which they are shown. */
extern const struct family families_server[], families_replication[], families_tables[], families_stores[];
extern const struct family *const families_all[4];

/* The item that follows sequence number `after` (0: the first one). False: there is none. `*is_there` false: it has
 * nothing to show. `item` holds the item of the call before; where its `what` is NULL a list is walked from its
 * beginning. */
bool metric_item_after(const struct server *server, enum metric_each each, uint64_t after, struct metric_item *item,
                       bool *is_there);
/* The largest sequence number of those that are there now, or a larger one. */
uint64_t metric_items_until(const struct server *server, enum metric_each each);
/* Adds a label behind those there are. */
void metric_item_label(struct metric_item *item, const char *name, const char *value);

#endif
