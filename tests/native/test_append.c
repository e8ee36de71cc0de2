/* append: what is written to an append-only file is read back; a tail cut off anywhere is found, and so is a byte that
 * is not what it was, wherever it stands. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "check.h"
#include "own_folder.h"
#include "persist/append_reader.h"
#include "persist/append_writer.h"

static struct error error;

static void add(struct append_buffer *buffer, const char *line) {
    char words[256];
    uint32_t argc = 0;
    snprintf(words, sizeof words, "%s", line);
    for (const char *at = words; at; at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL) argc++;
    CHECK(append_buffer_add_head(buffer, argc));
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " "))
        CHECK(append_buffer_add_word(buffer, word, strlen(word), NULL));
}

static struct append_writer *open_writer(struct append_manifest *manifest) {
    int folder = open(".", O_RDONLY | O_DIRECTORY);
    CHECK(append_manifest_read(folder, "log", manifest, &error) == 0);
    struct append_writer *writer = append_writer_new(folder, NULL, NULL);
    CHECK(writer);
    manifest->count = 1;
    append_writer_switch(writer, manifest, APPEND_SWITCH_OPEN | APPEND_SWITCH_MANIFEST);
    append_writer_wait(writer);
    CHECK(writer->job.error.code == ERROR_NONE);
    return writer;
}

static void hand_over(struct append_writer *writer) {
    append_writer_hand_over(writer, true);
    append_writer_wait(writer);
    CHECK(writer->job.error.code == ERROR_NONE && writer->synced == writer->handed);
}

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

struct outcome {
    enum append_read how;
    uint32_t commands;
    uint64_t at;
};

/* Reads a file; every command that comes out must be the next that was written. */
static struct outcome read_back(const char *name) {
    struct stat status;
    int descriptor = open(name, O_RDONLY);
    CHECK(descriptor >= 0 && fstat(descriptor, &status) == 0);
    struct append_reader reader;
    append_reader_open(&reader, descriptor, (uint64_t)status.st_size, name);
    struct outcome outcome = {.commands = 0};
    uint32_t argc;
    const struct append_argument *words;
    while ((outcome.how = append_reader_next(&reader, &argc, &words, &error)) == APPEND_READ_COMMAND) {
        char line[256] = "";
        for (uint32_t i = 0; i < argc; i++) {
            if (i > 0) strcat(line, " ");
            strncat(line, (const char *)words[i].data, words[i].length);
        }
        if (outcome.commands >= COMMANDS || strcmp(line, written[outcome.commands]) != 0) {
            outcome.how = APPEND_READ_CORRUPT; /* it came out before its checksum was reached */
            while (append_reader_next(&reader, &argc, &words, &error) == APPEND_READ_COMMAND) continue;
            CHECK(strstr(error.message, "byte"));
            break;
        }
        outcome.commands++;
    }
    outcome.at = reader.at;
    append_reader_close(&reader);
    close(descriptor);
    return outcome;
}

static uint8_t bytes[4096];
static size_t length;

static void load_bytes(void) {
    int descriptor = open("log.1.incr.aof", O_RDONLY);
    ssize_t got = read(descriptor, bytes, sizeof bytes);
    CHECK(got > 100 && got < (ssize_t)sizeof bytes);
    length = (size_t)got;
    close(descriptor);
}

