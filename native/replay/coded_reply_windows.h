/* coded_reply_windows: for clients: builds windows from a coded reply, which holds the distinct steps and, for each
 * item, which of them it shows. The format is in docs/protocol.md, REPLAY.SAMPLE. */
#ifndef REPLAY_REPLAY_CODED_REPLY_WINDOWS_H
#define REPLAY_REPLAY_CODED_REPLY_WINDOWS_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Writes, for n items, what `windows` windows over one column show: window i, `steps[i]` steps of each item, to out[i].
 * -1 with ERROR_BADSHAPE where the bytes are not what n items of these windows need; `out` may be half written then. */
int expand_windows(const uint8_t *coded, size_t length, uint32_t n, uint32_t windows, const uint32_t *steps,
                   uint8_t *const *out, size_t step_bytes, struct error *error);

#endif
