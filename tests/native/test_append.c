/* append: what is written to an append-only file is read back; a tail cut off anywhere is found, and so is a byte that
 * is not what it was, wherever it stands. */
#include "append_stage.h"

/* Three writes: two commands; a transaction; a value from a blob. */
static void write_three(void) {
    struct append_manifest manifest;
    struct append_writer *writer = open_writer(&manifest);
    add(&writer->open, "SELECT 0");
    add(&writer->open, "SET key value");
    hand_over(writer);
    add(&writer->open, "MULTI");
    add(&writer->open, "RPUSH list a b c");
    add(&writer->open, "DEL key");
    add(&writer->open, "EXEC");
    hand_over(writer);
    struct blob *blob = blob_new(40);
    memset(blob->data, 'x', blob->length);
    CHECK(append_buffer_add_head(&writer->open, 3) && append_buffer_add_word(&writer->open, "SET", 3, NULL));
    CHECK(append_buffer_add_word(&writer->open, "blob", 4, NULL));
    CHECK(append_buffer_add_word(&writer->open, blob->data, blob->length, blob));
    blob_release(blob);
    hand_over(writer);
    append_writer_free(writer);
}

#define COMMANDS 5
static const char *const written[COMMANDS] = {"SELECT 0", "SET key value", "RPUSH list a b c", "DEL key",
                                              "SET blob xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"};

/* Every command that comes out must be the next that was written. */
static void look_at_three(uint32_t before, uint32_t argc, const struct append_argument *words) {
    char line[256] = "";
    for (uint32_t i = 0; i < argc; i++) {
        if (i > 0) strcat(line, " ");
        strncat(line, (const char *)words[i].data, words[i].length);
    }
    CHECK(before < COMMANDS && strcmp(line, written[before]) == 0);
}

static struct outcome read_three(const uint8_t *data, size_t size) {
    store("copy", data, size);
    return read_file("copy", look_at_three);
}

static void what_is_written_is_read_back(void) {
    write_three();
    load_increment();
    CHECK(length > 100);
    struct outcome outcome = read_three(bytes, length);
    CHECK(outcome.how == APPEND_READ_END && outcome.commands == COMMANDS && outcome.end.size == length);
}

/* Cut off at any byte: what came before is read, nothing of a transaction whose end is missing, and the place up to
 * which the file is good is one at which it can be cut and read without complaint. */
static void a_tail_may_be_cut_off_at_every_byte(void) {
    for (size_t size = 0; size < length; size++) {
        struct outcome outcome = read_three(bytes, size);
        CHECK(outcome.how == APPEND_READ_TORN || outcome.how == APPEND_READ_END);
        CHECK(outcome.commands != 3 && outcome.end.size <= size);
        CHECK(outcome.how == APPEND_READ_TORN || outcome.end.size == size);
        struct outcome again = read_three(bytes, outcome.end.size);
        CHECK(again.how == APPEND_READ_END && again.commands == outcome.commands);
    }
}

static void zeros_after_a_tail_that_was_cut_off_belong_to_it(void) {
    static uint8_t copy[sizeof bytes + 9000];
    for (size_t size = 0; size < length; size++) {
        memset(copy, 0, sizeof copy);
        memcpy(copy, bytes, size);
        size_t all = size + 1 + (size % 3) * 4096;
        struct outcome outcome = read_three(copy, all);
        /* The salt was on the disk before there was a tail. */
        bool lacks_salt = size < APPEND_SALT_LINE && (size == 0 || all >= APPEND_SALT_LINE);
        CHECK(outcome.how == (lacks_salt ? APPEND_READ_CORRUPT : APPEND_READ_TORN) && outcome.end.size <= size);
    }
}

static void a_byte_that_is_not_what_it_was_is_found_wherever_it_stands(void) {
    for (size_t at = 0; at < length; at++) {
        for (int bit = 0; bit < 8; bit++) {
            static uint8_t copy[sizeof bytes];
            memcpy(copy, bytes, length);
            copy[at] ^= (uint8_t)(1 << bit);
            struct outcome outcome = read_three(copy, length);
            /* Of the last line's own bytes some make it look as if it were cut off: then nothing is lost but it. */
            bool last = at + APPEND_CHECKSUM_LINE >= length;
            CHECK(outcome.how == APPEND_READ_CORRUPT || (last && outcome.how == APPEND_READ_TORN));
        }
    }
}

