/* test_ragged: ragged columns against a plain model: adds that stay, are given up, shortened or refused, room by bytes, pins,
 * cuts while all of that goes on, and what is left when everything has gone. */
#include "base/clock.h"
#include "base/random.h"
#include "cut_stage.h"
#include "replay/table_ragged.h"

#define CAPACITY 50u
#define MOST_ROWS 2600u
#define MOST_ADDED 8u
#define PINS 20u

static struct table_config ragged_config(uint64_t max_bytes, enum selector_kind remover) {
    struct table_config config = small_config(CAPACITY, SELECTOR_UNIFORM);
    config.columns = 3;
    config.remover = remover;
    config.max_bytes = max_bytes;
    config.column[0] = (struct column){.name = "tokens", .type = COLUMN_INT32, .dimensions = 1, .item_bytes = 16};
    config.column[0].row_bytes = 4;
    config.column[0].max_length = MOST_ROWS;
    config.column[1] = (struct column){.name = "seed", .type = COLUMN_UINT64, .item_bytes = 8};
    config.column[2] = (struct column){
        .name = "points", .type = COLUMN_UINT8, .dimensions = 2, .shape = {0, 3}, .item_bytes = 16, .row_bytes = 3};
    config.column[2].max_length = MOST_ROWS;
    return config;
}

/* ---- values that follow from a number ------------------------------------------------------------------------------ */

static uint32_t length_of(uint64_t seed, uint32_t column) {
    uint64_t hash = (seed * 2 + column + 1) * 0x9e3779b97f4a7c15ull >> 20;
    static const uint32_t most[] = {1, 5, 600, MOST_ROWS + 1};
    uint32_t length = (uint32_t)(hash >> 2) % most[hash % 4];
    return hash % 4 == 3 && (hash >> 2) % 5 == 0 ? 512 : length; /* whole units, too */
}

static uint8_t byte_of(uint64_t seed, uint32_t column, size_t at) {
    return (uint8_t)(seed * 31 + column * 7 + at * 13 + (at >> 8));
}

static void write_rows(uint64_t seed, uint32_t column, size_t bytes, uint8_t *to) {
    for (size_t i = 0; i < bytes; i++) to[i] = byte_of(seed, column, i);
}

static void check_value(const struct table *table, uint32_t slot) {
    uint64_t seed;
    int64_t offsets[2];
    static uint8_t rows[MOST_ROWS * 4];
    table_gather(table, 1, &slot, 1, &seed);
    for (uint32_t column = 0; column < 3; column += 2) {
        size_t bytes = length_of(seed, column) * table->config.column[column].row_bytes, seen = 0;
        CHECK(table_ragged_offsets(table, column, &slot, 1, offsets) == (int64_t)length_of(seed, column));
        CHECK(table_ragged_gather(table, column, &slot, 1, rows) == bytes);
        for (size_t i = 0; i < bytes; i++) CHECK(rows[i] == byte_of(seed, column, i));
        struct ragged_piece piece;
        for (bool more = table_ragged_first(table, column, slot, &piece); more;
             more = table_ragged_next(table, column, slot, &piece)) {
            CHECK(memcmp(piece.bytes, rows + seen, piece.size) == 0);
            seen += piece.size;
            CHECK(piece.left == bytes - seen);
        }
        CHECK(seen == bytes);
    }
}

/* ---- adding -------------------------------------------------------------------------------------------------------- */

/* Fills a ragged column of n items with the values of `first`, first + 1, …, in as many calls as it likes. */
static int fill_ragged(struct reservation *reservation, uint32_t column, uint32_t n, uint64_t first) {
    size_t row_bytes = reservation->table->config.column[column].row_bytes, at = 0;
    int64_t offsets[MOST_ADDED + 1] = {0};
    for (uint32_t i = 0; i < n; i++) offsets[i + 1] = offsets[i] + length_of(first + i, column);
    uint8_t *rows = malloc((size_t)offsets[n] * row_bytes + 1);
    for (uint32_t i = 0; i < n; i++) {
        size_t bytes = length_of(first + i, column) * row_bytes;
        write_rows(first + i, column, bytes, rows + at);
        at += bytes;
    }
    int left;
    while ((left = reservation_fill_ragged(reservation, column, offsets, rows, at, 0, &error)) > 0) continue;
    free(rows);
    return left;
}

static struct reservation *reserve(struct table *table, uint32_t n, uint64_t first) {
    uint64_t seeds[MOST_ADDED];
    struct reservation *reservation = table_reserve(table, n, &error);
    CHECK(reservation);
    for (uint32_t i = 0; i < n; i++) seeds[i] = first + i;
    reservation_fill(reservation, 1, seeds);
    for (uint32_t column = 0; column < 3; column += 2) CHECK(fill_ragged(reservation, column, n, first) == 0);
    return reservation;
}

/* ---- all of it together -------------------------------------------------------------------------------------------- */

