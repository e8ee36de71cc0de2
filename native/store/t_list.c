/* t_list: lists, as a deque of chunks. Elements lie together in their chunk, with room at either end; a chunk grows up
 * to CHUNK_LARGEST elements, so that a short list stays small. No chunk in a list is empty. */
#include "store/t_list.h"

#include <assert.h>
#include <string.h>

#include "base/list.h"
#include "base/memory.h"
#include "store/t_string.h"

#define CHUNK_SMALLEST 4
#define CHUNK_LARGEST 128

struct list_chunk {
    struct list_chunk *previous, *next;
    uint32_t start, count, capacity;
    struct value *elements[];
};

struct list *list_new(void) {
    struct list *list = memory_calloc(1, sizeof *list);
    if (list) list->head = (struct value){.type = VALUE_LIST, .encoding = ENCODING_CHUNKS};
    return list;
}

static struct list_chunk *chunk_new(uint32_t capacity) {
    struct list_chunk *chunk = memory_alloc(sizeof *chunk + capacity * sizeof chunk->elements[0]);
    if (chunk) {
        memset(chunk, 0, sizeof *chunk);
        chunk->capacity = capacity;
    }
    return chunk;
}

/* Links `chunk` before `next`, NULL meaning at the end. */
static void chunk_link(struct list *list, struct list_chunk *chunk, struct list_chunk *next) {
    chunk->next = next;
    chunk->previous = next ? next->previous : list->last;
    *(chunk->previous ? &chunk->previous->next : &list->first) = chunk;
    *(next ? &next->previous : &list->last) = chunk;
}

static void chunk_unlink(struct list *list, struct list_chunk *chunk) {
    LIST_REMOVE(list->first, list->last, chunk, next, previous);
}

/* Moves the chunk's elements to begin at `start` in an array of `capacity`; the chunk itself may move. */
static struct list_chunk *chunk_reshape(struct list *list, struct list_chunk *chunk, uint32_t capacity,
                                        uint32_t start) {
    if (capacity != chunk->capacity) {
        struct list_chunk *grown = memory_realloc(chunk, sizeof *chunk + capacity * sizeof chunk->elements[0]);
        if (!grown) return NULL;
        chunk = grown;
        chunk->capacity = capacity;
        *(chunk->previous ? &chunk->previous->next : &list->first) = chunk;
        *(chunk->next ? &chunk->next->previous : &list->last) = chunk;
    }
    memmove(chunk->elements + start, chunk->elements + chunk->start, chunk->count * sizeof chunk->elements[0]);
    chunk->start = start;
    return chunk;
}

/* The end chunk with room for one more on that side, or NULL when memory is exhausted. Elements are moved over only
 * after half a chunk of pushes, and growth doubles: O(1) amortised. */
static struct list_chunk *chunk_with_room(struct list *list, bool at_head) {
    struct list_chunk *chunk = at_head ? list->first : list->last;
    uint32_t capacity = list->length == 0 ? CHUNK_SMALLEST : CHUNK_LARGEST;
    if (chunk) {
        if (at_head ? chunk->start > 0 : chunk->start + chunk->count < chunk->capacity) return chunk;
        bool sparse = chunk->count <= chunk->capacity / 2;
        if (sparse || chunk->capacity < CHUNK_LARGEST) {
            uint32_t reshaped = sparse ? chunk->capacity : chunk->capacity * 2;
            return chunk_reshape(list, chunk, reshaped, at_head ? reshaped - chunk->count : 0);
        }
    }
    chunk = chunk_new(capacity);
    if (!chunk) return NULL;
    chunk->start = at_head ? capacity : 0;
    chunk_link(list, chunk, at_head ? list->first : NULL);
    return chunk;
}

bool list_push(struct list *list, bool at_head, struct value *element) {
    struct list_chunk *chunk = chunk_with_room(list, at_head);
    if (!chunk) return false;
    if (at_head) chunk->start--;
    chunk->elements[at_head ? chunk->start : chunk->start + chunk->count] = element;
    chunk->count++;
    list->length++;
    return true;
}

struct value *list_pop(struct list *list, bool at_head) {
    struct list_chunk *chunk = at_head ? list->first : list->last;
    if (!chunk) return NULL;
    struct value *element = chunk->elements[at_head ? chunk->start : chunk->start + chunk->count - 1];
    if (at_head) chunk->start++;
    chunk->count--;
    list->length--;
    if (chunk->count == 0) {
        chunk_unlink(list, chunk);
        memory_free(chunk);
    }
    return element;
}

