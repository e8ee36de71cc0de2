/* append_stage: what the tests of the append-only file share: commands and a writer for it, and its bytes, read as a start
 * reads them. */
#ifndef REPLAY_TESTS_APPEND_STAGE_H
#define REPLAY_TESTS_APPEND_STAGE_H

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "own_folder.h"
#include "persist/append_lines.h"
#include "persist/append_reader.h"
#include "persist/append_writer.h"

#define INCREMENT "log.1.incr.aof"
#define SECTOR 512u

static struct error error;

/* ---- writing --------------------------------------------------------------------------------------------------------- */

static inline void add(struct append_buffer *buffer, const char *line) {
    char words[256];
    uint32_t argc = 0;
    snprintf(words, sizeof words, "%s", line);
    for (const char *at = words; at; at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL) argc++;
    CHECK(append_buffer_add_head(buffer, argc));
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " "))
        CHECK(append_buffer_add_word(buffer, word, strlen(word), NULL));
}

static inline void add_value(struct append_buffer *buffer, const char *value, size_t size) {
    CHECK(append_buffer_add_head(buffer, 3) && append_buffer_add_word(buffer, "SET", 3, NULL));
    CHECK(append_buffer_add_word(buffer, "key", 3, NULL) && append_buffer_add_word(buffer, value, size, NULL));
}

/* To a new increment, the first one. */
static inline struct append_writer *open_writer(struct append_manifest *manifest) {
    CHECK(unlink("log.manifest") == 0 || errno == ENOENT);
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

static inline void hand_over(struct append_writer *writer) {
    append_writer_hand_over(writer, true);
    append_writer_wait(writer);
    CHECK(writer->job.error.code == ERROR_NONE && writer->synced == writer->handed);
}

/* ---- bytes of a file ------------------------------------------------------------------------------------------------- */

static uint8_t bytes[1u << 16];
static size_t length;

static inline void load_increment(void) {
    int descriptor = open(INCREMENT, O_RDONLY);
    ssize_t got = read(descriptor, bytes, sizeof bytes);
    CHECK(got > 0 && got < (ssize_t)sizeof bytes);
    length = (size_t)got;
    close(descriptor);
}

static inline void store(const char *name, const uint8_t *data, size_t size) {
    int descriptor = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(write(descriptor, data, size) == (ssize_t)size);
    close(descriptor);
}

/* Behind what is there. Returns the length with it. */
static inline size_t put(const char *text, size_t zeros) {
    size_t text_length = strlen(text);
    memcpy(bytes + length, text, text_length);
    memset(bytes + length + text_length, 0, zeros);
    return length += text_length + zeros;
}

static size_t many_ends[8]; /* of what was written at once */

/* Writes of a value of 3,000 bytes each, those of `synced`, a bit each, with an fsync. */
static inline void write_many(unsigned synced) {
    struct append_manifest manifest;
    struct append_writer *writer = open_writer(&manifest);
    char value[3000];
    memset(value, 'v', sizeof value);
    for (unsigned i = 0; i < 8; i++) {
        add_value(&writer->open, value, sizeof value);
        append_writer_hand_over(writer, synced >> i & 1);
        append_writer_wait(writer);
        CHECK(writer->job.error.code == ERROR_NONE);
        many_ends[i] = (size_t)writer->file_bytes;
    }
    append_writer_free(writer);
    load_increment();
    CHECK(length == many_ends[7]);
}

/* ---- reading --------------------------------------------------------------------------------------------------------- */

struct outcome {
    enum append_read how;
    uint32_t commands;
    struct append_end end;
};

/* `look` sees each command, and how many came before it. NULL: they are only counted. */
static inline struct outcome read_file(const char *name, void (*look)(uint32_t before, uint32_t argc,
                                                                      const struct append_argument *words)) {
    struct stat status;
    int descriptor = open(name, O_RDONLY);
    CHECK(descriptor >= 0 && fstat(descriptor, &status) == 0);
    struct append_reader reader;
    append_reader_open(&reader, descriptor, (uint64_t)status.st_size, name);
    struct outcome outcome = {.commands = 0};
    uint32_t argc;
    const struct append_argument *words;
    while ((outcome.how = append_reader_next(&reader, &argc, &words, &error)) == APPEND_READ_COMMAND) {
        if (look) look(outcome.commands, argc, words);
        outcome.commands++;
    }
    outcome.end = append_reader_end(&reader);
    append_reader_close(&reader);
    close(descriptor);
    return outcome;
}

/* The first of `bytes`. */
static inline struct outcome read_bytes(size_t size) {
    store("copy", bytes, size);
    return read_file("copy", NULL);
}

#endif