struct trial {
    struct table *table;
    struct random_state random;
    uint64_t next, ids[256];
    uint32_t known; /* ids */
    uint32_t pins[PINS], pinned;
    struct memory_sink memory;
    bool cutting;
    uint64_t cut_size, cut_bytes;
};

static void check_all(const struct trial *trial) {
    const struct table *table = trial->table;
    uint64_t live = 0;
    for (uint32_t slot = table->order.oldest; slot != SLOT_NONE; slot = table->items.slot[slot].newer) {
        check_value(table, slot);
        live += slot_store_ragged_bytes(&table->items, slot);
    }
    CHECK(table->items.ragged->live_bytes == live && table->items.ragged->reserved_bytes == 0);
    CHECK(table->items.ragged->used_bytes >= live);
    for (uint32_t i = 0; i < trial->pinned; i++) check_value(table, trial->pins[i]);
    uint64_t max_bytes = table->config.max_bytes;
    CHECK(!max_bytes || info_of(table).bytes <= max_bytes);
    CHECK(info_of(table).bytes == live + table->items.live * table->items.slot_bytes);
}

static void add_some(struct trial *trial) {
    uint32_t n = 1 + (uint32_t)random_below(&trial->random, MOST_ADDED);
    uint64_t ids[MOST_ADDED];
    /* Where spare slots have run out, references land apart as well. */
    bool apart = random_below(&trial->random, 4) == 0;
    uint32_t reserved = trial->table->items.reserved;
    if (apart) trial->table->items.reserved = TABLE_RESERVED_LIMIT;
    struct reservation *reservation = reserve(trial->table, n, trial->next);
    if (apart) trial->table->items.reserved = reserved;
    CHECK(reservation->placed == !apart);
    if (random_below(&trial->random, 8) == 0) {
        reservation_release(reservation);
        return;
    }
    if (random_below(&trial->random, 4) == 0) {
        n = 1 + (uint32_t)random_below(&trial->random, n);
        reservation_shorten(reservation, n);
    }
    if (table_commit(trial->table, reservation, NULL, ids, &error)) {
        CHECK(error.code == ERROR_LIMIT);
        reservation_release(reservation);
        return;
    }
    for (uint32_t i = 0; i < n; i++) trial->ids[trial->known++ % 256] = ids[i];
    trial->next += n;
}

static void pin_some(struct trial *trial) {
    if (trial->pinned && random_below(&trial->random, 2)) {
        table_unpin(trial->table, &trial->pins[--trial->pinned], 1);
    } else if (trial->pinned < PINS && trial->table->items.live) {
        CHECK(table_sample(trial->table, 1, 0, true, &trial->pins[trial->pinned], NULL, NULL, NULL, NULL, &error) == 0);
        trial->pinned++;
    }
}

static void cut_some(struct trial *trial) {
    if (!trial->cutting) {
        trial->cut_size = trial->table->items.live;
        trial->cut_bytes = info_of(trial->table).bytes;
        begin(trial->table, &trial->memory, random_below(&trial->random, 2) ? 40000 : 1u << 20);
        trial->cutting = true;
        return;
    }
    if (random_below(&trial->random, 3)) {
        table_cut_step(trial->table);
        return;
    }
    finish_cut(trial->table);
    trial->cutting = false;
    struct table *restored = restore_from(&trial->memory);
    CHECK(restored->items.live == trial->cut_size && info_of(restored).bytes == trial->cut_bytes);
    struct trial other = {.table = restored};
    check_all(&other);
    table_reset(restored);
    CHECK(restored->items.ragged->used_bytes == 0);
    table_free(restored);
    forget(&trial->memory);
}

static void do_one(struct trial *trial) {
    uint64_t id = trial->known ? trial->ids[random_below(&trial->random, trial->known < 256 ? trial->known : 256)] : 0;
    switch (random_below(&trial->random, 10)) {
    case 0:
    case 1:
    case 2:
    case 3: add_some(trial); return;
    case 4: table_delete(trial->table, 1, &id); return;
    case 5:
    case 6: pin_some(trial); return;
    case 7:
    case 8: cut_some(trial); return;
    default:
        if (random_below(&trial->random, 40) == 0) table_reset(trial->table);
    }
}

static void everything_is_as_the_model_says(uint64_t max_bytes, enum selector_kind remover, uint64_t seed) {
    struct table_config config = ragged_config(max_bytes, remover);
    struct trial trial = {.table = make(&config)};
    random_seed(&trial.random, seed);
    for (int i = 0; i < 3000; i++) {
        do_one(&trial);
        if (i % 16 == 0) check_all(&trial);
    }
    while (trial.cutting) cut_some(&trial);
    check_all(&trial);
    table_reset(trial.table);
    const struct ragged_store *ragged = trial.table->items.ragged;
    CHECK(ragged->live_bytes == 0);
    if (trial.pinned) table_unpin(trial.table, trial.pins, trial.pinned);
    CHECK(ragged->used_bytes == 0 && ragged->returned_count == ragged->fresh);
    for (uint32_t i = 0; i < ragged->rests.fresh; i++) CHECK(ragged->rests.chunk[i].used == 0);
    table_free(trial.table);
}

