/* snapshot: files written while tables change, read back, damaged, cut short, and refused by a disk that is full. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "own_folder.h"
#include "persist/snapshot.h"
#include "persist/snapshot_folder.h"
#include "persist/snapshot_reader.h"
#include "persist/table_file.h"
#include "replay/table_adopt.h"
#include "table_stage.h"

/* Takes a whole snapshot of tables into a file of the current folder. */
static enum snapshot_state save(struct table *const *tables, uint32_t count, const char *name, uint32_t keep) {
    struct snapshot_options options = {.folder = ".", .name = name, .run_id = "0123456789", .keep = keep};
    struct snapshot *snapshot = snapshot_begin(&options, tables, count, &error);
    if (!snapshot) return SNAPSHOT_FAILED;
    enum snapshot_state state;
    do {
        state = snapshot_step(snapshot, clock_monotonic_us() + 200, &error);
    } while (state == SNAPSHOT_COPYING || state == SNAPSHOT_WRITING);
    snapshot_free(snapshot);
    return state;
}

static uint32_t count_files(const char *part) {
    uint32_t count = 0;
    DIR *directory = opendir(".");
    for (struct dirent *entry; (entry = readdir(directory));) count += strstr(entry->d_name, part) != NULL;
    closedir(directory);
    return count;
}

static struct table *filled(const char *name, uint32_t n) {
    struct table_config config = small_config(n, SELECTOR_PRIORITIZED);
    strcpy(config.name, name);
    struct table *table = make(&config);
    uint64_t *ids = malloc(n * sizeof *ids);
    CHECK(add(table, n, 100, NULL, ids) == 0);
    free(ids);
    return table;
}

static void what_is_written_is_read_back(void) {
    struct table *tables[] = {filled("one", 300), filled("two", 7)};
    CHECK(save(tables, 2, "both", 0) == SNAPSHOT_DONE);
    struct snapshot_content content;
    CHECK(snapshot_read_file("both", &content, NULL, &error) == 0);
    CHECK(content.count == 2 && strcmp(content.run_id, "0123456789") == 0);
    struct stat status;
    CHECK(stat("both", &status) == 0 && content.bytes == (uint64_t)status.st_size);
    CHECK((status.st_mode & 0777) == 0600);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t slots[16];
        uint64_t ids[16], value;
        CHECK(strcmp(table_config(content.tables[i])->name, i ? "two" : "one") == 0);
        CHECK(info_of(content.tables[i]).size == info_of(tables[i]).size);
        CHECK(table_sample(content.tables[i], 4, 0, true, slots, ids, NULL, NULL, NULL, &error) == 0);
        table_gather(content.tables[i], 0, slots, 1, &value);
        CHECK(value == 100 + slots[0]);
        table_unpin(content.tables[i], slots, 4);
        table_free(tables[i]);
    }
    snapshot_content_free(&content);
    CHECK(count_files("partial") == 0);
    unlink("both");
}

static void one_table_is_saved_and_loaded_without_a_server(void) {
    struct table *table = filled("one", 300), *other = filled("other", 5);
    struct snapshot *snapshot = table_file_save(table, ".", "alone", &error);
    CHECK(snapshot);
    int state;
    while ((state = table_file_step(snapshot, 100, &error)) > 0) continue;
    CHECK(state == 0);
    snapshot_free(snapshot);
    CHECK(!table_file_load("alone", "other", &error) && strstr(error.message, "has no table 'other'"));
    CHECK(!table_file_save(table, ".", "../elsewhere", &error) && strstr(error.message, "expected the name of a file"));
    struct table *loaded = table_file_load("alone", "one", &error);
    CHECK(loaded && info_of(loaded).size == 300);
    bool changed = true;
    CHECK(table_adopt(loaded, table_config(table), &changed, &error) == 0 && !changed);
    CHECK(table_adopt(loaded, table_config(other), &changed, &error) == -1 && error.code == ERROR_EXISTS);
    table_free(loaded);
    table_free(table);
    table_free(other);
    unlink("alone");
}

/* ---- damage -------------------------------------------------------------------------------------------------------- */

static size_t read_bytes(const char *name, uint8_t *bytes, size_t room) {
    int descriptor = open(name, O_RDONLY);
    ssize_t length = read(descriptor, bytes, room);
    close(descriptor);
    CHECK(length > 0 && (size_t)length < room);
    return (size_t)length;
}

