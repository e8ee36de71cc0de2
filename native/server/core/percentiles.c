#include "server/core/percentiles.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int percentiles_parse(const char *text, double percentiles[PERCENTILES_MOST], struct error *error) {
    int count = 0;
    for (text += strspn(text, " "); *text; text += strspn(text, " "), count++) {
        char *end;
        double percentile = strtod(text, &end);
        if (end == text || (*end != ' ' && *end != '\0') || count == PERCENTILES_MOST)
            return error_set(error, ERROR_GENERIC, "Invalid latency-tracking-info-percentiles parameters");
        if (!(percentile >= 0 && percentile <= 100))
            return error_set(error, ERROR_GENERIC,
                             "latency-tracking-info-percentiles parameters should sit between [0.0,100.0]");
        percentiles[count] = percentile;
        text = end;
    }
    return count;
}

int percentiles_tidy(const char *text, char *tidy, size_t size, struct error *error) {
    double percentiles[PERCENTILES_MOST];
    int count = percentiles_parse(text, percentiles, error);
    size_t used = 0;
    tidy[0] = '\0';
    for (int i = 0; i < count && used < size; i++)
        used += (size_t)snprintf(tidy + used, size - used, "%s%.10g", i > 0 ? " " : "", percentiles[i]);
    return count < 0 ? -1 : 0;
}
