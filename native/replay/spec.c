/* spec: a table's configuration as msgpack, read strictly (unknown and repeated keys are refused) and written back. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "replay/spec_reader.h"
#include "replay/spec_signature.h"
#include "replay/table_state.h"

static const char *const selector_names[SELECTOR_KINDS] = {"prioritized", "uniform",  "fifo",
                                                           "lifo",        "max_heap", "min_heap"};
#define DEFAULT_EXPONENT 0.6 /* of priorities; as in Ape-X */
static const char *const limiter_names[] = {"min_size", "sample_to_insert_ratio", "queue"};

const char *selector_name(enum selector_kind kind) {
    return selector_names[kind];
}

/* ---- reading ------------------------------------------------------------------------------------------------------- */

static int read_selector_map(struct spec_reader *spec, const char *what, uint32_t pairs, int *kind, double *exponent,
                             bool *independent) {
    static const char *const keys[] = {"kind", "priority_exponent", "stratified"};
    uint32_t seen = 0;
    for (uint32_t i = 0; i < pairs; i++) {
        struct msgpack_value value;
        int key = 0;
        if (spec_read_key(spec, what, keys, independent ? 3 : 2, &seen, &key)) return -1;
        if (key == 1 ? spec_read_real(spec, keys[1], 0, TABLE_MAX_EXPONENT, exponent) : spec_next_value(spec, &value))
            return -1;
        if (key == 0 && spec_take_choice(spec, what, &value, selector_names, SELECTOR_KINDS, kind)) return -1;
        if (key == 2) {
            if (value.type != MSGPACK_BOOLEAN) return spec_refuse(spec, keys[2], "true or false", &value);
            *independent = !value.boolean;
        }
    }
    if (!(seen & 1)) return spec_refuse(spec, what, "a kind", NULL);
    return seen & ~1u && *kind != SELECTOR_PRIORITIZED
               ? error_set(spec->error, ERROR_BADSCHEMA,
                           "%s: expected %s only with kind prioritized, got it with kind %s", what,
                           keys[seen & 2 ? 1 : 2], selector_names[*kind])
               : 0;
}

/* A selector: {"kind": …, …} or the kind alone as a string. */
static int read_selector(struct spec_reader *spec, const char *what, enum selector_kind *selector, double *exponent,
                         bool *independent) {
    struct msgpack_value value;
    int kind = 0;
    if (spec_next_value(spec, &value)) return -1;
    *exponent = DEFAULT_EXPONENT;
    if (independent) *independent = false;
    if (value.type == MSGPACK_STRING) {
        if (spec_take_choice(spec, what, &value, selector_names, SELECTOR_KINDS, &kind)) return -1;
    } else if (value.type != MSGPACK_MAP) {
        return spec_refuse(spec, what, "a map with a kind, or a kind", &value);
    } else if (read_selector_map(spec, what, value.count, &kind, exponent, independent)) {
        return -1;
    }
    *selector = (enum selector_kind)kind;
    *exponent = kind == SELECTOR_PRIORITIZED ? *exponent : 0;
    return 0;
}

static const char *const limiter_keys[] = {"kind", "min_size_to_sample", "samples_per_insert", "error_buffer", "size"};

static int refuse_limiter_keys(struct spec_reader *spec, const char *expected, uint32_t seen) {
    char list[96] = "";
    for (size_t i = 0; i < sizeof limiter_keys / sizeof limiter_keys[0]; i++)
        if (seen & 1u << i) strcat(strcat(list, list[0] ? ", " : ""), limiter_keys[i]);
    return error_set(spec->error, ERROR_BADSCHEMA, "rate_limiter: expected %s, got the keys %s", expected, list);
}

