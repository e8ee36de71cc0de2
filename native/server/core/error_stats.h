/* error_stats: how often each kind of error was replied, for INFO. */
#ifndef REPLAY_SERVER_ERROR_STATS_H
#define REPLAY_SERVER_ERROR_STATS_H

#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

#define ERROR_CODE_BYTES 32u
#define ERROR_STATS_CODES 64u /* that are counted; any further ones are not: scripts and DEBUG ERROR can make up any */

struct error_stats {
    struct {
        char code[ERROR_CODE_BYTES];
        uint64_t count;
    } codes[ERROR_STATS_CODES];
    uint32_t used;
};

/* `line` begins with the code, which ends with a space or with the line. */
void error_stats_count(struct error_stats *stats, const char *line, size_t length);
void error_stats_info(const struct error_stats *stats, struct text *out);

#endif