/* ---- refusals ------------------------------------------------------------------------------------------------------ */

static void refused(struct table *table, const int64_t offsets[3], size_t bytes, const char *part) {
    static uint8_t rows[(MOST_ROWS + 1) * 4];
    struct reservation *reservation = table_reserve(table, 2, &error);
    CHECK(reservation);
    error.code = ERROR_NONE;
    CHECK(reservation_fill_ragged(reservation, 0, offsets, rows, bytes, CLOCK_NEVER, &error) == -1);
    CHECK(error.code == ERROR_BADSHAPE);
    CHECK(strstr(error.message, part));
    reservation_release(reservation);
    CHECK(table->items.ragged->used_bytes == 0 && table->items.ragged->reserved_bytes == 0);
}

static void offsets_that_cannot_be_are_refused(void) {
    struct table_config config = ragged_config(0, SELECTOR_FIFO);
    struct table *table = make(&config);
    refused(table, (int64_t[]){1, 2, 3}, 12, "got 1 at index 0");
    refused(table, (int64_t[]){0, 2, 4}, 12, "got 4 at index 2");
    refused(table, (int64_t[]){0, 2, 3}, 13, "got 3 at index 2");
    refused(table, (int64_t[]){0, 4, 3}, 12, "got 4 at index 1");
    refused(table, (int64_t[]){0, -1, 3}, 12, "got -1 at index 1");
    refused(table, (int64_t[]){0, INT64_MIN, 3}, 12, "at index 1");
    refused(table, (int64_t[]){0, 0, MOST_ROWS + 1}, (MOST_ROWS + 1) * 4, "max_length = 2600");
    refused(table, (int64_t[]){0, 3, 2}, 8, "got 3 at index 1");
    table_free(table);
}

static void items_of_more_than_max_bytes_are_refused_and_change_nothing(void) {
    struct table_config config = ragged_config(20000, SELECTOR_FIFO);
    struct table *table = make(&config);
    static uint8_t rows[2 * MOST_ROWS * 4];
    uint64_t seeds[2] = {0}, ids[2];
    struct reservation *reservation = table_reserve(table, 2, &error);
    CHECK(reservation);
    reservation_fill(reservation, 1, seeds);
    int64_t long_ones[3] = {0, MOST_ROWS, 2 * MOST_ROWS}, none[3] = {0, 0, 0};
    CHECK(reservation_fill_ragged(reservation, 0, long_ones, rows, sizeof rows, CLOCK_NEVER, &error) == 0);
    CHECK(reservation_fill_ragged(reservation, 2, none, rows, 0, CLOCK_NEVER, &error) == 0);
    CHECK(table_commit(table, reservation, NULL, ids, &error) == -1 && error.code == ERROR_LIMIT);
    CHECK(strstr(error.message, "max_bytes of table 't' is 20000"));
    reservation_release(reservation);
    CHECK(info_of(table).bytes == 0 && table->items.ragged->used_bytes == 0);
    table_free(table);
}

/* ---- memory -------------------------------------------------------------------------------------------------------- */

static void values_take_little_more_than_their_bytes(void) {
    struct table_config config = ragged_config(0, SELECTOR_FIFO);
    config.column[0].max_length = 4096;
    struct table *table = make(&config);
    const struct ragged_store *ragged = table->items.ragged;
    uint64_t values = 0, taken = 0;
    for (uint32_t rows = 1; rows <= 4096; rows++) {
        size_t bytes = rows * (size_t)4, takes = ragged_store_takes(ragged, 0, rows);
        CHECK(takes >= bytes && takes <= bytes + bytes / RAGGED_UNIT_BYTES * 4 + RAGGED_MOST_WASTE);
        values += bytes;
        taken += takes + sizeof(struct ragged_value);
    }
    CHECK(taken * 100 <= values * 102);
    table_free(table);
}

static void values_survive_whatever_is_done_to_the_table(void) {
    for (uint64_t seed = 1; seed <= 2; seed++) {
        everything_is_as_the_model_says(0, SELECTOR_FIFO, seed);
        everything_is_as_the_model_says(0, SELECTOR_UNIFORM, seed);
        everything_is_as_the_model_says(60000, SELECTOR_FIFO, seed);
        everything_is_as_the_model_says(60000, SELECTOR_UNIFORM, seed);
    }
}

int main(void) {
    RUN(offsets_that_cannot_be_are_refused);
    RUN(items_of_more_than_max_bytes_are_refused_and_change_nothing);
    RUN(values_take_little_more_than_their_bytes);
    RUN(values_survive_whatever_is_done_to_the_table);
    return 0;
}