static int check_limiter_keys(struct spec_reader *spec, const struct table_config *config, uint32_t seen) {
    static const char *const expected[] = {
        [LIMITER_MIN_SIZE] = "kind min_size with min_size_to_sample",
        [LIMITER_SAMPLE_TO_INSERT_RATIO] =
            "kind sample_to_insert_ratio with samples_per_insert, min_size_to_sample and error_buffer",
        [LIMITER_QUEUE] = "kind queue with size",
    };
    static const uint32_t keys[] = {
        [LIMITER_MIN_SIZE] = 0x3, [LIMITER_SAMPLE_TO_INSERT_RATIO] = 0xf, [LIMITER_QUEUE] = 0x11};
    if (!(seen & 1)) return spec_refuse(spec, "rate_limiter", "a kind", NULL);
    if (seen != keys[config->limiter]) return refuse_limiter_keys(spec, expected[config->limiter], seen);
    /* With less, neither side could make a step: one item is worth samples_per_insert samples (as in Reverb). */
    if (config->limiter == LIMITER_SAMPLE_TO_INSERT_RATIO &&
        config->error_buffer < fmax(1, config->samples_per_insert)) {
        return error_set(spec->error, ERROR_BADSCHEMA,
                         "rate_limiter: expected error_buffer to be at least 1 and at least samples_per_insert, got "
                         "%g with samples_per_insert %g",
                         config->error_buffer, config->samples_per_insert);
    }
    return 0;
}

static int read_limiter(struct spec_reader *spec, struct table_config *config) {
    uint32_t pairs = 0, seen = 0;
    if (spec_read_map(spec, "rate_limiter", &pairs)) return -1;
    config->min_size_to_sample = 1;
    config->samples_per_insert = config->error_buffer = 0;
    config->queue_size = 0;
    for (uint32_t i = 0; i < pairs; i++) {
        struct msgpack_value value;
        int key = 0, kind = 0, failed = 0;
        if (spec_read_key(spec, "rate_limiter", limiter_keys, 5, &seen, &key)) return -1;
        switch (key) {
        case 0:
            failed = spec_next_value(spec, &value) ||
                     spec_take_choice(spec, "rate_limiter", &value, limiter_names, 3, &kind);
            config->limiter = (enum limiter_kind)kind;
            break;
        case 1:
            failed = spec_read_unsigned(spec, limiter_keys[1], 0, TABLE_MAX_CAPACITY, &config->min_size_to_sample);
            break;
        case 2: failed = spec_read_real(spec, limiter_keys[2], 1e-9, 1e12, &config->samples_per_insert); break;
        case 3: failed = spec_read_real(spec, limiter_keys[3], 0, 1e18, &config->error_buffer); break;
        case 4:
            failed = spec_read_unsigned(spec, "rate_limiter size", 1, TABLE_MAX_CAPACITY, &config->queue_size);
            break;
        default: break;
        }
        if (failed) return -1;
    }
    return check_limiter_keys(spec, config, seen);
}

static bool has_version_column(const struct table_config *config) {
    struct freshness freshness;
    freshness_init(&freshness, config);
    return freshness.column >= 0;
}

/* One that lies on a disk where the table does. */
static bool has_large_column(const struct table_config *config) {
    for (uint32_t i = 0; i < config->columns; i++) {
        const struct column *column = &config->column[i];
        bool is_window = column->kind == COLUMN_WINDOW;
        if (!is_window && (column_is_ragged(column) || column->item_bytes >= COLUMN_ARRAYS_SMALL_BYTES)) return true;
    }
    return false;
}

