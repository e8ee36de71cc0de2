/* append_load: base, then increments, command by command, by a client of the server's own. */
#include "server/durability/append_load.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "persist/snapshot_reader.h"
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/core/server.h"
#include "server/durability/restore.h"
#include "server/redis/script/functions.h"
#include "server/replay/gradients_registry.h"
#include "server/replay/replay_log.h"
#include "server/replay/replay_subsystem.h"
#include "server/replay/weights_registry.h"
#include "store/store.h"

#define SAY_US 2000000u /* between two lines that say how far it has come */
#define LOOK_COMMANDS 64u /* between two looks at the clock */
#define MOST_SAID 10u /* commands that failed are named up to here */

struct load {
    struct server *server;
    struct client *client;
    struct resp_argument *argv;
    uint32_t capacity;
    enum append_load_what what;
    uint64_t commands, refused;
    uint64_t said_us; /* when it was last said how far this has come */
    uint64_t base; /* its number; 0: there is none */
    struct text skipped; /* see replay_log_apply */
    struct text *said;
    struct error *error;
};

/* A folder that a failure of the machine takes away takes what was promised to be in it. */
static int make_folder(const char *name) {
    if (mkdir(name, 0700) < 0) return errno == EEXIST ? 0 : -1;
    int parent = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int result = parent < 0 ? -1 : fsync(parent), kept = errno;
    if (parent >= 0) close(parent);
    if (result < 0) (void)rmdir(name); /* lest the next start takes it for one that stays */
    errno = kept;
    return result;
}

int append_load_folder(const char *name, struct error *error) {
    if (make_folder(name) < 0)
        return error_set(error, ERROR_GENERIC, "cannot make the folder %s: %s", name, strerror(errno));
    int folder = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return folder >= 0 ? folder
                       : error_set(error, ERROR_GENERIC, "cannot open the folder %s: %s", name, strerror(errno));
}

bool append_load_exists(const char *name, const char *stem) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s" APPEND_MANIFEST_SUFFIX, name, stem);
    return access(path, F_OK) == 0;
}

bool append_load_holds_something(const struct server *server) {
    for (unsigned d = 0; d < STORE_DATABASES; d++)
        if (dict_count(&server->store->databases[d].keys) > 0) return true;
    return replay_log_holds_something(server->replay->tables) || functions_library_count(server) > 0 ||
           server->replay->weights->count > 0 || gradients_registry_holds_something(server->replay->gradients);
}

/* ---- one command --------------------------------------------------------------------------------------------------- */

static bool take_words(struct load *load, uint32_t argc, const struct append_argument *words) {
    if (argc > load->capacity) {
        struct resp_argument *grown = memory_realloc(load->argv, argc * sizeof *grown);
        if (!grown) return false;
        load->argv = grown;
        load->capacity = argc;
    }
    for (uint32_t i = 0; i < argc; i++)
        load->argv[i] = (struct resp_argument){.data = (uint8_t *)(uintptr_t)words[i].data, .length = words[i].length};
    return true;
}

/* A command that was recorded has succeeded once. Where it fails now something is odd, but what follows it is not
 * thrown away for that: it is said. */
static void say_refused(struct load *load, const char *name, uint64_t at) {
    if (++load->refused <= MOST_SAID)
        text_append(load->said, "%s: the command %s that ends at byte %" PRIu64 " of it failed, and was passed over\n",
                    name, load->argv[0].length < 64 ? load->client->command->name : "?", at);
}

/* Whoever can write to the file can change keys; more than that it shall not tell a server to do. */
static bool is_recorded(const struct command *command) {
    if (command->group->data == DATA_TABLES) return false;
    if (command->group->data == DATA_SCRIPTS) return command->flags & COMMAND_WRITE; /* libraries, and no script */
    return command->flags & (COMMAND_WRITE | COMMAND_MAY_REPLICATE | COMMAND_IN_LOG);
}

static bool is_record(uint32_t argc, const struct append_argument *words) {
    return argc == 3 && words[0].length == strlen(PROPAGATE_RECORD) &&
           memcmp(words[0].data, PROPAGATE_RECORD, words[0].length) == 0 && words[1].length <= TABLE_MAX_NAME &&
           !memchr(words[1].data, 0, words[1].length);
}

