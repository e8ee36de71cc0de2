/* replay_columns: what ADD, APPEND and ITEM share: columns of items or steps, each a name and its bytes. All
 * arguments before the first column are checked before any column is received. Then the columns land in their slots.
 *
 * Functions that can refuse return 0, or -1 with `error` set. */
#ifndef REPLAY_SERVER_REPLAY_COLUMNS_H
#define REPLAY_SERVER_REPLAY_COLUMNS_H

#include "server/replay/replay_registry.h"

/* What one of these commands has of its own: COMMAND table n … [options] COLUMNS k name bytes … */
struct replay_form {
    enum replay_request_kind kind;
    const char *usage;
    uint32_t options; /* index of the argument where options begin */
    /* Checks the arguments before the options, and the table; sets the columns expected. */
    int (*check)(struct replay_request *request, const struct resp_argument *arguments, struct error *error);
    /* Reserves the slots. */
    int (*reserve)(struct replay_request *request, struct error *error);
};

/* For a command's `land`: where a large argument goes. Whatever is wrong, from there on the bytes are read and dropped,
 * and the handler replies the error. */
void replay_columns_land(struct client *client, const struct replay_form *form, const struct resp_argument *arguments,
                         uint32_t index, uint32_t count, size_t length, struct resp_landing *landing);
/* For its handler: the request with all its columns in place, or NULL after replying the error. */
struct replay_request *replay_columns_or_reply(struct client *client, const struct replay_form *form);

/* Of a CODED request: puts blocks into place until the clock passes the deadline. 0: all are; 1: there are more; -1: their sizes
 * cannot be. */
int replay_columns_fill_coded(struct client *client, struct replay_request *request, uint64_t deadline_us,
                              struct error *error);
/* Of a request with ragged columns: copies their rows, in the same way. */
int replay_columns_fill_ragged(struct client *client, struct replay_request *request, uint64_t deadline_us,
                               struct error *error);
/* Of an ITEM that has all its columns: where it says what ragged windows show. */
int replay_columns_spans(struct client *client, const struct replay_request *request, struct table_spans *spans,
                         struct error *error);
/* Priorities, float64[n] or none, in an argument, where they need not be aligned: whether those of `count` items from `first` on
 * are good; and for a command's header whether they are so many, and the first of them good. */
int replay_check_priorities(const struct table *table, const struct resp_argument *argument, uint32_t first,
                            uint32_t count, struct error *error);
int replay_check_initial_priorities(const struct replay_request *request, const struct resp_argument *argument,
                                    struct error *error);

#endif