static void store_bytes(const uint8_t *data, size_t size) {
    int descriptor = open("copy", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(write(descriptor, data, size) == (ssize_t)size);
    close(descriptor);
}

static void what_is_written_is_read_back(void) {
    write_three();
    struct outcome outcome = read_back("log.1.incr.aof");
    CHECK(outcome.how == APPEND_READ_END && outcome.commands == COMMANDS);
    load_bytes();
    CHECK(outcome.at == length);
}

/* Cut off at any byte: what came before is read, nothing of a transaction whose end is missing, and the place up to
 * which the file is good is one at which it can be cut and read without complaint. */
static void a_tail_may_be_cut_off_at_every_byte(void) {
    for (size_t size = 0; size < length; size++) {
        store_bytes(bytes, size);
        struct outcome outcome = read_back("copy");
        CHECK(outcome.how == APPEND_READ_TORN || outcome.how == APPEND_READ_END);
        CHECK(outcome.commands != 3 && outcome.at <= size);
        CHECK(outcome.how == APPEND_READ_TORN || outcome.at == size);
        store_bytes(bytes, outcome.at);
        struct outcome again = read_back("copy");
        CHECK(again.how == APPEND_READ_END && again.commands == outcome.commands);
    }
}

static void zeros_after_a_tail_that_was_cut_off_belong_to_it(void) {
    static uint8_t copy[sizeof bytes + 9000];
    for (size_t size = 0; size < length; size++) {
        memset(copy, 0, sizeof copy);
        memcpy(copy, bytes, size);
        size_t all = size + 1 + (size % 3) * 4096;
        store_bytes(copy, all);
        struct outcome outcome = read_back("copy");
        /* The salt was on the disk before there was a tail. */
        bool lacks_salt = size < APPEND_SALT_LINE && (size == 0 || all >= APPEND_SALT_LINE);
        CHECK(outcome.how == (lacks_salt ? APPEND_READ_CORRUPT : APPEND_READ_TORN) && outcome.at <= size);
    }
}

static void a_byte_that_is_not_what_it_was_is_found_wherever_it_stands(void) {
    for (size_t at = 0; at < length; at++) {
        for (int bit = 0; bit < 8; bit++) {
            uint8_t copy[sizeof bytes];
            memcpy(copy, bytes, length);
            copy[at] ^= (uint8_t)(1 << bit);
            store_bytes(copy, length);
            struct outcome outcome = read_back("copy");
            /* Of the last line's own bytes some make it look as if it were cut off: then nothing is lost but it. */
            bool last = at + APPEND_CHECKSUM_LINE >= length;
            CHECK(outcome.how == APPEND_READ_CORRUPT || (last && outcome.how == APPEND_READ_TORN));
        }
    }
}

/* ---- holes ----------------------------------------------------------------------------------------------------------- */

#define SECTOR 512u

static uint8_t many[1u << 16];
static size_t many_length, many_ends[8]; /* of what was written at once */

static void load_large(const char *name) {
    int descriptor = open(name, O_RDONLY);
    ssize_t got = read(descriptor, many, sizeof many);
    CHECK(got > 0 && got < (ssize_t)sizeof many);
    many_length = (size_t)got;
    close(descriptor);
}

/* Writes of a value of 3,000 bytes each, those of `synced`, a bit each, with an fsync. */
static void write_many(unsigned synced) {
    struct append_manifest manifest;
    CHECK(unlink("log.manifest") == 0);
    struct append_writer *writer = open_writer(&manifest);
    char value[3000];
    memset(value, 'v', sizeof value);
    for (unsigned i = 0; i < 8; i++) {
        CHECK(append_buffer_add_head(&writer->open, 3) && append_buffer_add_word(&writer->open, "SET", 3, NULL));
        CHECK(append_buffer_add_word(&writer->open, "key", 3, NULL));
        CHECK(append_buffer_add_word(&writer->open, value, sizeof value, NULL));
        append_writer_hand_over(writer, synced >> i & 1);
        append_writer_wait(writer);
        CHECK(writer->job.error.code == ERROR_NONE);
        many_ends[i] = (size_t)writer->file_bytes;
    }
    append_writer_free(writer);
    load_large("log.1.incr.aof");
    CHECK(many_length == many_ends[7]);
}

/* How it is read where these bytes are zeros; `at`: what is left of it. */
static enum append_read read_with_hole(size_t from, size_t to, size_t *at, uint32_t *commands) {
    static uint8_t copy[sizeof many];
    memcpy(copy, many, many_length);
    memset(copy + from, 0, to - from);
    store_bytes(copy, many_length);
    struct stat status;
    int descriptor = open("copy", O_RDONLY);
    CHECK(descriptor >= 0 && fstat(descriptor, &status) == 0);
    struct append_reader reader;
    append_reader_open(&reader, descriptor, (uint64_t)status.st_size, "copy");
    uint32_t argc;
    const struct append_argument *words;
    enum append_read how;
    for (*commands = 0; (how = append_reader_next(&reader, &argc, &words, &error)) == APPEND_READ_COMMAND; ++*commands)
        CHECK(argc == 3 && words[2].length == 3000 && !memchr(words[2].data, 0, 3000));
    *at = (size_t)reader.at;
    append_reader_close(&reader);
    close(descriptor);
    return how;
}

/* Wherever sectors are missing that no fsync had brought to the disk, the file ends before the write that lacks them. */
static void a_hole_behind_the_last_fsync_is_a_torn_tail(void) {
    write_many(0x07); /* the fourth write says that three were on the disk */
    for (size_t from = many_ends[2]; from < many_length; from = from / SECTOR * SECTOR + SECTOR) {
        for (size_t sectors = 1; sectors <= 9; sectors += 4) {
            size_t to = from / SECTOR * SECTOR + sectors * SECTOR, at;
            uint32_t commands, whole = 3;
            while (whole < 8 && many_ends[whole] <= from) whole++;
            if (to > many_length) to = many_length;
            CHECK(read_with_hole(from, to, &at, &commands) == APPEND_READ_TORN);
            CHECK(commands == whole && at == many_ends[whole - 1]);
        }
    }
    /* A sector as it was between two writes, though later ones are there. */
    for (unsigned i = 2; i < 7; i++) {
        size_t at;
        uint32_t commands;
        CHECK(read_with_hole(many_ends[i], many_ends[i] / SECTOR * SECTOR + SECTOR, &at, &commands) ==
              APPEND_READ_TORN);
        CHECK(commands == i + 1 && at == many_ends[i]);
    }
}

/* The file tells of that fsync, so it is damage, and what follows it is not thrown away. */
static void a_hole_in_what_an_fsync_had_brought_to_the_disk_is_refused(void) {
    write_many(0x7f);
    for (size_t from = 0; from + SECTOR < many_ends[6]; from += SECTOR) {
        size_t at;
        uint32_t commands, whole = 0;
        while (many_ends[whole] <= from) whole++;
        CHECK(read_with_hole(from, from + SECTOR, &at, &commands) == APPEND_READ_CORRUPT);
        CHECK(commands == whole && strstr(error.message, "copy, byte "));
        CHECK(from == 0 || strstr(error.message, "the disk had all"));
    }
}

/* Zeros that a client wrote, or a hole, do not excuse what is wrong before them. */
static void damage_before_a_hole_is_refused(void) {
    write_many(0x07);
    many[many_ends[3] + 100] ^= 1;
    size_t at;
    uint32_t commands;
    CHECK(read_with_hole(many_ends[5] + SECTOR, many_ends[5] + 4 * SECTOR, &at, &commands) == APPEND_READ_CORRUPT);
    CHECK(commands == 4 && at == many_ends[3]);
}

/* ---- going on -------------------------------------------------------------------------------------------------------- */

/* Of the file, in place of libc's: what is written in it, and where calls for its end have ended. */
static uint64_t again_from, again_to;
ssize_t pwrite(int descriptor, const void *data, size_t size, off_t at) {
    if (again_from == again_to) again_from = again_to = (uint64_t)at;
    CHECK((uint64_t)at == again_to);
    again_to += size;
    return syscall(SYS_pwrite64, descriptor, data, size, at);
}

static uint64_t call_ends[64];
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

static struct append_end end_of(const char *name) {
    struct stat status;
    int descriptor = open(name, O_RDONLY);
    CHECK(descriptor >= 0 && fstat(descriptor, &status) == 0);
    struct append_reader reader;
    append_reader_open(&reader, descriptor, (uint64_t)status.st_size, name);
    uint32_t argc;
    const struct append_argument *words;
    while (append_reader_next(&reader, &argc, &words, &error) == APPEND_READ_COMMAND) continue;
    struct append_end end = append_reader_end(&reader);
    append_reader_close(&reader);
    close(descriptor);
    return end;
}

static int go_on(const struct append_end *end) {
    struct append_writer *writer = append_writer_new(open(".", O_RDONLY | O_DIRECTORY), NULL, NULL);
    CHECK(writer);
    again_from = again_to = 0;
    int result = append_writer_continue(writer, "log.1.incr.aof", end, &error);
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
    struct append_end end = end_of("log.1.incr.aof");
    CHECK(end.size == many_length && end.is_checked && end.synced == many_ends[5]);
    CHECK(go_on(&end) == 0 && again_from == many_ends[5] && again_to == many_length);
    /* Now it tells of all that was written again. */
    end = end_of("log.1.incr.aof");
    CHECK(end.size > many_length && end.synced == many_length);
    write_many(0);
    end = end_of("log.1.incr.aof");
    CHECK(end.synced == 0 && go_on(&end) == 0 && again_from == 0 && again_to == many_length);
}

/* Memory may give up what it had of it, and the disk have something else. */
static void a_file_that_is_not_what_was_read_does_not_go_on(void) {
    write_many(0x07);
    struct append_end end = end_of("log.1.incr.aof");
    int descriptor = open("log.1.incr.aof", O_WRONLY);
    CHECK(syscall(SYS_pwrite64, descriptor, "", 1, many_ends[4] + 100) == 1);
    close(descriptor);
    CHECK(go_on(&end) < 0 && strstr(error.message, "log.1.incr.aof has changed since it was read"));
}

/* Between two calls the disk may begin with what is there: a sector that both write to could lack what the second has. */
static void no_page_of_the_file_is_written_by_two_calls_of_a_write(void) {
    CHECK(unlink("log.manifest") == 0);
    struct append_manifest manifest;
    struct append_writer *writer = open_writer(&manifest);
    struct blob *blob = blob_new(5);
    memset(blob->data, 'b', blob->length);
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < 700 + 2000 * round; i++) {
            CHECK(append_buffer_add_head(&writer->open, 2) && append_buffer_add_word(&writer->open, "DEL", 3, NULL));
            CHECK(append_buffer_add_word(&writer->open, blob->data, blob->length, blob));
        }
        calls = 0;
        hand_over(writer);
        CHECK(calls > 2 && calls < 64 && call_ends[calls - 1] == writer->file_bytes);
        for (unsigned i = 0; i + 1 < calls; i++) CHECK(call_ends[i] % 4096 == 0);
        struct append_end end = end_of("log.1.incr.aof");
        CHECK(end.size == writer->file_bytes && end.is_checked);
    }
    blob_release(blob);
    append_writer_free(writer);
}

