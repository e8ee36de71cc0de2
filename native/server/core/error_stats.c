#include "server/core/error_stats.h"

#include <inttypes.h>
#include <string.h>

static size_t code_length(const char *line, size_t length) {
    size_t most = length < ERROR_CODE_BYTES - 1 ? length : ERROR_CODE_BYTES - 1, used = 0;
    while (used < most && line[used] > ' ' && line[used] <= '~' && line[used] != ':') used++;
    return used;
}

void error_stats_count(struct error_stats *stats, const char *line, size_t length) {
    size_t code = code_length(line, length);
    for (uint32_t i = 0; i < stats->used; i++) {
        if (memcmp(stats->codes[i].code, line, code) != 0 || stats->codes[i].code[code] != '\0') continue;
        stats->codes[i].count++;
        return;
    }
    if (stats->used == ERROR_STATS_CODES || code == 0) return;
    memcpy(stats->codes[stats->used].code, line, code);
    stats->codes[stats->used].code[code] = '\0';
    stats->codes[stats->used++].count = 1;
}

void error_stats_info(const struct error_stats *stats, struct text *out) {
    for (uint32_t i = 0; i < stats->used; i++)
        text_append(out, "errorstat_%s:count=%" PRIu64 "\r\n", stats->codes[i].code, stats->codes[i].count);
}
