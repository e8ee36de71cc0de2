/* fuzz_snapshot: the reader of snapshot files. An input is a list of changes to a file that is whole: bytes written at
 * places, bytes left out, an early end; then, but for some inputs, the checksums are made right again, so that what is
 * behind them is reached. Whatever the file says, the reader makes tables that can be used, or refuses. */
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32c.h"
#include "persist/snapshot.h"
#include "persist/snapshot_format.h"
#include "persist/snapshot_reader.h"
#include "replay/table_ragged.h"
#include "table_stage.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Changes are of four bytes: place (two), kind, value. */
const char *const fuzz_seeds[] = {
    "\1\160\1\1\1",
    "\1\200\1\1\1\210\1\1\2",
    "\1\1\2\1\7\1\3\1\377",
    "\2ab\2\4",
    "\3ab\3\4",
    "\1\300\1\1a\320\1\1b\340\1\1c",
    NULL,
};

#define ROOM 65536u

static uint8_t whole[ROOM];
static size_t whole_length;

/* A table of ragged columns, with some items. */
static struct table *make_ragged(void) {
    static const uint8_t rows[9000] = {1, 2, 3};
    struct table_config config = small_config(6, SELECTOR_FIFO);
    uint64_t ids[3], values[3] = {1, 2, 3};
    config.column[1].row_bytes = 3;
    config.column[1].max_length = 3000;
    config.column[1].dimensions = 2;
    config.column[1].shape[0] = 0;
    config.column[1].shape[1] = 3;
    config.column[1].item_bytes = sizeof(struct ragged_value);
    strcpy(config.name, "r");
    struct table *table = make(&config);
    struct reservation *items = table_reserve(table, 3, &error);
    CHECK(items);
    reservation_fill(items, 0, values);
    CHECK(reservation_fill_ragged(items, 1, (int64_t[]){0, 5, 5, 2000}, rows, 6000, CLOCK_NEVER, &error) == 0);
    CHECK(table_commit(table, items, NULL, ids, &error) == 0);
    return table;
}

/* A table with windows, one without and one of ragged columns, each with some items. */
static void make_whole(void) {
    struct table_config config = small_config(12, SELECTOR_PRIORITIZED);
    struct table *tables[3] = {make(&config), NULL, make_ragged()};
    uint64_t ids[12];
    CHECK(add(tables[0], 9, 0, NULL, ids) == 0 && table_delete(tables[0], 2, ids) == 2);
    strcpy(config.name, "w");
    config.codec = codec_available(CODEC_LZ4) ? CODEC_LZ4 : CODEC_NONE;
    config.column[0] = (struct column){.name = "frame", .kind = COLUMN_STEP, .type = COLUMN_UINT8, .item_bytes = 200};
    config.column[0].dimensions = 1;
    config.column[0].shape[0] = 200;
    config.column[0].in_steps = true;
    config.column[1] = (struct column){.name = "obs", .kind = COLUMN_WINDOW, .type = COLUMN_UINT8, .item_bytes = 400};
    config.column[1].length = config.column[1].shape[0] = 2;
    config.column[1].shape[1] = 200;
    config.column[1].dimensions = 2;
    config.column[2] = config.column[1];
    strcpy(config.column[2].name, "any");
    config.column[2].length = config.column[2].shape[0] = 0;
    config.column[2].max_length = 3;
    config.column[2].row_bytes = 200;
    config.column[2].item_bytes = sizeof(struct ragged_value);
    config.columns = 3;
    tables[1] = make(&config);
    struct stream *stream = table_stream_new(tables[1], 4, &error), *streams[4] = {stream, stream, stream, stream};
    struct reservation *steps = table_reserve_steps(tables[1], 4, &error);
    CHECK(stream && steps);
    static const uint8_t frames[800] = {1, [200] = 2, [400] = 3, [600] = 4};
    reservation_fill(steps, 0, frames);
    CHECK(table_append(tables[1], steps, streams, NULL, &error) == 0);
    struct reservation *items = table_reserve(tables[1], 3, &error);
    static const struct table_span shown[3] = {{0, 3}, {1, 1}, {3, 0}};
    const struct table_spans spans = {.of = {[2] = (const uint8_t *)shown}};
    CHECK(items && table_resolve(tables[1], items, streams, (uint64_t[]){1, 2, 3}, &spans, &error) == 0);
    CHECK(table_commit(tables[1], items, NULL, ids, &error) == 0);

    struct snapshot_options options = {.folder = ".", .name = "whole"};
    struct snapshot *snapshot = snapshot_begin(&options, tables, 3, &error);
    CHECK(snapshot);
    enum snapshot_state state;
    do {
        state = snapshot_step(snapshot, clock_monotonic_us() + 1000, &error);
    } while (state == SNAPSHOT_COPYING || state == SNAPSHOT_WRITING);
    CHECK(state == SNAPSHOT_DONE);
    snapshot_free(snapshot);
    int descriptor = open("whole", O_RDONLY);
    ssize_t length = read(descriptor, whole, sizeof whole);
    CHECK(length > 0 && length < (ssize_t)sizeof whole);
    whole_length = (size_t)length;
    close(descriptor);
    unlink("whole");
    table_free(tables[0]);
    table_free(tables[1]);
    table_free(tables[2]);
}