static int apply_record(struct load *load, const char *file, uint64_t at, const struct append_argument *words) {
    char name[TABLE_MAX_NAME + 1];
    struct error error;
    load->commands++;
    if (load->what == APPEND_LOAD_KEYS) return 0;
    memcpy(name, words[1].data, words[1].length);
    name[words[1].length] = 0;
    return replay_log_apply(load->server->replay->tables, name, words[2].data, words[2].length, load->base,
                            &load->skipped, &error) == 0
               ? 0
               : error_set(load->error, ERROR_GENERIC, "%s, byte %" PRIu64 ": %s", file, at, error.message);
}

static int run(struct load *load, const char *file, uint64_t at, uint32_t argc, const struct append_argument *words) {
    struct client *client = load->client;
    if (is_record(argc, words)) return apply_record(load, file, at, words);
    if (!take_words(load, argc, words))
        return error_set(load->error, ERROR_GENERIC, "%s: no memory for a command of %" PRIu32 " words", file, argc);
    struct command_entry *entry = command_table_find(load->server->commands, words[0].data, words[0].length);
    if (entry && entry->subcommand_count > 0 && argc > 1) entry = command_entry_subcommand(entry, &load->argv[1]);
    if (!entry || !command_arity_holds(entry->command, argc))
        return error_set(load->error, ERROR_GENERIC,
                         "%s, byte %" PRIu64 ": there is no command '%.*s' of %" PRIu32 " words", file, at,
                         words[0].length < 64 ? (int)words[0].length : 64, (const char *)words[0].data, argc);
    if (!is_recorded(entry->command))
        return error_set(load->error, ERROR_GENERIC, "%s, byte %" PRIu64 ": the command '%s' changes no key", file, at,
                         entry->command->name);
    if (load->what == APPEND_LOAD_KEYS && entry->command->group->data == DATA_BESIDE_KEYS) return 0;
    client->argc = argc;
    client->argv = load->argv;
    client->entry = entry;
    client->command = entry->command;
    command_call(client, entry);
    client_command_done(client);
    load->commands++;
    if (client->error_replied) say_refused(load, file, at);
    return 0;
}

/* ---- one increment ------------------------------------------------------------------------------------------------- */

static int cut_tail(struct load *load, int descriptor, const struct append_reader *reader) {
    if (!load->server->config.aof_load_truncated)
        return error_set(load->error, ERROR_GENERIC,
                         "%s ends with an incomplete command, which begins at byte %" PRIu64
                         "; with aof-load-truncated yes the %" PRIu64 " bytes from there on would be cut off",
                         reader->name, reader->at, reader->size - reader->at);
    /* What is written in its place must not get to the disk before the cut: the rest of the tail would stand behind it. */
    if (ftruncate(descriptor, (off_t)reader->at) < 0 || fsync(descriptor) < 0)
        return error_set(load->error, ERROR_GENERIC, "cannot cut off the end of %s: %s", reader->name, strerror(errno));
    text_append(load->said,
                "%s ended with an incomplete command: its last %" PRIu64 " bytes, from byte %" PRIu64
                " on, were cut off\n",
                reader->name, reader->size - reader->at, reader->at);
    return 0;
}

/* Whoever waits for a large file sees that it moves. */
static void say_progress(struct load *load, const struct append_reader *reader) {
    if (load->commands % LOOK_COMMANDS != 0) return;
    uint64_t now_us = clock_monotonic_us();
    if (now_us - load->said_us < SAY_US) return;
    load->said_us = now_us;
    log_event(LOG_NOTICE, "loading", LOG_FIELDS({"file", .text = reader->name}), "reading %s: %.0f of %.0f MB",
              reader->name, (double)reader->at / 1e6, (double)reader->size / 1e6);
}

static int read_increment(struct load *load, int descriptor, struct append_reader *reader, bool is_last) {
    uint32_t argc;
    const struct append_argument *words;
    for (;;) {
        switch (append_reader_next(reader, &argc, &words, load->error)) {
        case APPEND_READ_COMMAND:
            if (run(load, reader->name, reader->at, argc, words) < 0) return -1;
            say_progress(load, reader);
            break;
        case APPEND_READ_END: return 0;
        case APPEND_READ_TORN:
            if (is_last) return cut_tail(load, descriptor, reader);
            return error_set(load->error, ERROR_GENERIC,
                             "%s ends with an incomplete command, which begins at byte %" PRIu64
                             ", though another file follows it",
                             reader->name, reader->at);
        default: return -1;
        }
    }
}