/* Whoever waits for the start takes one that reads nothing for long for one that hangs. */
static void what_is_written_again_is_brought_to_the_disk_part_by_part(void) {
    static const uint8_t zeros[1u << 20];
    struct append_end end = {.size = (150u << 20) + 5, .is_checked = true, .salt = 1};
    int descriptor = open("log.1.incr.aof", O_WRONLY | O_TRUNC);
    CHECK(descriptor >= 0 && ftruncate(descriptor, (off_t)end.size) == 0);
    close(descriptor);
    for (uint64_t at = 0; at < end.size; at += sizeof zeros)
        end.checksum = crc32c(end.checksum, zeros, end.size - at < sizeof zeros ? end.size - at : sizeof zeros);
    syncs = 0;
    CHECK(go_on(&end) == 0 && again_from == 0 && again_to == end.size);
    CHECK(syncs > 3 && synced_at[0] == 64u << 20 && synced_at[1] == 128u << 20 && synced_at[2] == end.size);
}

/* As some do that are no disk: what is too much for them they cut short, and never say why. */
static void a_file_system_that_takes_little_at_once_gets_as_much_in_a_call(void) {
    CHECK(unlink("log.manifest") == 0);
    struct append_manifest manifest;
    struct append_writer *writer = open_writer(&manifest);
    struct blob *blob = blob_new(100000);
    memset(blob->data, 'b', blob->length);
    most_in_a_call = 10000;
    for (unsigned round = 0; round < 2; round++) {
        CHECK(append_buffer_add_head(&writer->open, 2) && append_buffer_add_word(&writer->open, "DEL", 3, NULL));
        CHECK(append_buffer_add_word(&writer->open, blob->data, blob->length, blob));
        add(&writer->open, "SET key value");
        calls = 0;
        hand_over(writer);
        unsigned undone = round == 0 ? 2 : 0; /* the first, and a byte that tells that the disk is not full */
        CHECK(calls > undone + 10 && calls < 40 && call_ends[calls - 1] == writer->file_bytes);
        for (unsigned i = undone; i + 1 < calls; i++) CHECK(call_ends[i] % 4096 == 0);
        struct append_end end = end_of("log.1.incr.aof");
        CHECK(end.size == writer->file_bytes && end.is_checked);
    }
    most_in_a_call = 0;
    blob_release(blob);
    append_writer_free(writer);
}