/* Checks what must hold between settings, at creation and after each change. */
static int check_config(struct table_config *config, struct error *error) {
    uint64_t capacity = table_effective_capacity(config);
    if (capacity == 0) {
        return error_set(error, ERROR_BADSCHEMA, "max_bytes: expected room for at least one item, got %" PRIu64,
                         config->max_bytes);
    }
    struct window_map map;
    window_map_init(&map, config);
    if (config->codec != CODEC_NONE && map.steps == 0) {
        return error_set(error, ERROR_BADSCHEMA,
                         "compression: expected none in a table without windows, got %s; only steps are compressed",
                         codec_name(config->codec));
    }
    if (config->storage == STORAGE_DISK && !has_large_column(config)) {
        return error_set(error, ERROR_BADSCHEMA,
                         "storage: expected memory in a table without a column of at least %u bytes or a ragged one, "
                         "got disk; smaller columns lie in memory in any case",
                         COLUMN_ARRAYS_SMALL_BYTES);
    }
    if (*config->steps_of && map.steps == 0) {
        return error_set(error, ERROR_BADSCHEMA,
                         "steps_of: expected none in a table without windows, got '%s'; its items see no steps",
                         config->steps_of);
    }
    if (*config->steps_of && config->storage == STORAGE_DISK) {
        return error_set(
            error, ERROR_BADSCHEMA,
            "storage: expected memory in a table with steps_of, got disk; only tables in memory share steps");
    }
    uint64_t one_item = (uint64_t)window_map_most_steps(&map) * slot_row_bytes(config, SLOT_OF_STEP);
    if (!*config->steps_of && config->max_bytes && config->max_bytes < one_item) {
        return error_set(error, ERROR_BADSCHEMA,
                         "max_bytes: expected room for the steps that one item sees, %" PRIu64 " bytes, got %" PRIu64,
                         one_item, config->max_bytes);
    }
    uint64_t longest = slot_row_bytes(config, SLOT_OF_ITEM) + ragged_most_taken(config);
    if (config->max_bytes && config->max_bytes < longest) {
        return error_set(error, ERROR_BADSCHEMA,
                         "max_bytes: expected room for the longest item, %" PRIu64 " bytes, got %" PRIu64
                         "; raise it, or lower max_length of the ragged columns",
                         longest, config->max_bytes);
    }
    uint64_t needed = config->limiter == LIMITER_QUEUE ? config->queue_size : config->min_size_to_sample;
    if (needed > capacity) {
        return error_set(error, ERROR_BADSCHEMA,
                         "rate_limiter: expected %s of at most %" PRIu64 " (capacity and max_bytes), got %" PRIu64
                         "; the table could never be sampled",
                         config->limiter == LIMITER_QUEUE ? "a size" : "min_size_to_sample", capacity, needed);
    }
    if (config->limiter == LIMITER_SAMPLE_TO_INSERT_RATIO && config->max_times_sampled &&
        config->max_times_sampled < config->samples_per_insert) {
        return error_set(error, ERROR_BADSCHEMA,
                         "max_times_sampled: expected at least samples_per_insert = %g, got %" PRIu32
                         "; items would leave before they were sampled that often, and adding and sampling both wait "
                         "for ever",
                         config->samples_per_insert, config->max_times_sampled);
    }
    if (config->max_staleness >= 0 && !has_version_column(config)) {
        return error_set(error, ERROR_BADSCHEMA,
                         "max_staleness: expected a column '%s' of int64, a single number, in the signature; got none",
                         TABLE_VERSION_COLUMN);
    }
    if (config->limiter == LIMITER_QUEUE && config->max_times_sampled == 0)
        config->max_times_sampled = 1; /* a queue whose items never leave would block adders for ever */
    return 0;
}

enum spec_key {
    KEY_NAME,
    KEY_CAPACITY,
    KEY_SIGNATURE,
    KEY_SAMPLER,
    KEY_REMOVER,
    KEY_RATE_LIMITER,
    KEY_MAX_TIMES_SAMPLED,
    KEY_MAX_BYTES,
    KEY_MAX_STALENESS,
    KEY_SEED,
    KEY_COMPRESSION, /* not written where it is none … */
    KEY_STORAGE,     /* … or memory; nor are these where they are true */
    KEY_DURABLE,
    KEY_LOG_PRIORITIES,
    KEY_STEPS_OF, /* nor is this where there is none */
    SPEC_KEYS,
    KEY_INCARNATION = SPEC_KEYS, /* REPLAY.SPEC adds it; it says nothing about a new table */
    SPEC_KNOWN_KEYS
};
static const char *const spec_keys[SPEC_KNOWN_KEYS] = {
    "name",      "capacity",      "signature", "sampler",     "remover", "rate_limiter", "max_times_sampled",
    "max_bytes", "max_staleness", "seed",      "compression", "storage", "durable",      "log_priorities",
    "steps_of",  "incarnation"};

static int read_flag(struct spec_reader *spec, const char *what, bool *flag) {
    struct msgpack_value value;
    if (spec_next_value(spec, &value)) return -1;
    if (value.type != MSGPACK_BOOLEAN) return spec_refuse(spec, what, "true or false", &value);
    *flag = value.boolean;
    return 0;
}

/* A whole number of versions; -1 or nil: no limit. */
static int read_staleness(struct spec_reader *spec, int64_t *max_staleness) {
    struct msgpack_value value;
    if (spec_next_value(spec, &value)) return -1;
    bool unlimited = value.type == MSGPACK_NIL || (value.type == MSGPACK_SIGNED && value.signed_integer == -1);
    if (!unlimited && !(value.type == MSGPACK_UNSIGNED && value.unsigned_integer <= INT64_MAX))
        return spec_refuse(spec, "max_staleness", "a number of versions of at least 0, or -1 for no limit", &value);
    *max_staleness = unlimited ? -1 : (int64_t)value.unsigned_integer;
    return 0;
}

