/* replay_coded: replies windows as compressed steps: each distinct step of a batch once, as it is stored, and for
 * each item which of them it shows. The format is in docs/protocol.md. */
#ifndef REPLAY_SERVER_REPLAY_CODED_H
#define REPLAY_SERVER_REPLAY_CODED_H

#include "server/replay/replay_registry.h"

#define REPLAY_CODED_PLACES (1u << 18) /* steps that the windows over one column show, all items together */
#define REPLAY_CODED_AT_ONCE 8192u     /* steps that windows show: a batch with more is looked through in slices */

/* The windows over one column of steps. */
struct coded_plan {
    uint32_t source;
    uint32_t windows;
    uint8_t window[TABLE_MAX_COLUMNS];
    uint64_t places; /* steps that they show of one item */
};

struct coded_step {
    uint32_t number, place;
};

/* A batch on its way to such a reply. */
struct replay_coded {
    struct replay_batch *batch;
    uint8_t columns[TABLE_MAX_COLUMNS]; /* as they were asked for */
    uint8_t item[TABLE_MAX_COLUMNS];    /* of those: the ones that go as they are … */
    uint8_t source[TABLE_MAX_COLUMNS];  /* … and what the windows among them look at */
    uint32_t column_count, items, sources;
    uint8_t *item_extra; /* memory of the batch, as `index` and `extra` */
    struct coded_step *index;
    uint32_t at; /* of the sources, the one that is being looked through: */
    struct coded_plan plan;
    uint32_t index_size, cleared; /* entries of its index */
    uint32_t looked, steps;       /* items that were looked at, and the steps that they show */
    uint8_t *extra;
};

/* Whether a column goes as compressed steps, as windows do. */
bool replay_goes_coded(const struct column *column);
/* How many steps the windows of a request's items show. */
uint64_t replay_coded_places(const struct replay_request *request);
/* Whether n items may be answered so; otherwise ERROR_LIMIT: they show too many steps. */
bool replay_coded_allowed(const struct replay_entry *entry, uint32_t n, const uint8_t *columns, uint32_t column_count,
                          struct error *error);
/* Begins to find the steps of a batch whose slots are pinned. False: memory is exhausted. */
bool replay_coded_begin(struct replay_coded *coded, struct replay_batch *batch, const uint8_t *columns,
                        uint32_t column_count);
/* Finds some. False: all are found. */
bool replay_coded_find_some(struct replay_coded *coded);
/* Replies [ids, probabilities, weights, name, bytes, …]: the columns of items, of which `copied` (else NULL) has those that
 * were copied out before, then a coded one for each column of steps. */
void replay_coded_reply(struct client *client, const struct replay_coded *coded, struct blob *const *copied);

#endif