static void a_write_for_which_there_is_no_space_is_undone_and_tried_again(void) {
    CHECK(unlink("log.manifest") == 0);
    struct append_manifest manifest;
    struct append_writer *writer = open_writer(&manifest);
    struct blob *blob = blob_new(100000);
    memset(blob->data, 'b', blob->length);
    CHECK(append_buffer_add_head(&writer->open, 2) && append_buffer_add_word(&writer->open, "DEL", 3, NULL));
    CHECK(append_buffer_add_word(&writer->open, blob->data, blob->length, blob));
    uint64_t before = writer->size;
    most_in_file = 50000;
    append_writer_hand_over(writer, true);
    append_writer_wait(writer);
    CHECK(writer->job.error.code != ERROR_NONE && strstr(writer->job.error.message, "No space left"));
    CHECK(!writer->job.broken && writer->retry && writer->size == before && end_of("log.1.incr.aof").size == before);
    most_in_file = 0;
    calls = 0;
    hand_over(writer);
    CHECK(calls == 1 && end_of("log.1.incr.aof").size == writer->file_bytes);
    blob_release(blob);
    append_writer_free(writer);
}

/* What came behind it would share a page with it. */
static void a_write_that_is_cut_short_is_undone_and_tried_again(void) {
    CHECK(unlink("log.manifest") == 0);
    struct append_manifest manifest;
    struct append_writer *writer = open_writer(&manifest);
    uint64_t before = writer->size;
    add(&writer->open, "SET key value");
    next_is_short = true;
    append_writer_hand_over(writer, true);
    append_writer_wait(writer);
    CHECK(writer->job.error.code != ERROR_NONE && strstr(writer->job.error.message, "No space left"));
    CHECK(!writer->job.broken && writer->retry && writer->size == before && end_of("log.1.incr.aof").size == before);
    hand_over(writer);
    struct append_end end = end_of("log.1.incr.aof");
    CHECK(end.size == writer->file_bytes && end.is_checked);
    append_writer_free(writer);
}