/* ---- holes ----------------------------------------------------------------------------------------------------------- */

static void look_at_many(uint32_t before, uint32_t argc, const struct append_argument *words) {
    CHECK(before < 8 && argc == 3 && words[2].length == 3000 && !memchr(words[2].data, 0, 3000));
}

/* How it is read where these bytes are zeros. */
static struct outcome read_with_hole(size_t from, size_t to) {
    static uint8_t copy[sizeof bytes];
    memcpy(copy, bytes, length);
    memset(copy + from, 0, to - from);
    store("copy", copy, length);
    return read_file("copy", look_at_many);
}

/* Wherever sectors are missing that no fsync had brought to the disk, the file ends before the write that lacks them. */
static void a_hole_behind_the_last_fsync_is_a_torn_tail(void) {
    write_many(0x07); /* the fourth write says that three were on the disk */
    for (size_t from = many_ends[2]; from < length; from = from / SECTOR * SECTOR + SECTOR) {
        for (size_t sectors = 1; sectors <= 9; sectors += 4) {
            size_t to = from / SECTOR * SECTOR + sectors * SECTOR;
            uint32_t whole = 3;
            while (whole < 8 && many_ends[whole] <= from) whole++;
            if (to > length) to = length;
            struct outcome outcome = read_with_hole(from, to);
            CHECK(outcome.how == APPEND_READ_TORN);
            CHECK(outcome.commands == whole && outcome.end.size == many_ends[whole - 1]);
        }
    }
    /* A sector as it was between two writes, though later ones are there. */
    for (unsigned i = 2; i < 7; i++) {
        struct outcome outcome = read_with_hole(many_ends[i], many_ends[i] / SECTOR * SECTOR + SECTOR);
        CHECK(outcome.how == APPEND_READ_TORN);
        CHECK(outcome.commands == i + 1 && outcome.end.size == many_ends[i]);
    }
}

/* The file tells of that fsync, so it is damage, and what follows it is not thrown away. */
static void a_hole_in_what_an_fsync_had_brought_to_the_disk_is_refused(void) {
    write_many(0x7f);
    for (size_t from = 0; from + SECTOR < many_ends[6]; from += SECTOR) {
        uint32_t whole = 0;
        while (many_ends[whole] <= from) whole++;
        struct outcome outcome = read_with_hole(from, from + SECTOR);
        CHECK(outcome.how == APPEND_READ_CORRUPT);
        CHECK(outcome.commands == whole && strstr(error.message, "copy, byte "));
        CHECK(from == 0 || strstr(error.message, "the disk had all"));
    }
}

/* Zeros that a client wrote, or a hole, do not excuse what is wrong before them. */
static void damage_before_a_hole_is_refused(void) {
    write_many(0x07);
    bytes[many_ends[3] + 100] ^= 1;
    struct outcome outcome = read_with_hole(many_ends[5] + SECTOR, many_ends[5] + 4 * SECTOR);
    CHECK(outcome.how == APPEND_READ_CORRUPT);
    CHECK(outcome.commands == 4 && outcome.end.size == many_ends[3]);
}

/* ---- what is not ours ------------------------------------------------------------------------------------------------ */