static int load_increment(struct load *load, int folder, const char *name, bool is_last, struct append_loaded *loaded) {
    struct stat status;
    int descriptor = openat(folder, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (descriptor < 0 || fstat(descriptor, &status) < 0 || !S_ISREG(status.st_mode)) {
        if (descriptor >= 0) close(descriptor);
        return error_set(load->error, ERROR_GENERIC, "cannot open %s: %s", name, strerror(errno));
    }
    struct append_reader reader;
    append_reader_open(&reader, descriptor, (uint64_t)status.st_size, name);
    load->client->database = 0;
    int result = read_increment(load, descriptor, &reader, is_last);
    snprintf(loaded->name, sizeof loaded->name, "%s", name);
    loaded->end = append_reader_end(&reader);
    if (!is_last) loaded->earlier_bytes += reader.at;
    append_reader_close(&reader);
    close(descriptor);
    return result;
}

/* ---- all ----------------------------------------------------------------------------------------------------------- */

static int adopt_tables(struct load *load, struct snapshot_content *content) {
    struct replay_registry *registry = load->server->replay->tables;
    uint32_t count = load->what == APPEND_LOAD_ALL ? content->count : 0;
    for (uint32_t i = 0; i < count; i++) { /* in this order: owners of steps come first */
        struct replay_entry *entry = replay_registry_entry_new(registry, content->tables[i]);
        if (!entry) return error_set(load->error, ERROR_GENERIC, "no memory for a table");
        content->tables[i] = NULL; /* it is the registry's */
        replay_log_adopt(registry, entry);
    }
    return 0;
}

/* Store and tables as they were at a cut. */
static int load_base(struct load *load, int folder, const struct append_manifest *manifest,
                     struct append_loaded *loaded) {
    char name[NAME_MAX + 1];
    append_base_name(manifest, manifest->base, name);
    int descriptor = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (descriptor < 0)
        return error_set(load->error, ERROR_GENERIC, "cannot open the base %s: %s", name, strerror(errno));
    struct snapshot_content content;
    int result = snapshot_read(descriptor, name, &content, NULL, load->error);
    close(descriptor);
    if (result < 0) return -1;
    loaded->base_bytes = content.bytes;
    if (!content.store.store)
        result = error_set(load->error, ERROR_GENERIC, "%s holds no keys", name);
    else if (load->what == APPEND_LOAD_ALL)
        result = restore_adopt_store(load->server, &content.store, load->error);
    else if (!(result = restore_adopt_libraries(load->server, &content.store, load->error)))
        store_adopt(load->server->store, content.store.store);
    if (result == 0) result = adopt_tables(load, &content);
    if (load->what == APPEND_LOAD_ALL) restore_adopt_epochs(load->server, &content);
    snapshot_content_free(&content);
    return result;
}

static int load_all(struct load *load, int folder, const struct append_manifest *manifest,
                    struct append_loaded *loaded) {
    char name[NAME_MAX + 1];
    load->base = manifest->base;
    if (manifest->base > 0 && load_base(load, folder, manifest, loaded) < 0) return -1;
    for (uint64_t i = 0; i < manifest->count; i++) {
        append_increment_name(manifest, manifest->first + i, name);
        if (load_increment(load, folder, name, i + 1 == manifest->count, loaded) < 0) return -1;
    }
    return 0;
}

int append_load(struct server *server, int folder, const char *stem, enum append_load_what what,
                struct append_manifest *manifest, struct append_loaded *loaded, struct text *said,
                struct error *error) {
    int found = append_manifest_read(folder, stem, manifest, error);
    if (found <= 0) return found;
    struct load load = {.server = server, .client = client_new_own(server), .what = what, .said = said, .error = error};
    if (!load.client) return error_set(error, ERROR_GENERIC, "no memory to read the append-only file");
    uint64_t began_us = clock_monotonic_us();
    load.said_us = began_us;
    *loaded = (struct append_loaded){.commands = 0};
    load.client->reply_mode = CLIENT_REPLY_OFF;
    server->loading = true;
    server->store->keeps_expired = true;
    int result = load_all(&load, folder, manifest, loaded);
    server->store->keeps_expired = false;
    server->loading = false;
    loaded->commands = load.commands;
    client_free_own(load.client);
    memory_free(load.argv);
    text_free(&load.skipped);
    if (result < 0) return -1;
    text_append(said, "read %" PRIu64 " commands of the append-only file in %.1f s\n", load.commands,
                (double)(clock_monotonic_us() - began_us) / 1e6);
    if (what == APPEND_LOAD_ALL) replay_log_loaded(server->replay->tables, said);
    return 1;
}