/* ---- what is not ours ------------------------------------------------------------------------------------------------ */

/* The end of what is handed out of these bytes, and how many commands. */
static struct outcome read_bytes(const uint8_t *data, size_t size) {
    struct stat status;
    store_bytes(data, size);
    int descriptor = open("copy", O_RDONLY);
    CHECK(descriptor >= 0 && fstat(descriptor, &status) == 0);
    struct append_reader reader;
    append_reader_open(&reader, descriptor, (uint64_t)status.st_size, "copy");
    struct outcome outcome = {.commands = 0};
    uint32_t argc;
    const struct append_argument *words;
    while ((outcome.how = append_reader_next(&reader, &argc, &words, &error)) == APPEND_READ_COMMAND)
        outcome.commands++;
    outcome.at = reader.at;
    append_reader_close(&reader);
    close(descriptor);
    return outcome;
}

/* Neither that a checksum follows, nor that the disk had had it. */
static void a_value_that_looks_like_lines_of_the_file_does_not_pass_for_them(void) {
    static const char forged[] =
        "\n#CRC:01234567\r\n#CRC:01234567:0123456789abcdef\r\n#SYNCED:000000000020:6bc5b9bb\r\n"
        "#SALT:0123456789abcdef:00000000\r\n#SYNCED:000000000040:0123456789abcdef\r\n";
    char value[4000];
    for (size_t i = 0; i < sizeof value; i++) value[i] = forged[i % (sizeof forged - 1)];
    struct append_manifest manifest;
    CHECK(unlink("log.manifest") == 0);
    struct append_writer *writer = open_writer(&manifest);
    add(&writer->open, "SELECT 0");
    hand_over(writer);
    size_t first = (size_t)writer->file_bytes;
    CHECK(append_buffer_add_head(&writer->open, 3) && append_buffer_add_word(&writer->open, "SET", 3, NULL));
    CHECK(append_buffer_add_word(&writer->open, "key", 3, NULL));
    CHECK(append_buffer_add_word(&writer->open, value, sizeof value, NULL));
    hand_over(writer);
    append_writer_free(writer);
    load_large("log.1.incr.aof");
    struct outcome outcome = read_bytes(many, many_length);
    CHECK(outcome.how == APPEND_READ_END && outcome.commands == 2);
    size_t told = first + APPEND_SYNCED_LINE;
    for (size_t size = first; size < many_length - APPEND_CHECKSUM_LINE; size++) {
        size_t whole = size < told ? first : told;
        outcome = read_bytes(many, size);
        CHECK(outcome.how == (size == whole ? APPEND_READ_END : APPEND_READ_TORN));
        CHECK(outcome.commands == 1 && outcome.at == whole);
    }
    memset(many + 4 * SECTOR, 0, SECTOR);
    outcome = read_bytes(many, many_length);
    CHECK(outcome.how == APPEND_READ_TORN && outcome.at == first);
}

