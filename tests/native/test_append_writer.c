/* append_writer: how an increment is written, and goes on once it was read, though calls fail meanwhile. */
#include <sys/syscall.h>

#include "append_stage.h"
#include "base/crc32c.h"

/* ---- in place of libc's ---------------------------------------------------------------------------------------------- */

static uint64_t again_from, again_to; /* of the file, what is written again */
ssize_t pwrite(int descriptor, const void *data, size_t size, off_t at) {
    if (again_from == again_to) again_from = again_to = (uint64_t)at;
    CHECK((uint64_t)at == again_to);
    again_to += size;
    return syscall(SYS_pwrite64, descriptor, data, size, at);
}

static uint64_t call_ends[64]; /* the length of the file after each call that writes behind its end */
static unsigned calls;
static bool next_is_short;
static size_t most_in_a_call; /* 0: any */
static uint64_t most_in_file; /* 0: any */
ssize_t writev(int descriptor, const struct iovec *pieces, int count) {
    size_t total = 0, most = most_in_a_call ? most_in_a_call : SIZE_MAX;
    struct stat status;
    for (int i = 0; i < count; i++) total += pieces[i].iov_len;
    if (next_is_short) most = pieces[0].iov_len;
    next_is_short = false;
    CHECK(fstat(descriptor, &status) == 0);
    if (most_in_file && (uint64_t)status.st_size + total > most_in_file) {
        uint64_t left = most_in_file - (uint64_t)status.st_size;
        if (left < most) most = (size_t)left;
        if (most == 0) {
            errno = ENOSPC;
            return -1;
        }
    }
    ssize_t done = 0;
    for (; count > 0 && most > 0; pieces++, count--) {
        size_t part = pieces->iov_len < most ? pieces->iov_len : most;
        CHECK(write(descriptor, pieces->iov_base, part) == (ssize_t)part);
        done += (ssize_t)part;
        most -= part;
    }
    if (calls < 64 && fstat(descriptor, &status) == 0) call_ends[calls++] = (uint64_t)status.st_size;
    return done;
}

static uint64_t synced_at[64]; /* so much of it had been written again */
static unsigned syncs;
int fdatasync(int descriptor) {
    if (syncs < 64) synced_at[syncs++] = again_to;
    return (int)syscall(SYS_fdatasync, descriptor);
}

static int failing_descriptor = -1, failing_call; /* the first of that descriptor is 1 */
int fsync(int descriptor) {
    if (descriptor == failing_descriptor && --failing_call == 0) return -1;
    return (int)syscall(SYS_fsync, descriptor);
}

/* ---- writing --------------------------------------------------------------------------------------------------------- */

static struct append_end end_of_increment(void) {
    return read_file(INCREMENT, NULL).end;
}

static struct blob *new_blob(size_t size) {
    struct blob *blob = blob_new(size);
    memset(blob->data, 'b', blob->length);
    return blob;
}

static void add_blob(struct append_buffer *buffer, struct blob *blob) {
    CHECK(append_buffer_add_head(buffer, 2) && append_buffer_add_word(buffer, "DEL", 3, NULL));
    CHECK(append_buffer_add_word(buffer, blob->data, blob->length, blob));
}

/* Between two calls the disk may begin with what is there: a sector that both write to could lack what the second has. */
static void no_page_of_the_file_is_written_by_two_calls_of_a_write(void) {
    struct append_manifest manifest;
    struct append_writer *writer = open_writer(&manifest);
    struct blob *blob = new_blob(5);
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < 700 + 2000 * round; i++) add_blob(&writer->open, blob);
        calls = 0;
        hand_over(writer);
        CHECK(calls > 2 && calls < 64 && call_ends[calls - 1] == writer->file_bytes);
        for (unsigned i = 0; i + 1 < calls; i++) CHECK(call_ends[i] % 4096 == 0);
        struct append_end end = end_of_increment();
        CHECK(end.size == writer->file_bytes && end.is_checked);
    }
    blob_release(blob);
    append_writer_free(writer);
}

