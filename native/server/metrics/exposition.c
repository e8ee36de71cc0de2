/* exposition: names, labels and numbers as Prometheus reads them. */
#include "server/metrics/exposition.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LEAST_BUCKET_BITS 10u /* 1.024 µs */
#define MOST_BUCKET_BITS 34u  /* 17.2 s */

static const char *const types[] = {"counter", "gauge", "histogram", "gauge"};

void exposition_family(struct exposition *exposition, const char *name, enum metric_type type, const char *help) {
    int length = (int)strlen(name);
    const char *type_name = types[type];
    if (exposition->openmetrics && type == METRIC_COUNTER) length -= (int)strlen("_total");
    if (exposition->openmetrics && type == METRIC_INFO) {
        length -= (int)strlen("_info");
        type_name = "info";
    }
    text_append(exposition->out, "# HELP %.*s %s\n# TYPE %.*s %s\n", length, name, help, length, name, type_name);
}

/* What would be read as a byte that is written so: other bytes are another label. */
static bool begins_escape(const uint8_t *bytes, size_t left) {
    return left >= 2 && bytes[0] == '\\' && bytes[1] == 'x';
}

static void append_value(struct text *out, const struct label *label) {
    const uint8_t *bytes = (const uint8_t *)label->value;
    for (size_t at = 0, length; at < label->length; at += length) {
        length = text_character(bytes + at, label->length - at);
        if (bytes[at] == '\n')
            text_append(out, "\\n");
        else if (length == 0 || bytes[at] < 0x20 || bytes[at] == 0x7f || begins_escape(bytes + at, label->length - at))
            text_append(out, "\\\\x%02x", bytes[at]);
        else if (bytes[at] == '"' || bytes[at] == '\\')
            text_append(out, "\\%c", bytes[at]);
        else
            text_append_bytes(out, bytes + at, length);
        if (length == 0) length = 1;
    }
}

/* The labels, and one more where `le` is not NULL. */
static void append_labels(struct text *out, const struct label *labels, const char *le) {
    const char *between = "{";
    for (; labels && labels->name; labels++) {
        text_append(out, "%s%s=\"", between, labels->name);
        append_value(out, labels);
        text_append(out, "\"");
        between = ",";
    }
    if (le) text_append(out, "%sle=\"%s\"", between, le);
    if (le || *between == ',') text_append(out, "}");
}

static void append_number(struct text *out, double value) {
    if (isnan(value))
        text_append(out, " NaN\n");
    else if (isinf(value))
        text_append(out, value > 0 ? " +Inf\n" : " -Inf\n");
    else if (value == floor(value) && fabs(value) < 9e15)
        text_append(out, " %.0f\n", value);
    else
        text_append(out, " %.15g\n", value);
}

void exposition_sample(struct exposition *exposition, const char *name, const struct label *labels, double value) {
    text_append(exposition->out, "%s", name);
    append_labels(exposition->out, labels, NULL);
    append_number(exposition->out, value);
}

static void sample_of(struct exposition *exposition, const char *name, const char *suffix, const struct label *labels,
                      const char *le, double value) {
    text_append(exposition->out, "%s%s", name, suffix);
    append_labels(exposition->out, labels, le);
    append_number(exposition->out, value);
}

void exposition_histogram(struct exposition *exposition, const char *name, const struct label *labels,
                          const struct histogram *histogram) {
    static const char *const bounds[] = {"1.024e-06",   "4.096e-06",   "1.6384e-05",  "6.5536e-05",  "0.000262144",
                                         "0.001048576", "0.004194304", "0.016777216", "0.067108864", "0.268435456",
                                         "1.073741824", "4.294967296", "17.179869184"};
    size_t bound = 0;
    for (unsigned bits = LEAST_BUCKET_BITS; bits <= MOST_BUCKET_BITS; bits += 2, bound++) {
        sample_of(exposition, name, "_bucket", labels, bounds[bound],
                  (double)histogram_count_to(histogram, (uint64_t)1 << bits));
    }
    sample_of(exposition, name, "_bucket", labels, "+Inf", (double)histogram->count);
    sample_of(exposition, name, "_sum", labels, NULL, (double)histogram->sum / 1e9);
    sample_of(exposition, name, "_count", labels, NULL, (double)histogram->count);
}

void exposition_end(struct exposition *exposition) {
    if (exposition->openmetrics) text_append(exposition->out, "# EOF\n");
}