static int read_compression(struct spec_reader *spec, enum step_codec *codec) {
    static const char *const names[] = {"none", "lz4", "zstd"};
    struct msgpack_value value;
    int kind = 0;
    if (spec_next_value(spec, &value) || spec_take_choice(spec, "compression", &value, names, 3, &kind)) return -1;
    *codec = (enum step_codec)kind;
    return codec_available(*codec)
               ? 0
               : error_set(spec->error, ERROR_BADSCHEMA,
                           "compression: %s is not in this build; install lib%s-dev and build again, or use another",
                           names[kind], names[kind]);
}

static const char *const storages[] = {"memory", "disk"};

const char *table_storage_name(enum table_storage storage) {
    return storages[storage];
}

static int read_storage(struct spec_reader *spec, enum table_storage *storage) {
    struct msgpack_value value;
    int kind = 0;
    if (spec_next_value(spec, &value) || spec_take_choice(spec, "storage", &value, storages, 2, &kind)) return -1;
    *storage = (enum table_storage)kind;
    return 0;
}

static int read_setting(struct spec_reader *spec, struct table_config *config, enum spec_key key) {
    struct msgpack_value value;
    uint64_t number = 0;
    switch (key) {
    case KEY_NAME: return spec_next_value(spec, &value) || spec_take_name(spec, "name", &value, config->name) ? -1 : 0;
    case KEY_CAPACITY: return spec_read_unsigned(spec, "capacity", 1, TABLE_MAX_CAPACITY, &config->capacity);
    case KEY_SIGNATURE: return spec_read_signature(spec, config);
    case KEY_SAMPLER:
        return read_selector(spec, "sampler", &config->sampler, &config->priority_exponent, &config->independent);
    case KEY_REMOVER: return read_selector(spec, "remover", &config->remover, &config->remover_exponent, NULL);
    case KEY_RATE_LIMITER: return read_limiter(spec, config);
    case KEY_MAX_TIMES_SAMPLED:
        if (spec_read_unsigned(spec, "max_times_sampled", 0, UINT32_MAX - 1, &number)) return -1;
        config->max_times_sampled = (uint32_t)number;
        return 0;
    case KEY_MAX_BYTES: return spec_read_unsigned(spec, "max_bytes", 0, UINT64_MAX, &config->max_bytes);
    case KEY_MAX_STALENESS: return read_staleness(spec, &config->max_staleness);
    case KEY_SEED: return spec_read_unsigned(spec, "seed", 0, UINT64_MAX, &config->seed);
    case KEY_COMPRESSION: return read_compression(spec, &config->codec);
    case KEY_STORAGE: return read_storage(spec, &config->storage);
    case KEY_DURABLE: return read_flag(spec, spec_keys[key], &config->durable);
    case KEY_LOG_PRIORITIES: return read_flag(spec, spec_keys[key], &config->log_priorities);
    case KEY_STEPS_OF:
        return spec_next_value(spec, &value) || spec_take_name(spec, spec_keys[key], &value, config->steps_of) ? -1 : 0;
    case KEY_INCARNATION: return spec_next_value(spec, &value);
    case SPEC_KNOWN_KEYS: break;
    }
    return -1;
}

static int read_settings(struct spec_reader *spec, struct table_config *config, uint32_t *seen) {
    uint32_t pairs = 0;
    if (spec_read_map(spec, "table", &pairs)) return -1;
    for (uint32_t i = 0; i < pairs; i++) {
        int key = 0;
        if (spec_read_key(spec, "table", spec_keys, SPEC_KNOWN_KEYS, seen, &key) ||
            read_setting(spec, config, (enum spec_key)key)) {
            return -1;
        }
    }
    size_t left = (size_t)(spec->bytes.end - spec->bytes.at);
    return left ? error_set(spec->error, ERROR_BADSCHEMA,
                            "table: expected nothing after the msgpack map, got %zu bytes more", left)
                : 0;
}

