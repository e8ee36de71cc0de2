/* exposition: families of samples as text, in Prometheus' format 0.0.4 or in OpenMetrics 1.0. */
#ifndef REPLAY_SERVER_EXPOSITION_H
#define REPLAY_SERVER_EXPOSITION_H

#include <stdbool.h>
#include <stddef.h>

#include "base/histogram.h"
#include "base/text.h"

enum metric_type { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM, METRIC_INFO };

struct exposition {
    struct text *out;
    bool openmetrics;
};

struct label {
    const char *name;
    /* Any bytes: what is no UTF-8 is written as \xNN, as is a backslash before an x: no two are written alike. */
    const char *value;
    size_t length;
};
#define LABELS_MOST 4

/* HELP and TYPE. Names of counters end in _total, those of METRIC_INFO in _info. */
void exposition_family(struct exposition *exposition, const char *name, enum metric_type type, const char *help);
/* One sample; labels end with a NULL name. */
void exposition_sample(struct exposition *exposition, const char *name, const struct label *labels, double value);
/* Buckets, sum and count in seconds, of nanoseconds. The buckets' bounds are powers of four, from about a microsecond to
 * about 17 s. */
void exposition_histogram(struct exposition *exposition, const char *name, const struct label *labels,
                          const struct histogram *histogram);
void exposition_end(struct exposition *exposition);

#endif