static size_t change(uint8_t *file, size_t length, const uint8_t *data, size_t size) {
    for (; size >= 4; data += 4, size -= 4) {
        size_t place = (size_t)(data[0] | data[1] << 8) % (length + 1), count = data[3];
        switch (data[2] % 4) {
        case 0:
        case 1:
            if (place < length) file[place] = data[3];
            break;
        case 2: /* left out */
            count = count < length - place ? count : length - place;
            memmove(file + place, file + place + count, length - place - count);
            length -= count;
            break;
        case 3: /* given twice */
            count = count < length - place ? count : length - place;
            count = count < ROOM - length ? count : ROOM - length;
            memmove(file + place + count, file + place, length - place);
            length += count;
            break;
        }
    }
    return length;
}

static void make_checksums_right(uint8_t *file, size_t length) {
    struct snapshot_file_header header;
    if (length < sizeof header) return;
    memcpy(&header, file, sizeof header);
    header.checksum = crc32c(0, &header, offsetof(struct snapshot_file_header, checksum));
    memcpy(file, &header, sizeof header);
    for (size_t at = sizeof header; length - at >= sizeof(struct snapshot_block_header);) {
        struct snapshot_block_header block;
        memcpy(&block, file + at, sizeof block);
        size_t left = length - at - sizeof block, bytes = block.length < left ? block.length : left;
        block.payload_checksum = crc32c(0, file + at + sizeof block, bytes);
        block.checksum = crc32c(0, &block, offsetof(struct snapshot_block_header, checksum));
        memcpy(file + at, &block, sizeof block);
        at += sizeof block + bytes;
    }
}

static void read_rows(const struct table *table, uint32_t column, const uint32_t *slots) {
    uint8_t *rows =
        malloc(table_ragged_rows(table, column, slots, 4) * table_config(table)->column[column].row_bytes + 1);
    CHECK(rows);
    table_ragged_gather(table, column, slots, 4, rows);
    free(rows);
}

/* What came out must be usable. */
static void use(struct table *table) {
    uint32_t slots[4];
    uint8_t *bytes = malloc(4u << 20);
    const struct table_config *config = table_config(table);
    if (table_sample(table, 4, 0.5, true, slots, NULL, NULL, NULL, NULL, &error) == 0) {
        for (uint32_t i = 0; i < config->columns; i++)
            if (column_is_ragged(&config->column[i]))
                read_rows(table, i, slots);
            else if (config->column[i].kind != COLUMN_STEP && config->column[i].item_bytes <= 1u << 20)
                table_gather(table, i, slots, 4, bytes);
        table_unpin(table, slots, 4);
    }
    free(bytes);
    table_reset(table);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t file[ROOM];
    static int descriptor = -1;
    if (descriptor < 0) {
        make_whole();
        descriptor = memfd_create("snapshot", 0);
        CHECK(descriptor >= 0);
    }
    if (size < 1) return 0;
    memcpy(file, whole, whole_length);
    size_t length = change(file, whole_length, data + 1, size - 1);
    if (data[0] % 8) make_checksums_right(file, length);
    CHECK(ftruncate(descriptor, 0) == 0 && lseek(descriptor, 0, SEEK_SET) == 0);
    CHECK(write(descriptor, file, length) == (ssize_t)length && lseek(descriptor, 0, SEEK_SET) == 0);
    struct snapshot_content content;
    if (snapshot_read(descriptor, "fuzzed", &content, NULL, &error) == 0)
        for (uint32_t i = 0; i < content.count; i++) use(content.tables[i]);
    snapshot_content_free(&content);
    return 0;
}