struct list_position list_at(const struct list *list, uint64_t index) {
    assert(index < list->length);
    if (index < list->length / 2) {
        struct list_chunk *chunk = list->first;
        for (; index >= chunk->count; chunk = chunk->next) index -= chunk->count;
        return (struct list_position){.chunk = chunk, .offset = (uint32_t)index};
    }
    uint64_t behind = list->length - 1 - index;
    struct list_chunk *chunk = list->last;
    for (; behind >= chunk->count; chunk = chunk->previous) behind -= chunk->count;
    return (struct list_position){.chunk = chunk, .offset = chunk->count - 1 - (uint32_t)behind};
}

bool list_step(struct list_position *position, bool backwards) {
    if (backwards) {
        if (position->offset > 0) {
            position->offset--;
            return true;
        }
        position->chunk = position->chunk->previous;
        position->offset = position->chunk ? position->chunk->count - 1 : 0;
    } else {
        if (++position->offset < position->chunk->count) return true;
        position->chunk = position->chunk->next;
        position->offset = 0;
    }
    return position->chunk;
}

struct value **list_element(struct list_position position) {
    return &position.chunk->elements[position.chunk->start + position.offset];
}

/* Splits a full chunk into two halves and corrects the position. */
static bool split(struct list *list, struct list_position *position) {
    struct list_chunk *chunk = position->chunk;
    uint32_t keep = chunk->count / 2, moved = chunk->count - keep;
    struct list_chunk *second = chunk_new(CHUNK_LARGEST);
    if (!second) return false;
    memcpy(second->elements, chunk->elements + chunk->start + keep, moved * sizeof second->elements[0]);
    second->count = moved;
    chunk->count = keep;
    chunk_link(list, second, chunk->next);
    if (position->offset >= keep) {
        position->chunk = second;
        position->offset -= keep;
    }
    return true;
}

bool list_insert(struct list *list, struct list_position position, bool after, struct value *element) {
    if (position.chunk->count == CHUNK_LARGEST && !split(list, &position)) return false;
    struct list_chunk *chunk = position.chunk;
    if (chunk->start + chunk->count == chunk->capacity) {
        uint32_t capacity = chunk->count == chunk->capacity ? chunk->capacity * 2 : chunk->capacity;
        chunk = chunk_reshape(list, chunk, capacity, 0);
        if (!chunk) return false;
    }
    uint32_t offset = position.offset + (after ? 1 : 0);
    struct value **place = chunk->elements + chunk->start + offset;
    memmove(place + 1, place, (chunk->count - offset) * sizeof *place);
    *place = element;
    chunk->count++;
    list->length++;
    return true;
}

struct value *list_remove(struct list *list, struct list_position *position, bool backwards, bool *more) {
    struct list_chunk *chunk = position->chunk;
    struct value **place = list_element(*position), *element = *place;
    chunk->count--;
    list->length--;
    memmove(place, place + 1, (chunk->count - position->offset) * sizeof *place);
    if (backwards) {
        *more = list_step(position, true);
    } else if (position->offset < chunk->count) {
        *more = true;
    } else {
        *position = (struct list_position){.chunk = chunk->next, .offset = 0};
        *more = position->chunk;
    }
    if (chunk->count == 0) {
        chunk_unlink(list, chunk);
        memory_free(chunk);
    }
    return element;
}

void list_drop(struct list *list, bool from_head, uint64_t count, struct list *dropped) {
    assert(count <= list->length);
    struct list_chunk *chunk = from_head ? list->first : list->last;
    while (chunk && chunk->count <= count) {
        count -= chunk->count;
        list->length -= chunk->count;
        dropped->length += chunk->count;
        chunk_unlink(list, chunk);
        chunk_link(dropped, chunk, NULL);
        chunk = from_head ? list->first : list->last;
    }
    for (; count > 0; count--) string_free(list_pop(list, from_head));
}

struct list *list_copy(const struct list *list) {
    struct list *copy = list_new();
    bool copied = copy;
    for (const struct list_chunk *chunk = list->first; chunk && copied; chunk = chunk->next) {
        for (uint32_t i = 0; i < chunk->count && copied; i++) {
            struct value *element = string_copy(chunk->elements[chunk->start + i]);
            copied = element && list_push(copy, false, element);
            if (!copied && element) string_free(element);
        }
    }
    if (copied || !copy) return copy;
    size_t steps = SIZE_MAX;
    list_release(copy, &steps);
    return NULL;
}

bool list_release(struct list *list, size_t *steps) {
    while (list->length > 0) {
        if (*steps == 0) return false;
        (*steps)--;
        string_free(list_pop(list, true));
    }
    memory_free(list);
    return true;
}

size_t list_memory_bytes(const struct list *list) {
    if (list->length == 0) return sizeof *list;
    const struct list_chunk *sample = list->first;
    size_t bytes = sizeof *sample + sample->capacity * sizeof sample->elements[0];
    for (uint32_t i = 0; i < sample->count; i++) bytes += string_memory_bytes(sample->elements[sample->start + i]);
    return sizeof *list + (size_t)((double)bytes / sample->count * (double)list->length);
}
