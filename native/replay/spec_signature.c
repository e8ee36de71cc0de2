/* spec_signature: columns, steps and windows of a spec, read strictly and written back. */
#include "replay/spec_signature.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "replay/item_windows.h"
#include "replay/ragged_store.h"

static const struct {
    const char *name;
    size_t bytes;
} column_types[COLUMN_TYPES] = {
    [COLUMN_BOOL] = {"bool", 1},
    [COLUMN_INT8] = {"int8", 1},
    [COLUMN_INT16] = {"int16", 2},
    [COLUMN_INT32] = {"int32", 4},
    [COLUMN_INT64] = {"int64", 8},
    [COLUMN_UINT8] = {"uint8", 1},
    [COLUMN_UINT16] = {"uint16", 2},
    [COLUMN_UINT32] = {"uint32", 4},
    [COLUMN_UINT64] = {"uint64", 8},
    [COLUMN_FLOAT16] = {"float16", 2},
    [COLUMN_FLOAT32] = {"float32", 4},
    [COLUMN_FLOAT64] = {"float64", 8},
    [COLUMN_BFLOAT16] = {"bfloat16", 2},
    [COLUMN_COMPLEX64] = {"complex64", 8},
    [COLUMN_COMPLEX128] = {"complex128", 16},
    [COLUMN_BYTES] = {"S", 0},
};

const char *column_dtype(const struct column *column, char name[COLUMN_DTYPE_ROOM]) {
    int written = column->type == COLUMN_BYTES
                      ? snprintf(name, COLUMN_DTYPE_ROOM, "S%" PRIu32, column->width)
                      : snprintf(name, COLUMN_DTYPE_ROOM, "%s", column_types[column->type].name);
    assert(written > 0 && written < COLUMN_DTYPE_ROOM);
    return name;
}

/* "S" and a number without leading zeros. */
static bool take_width(const struct msgpack_value *value, uint32_t *width) {
    if (value->type != MSGPACK_STRING || value->bytes.length < 2 || value->bytes.length > 6 ||
        value->bytes.data[0] != 'S')
        return false;
    uint32_t number = 0;
    for (size_t i = 1; i < value->bytes.length; i++) {
        if (value->bytes.data[i] < '0' || value->bytes.data[i] > '9' || (i == 1 && value->bytes.data[i] == '0'))
            return false;
        number = number * 10 + (uint32_t)(value->bytes.data[i] - '0');
    }
    *width = number;
    return number <= TABLE_MAX_WIDTH;
}

static int take_type(struct spec_reader *spec, const char *what, const struct msgpack_value *value,
                     struct column *column) {
    if (take_width(value, &column->width)) {
        column->type = COLUMN_BYTES;
        return 0;
    }
    for (int i = 0; i < COLUMN_BYTES; i++) {
        if (msgpack_string_is(value, column_types[i].name)) {
            column->type = (enum column_type)i;
            return 0;
        }
    }
    return spec_refuse(spec, what,
                       "a dtype, one of: bool, int8 … int64, uint8 … uint64, float16, float32, float64, bfloat16, "
                       "complex64, complex128, S1 … S65535 (bytes)",
                       value);
}

static int take_shape(struct spec_reader *spec, const char *what, const struct msgpack_value *value,
                      struct column *column) {
    if (value->type != MSGPACK_ARRAY || value->count > TABLE_MAX_DIMENSIONS)
        return spec_refuse(spec, what, "a shape of at most 8 dimensions", value);
    column->dimensions = value->count;
    struct msgpack_reader before = spec->bytes;
    struct msgpack_value first;
    if (column->dimensions && spec_next_value(spec, &first)) return -1;
    bool ragged = column->dimensions && first.type == MSGPACK_NIL;
    if (ragged)
        column->max_length = TABLE_DEFAULT_MAX_LENGTH;
    else
        spec->bytes = before;
    for (uint32_t i = ragged; i < column->dimensions; i++)
        if (spec_read_unsigned(spec, what, ragged, TABLE_MAX_ITEM_BYTES, &column->shape[i])) return -1;
    return 0;
}

enum column_key {
    KEY_DTYPE,
    KEY_SHAPE,
    KEY_STEP_ONLY,
    KEY_MAX_LENGTH,
    KEY_WINDOW,
    KEY_LENGTH,
    KEY_OFFSET,
    COLUMN_KEYS
};

static int read_offset(struct spec_reader *spec, const char *what, int32_t *offset) {
    struct msgpack_value value;
    if (spec_next_value(spec, &value)) return -1;
    if (value.type == MSGPACK_UNSIGNED && value.unsigned_integer <= TABLE_MAX_WINDOW) {
        *offset = (int32_t)value.unsigned_integer;
        return 0;
    }
    if (value.type == MSGPACK_SIGNED && value.signed_integer >= -(int64_t)TABLE_MAX_WINDOW) {
        *offset = (int32_t)value.signed_integer;
        return 0;
    }
    return spec_refuse(spec, what, "an offset from -16384 to 16384 steps", &value);
}

