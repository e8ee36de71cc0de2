/* t_string: strings, in three encodings. */
#include "store/t_string.h"

#include <string.h>

#include "base/memory.h"

#define GROW_DOUBLE_BYTES (1u << 20) /* below this a growing string doubles; above, it takes a quarter more */
#define PIECE_BYTES (64u << 10) /* copied or cleared between two rests: some 20 microseconds in new memory */

static struct value *blob_string(struct blob *blob, size_t capacity) {
    struct string_blob *string = memory_alloc(sizeof *string);
    if (!string) return NULL;
    *string = (struct string_blob){
        .head = {.type = VALUE_STRING, .encoding = ENCODING_BLOB}, .blob = blob, .capacity = capacity};
    return &string->head;
}

struct value *string_new_integer(int64_t integer) {
    struct string_integer *string = memory_alloc(sizeof *string);
    if (!string) return NULL;
    *string = (struct string_integer){.head = {.type = VALUE_STRING, .encoding = ENCODING_INTEGER}, .integer = integer};
    return &string->head;
}

struct value *string_new(const uint8_t *data, size_t length, struct blob *blob) {
    int64_t integer;
    if (number_parse_int64(data, length, &integer)) return string_new_integer(integer);
    if (length >= STRING_BLOB_BYTES) {
        struct blob *kept = blob ? blob_retain(blob) : blob_new(length);
        if (!kept) return NULL;
        if (!blob) memcpy(kept->data, data, length);
        struct value *value = blob_string(kept, length);
        if (!value) blob_release(kept);
        return value;
    }
    struct string_bytes *string = memory_alloc(sizeof *string + length);
    if (!string) return NULL;
    string->head = (struct value){.type = VALUE_STRING, .encoding = ENCODING_BYTES};
    string->length = (uint32_t)length;
    if (length > 0) memcpy(string->data, data, length);
    return &string->head;
}

struct value *string_copy(const struct value *value) {
    if (value->encoding == ENCODING_INTEGER) return string_new_integer(((const struct string_integer *)value)->integer);
    struct string_view view;
    string_view(value, &view);
    return string_new(view.data, view.length, view.blob);
}

void string_free(struct value *value) {
    if (value->encoding == ENCODING_BLOB) blob_release(((struct string_blob *)value)->blob);
    memory_free(value);
}

void string_view(const struct value *value, struct string_view *view) {
    view->blob = NULL;
    if (value->encoding == ENCODING_INTEGER) {
        view->length = number_format_int64(((const struct string_integer *)value)->integer, view->digits);
        view->data = (const uint8_t *)view->digits;
    } else if (value->encoding == ENCODING_BYTES) {
        const struct string_bytes *string = (const struct string_bytes *)value;
        view->data = string->data;
        view->length = string->length;
    } else {
        view->blob = ((const struct string_blob *)value)->blob;
        view->data = view->blob->data;
        view->length = view->blob->length;
    }
}

size_t string_length(const struct value *value) {
    struct string_view view;
    string_view(value, &view);
    return view.length;
}

bool string_to_int64(const struct value *value, int64_t *integer) {
    if (value->encoding == ENCODING_INTEGER) {
        *integer = ((const struct string_integer *)value)->integer;
        return true;
    }
    /* What string_new stores as bytes is no integer, but what APPEND put together may be one. */
    struct string_view view;
    string_view(value, &view);
    return number_parse_int64(view.data, view.length, integer);
}

static size_t grown_capacity(size_t length) {
    size_t capacity = length < GROW_DOUBLE_BYTES ? length * 2 : length + length / 4;
    return capacity < 32 ? 32 : capacity;
}

uint8_t *string_writable(struct value **place, size_t length) {
    return string_writable_in_pieces(place, length, NULL, NULL);
}

static bool is_writable_in_place(const struct value *value, size_t length) {
    const struct string_blob *string = (const struct string_blob *)value;
    return value->encoding == ENCODING_BLOB && string->blob->references == 1 && string->capacity >= length;
}

size_t string_writable_effort(const struct value *value, size_t length) {
    size_t old = value ? string_length(value) : 0;
    if (length < old) length = old;
    return value && is_writable_in_place(value, length) ? length - old : length;
}

void string_copy_in_pieces(uint8_t *to, const uint8_t *from, size_t bytes, void (*rest)(void *context), void *context) {
    for (size_t piece; bytes > 0; to += piece, bytes -= piece) {
        piece = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
        if (from) {
            memcpy(to, from, piece);
            from += piece;
        } else {
            memset(to, 0, piece);
        }
        if (rest) rest(context);
    }
}

uint8_t *string_writable_in_pieces(struct value **place, size_t length, void (*rest)(void *context), void *context) {
    struct string_view old = {.length = 0};
    if (*place) {
        string_view(*place, &old);
        if (length < old.length) length = old.length;
        if (is_writable_in_place(*place, length)) {
            string_copy_in_pieces(old.blob->data + old.length, NULL, length - old.length, rest, context);
            old.blob->length = length;
            return old.blob->data;
        }
    }
    size_t capacity = !*place || length == old.length ? length : grown_capacity(length);
    struct blob *blob = blob_new(capacity);
    if (!blob) return NULL;
    blob->length = length;
    string_copy_in_pieces(blob->data, old.data, old.length, rest, context);
    string_copy_in_pieces(blob->data + old.length, NULL, length - old.length, rest, context);
    if (*place && (*place)->encoding == ENCODING_BLOB) {
        struct string_blob *string = (struct string_blob *)*place;
        blob_release(string->blob);
        string->blob = blob;
        string->capacity = capacity;
        return blob->data;
    }
    struct value *value = blob_string(blob, capacity);
    if (!value) {
        blob_release(blob);
        return NULL;
    }
    if (*place) {
        value->expiry = (*place)->expiry;
        value->access = (*place)->access;
        string_free(*place);
    }
    *place = value;
    return blob->data;
}

size_t string_memory_bytes(const struct value *value) {
    if (value->encoding == ENCODING_INTEGER) return sizeof(struct string_integer);
    if (value->encoding == ENCODING_BYTES)
        return sizeof(struct string_bytes) + ((const struct string_bytes *)value)->length;
    return sizeof(struct string_blob) + sizeof(struct blob) + ((const struct string_blob *)value)->capacity;
}
