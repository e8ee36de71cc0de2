/* cut_stage: what the tests of cuts share: a sink that keeps records in memory, and restoring from it. */
#ifndef REPLAY_TESTS_CUT_STAGE_H
#define REPLAY_TESTS_CUT_STAGE_H

#include "base/memory.h"
#include "replay/table_restore.h"
#include "table_stage.h"

struct kept_record {
    struct kept_record *next;
    enum table_record kind;
    size_t length;
    uint8_t body[];
};

struct memory_sink {
    struct table_cut_sink sink;
    struct kept_record *first, **end;
    uint32_t left; /* records until there is no room */
    uint8_t *description;
    size_t description_length;
};

static inline uint8_t *keep(struct table_cut_sink *sink, enum table_record kind, size_t bytes) {
    struct memory_sink *memory = (struct memory_sink *)sink;
    if (memory->left == 0) return NULL;
    memory->left--;
    struct kept_record *record = malloc(sizeof *record + bytes);
    *record = (struct kept_record){.kind = kind, .length = bytes};
    *memory->end = record;
    memory->end = &record->next;
    return record->body;
}

static inline void begin(struct table *table, struct memory_sink *memory, uint64_t held_bytes) {
    *memory = (struct memory_sink){.sink.record = keep, .left = UINT32_MAX};
    memory->end = &memory->first;
    CHECK(table_cut_begin(table, &memory->sink, held_bytes, &error) == 0);
    struct msgpack_writer writer = {0};
    table_cut_describe(table, &writer);
    CHECK(!writer.failed);
    memory->description = writer.data;
    memory->description_length = writer.length;
}

static inline void forget(struct memory_sink *memory) {
    while (memory->first) {
        struct kept_record *next = memory->first->next;
        free(memory->first);
        memory->first = next;
    }
    memory_free(memory->description);
}

static inline struct table *restore_from(const struct memory_sink *memory) {
    struct table_restore *restore = table_restore_begin(memory->description, memory->description_length, &error);
    CHECK(restore);
    for (const struct kept_record *record = memory->first; record; record = record->next)
        CHECK(table_restore_record(restore, record->kind, record->body, record->length, &error) == 0);
    struct table *table = table_restore_finish(restore, &error);
    CHECK(table);
    return table;
}

static inline void finish_cut(struct table *table) {
    while (table_cut_step(table)) {
    }
    CHECK(!table_cut_failed(table));
    table_cut_end(table);
}

#endif