/* `max_length` may come before the shape: it is put into the column when both have been read. */
static int read_column_key(struct spec_reader *spec, const char *what, enum column_key key, struct column *column,
                           struct msgpack_value *source, uint64_t *max_length) {
    struct msgpack_value value;
    uint64_t length = 0;
    switch (key) {
    case KEY_LENGTH:
        if (spec_read_unsigned(spec, what, 0, TABLE_MAX_WINDOW, &length)) return -1;
        column->length = (uint32_t)length;
        return 0;
    case KEY_OFFSET: return read_offset(spec, what, &column->offset);
    case KEY_WINDOW:
        if (spec_next_value(spec, source)) return -1;
        return source->type == MSGPACK_STRING ? 0 : spec_refuse(spec, what, "the name of a column to look at", source);
    case KEY_STEP_ONLY:
        if (spec_next_value(spec, &value)) return -1;
        if (value.type != MSGPACK_BOOLEAN) return spec_refuse(spec, what, "step_only to be true or false", &value);
        column->kind = value.boolean ? COLUMN_STEP : COLUMN_ITEM;
        return 0;
    case KEY_MAX_LENGTH: return spec_read_unsigned(spec, what, 1, TABLE_MAX_LENGTH, max_length);
    case KEY_DTYPE: return spec_next_value(spec, &value) || take_type(spec, what, &value, column) ? -1 : 0;
    case KEY_SHAPE: return spec_next_value(spec, &value) || take_shape(spec, what, &value, column) ? -1 : 0;
    case COLUMN_KEYS: break;
    }
    return -1;
}

static int take_ragged_window(struct spec_reader *spec, const char *what, uint64_t max_length, struct column *column) {
    if (max_length > TABLE_MAX_WINDOW) {
        return error_set(spec->error, ERROR_BADSCHEMA,
                         "%s: expected a max_length of a window of at most %u, got %" PRIu64, what, TABLE_MAX_WINDOW,
                         max_length);
    }
    column->kind = COLUMN_WINDOW;
    column->max_length = (uint32_t)max_length;
    return 0;
}

/* `source` is the name of the column that a window looks at. */
static int read_column_map(struct spec_reader *spec, const char *what, uint32_t pairs, struct column *column,
                           struct msgpack_value *source) {
    static const char *const keys[COLUMN_KEYS] = {"dtype",  "shape",  "step_only", "max_length",
                                                  "window", "length", "offset"};
    const uint32_t of_values = 1u << KEY_DTYPE | 1u << KEY_SHAPE | 1u << KEY_STEP_ONLY;
    const uint32_t of_fixed_windows = 1u << KEY_LENGTH | 1u << KEY_OFFSET;
    const uint32_t of_windows = 1u << KEY_WINDOW | of_fixed_windows;
    uint32_t seen = 0;
    uint64_t max_length = 0;
    int key = 0;
    for (uint32_t i = 0; i < pairs; i++) {
        if (spec_read_key(spec, what, keys, COLUMN_KEYS, &seen, &key) ||
            read_column_key(spec, what, (enum column_key)key, column, source, &max_length)) {
            return -1;
        }
    }
    if (max_length && seen & 1u << KEY_WINDOW && !(seen & (of_values | of_fixed_windows)))
        return take_ragged_window(spec, what, max_length, column);
    if (max_length && !column_is_ragged(column)) {
        return error_set(
            spec->error, ERROR_BADSCHEMA,
            "%s: expected max_length only with a shape whose first size is nil, which makes it ragged, or with a "
            "window without length and offset",
            what);
    }
    if (max_length) column->max_length = (uint32_t)max_length;
    if (seen & of_windows && (seen & of_values || !(seen & 1u << KEY_WINDOW))) {
        return error_set(
            spec->error, ERROR_BADSCHEMA,
            "%s: expected either dtype, shape and step_only, or window, length and offset, got keys of both", what);
    }
    if (seen & 1u << KEY_WINDOW) {
        column->kind = COLUMN_WINDOW;
        return 0;
    }
    return seen & 1u << KEY_DTYPE ? 0 : spec_refuse(spec, what, "a dtype", NULL);
}