static size_t put(const char *text, size_t zeros) {
    size_t text_length = strlen(text);
    memcpy(many + many_length, text, text_length);
    memset(many + many_length + text_length, 0, zeros);
    return many_length += text_length + zeros;
}

/* Of a Redis: a client's zeros are no hole, and what is complete stays. */
static void a_file_without_checksums_is_cut_where_its_last_command_is_incomplete(void) {
    many_length = 0;
    put("*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n", 0);
    put("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3000\r\n", 3000);
    size_t whole = put("\r\n", 0);
    put("*2\r\n$3\r\nDEL\r\n$900\r\n", 800);
    for (size_t size = whole; size <= many_length; size++) {
        struct outcome outcome = read_bytes(many, size);
        CHECK(outcome.how == (size == whole ? APPEND_READ_END : APPEND_READ_TORN));
        CHECK(outcome.commands == 2 && outcome.at == whole);
    }
    many_length = whole;
    put("", 1500); /* zeros to the end */
    struct outcome outcome = read_bytes(many, many_length);
    CHECK(outcome.how == APPEND_READ_TORN && outcome.commands == 2 && outcome.at == whole);
    put("x", 0);
    CHECK(read_bytes(many, many_length).how == APPEND_READ_CORRUPT);
}

/* One of a Redis, and one of an earlier version: both go on with a salt. */
static void a_file_without_a_salt_is_given_one(void) {
    for (int has_checksums = 0; has_checksums < 2; has_checksums++) {
        many_length = 0;
        put("*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n", 0);
        if (has_checksums) put("#CRC:4f43ca38\r\n#SYNCED:000000000026:00000000\r\n", 0);
        size_t before = put("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n", 0);
        int descriptor = open("log.1.incr.aof", O_WRONLY | O_TRUNC);
        CHECK(write(descriptor, many, many_length) == (ssize_t)many_length);
        close(descriptor);
        struct append_end end = end_of("log.1.incr.aof");
        CHECK(end.size == before && end.salt == 0 && end.synced == 0 && !end.is_checked);
        CHECK(go_on(&end) == 0);
        end = end_of("log.1.incr.aof");
        CHECK(end.salt != 0 && end.is_checked && end.synced > before);
        load_large("log.1.incr.aof");
        struct outcome outcome = read_bytes(many, many_length);
        CHECK(outcome.how == APPEND_READ_END && outcome.commands == 3);
        outcome = read_bytes(many, many_length - 40);
        CHECK(outcome.how == APPEND_READ_TORN && outcome.commands == 2);
        many[before - 4] ^= 1;
        CHECK(read_bytes(many, many_length).how == APPEND_READ_CORRUPT);
    }
}

static void store_increment(size_t size) {
    int descriptor = open("log.1.incr.aof", O_WRONLY | O_TRUNC);
    CHECK(write(descriptor, many, size) == (ssize_t)size);
    close(descriptor);
}

/* Its line was written together with a checksum, which a loss of power took: both are cut off. */
static void a_salt_that_is_cut_off_is_not_used(void) {
    for (size_t kept = 0; kept < APPEND_CHECKSUM_LINE; kept++) {
        many_length = 0;
        size_t before = put("*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n#CRC:4f43ca38\r\n", 0);
        store_increment(before);
        struct append_end end = end_of("log.1.incr.aof");
        CHECK(end.size == before && end.is_checked && go_on(&end) == 0);
        load_large("log.1.incr.aof");
        size_t lines = before + APPEND_SALT_LINE + APPEND_CHECKSUM_LINE;
        memset(many + before + APPEND_SALT_LINE + kept, 0, APPEND_CHECKSUM_LINE - kept);
        CHECK(read_bytes(many, lines).how == APPEND_READ_TORN);
        store_increment(lines);
        end = end_of("log.1.incr.aof");
        CHECK(end.size == before && end.salt == 0);
        CHECK(truncate("log.1.incr.aof", (off_t)end.size) == 0 && go_on(&end) == 0);
        load_large("log.1.incr.aof");
        struct outcome outcome = read_bytes(many, many_length);
        CHECK(outcome.how == APPEND_READ_END && outcome.commands == 2);
    }
}