/* Neither that a checksum follows, nor that the disk had had it. */
static void a_value_that_looks_like_lines_of_the_file_does_not_pass_for_them(void) {
    static const char forged[] =
        "\n#CRC:01234567\r\n#CRC:01234567:0123456789abcdef\r\n#SYNCED:000000000020:6bc5b9bb\r\n"
        "#SALT:0123456789abcdef:00000000\r\n#SYNCED:000000000040:0123456789abcdef\r\n";
    char value[4000];
    for (size_t i = 0; i < sizeof value; i++) value[i] = forged[i % (sizeof forged - 1)];
    struct append_manifest manifest;
    struct append_writer *writer = open_writer(&manifest);
    add(&writer->open, "SELECT 0");
    hand_over(writer);
    size_t first = (size_t)writer->file_bytes;
    add_value(&writer->open, value, sizeof value);
    hand_over(writer);
    append_writer_free(writer);
    load_increment();
    struct outcome outcome = read_bytes(length);
    CHECK(outcome.how == APPEND_READ_END && outcome.commands == 2);
    size_t told = first + APPEND_SYNCED_LINE;
    for (size_t size = first; size < length - APPEND_CHECKSUM_LINE; size++) {
        size_t whole = size < told ? first : told;
        outcome = read_bytes(size);
        CHECK(outcome.how == (size == whole ? APPEND_READ_END : APPEND_READ_TORN));
        CHECK(outcome.commands == 1 && outcome.end.size == whole);
    }
    memset(bytes + 4 * SECTOR, 0, SECTOR);
    outcome = read_bytes(length);
    CHECK(outcome.how == APPEND_READ_TORN && outcome.end.size == first);
}

/* Of a Redis: a client's zeros are no hole, and what is complete stays. */
static void a_file_without_checksums_is_cut_where_its_last_command_is_incomplete(void) {
    length = 0;
    put("*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n", 0);
    put("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3000\r\n", 3000);
    size_t whole = put("\r\n", 0);
    put("*2\r\n$3\r\nDEL\r\n$900\r\n", 800);
    for (size_t size = whole; size <= length; size++) {
        struct outcome outcome = read_bytes(size);
        CHECK(outcome.how == (size == whole ? APPEND_READ_END : APPEND_READ_TORN));
        CHECK(outcome.commands == 2 && outcome.end.size == whole);
    }
    length = whole;
    put("", 1500); /* zeros to the end */
    struct outcome outcome = read_bytes(length);
    CHECK(outcome.how == APPEND_READ_TORN && outcome.commands == 2 && outcome.end.size == whole);
    put("x", 0);
    CHECK(read_bytes(length).how == APPEND_READ_CORRUPT);
}

static void manifests_are_read_as_they_were_written_or_not_at_all(void) {
    int folder = open(".", O_RDONLY | O_DIRECTORY);
    struct append_manifest manifest = {.stem = "other", .base = 3, .first = 4, .count = 2}, back;
    CHECK(append_manifest_write(folder, &manifest, &(bool){false}, &error) == 0);
    CHECK(append_manifest_read(folder, "other", &back, &error) == 1);
    CHECK(back.base == 3 && back.first == 4 && back.count == 2);
    char text[512];
    int descriptor = open("other.manifest", O_RDONLY);
    ssize_t size = read(descriptor, text, sizeof text);
    close(descriptor);
    CHECK(size > 0);
    for (ssize_t keep = 0; keep < size; keep++) {
        descriptor = open("other.manifest", O_WRONLY | O_TRUNC);
        CHECK(write(descriptor, text, (size_t)keep) == keep);
        close(descriptor);
        int result = append_manifest_read(folder, "other", &back, &error);
        CHECK(result == -1 || (keep > 0 && text[keep - 1] == '\n' && back.count == 1));
    }
    close(folder);
}

int main(void) {
    enter_own_folder();
    RUN(what_is_written_is_read_back);
    RUN(a_tail_may_be_cut_off_at_every_byte);
    RUN(zeros_after_a_tail_that_was_cut_off_belong_to_it);
    RUN(a_byte_that_is_not_what_it_was_is_found_wherever_it_stands);
    RUN(a_hole_behind_the_last_fsync_is_a_torn_tail);
    RUN(a_hole_in_what_an_fsync_had_brought_to_the_disk_is_refused);
    RUN(damage_before_a_hole_is_refused);
    RUN(a_value_that_looks_like_lines_of_the_file_does_not_pass_for_them);
    RUN(a_file_without_checksums_is_cut_where_its_last_command_is_incomplete);
    RUN(manifests_are_read_as_they_were_written_or_not_at_all);
    return 0;
}