/* As some do that are no disk: what is too much for them they cut short, and never say why. */
static void a_file_system_that_takes_little_at_once_gets_as_much_in_a_call(void) {
    struct append_manifest manifest;
    struct append_writer *writer = open_writer(&manifest);
    struct blob *blob = new_blob(100000);
    most_in_a_call = 10000;
    for (unsigned round = 0; round < 2; round++) {
        add_blob(&writer->open, blob);
        add(&writer->open, "SET key value");
        calls = 0;
        hand_over(writer);
        unsigned undone = round == 0 ? 2 : 0; /* the first, and a byte that tells that the disk is not full */
        CHECK(calls > undone + 10 && calls < 40 && call_ends[calls - 1] == writer->file_bytes);
        for (unsigned i = undone; i + 1 < calls; i++) CHECK(call_ends[i] % 4096 == 0);
        struct append_end end = end_of_increment();
        CHECK(end.size == writer->file_bytes && end.is_checked);
    }
    most_in_a_call = 0;
    blob_release(blob);
    append_writer_free(writer);
}

static void a_write_for_which_there_is_no_space_is_undone_and_tried_again(void) {
    struct append_manifest manifest;
    struct append_writer *writer = open_writer(&manifest);
    struct blob *blob = new_blob(100000);
    add_blob(&writer->open, blob);
    uint64_t before = writer->size;
    most_in_file = 50000;
    append_writer_hand_over(writer, true);
    append_writer_wait(writer);
    CHECK(writer->job.error.code != ERROR_NONE && strstr(writer->job.error.message, "No space left"));
    CHECK(!writer->job.broken && writer->retry && writer->size == before && end_of_increment().size == before);
    most_in_file = 0;
    calls = 0;
    hand_over(writer);
    CHECK(calls == 1 && end_of_increment().size == writer->file_bytes);
    blob_release(blob);
    append_writer_free(writer);
}

/* What came behind it would share a page with it. */
static void a_write_that_is_cut_short_is_undone_and_tried_again(void) {
    struct append_manifest manifest;
    struct append_writer *writer = open_writer(&manifest);
    uint64_t before = writer->size;
    add(&writer->open, "SET key value");
    next_is_short = true;
    append_writer_hand_over(writer, true);
    append_writer_wait(writer);
    CHECK(writer->job.error.code != ERROR_NONE && strstr(writer->job.error.message, "No space left"));
    CHECK(!writer->job.broken && writer->retry && writer->size == before && end_of_increment().size == before);
    hand_over(writer);
    struct append_end end = end_of_increment();
    CHECK(end.size == writer->file_bytes && end.is_checked);
    append_writer_free(writer);
}

/* ---- going on -------------------------------------------------------------------------------------------------------- */

static int go_on(const struct append_end *end) {
    struct append_writer *writer = append_writer_new(open(".", O_RDONLY | O_DIRECTORY), NULL, NULL);
    CHECK(writer);
    again_from = again_to = 0;
    int result = append_writer_continue(writer, INCREMENT, end, &error);
    if (result == 0) {
        add(&writer->open, "SELECT 0");
        hand_over(writer);
    }
    append_writer_free(writer);
    return result;
}

/* An fsync may have failed behind the last line that tells of one: what is read there is in memory alone. */
static void a_file_goes_on_once_all_that_may_be_in_memory_alone_is_written_again(void) {
    write_many(0x27); /* the fourth write tells of three, the seventh of six */
    struct append_end end = end_of_increment();
    CHECK(end.size == length && end.is_checked && end.synced == many_ends[5]);
    CHECK(go_on(&end) == 0 && again_from == many_ends[5] && again_to == length);
    /* Now it tells of all that was written again. */
    end = end_of_increment();
    CHECK(end.size > length && end.synced == length);
    write_many(0);
    end = end_of_increment();
    CHECK(end.synced == 0 && go_on(&end) == 0 && again_from == 0 && again_to == length);
}