int table_config_parse(struct table_config *config, const char *name, const uint8_t *spec, size_t length,
                       struct error *error) {
    struct spec_reader reader = {{spec, spec + length}, error};
    memset(config, 0, sizeof *config);
    config->sampler = SELECTOR_PRIORITIZED;
    config->priority_exponent = DEFAULT_EXPONENT;
    config->remover = SELECTOR_FIFO;
    config->max_staleness = -1;
    config->min_size_to_sample = 1;
    config->durable = config->log_priorities = true;
    uint32_t seen = 0;
    if (read_settings(&reader, config, &seen)) return -1;
    if (name) {
        struct msgpack_value value = {.type = MSGPACK_STRING};
        value.bytes.data = (const uint8_t *)name;
        value.bytes.length = strlen(name);
        if (spec_take_name(&reader, "name", &value, config->name)) return -1;
    } else if (!(seen & 1u << KEY_NAME)) {
        return spec_refuse(&reader, "table", "a name", NULL);
    }
    if (!(seen & 1u << KEY_CAPACITY) || !(seen & 1u << KEY_SIGNATURE)) {
        return error_set(error, ERROR_BADSCHEMA, "table: expected capacity and signature, got no %s",
                         seen & 1u << KEY_CAPACITY ? "signature" : "capacity");
    }
    if (config->limiter == LIMITER_QUEUE && !(seen & 1u << KEY_SAMPLER)) {
        config->sampler = SELECTOR_FIFO;
        config->priority_exponent = 0;
    }
    return check_config(config, error);
}

int table_config_change(struct table_config *config, const uint8_t *spec, size_t length, struct error *error) {
    const uint32_t allowed = 1u << KEY_SAMPLER | 1u << KEY_REMOVER | 1u << KEY_RATE_LIMITER |
                             1u << KEY_MAX_TIMES_SAMPLED | 1u << KEY_MAX_BYTES | 1u << KEY_MAX_STALENESS;
    struct spec_reader reader = {{spec, spec + length}, error};
    struct table_config changed = *config;
    uint32_t seen = 0;
    if (read_settings(&reader, &changed, &seen)) return -1;
    for (uint32_t i = 0; i < SPEC_KEYS; i++) {
        if (seen & ~allowed & 1u << i) {
            return error_set(error, ERROR_BADSCHEMA,
                             "%s cannot be changed in a live table, only sampler, remover, rate_limiter, "
                             "max_times_sampled, max_bytes and max_staleness; create another table",
                             spec_keys[i]);
        }
    }
    if (check_config(&changed, error)) return -1;
    *config = changed;
    return 0;
}

/* ---- writing ------------------------------------------------------------------------------------------------------- */

static void write_text(struct msgpack_writer *writer, const char *text) {
    msgpack_write_string(writer, text, strlen(text));
}

static void write_false(struct msgpack_writer *writer, enum spec_key key) {
    write_text(writer, spec_keys[key]);
    msgpack_write_boolean(writer, false);
}

/* `independent` is NULL for a remover. */
static void write_selector(struct msgpack_writer *writer, enum selector_kind kind, double exponent,
                           const bool *independent) {
    msgpack_write_map(writer, kind != SELECTOR_PRIORITIZED ? 1 : independent ? 3 : 2);
    write_text(writer, "kind");
    write_text(writer, selector_names[kind]);
    if (kind != SELECTOR_PRIORITIZED) return;
    write_text(writer, "priority_exponent");
    msgpack_write_double(writer, exponent);
    if (independent) {
        write_text(writer, "stratified");
        msgpack_write_boolean(writer, !*independent);
    }
}

static void write_limiter(struct msgpack_writer *writer, const struct table_config *config) {
    static const uint32_t pairs[] = {2, 4, 2};
    msgpack_write_map(writer, pairs[config->limiter]);
    write_text(writer, "kind");
    write_text(writer, limiter_names[config->limiter]);
    if (config->limiter == LIMITER_QUEUE) {
        write_text(writer, "size");
        msgpack_write_unsigned(writer, config->queue_size);
        return;
    }
    if (config->limiter == LIMITER_SAMPLE_TO_INSERT_RATIO) {
        write_text(writer, "samples_per_insert");
        msgpack_write_double(writer, config->samples_per_insert);
        write_text(writer, "error_buffer");
        msgpack_write_double(writer, config->error_buffer);
    }
    write_text(writer, "min_size_to_sample");
    msgpack_write_unsigned(writer, config->min_size_to_sample);
}

#define CHANGEABLE_KEYS 6