static int refuse_size(struct spec_reader *spec, const char *what, const struct column *column) {
    char shape[TABLE_MAX_DIMENSIONS * 24] = "", dtype[COLUMN_DTYPE_ROOM];
    for (uint32_t i = 0, at = 0; i < column->dimensions; i++) {
        uint64_t size = i == 0 && column_is_ragged(column) ? column->max_length : column->shape[i];
        at += (uint32_t)snprintf(shape + at, sizeof shape - at, "%s%" PRIu64, i ? "," : "", size);
    }
    return error_set(spec->error, ERROR_BADSCHEMA, "%s: expected at most %llu bytes an item, got %s [%s]", what,
                     TABLE_MAX_ITEM_BYTES, column_dtype(column, dtype), shape);
}

static int count_bytes(struct spec_reader *spec, const char *what, struct column *column) {
    bool ragged = column_is_ragged(column);
    column->item_bytes = column->type == COLUMN_BYTES ? column->width : column_types[column->type].bytes;
    for (uint32_t i = ragged; i < column->dimensions; i++) {
        if (column->item_bytes && column->shape[i] > TABLE_MAX_ITEM_BYTES / column->item_bytes)
            return refuse_size(spec, what, column);
        column->item_bytes *= column->shape[i];
    }
    if (!ragged) return 0;
    if (column->kind == COLUMN_STEP) {
        return error_set(spec->error, ERROR_BADSCHEMA,
                         "%s: expected a fixed shape, since each step has one, got a ragged one", what);
    }
    if (column->max_length > TABLE_MAX_ITEM_BYTES / column->item_bytes) return refuse_size(spec, what, column);
    column->row_bytes = column->item_bytes;
    column->item_bytes = sizeof(struct ragged_value);
    return 0;
}

/* {"dtype": …, "shape": […], "step_only": …}, [dtype, shape], or {"window": …, "length": …, "offset": …}. */
static int read_column(struct spec_reader *spec, struct column *column, struct msgpack_value *source) {
    char what[TABLE_MAX_NAME + 16];
    snprintf(what, sizeof what, "column '%s'", column->name);
    struct msgpack_value value, type, shape;
    if (spec_next_value(spec, &value)) return -1;
    if (value.type == MSGPACK_MAP) {
        if (read_column_map(spec, what, value.count, column, source)) return -1;
    } else if (value.type == MSGPACK_ARRAY && value.count == 2) {
        if (spec_next_value(spec, &type) || take_type(spec, what, &type, column) || spec_next_value(spec, &shape) ||
            take_shape(spec, what, &shape, column)) {
            return -1;
        }
    } else {
        return spec_refuse(spec, what, "a map of dtype and shape or of a window, or [dtype, shape]", &value);
    }
    return column->kind == COLUMN_WINDOW ? 0 : count_bytes(spec, what, column);
}

/* A window has its source's dtype, and its shape behind a dimension for the steps. */
static int bind_window(struct spec_reader *spec, struct table_config *config, struct column *window,
                       const struct msgpack_value *source) {
    char what[TABLE_MAX_NAME + 16];
    snprintf(what, sizeof what, "window '%s'", window->name);
    uint32_t at = 0;
    while (at < config->columns && !msgpack_string_is(source, config->column[at].name)) at++;
    if (at == config->columns || config->column[at].kind == COLUMN_WINDOW)
        return spec_refuse(spec, what, "the name of a column that is no window itself", source);
    struct column *seen = &config->column[at];
    if (column_is_ragged(seen))
        return spec_refuse(spec, what, "the name of a column of a fixed shape, since each step has one", source);
    uint32_t own = window->length || column_is_ragged(window) ? 1 : 0;
    if (column_is_ragged(window) && seen->item_bytes == 0)
        return spec_refuse(spec, what, "the name of a column that has bytes, since it is ragged", source);
    if (seen->dimensions + own > TABLE_MAX_DIMENSIONS) {
        return error_set(spec->error, ERROR_BADSCHEMA, "%s: expected at most %d dimensions, got %" PRIu32, what,
                         TABLE_MAX_DIMENSIONS, seen->dimensions + own);
    }
    window->source = at;
    window->type = seen->type;
    window->width = seen->width;
    window->dimensions = seen->dimensions + own;
    window->shape[0] = window->length;
    memcpy(window->shape + own, seen->shape, seen->dimensions * sizeof seen->shape[0]);
    seen->in_steps = true;
    return count_bytes(spec, what, window);
}