/* Memory may give up what it had of it, and the disk have something else. */
static void a_file_that_is_not_what_was_read_does_not_go_on(void) {
    write_many(0x07);
    struct append_end end = end_of_increment();
    int descriptor = open(INCREMENT, O_WRONLY);
    CHECK(syscall(SYS_pwrite64, descriptor, "", 1, many_ends[4] + 100) == 1);
    close(descriptor);
    CHECK(go_on(&end) < 0 && strstr(error.message, "log.1.incr.aof has changed since it was read"));
}

/* A start that reads nothing for long looks as if it hung. */
static void what_is_written_again_is_brought_to_the_disk_part_by_part(void) {
    static const uint8_t zeros[1u << 20];
    struct append_end end = {.size = (150u << 20) + 5, .is_checked = true, .salt = 1};
    int descriptor = open(INCREMENT, O_WRONLY | O_TRUNC);
    CHECK(descriptor >= 0 && ftruncate(descriptor, (off_t)end.size) == 0);
    close(descriptor);
    for (uint64_t at = 0; at < end.size; at += sizeof zeros)
        end.checksum = crc32c(end.checksum, zeros, end.size - at < sizeof zeros ? end.size - at : sizeof zeros);
    syncs = 0;
    CHECK(go_on(&end) == 0 && again_from == 0 && again_to == end.size);
    CHECK(syncs > 3 && synced_at[0] == 64u << 20 && synced_at[1] == 128u << 20 && synced_at[2] == end.size);
}

/* One of a Redis, and one of an earlier version: both go on with a salt. */
static void a_file_without_a_salt_is_given_one(void) {
    for (int has_checksums = 0; has_checksums < 2; has_checksums++) {
        length = 0;
        put("*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n", 0);
        if (has_checksums) put("#CRC:4f43ca38\r\n#SYNCED:000000000026:00000000\r\n", 0);
        size_t before = put("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n", 0);
        store(INCREMENT, bytes, length);
        struct append_end end = end_of_increment();
        CHECK(end.size == before && end.salt == 0 && end.synced == 0 && !end.is_checked);
        CHECK(go_on(&end) == 0);
        end = end_of_increment();
        CHECK(end.salt != 0 && end.is_checked && end.synced > before);
        load_increment();
        struct outcome outcome = read_bytes(length);
        CHECK(outcome.how == APPEND_READ_END && outcome.commands == 3);
        outcome = read_bytes(length - 40);
        CHECK(outcome.how == APPEND_READ_TORN && outcome.commands == 2);
        bytes[before - 4] ^= 1;
        CHECK(read_bytes(length).how == APPEND_READ_CORRUPT);
    }
}

/* Its line was written together with a checksum, which a loss of power took: both are cut off. */
static void a_salt_that_is_cut_off_is_not_used(void) {
    for (size_t kept = 0; kept < APPEND_CHECKSUM_LINE; kept++) {
        length = 0;
        size_t before = put("*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n#CRC:4f43ca38\r\n", 0);
        store(INCREMENT, bytes, before);
        struct append_end end = end_of_increment();
        CHECK(end.size == before && end.is_checked && go_on(&end) == 0);
        load_increment();
        size_t lines = before + APPEND_SALT_LINE + APPEND_CHECKSUM_LINE;
        memset(bytes + before + APPEND_SALT_LINE + kept, 0, APPEND_CHECKSUM_LINE - kept);
        CHECK(read_bytes(lines).how == APPEND_READ_TORN);
        store(INCREMENT, bytes, lines);
        end = end_of_increment();
        CHECK(end.size == before && end.salt == 0);
        CHECK(truncate(INCREMENT, (off_t)end.size) == 0 && go_on(&end) == 0);
        load_increment();
        struct outcome outcome = read_bytes(length);
        CHECK(outcome.how == APPEND_READ_END && outcome.commands == 2);
    }
}

