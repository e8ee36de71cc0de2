#include "base/read_ahead.h"

#include <fcntl.h>

#define AHEAD_BYTES (8u << 20) /* asked for at once, when half of what was asked for before is left */

void read_ahead(struct read_ahead *ahead, int descriptor, uint64_t at, uint64_t size) {
    if (ahead->asked > at + AHEAD_BYTES / 2 || ahead->asked >= size) return;
    uint64_t from = ahead->asked > at ? ahead->asked : at;
    ahead->asked = size - from > AHEAD_BYTES ? from + AHEAD_BYTES : size;
    (void)posix_fadvise(descriptor, (off_t)from, (off_t)(ahead->asked - from), POSIX_FADV_WILLNEED);
}