static int bind_windows(struct spec_reader *spec, struct table_config *config, const struct msgpack_value *sources) {
    for (uint32_t i = 0; i < config->columns; i++)
        if (config->column[i].kind == COLUMN_WINDOW && bind_window(spec, config, &config->column[i], &sources[i]))
            return -1;
    for (uint32_t i = 0; i < config->columns; i++) {
        if (config->column[i].kind == COLUMN_STEP && !config->column[i].in_steps) {
            return error_set(spec->error, ERROR_BADSCHEMA,
                             "column '%s' is step_only and no window looks at it, so nobody could read it; add a "
                             "window, or drop step_only",
                             config->column[i].name);
        }
    }
    struct window_map map;
    window_map_init(&map, config);
    if (map.steps > 0 && ragged_largest_bytes(config) > 0) {
        return error_set(spec->error, ERROR_BADSCHEMA,
                         "signature: expected ragged columns or windows, got both; put the ragged columns into a table "
                         "of their own");
    }
    return map.steps <= TABLE_MAX_WINDOW && map.span <= STREAM_MAX_HISTORY
               ? 0
               : error_set(
                     spec->error, ERROR_BADSCHEMA,
                     "signature: expected windows of at most %u steps together within %u of a stream, got %" PRIu32
                     " within %" PRIu32,
                     TABLE_MAX_WINDOW, STREAM_MAX_HISTORY, map.steps, map.span);
}

static int check_bytes(struct spec_reader *spec, const struct table_config *config) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < config->columns; i++) {
        const struct column *column = &config->column[i];
        total += column_is_ragged_window(column) ? column->row_bytes * column->max_length : column->item_bytes;
    }
    total += ragged_largest_bytes(config);
    return total <= TABLE_MAX_ITEM_BYTES
               ? 0
               : error_set(spec->error, ERROR_BADSCHEMA, "signature: expected at most %llu bytes an item, got %" PRIu64,
                           TABLE_MAX_ITEM_BYTES, total);
}

int spec_read_signature(struct spec_reader *spec, struct table_config *config) {
    struct msgpack_value sources[TABLE_MAX_COLUMNS];
    uint32_t pairs = 0;
    if (spec_read_map(spec, "signature", &pairs)) return -1;
    if (pairs < 1 || pairs > TABLE_MAX_COLUMNS) {
        return error_set(spec->error, ERROR_BADSCHEMA, "signature: expected 1 to %d columns, got %" PRIu32,
                         TABLE_MAX_COLUMNS, pairs);
    }
    for (uint32_t i = 0; i < pairs; i++) {
        struct column *column = &config->column[i];
        struct msgpack_value name;
        if (spec_next_value(spec, &name) || spec_take_name(spec, "signature", &name, column->name)) return -1;
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(config->column[j].name, column->name) == 0)
                return error_set(spec->error, ERROR_BADSCHEMA, "signature: column '%s' is given twice", column->name);
        if (read_column(spec, column, &sources[i])) return -1;
    }
    config->columns = pairs;
    return bind_windows(spec, config, sources) || check_bytes(spec, config) ? -1 : 0;
}

/* ---- writing ------------------------------------------------------------------------------------------------------- */

static void write_text(struct msgpack_writer *writer, const char *text) {
    msgpack_write_string(writer, text, strlen(text));
}

static void write_window(struct msgpack_writer *writer, const struct table_config *config,
                         const struct column *column) {
    bool ragged = column_is_ragged(column);
    msgpack_write_map(writer, ragged ? 2 : 3);
    write_text(writer, "window");
    write_text(writer, config->column[column->source].name);
    if (ragged) {
        write_text(writer, "max_length");
        msgpack_write_unsigned(writer, column->max_length);
        return;
    }
    write_text(writer, "length");
    msgpack_write_unsigned(writer, column->length);
    write_text(writer, "offset");
    msgpack_write_signed(writer, column->offset);
}

static void write_column(struct msgpack_writer *writer, const struct column *column) {
    bool ragged = column_is_ragged(column);
    msgpack_write_map(writer, 2 + (column->kind == COLUMN_STEP) + ragged);
    write_text(writer, "dtype");
    char dtype[COLUMN_DTYPE_ROOM];
    write_text(writer, column_dtype(column, dtype));
    write_text(writer, "shape");
    msgpack_write_array(writer, column->dimensions);
    if (ragged) msgpack_write_nil(writer);
    for (uint32_t i = ragged; i < column->dimensions; i++) msgpack_write_unsigned(writer, column->shape[i]);
    if (ragged) {
        write_text(writer, "max_length");
        msgpack_write_unsigned(writer, column->max_length);
    }
    if (column->kind == COLUMN_STEP) {
        write_text(writer, "step_only");
        msgpack_write_boolean(writer, true);
    }
}

void spec_write_signature(struct msgpack_writer *writer, const struct table_config *config) {
    msgpack_write_map(writer, config->columns);
    for (uint32_t i = 0; i < config->columns; i++) {
        write_text(writer, config->column[i].name);
        if (config->column[i].kind == COLUMN_WINDOW)
            write_window(writer, config, &config->column[i]);
        else
            write_column(writer, &config->column[i]);
    }
}