/* Before a file goes on with a salt, all of it is on the disk: what is wrong there is no torn tail. */
static void damage_before_a_salt_is_refused(void) {
    for (int has_checksums = 0; has_checksums < 2; has_checksums++) {
        many_length = 0;
        put("*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n", 0);
        if (has_checksums) put("#CRC:4f43ca38\r\n", 0);
        size_t from = put("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3000\r\n", 3000);
        memset(many + from - 3000, 'v', 3000);
        size_t next = put("\r\n*2\r\n$3\r\nDEL\r\n$900\r\n", 900);
        memset(many + next - 900, 'v', 900);
        store_increment(put("\r\n", 0));
        struct append_end end = end_of("log.1.incr.aof");
        syncs = 0;
        CHECK(go_on(&end) == 0 && syncs > 0 && synced_at[0] == many_length);
        load_large("log.1.incr.aof");
        struct outcome outcome = read_bytes(many, many_length);
        CHECK(outcome.how == APPEND_READ_END && outcome.commands == 4);
        for (int is_long = 0; is_long < 2; is_long++) {
            load_large("log.1.incr.aof");
            if (is_long)
                memcpy(many + from - 3007, "$9000", 5);
            else
                memset(many + SECTOR, 0, 6 * SECTOR); /* and a value's end */
            outcome = read_bytes(many, many_length);
            CHECK(outcome.how == APPEND_READ_CORRUPT && outcome.commands == (unsigned)has_checksums);
            CHECK(strstr(error.message, "the disk had all before byte"));
        }
    }
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

/* In place of libc's. */
static int failing_descriptor = -1, failing_call; /* the first of that descriptor is 1 */
int fsync(int descriptor) {
    if (descriptor == failing_descriptor && --failing_call == 0) return -1;
    return (int)syscall(SYS_fsync, descriptor);
}

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
    CHECK(unlink("log.manifest") == 0);
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
    RUN(what_is_written_is_read_back);
    RUN(a_tail_may_be_cut_off_at_every_byte);
    RUN(zeros_after_a_tail_that_was_cut_off_belong_to_it);
    RUN(a_byte_that_is_not_what_it_was_is_found_wherever_it_stands);
    RUN(a_hole_behind_the_last_fsync_is_a_torn_tail);
    RUN(a_hole_in_what_an_fsync_had_brought_to_the_disk_is_refused);
    RUN(damage_before_a_hole_is_refused);
    RUN(a_file_goes_on_once_all_that_may_be_in_memory_alone_is_written_again);
    RUN(a_file_that_is_not_what_was_read_does_not_go_on);
    RUN(no_page_of_the_file_is_written_by_two_calls_of_a_write);
    RUN(what_is_written_again_is_brought_to_the_disk_part_by_part);
    RUN(a_file_system_that_takes_little_at_once_gets_as_much_in_a_call);
    RUN(a_write_for_which_there_is_no_space_is_undone_and_tried_again);
    RUN(a_write_that_is_cut_short_is_undone_and_tried_again);
    RUN(a_value_that_looks_like_lines_of_the_file_does_not_pass_for_them);
    RUN(a_file_without_checksums_is_cut_where_its_last_command_is_incomplete);
    RUN(a_file_without_a_salt_is_given_one);
    RUN(a_salt_that_is_cut_off_is_not_used);
    RUN(damage_before_a_salt_is_refused);
    RUN(manifests_are_read_as_they_were_written_or_not_at_all);
    RUN(an_increment_that_cannot_be_brought_to_the_disk_is_not_named);
    RUN(a_folder_that_cannot_be_brought_to_the_disk_loses_no_file);
    return 0;
}