static int read_from(const uint8_t *bytes, size_t length) {
    struct snapshot_content content;
    int descriptor = open("damaged", O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(descriptor >= 0 && write(descriptor, bytes, length) == (ssize_t)length &&
          lseek(descriptor, 0, SEEK_SET) == 0);
    error.message[0] = '\0';
    int result = snapshot_read(descriptor, "damaged", &content, NULL, &error);
    close(descriptor);
    snapshot_content_free(&content);
    return result;
}

static void every_damaged_byte_and_every_end_that_is_missing_is_refused_with_the_place(void) {
    static uint8_t bytes[8192];
    struct table *table = filled("t", 20);
    CHECK(save(&table, 1, "small", 0) == SNAPSHOT_DONE);
    size_t length = read_bytes("small", bytes, sizeof bytes);
    CHECK(read_from(bytes, length) == 0);
    for (size_t at = 0; at < length; at++) {
        bytes[at] ^= (uint8_t)(1u << at % 8);
        CHECK(read_from(bytes, length) == -1 && strstr(error.message, "damaged, byte "));
        CHECK(strstr(error.message, "nothing was restored"));
        bytes[at] ^= (uint8_t)(1u << at % 8);
    }
    for (size_t short_length = 0; short_length < length; short_length++)
        CHECK(read_from(bytes, short_length) == -1 && strstr(error.message, "cut short"));
    CHECK(read_from(bytes, length + 1) == -1 && strstr(error.message, "follows the end"));
    table_free(table);
    unlink("small");
    unlink("damaged");
}

/* ---- failing ------------------------------------------------------------------------------------------------------- */

static void a_disk_that_is_full_fails_the_snapshot_and_leaves_what_was_there(void) {
    struct table *table = filled("t", 400000);
    CHECK(save(&table, 1, "kept", 0) == SNAPSHOT_DONE);
    struct stat before, after;
    CHECK(stat("kept", &before) == 0);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {.rlim_cur = 3 << 20, .rlim_max = RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(save(&table, 1, "kept", 0) == SNAPSHOT_FAILED);
    CHECK(strstr(error.message, "cannot write kept.partial: File too large"));
    limit.rlim_cur = RLIM_INFINITY;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(stat("kept", &after) == 0 && after.st_size == before.st_size && after.st_ino == before.st_ino);
    CHECK(count_files("partial") == 0);
    CHECK(save(&table, 1, "kept", 0) == SNAPSHOT_DONE); /* and the table can be saved again */
    table_free(table);
    unlink("kept");
}

static void changes_that_outrun_the_disk_fail_the_snapshot_and_nothing_else(void) {
    struct table_config config = small_config(60, SELECTOR_UNIFORM);
    config.columns = 1;
    config.column[0] = (struct column){.name = "x", .type = COLUMN_UINT8, .dimensions = 1, .shape = {1 << 20}};
    config.column[0].item_bytes = 1 << 20;
    struct table *table = make(&config);
    uint8_t *item = calloc(1, 1 << 20);
    uint64_t id;
    for (int i = 0; i < 60; i++) {
        struct reservation *reservation = table_reserve(table, 1, &error);
        reservation_fill(reservation, 0, item);
        CHECK(table_commit(table, reservation, NULL, &id, &error) == 0);
    }
    struct snapshot_options options = {.folder = ".", .name = "outrun", .memory_bytes = 4 << 20};
    struct snapshot *snapshot = snapshot_begin(&options, &table, 1, &error);
    CHECK(snapshot);
    table_reset(table); /* 60 MB leave at once: what may be held and copied is less */
    enum snapshot_state state;
    do {
        state = snapshot_step(snapshot, clock_monotonic_us() + 200, &error);
    } while (state == SNAPSHOT_COPYING || state == SNAPSHOT_WRITING);
    CHECK(state == SNAPSHOT_FAILED && error.code == ERROR_LIMIT &&
          strstr(error.message, "slower than the tables change"));
    snapshot_free(snapshot);
    CHECK(count_files("outrun") == 0 && info_of(table).pinned_slots == 0 && table->items.pinned == 0);
    struct reservation *reservation = table_reserve(table, 1, &error);
    reservation_fill(reservation, 0, item);
    CHECK(table_commit(table, reservation, NULL, &id, &error) == 0);
    free(item);
    table_free(table);
}

static void a_snapshot_given_up_leaves_no_file(void) {
    for (int steps = 0; steps < 6; steps++) {
        struct table *table = filled("t", 200000);
        struct snapshot_options options = {.folder = ".", .name = "given-up"};
        struct snapshot *snapshot = snapshot_begin(&options, &table, 1, &error);
        CHECK(snapshot);
        for (int i = 0; i < steps; i++) snapshot_step(snapshot, clock_monotonic_us() + 300, &error);
        snapshot_free(snapshot);
        CHECK(count_files("given-up") == 0);
        table_free(table);
    }
}

/* ---- the folder ---------------------------------------------------------------------------------------------------- */

static void touch(const char *name) {
    int descriptor = open(name, O_WRONLY | O_CREAT, 0600);
    CHECK(descriptor >= 0);
    close(descriptor);
}

static void the_newest_is_found_and_too_many_are_removed(void) {
    char name[NAME_MAX + 1];
    struct table *table = filled("t", 5);
    CHECK(snapshot_newest(".", name, &error) == 0 && name[0] == '\0');
    for (int i = 0; i < 5; i++) {
        snapshot_name_new(name, 1700000000123 + i);
        CHECK(save(&table, 1, name, i < 4 ? 0 : 2) == SNAPSHOT_DONE);
    }
    CHECK(strcmp(name, "replay-20231114-221320-127.snapshot") == 0);
    CHECK(count_files("replay-") == 2);
    usleep(2000); /* cuts are told apart by the millisecond */
    CHECK(save(&table, 1, "a-name-of-its-own.snapshot", 1) == SNAPSHOT_DONE);
    CHECK(snapshot_newest(".", name, &error) == 0 && strcmp(name, "a-name-of-its-own.snapshot") == 0);
    CHECK(count_files("replay-") == 1 && count_files(".snapshot") == 2);
    touch("x.snapshot.partial");
    touch("notes.txt");
    CHECK(snapshot_remove_partial(".", name) == 1 && strcmp(name, "x.snapshot.partial") == 0);
    CHECK(count_files("notes.txt") == 1);
    CHECK(snapshot_newest("/no/such/folder", name, &error) == -1);
    table_free(table);
}

int main(void) {
    enter_own_folder();
    RUN(what_is_written_is_read_back);
    RUN(one_table_is_saved_and_loaded_without_a_server);
    RUN(every_damaged_byte_and_every_end_that_is_missing_is_refused_with_the_place);
    RUN(a_disk_that_is_full_fails_the_snapshot_and_leaves_what_was_there);
    RUN(changes_that_outrun_the_disk_fail_the_snapshot_and_nothing_else);
    RUN(a_snapshot_given_up_leaves_no_file);
    RUN(the_newest_is_found_and_too_many_are_removed);
    return 0;
}