/* What table_config_change takes. */
static void write_changeable(struct msgpack_writer *writer, const struct table_config *config) {
    write_text(writer, spec_keys[KEY_SAMPLER]);
    write_selector(writer, config->sampler, config->priority_exponent, &config->independent);
    write_text(writer, spec_keys[KEY_REMOVER]);
    write_selector(writer, config->remover, config->remover_exponent, NULL);
    write_text(writer, spec_keys[KEY_RATE_LIMITER]);
    write_limiter(writer, config);
    write_text(writer, spec_keys[KEY_MAX_TIMES_SAMPLED]);
    msgpack_write_unsigned(writer, config->max_times_sampled);
    write_text(writer, spec_keys[KEY_MAX_BYTES]);
    msgpack_write_unsigned(writer, config->max_bytes);
    write_text(writer, spec_keys[KEY_MAX_STALENESS]);
    msgpack_write_signed(writer, config->max_staleness);
}

static int take_written(struct msgpack_writer *writer, const struct table_config *config, uint8_t **spec,
                        size_t *length, struct error *error) {
    if (writer->failed) {
        memory_free(writer->data);
        return error_set(error, ERROR_GENERIC, "out of memory for the spec of table '%s'", config->name);
    }
    *spec = writer->data;
    *length = writer->length;
    return 0;
}

int table_config_write(const struct table_config *config, uint8_t **spec, size_t *length, struct error *error) {
    struct msgpack_writer writer = {0};
    msgpack_write_map(&writer, SPEC_KEYS - (config->codec == CODEC_NONE) - (config->storage == STORAGE_MEMORY) -
                                   config->durable - config->log_priorities - !*config->steps_of);
    write_text(&writer, spec_keys[KEY_NAME]);
    write_text(&writer, config->name);
    write_text(&writer, spec_keys[KEY_CAPACITY]);
    msgpack_write_unsigned(&writer, config->capacity);
    write_text(&writer, spec_keys[KEY_SIGNATURE]);
    spec_write_signature(&writer, config);
    write_changeable(&writer, config);
    write_text(&writer, spec_keys[KEY_SEED]);
    msgpack_write_unsigned(&writer, config->seed);
    if (config->codec != CODEC_NONE) {
        write_text(&writer, spec_keys[KEY_COMPRESSION]);
        write_text(&writer, codec_name(config->codec));
    }
    if (config->storage != STORAGE_MEMORY) {
        write_text(&writer, spec_keys[KEY_STORAGE]);
        write_text(&writer, storages[config->storage]);
    }
    if (!config->durable) write_false(&writer, KEY_DURABLE);
    if (!config->log_priorities) write_false(&writer, KEY_LOG_PRIORITIES);
    if (*config->steps_of) {
        write_text(&writer, spec_keys[KEY_STEPS_OF]);
        write_text(&writer, config->steps_of);
    }
    return take_written(&writer, config, spec, length, error);
}

int table_config_compare(const struct table_config *left, const struct table_config *right, bool *same,
                         struct error *error) {
    uint8_t *a = NULL, *b = NULL;
    size_t a_length = 0, b_length = 0;
    int failed = table_config_write(left, &a, &a_length, error) || table_config_write(right, &b, &b_length, error);
    *same = !failed && a_length == b_length && memcmp(a, b, a_length) == 0;
    memory_free(a);
    memory_free(b);
    return failed ? -1 : 0;
}

int table_config_write_changeable(const struct table_config *config, uint8_t **spec, size_t *length,
                                  struct error *error) {
    struct msgpack_writer writer = {0};
    msgpack_write_map(&writer, CHANGEABLE_KEYS);
    write_changeable(&writer, config);
    return take_written(&writer, config, spec, length, error);
}

void table_config_take_changeable(struct table_config *config, const struct table_config *from) {
    config->sampler = from->sampler;
    config->priority_exponent = from->priority_exponent;
    config->independent = from->independent;
    config->remover = from->remover;
    config->remover_exponent = from->remover_exponent;
    config->limiter = from->limiter;
    config->min_size_to_sample = from->min_size_to_sample;
    config->samples_per_insert = from->samples_per_insert;
    config->error_buffer = from->error_buffer;
    config->queue_size = from->queue_size;
    config->max_times_sampled = from->max_times_sampled;
    config->max_bytes = from->max_bytes;
    config->max_staleness = from->max_staleness;
}
