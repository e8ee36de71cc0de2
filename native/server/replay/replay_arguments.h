/* replay_arguments: reads the arguments that REPLAY.* commands share (tables, counts, ids, columns, BLOCK), and
 * phrases their errors.
 *
 * Functions that can refuse return 0, or -1 with `error` set; those named …_or_reply reply the error themselves. */
#ifndef REPLAY_SERVER_REPLAY_ARGUMENTS_H
#define REPLAY_SERVER_REPLAY_ARGUMENTS_H

#include "base/text.h"
#include "server/replay/replay_registry.h"

/* NULL: there is no such table. */
struct replay_entry *replay_find_entry(struct client *client, const struct resp_argument *argument,
                                       struct error *error);
/* The table named by argv[1], or NULL after replying the error. */
struct replay_entry *replay_entry_or_reply(struct client *client);
/* A request of that table, which is the client's state; NULL: the error is replied. */
struct replay_request *replay_request_or_reply(struct client *client, enum replay_request_kind kind);
int replay_parse_count(const struct resp_argument *argument, uint32_t *n, struct error *error);
/* The milliseconds of BLOCK. */
int replay_parse_block(const struct resp_argument *argument, struct replay_request *request, struct error *error);
/* The number of INCARNATION; ERROR_BADSCHEMA if the table has another. */
int replay_check_incarnation(const struct replay_entry *entry, const struct resp_argument *argument,
                             struct error *error);
uint64_t replay_block_deadline(const struct replay_request *request);
/* How many ids, uint64[n] in one argument. */
int replay_parse_ids(const struct resp_argument *argument, uint32_t *n, struct error *error);
int replay_find_column(const struct table *table, const struct resp_argument *name, uint32_t *column,
                       struct error *error);
/* Whether the arguments from `first` on are at most so many. More names than there can be things would hold the loop for
 * nothing. Files and primaries may send more: earlier versions had no limit. */
bool names_within_or_reply(struct client *client, uint32_t first, uint32_t most, const char *what);
/* "float32 [4,84,84]" */
void replay_describe_shape(const struct column *column, struct text *text);

#endif
