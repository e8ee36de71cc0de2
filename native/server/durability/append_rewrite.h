/* append_rewrite: rewrites the append-only file in the background: the store as it is becomes a new base, and later
 * changes go to a new increment. Until the base is on the disk the old files stay valid. */
#ifndef REPLAY_SERVER_APPEND_REWRITE_H
#define REPLAY_SERVER_APPEND_REWRITE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct append_log;

/* As soon as no snapshot runs. */
void append_rewrite_want(struct append_log *log);
bool append_rewrite_is_running(const struct append_log *log);
/* The old files stay what counts, if they are whole. */
void append_rewrite_give_up(struct append_log *log);
/* Begins one that is wanted, or due since the file has grown; the writer is idle. Returns when to look again. */
uint64_t append_rewrite_step(struct append_log *log);
/* The writer has done its part: new files, or the manifest. */
void append_rewrite_switched(struct append_log *log);

#endif