/* Before a file goes on with a salt, all of it is on the disk: what is wrong there is no torn tail. */
static void damage_before_a_salt_is_refused(void) {
    for (int has_checksums = 0; has_checksums < 2; has_checksums++) {
        length = 0;
        put("*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n", 0);
        if (has_checksums) put("#CRC:4f43ca38\r\n", 0);
        size_t from = put("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3000\r\n", 3000);
        memset(bytes + from - 3000, 'v', 3000);
        size_t next = put("\r\n*2\r\n$3\r\nDEL\r\n$900\r\n", 900);
        memset(bytes + next - 900, 'v', 900);
        store(INCREMENT, bytes, put("\r\n", 0));
        struct append_end end = end_of_increment();
        syncs = 0;
        CHECK(go_on(&end) == 0 && syncs > 0 && synced_at[0] == length);
        load_increment();
        struct outcome outcome = read_bytes(length);
        CHECK(outcome.how == APPEND_READ_END && outcome.commands == 4);
        for (int is_long = 0; is_long < 2; is_long++) {
            load_increment();
            if (is_long)
                memcpy(bytes + from - 3007, "$9000", 5);
            else
                memset(bytes + SECTOR, 0, 6 * SECTOR); /* and a value's end */
            outcome = read_bytes(length);
            CHECK(outcome.how == APPEND_READ_CORRUPT && outcome.commands == (unsigned)has_checksums);
            CHECK(strstr(error.message, "the disk had all before byte"));
        }
    }
}

/* ---- other files ----------------------------------------------------------------------------------------------------- */

/* All that the manifest of the disk names is there. */
static void check_manifest(const struct append_writer *writer, uint64_t increments) {
    struct append_manifest back;
    CHECK(append_manifest_read(writer->folder, "log", &back, &error) == 1 && back.count == increments);
    for (uint64_t i = 0; i < back.count; i++) {
        char name[NAME_MAX + 1];
        append_increment_name(&back, back.first + i, name);
        CHECK(access(name, F_OK) == 0);
    }
}

/* A second increment, where one call of fsync for the folder fails. */
static struct append_writer *add_increment_while_failing(int call) {
    struct append_manifest manifest;
    struct append_writer *writer = open_writer(&manifest);
    manifest.count++;
    failing_descriptor = writer->folder;
    failing_call = call;
    append_writer_switch(writer, &manifest, APPEND_SWITCH_OPEN | APPEND_SWITCH_MANIFEST);
    append_writer_wait(writer);
    CHECK(failing_call == 0 && writer->job.error.code != ERROR_NONE);
    failing_descriptor = -1;
    return writer;
}

/* It is not known whether the new file is on the disk: nothing names it, and all goes on with the one before it. */
static void an_increment_that_cannot_be_brought_to_the_disk_is_not_named(void) {
    struct append_writer *writer = add_increment_while_failing(1);
    CHECK(!writer->job.broken);
    check_manifest(writer, 1);
    append_writer_free(writer);
}

/* The manifest has been renamed, but the disk may have either: what one of them names must be there. */
static void a_folder_that_cannot_be_brought_to_the_disk_loses_no_file(void) {
    struct append_writer *writer = add_increment_while_failing(2);
    CHECK(writer->job.broken);
    check_manifest(writer, 2);
    append_writer_free(writer);
}

int main(void) {
    enter_own_folder();
    RUN(no_page_of_the_file_is_written_by_two_calls_of_a_write);
    RUN(a_file_system_that_takes_little_at_once_gets_as_much_in_a_call);
    RUN(a_write_for_which_there_is_no_space_is_undone_and_tried_again);
    RUN(a_write_that_is_cut_short_is_undone_and_tried_again);
    RUN(a_file_goes_on_once_all_that_may_be_in_memory_alone_is_written_again);
    RUN(a_file_that_is_not_what_was_read_does_not_go_on);
    RUN(what_is_written_again_is_brought_to_the_disk_part_by_part);
    RUN(a_file_without_a_salt_is_given_one);
    RUN(a_salt_that_is_cut_off_is_not_used);
    RUN(damage_before_a_salt_is_refused);
    RUN(an_increment_that_cannot_be_brought_to_the_disk_is_not_named);
    RUN(a_folder_that_cannot_be_brought_to_the_disk_loses_no_file);
    return 0;
}
