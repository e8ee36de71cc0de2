/* setup: what a parent hands to a new server on a descriptor: a msgpack map {"password", "config", "tables", "reload"}. */
#include "server/admin/setup.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/msgpack.h"
#include "server/core/config.h"
#include "server/core/secret_arguments.h"
#include "server/replay/replay_registry.h"
#include "server/replay/replay_subsystem.h"

#define SETUP_MOST_BYTES (16u << 20)
#define SETUP_MOST_WORDS 1024u

int setup_read(struct setup *setup, int descriptor, struct error *error) {
    *setup = (struct setup){0};
    size_t capacity = 65536;
    setup->bytes = memory_alloc(capacity);
    ssize_t got = -1;
    while (setup->bytes) {
        got = read(descriptor, setup->bytes + setup->length, capacity - setup->length);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        setup->length += (size_t)got;
        if (setup->length == capacity && capacity >= SETUP_MOST_BYTES)
            return error_set(error, ERROR_LIMIT, "--setup-fd %d: more than %u bytes", descriptor, SETUP_MOST_BYTES);
        if (setup->length < capacity) continue;
        uint8_t *larger = memory_realloc(setup->bytes, 2 * capacity);
        if (!larger) return error_set(error, ERROR_GENERIC, "--setup-fd %d: no memory", descriptor);
        setup->bytes = larger;
        capacity *= 2;
    }
    if (!setup->bytes) return error_set(error, ERROR_GENERIC, "--setup-fd %d: no memory", descriptor);
    if (got < 0) return error_set(error, ERROR_GENERIC, "--setup-fd %d: %s", descriptor, strerror(errno));
    close(descriptor);
    return 0;
}

void setup_free(struct setup *setup) {
    memory_free(setup->bytes);
    *setup = (struct setup){0};
}

static int malformed(struct error *error) {
    return error_set(
        error, ERROR_GENERIC,
        "--setup-fd: expected a msgpack map {\"password\": str or nil, \"config\": {str: str}, \"tables\": [spec], "
        "\"reload\": [str]}");
}

static struct msgpack_reader reader_of(const struct setup *setup) {
    return (struct msgpack_reader){.at = setup->bytes, .end = setup->bytes + setup->length};
}

static int copy_string(const struct msgpack_value *value, char *out, size_t size, const char *what,
                       struct error *error) {
    if (value->type != MSGPACK_STRING) return malformed(error);
    if (value->bytes.length >= size || memchr(value->bytes.data, '\0', value->bytes.length))
        return error_set(error, ERROR_GENERIC,
                         "--setup-fd: %s is %zu bytes, or holds a zero byte; at most %zu are possible", what,
                         value->bytes.length, size - 1);
    memcpy(out, value->bytes.data, value->bytes.length);
    out[value->bytes.length] = '\0';
    return 0;
}

static int read_config(struct msgpack_reader *reader, struct server_config *config, struct error *error) {
    struct msgpack_value map, name, value;
    if (!msgpack_read(reader, &map) || map.type != MSGPACK_MAP) return malformed(error);
    for (uint32_t i = 0; i < map.count; i++) {
        char setting[64], text[CONFIG_VALUE_BYTES];
        struct error why;
        if (!msgpack_read(reader, &name) || !msgpack_read(reader, &value)) return malformed(error);
        if (copy_string(&name, setting, sizeof setting, "a setting's name", error) < 0 ||
            copy_string(&value, text, sizeof text, setting, error) < 0)
            return -1;
        if (config_assign(config, setting, text, false, &why) < 0)
            return error_set(error, ERROR_GENERIC, "setting %s = %s: %s", setting,
                             config_is_secret(setting, strlen(setting)) ? SECRET_SHOWN_AS : text, why.message);
    }
    return 0;
}

int setup_configure(const struct setup *setup, struct server_config *config, struct error *error) {
    struct msgpack_reader reader = reader_of(setup);
    struct msgpack_value map, key, password;
    if (!msgpack_read(&reader, &map) || map.type != MSGPACK_MAP) return malformed(error);
    for (uint32_t i = 0; i < map.count; i++) {
        if (!msgpack_read(&reader, &key)) return malformed(error);
        if (msgpack_string_is(&key, "password")) {
            if (!msgpack_read(&reader, &password)) return malformed(error);
            if (password.type != MSGPACK_NIL &&
                copy_string(&password, config->requirepass, sizeof config->requirepass, "the password", error) < 0)
                return -1;
        } else if (msgpack_string_is(&key, "config")) {
            if (read_config(&reader, config, error) < 0) return -1;
        } else if (!(msgpack_string_is(&key, "tables") || msgpack_string_is(&key, "reload")) ||
                   !msgpack_skip(&reader)) {
            return malformed(error);
        }
    }
    return 0;
}

/* Leaves the reader at the value of a member; false: there is none. */
static bool find_member(const struct setup *setup, const char *name, struct msgpack_reader *reader) {
    struct msgpack_value map, key;
    *reader = reader_of(setup);
    if (!setup->bytes || !msgpack_read(reader, &map) || map.type != MSGPACK_MAP) return false;
    for (uint32_t i = 0; i < map.count; i++) {
        if (!msgpack_read(reader, &key)) return false;
        if (msgpack_string_is(&key, name)) return true;
        if (!msgpack_skip(reader)) return false;
    }
    return false;
}

bool setup_next_table(const struct setup *setup, struct setup_table *table) {
    struct msgpack_reader reader;
    struct msgpack_value list;
    if (!find_member(setup, "tables", &reader) || !msgpack_read(&reader, &list) || list.type != MSGPACK_ARRAY)
        return false;
    for (uint32_t i = 0; i < list.count; i++) {
        const uint8_t *spec = reader.at;
        if (!msgpack_skip(&reader)) return false;
        if (table->spec && spec <= table->spec) continue;
        *table = (struct setup_table){.spec = spec, .length = (size_t)(reader.at - spec)};
        return true;
    }
    return false;
}

int setup_reload_arguments(const struct setup *setup, char ***arguments, struct error *error) {
    struct msgpack_reader reader;
    struct msgpack_value list, word;
    *arguments = NULL;
    if (!find_member(setup, "reload", &reader)) return 0;
    if (!msgpack_read(&reader, &list) || list.type != MSGPACK_ARRAY || list.count == 0 || list.count > SETUP_MOST_WORDS)
        return malformed(error);
    size_t pointers = (list.count + 1) * sizeof(char *);
    char **words =
        memory_calloc(1, pointers + setup->length + list.count); /* the words are shorter than what holds them */
    if (!words) return error_set(error, ERROR_GENERIC, "no memory");
    char *at = (char *)words + pointers;
    for (uint32_t i = 0; i < list.count; i++) {
        if (!msgpack_read(&reader, &word) || word.type != MSGPACK_STRING ||
            memchr(word.bytes.data, '\0', word.bytes.length)) {
            memory_free(words);
            return malformed(error);
        }
        words[i] = memcpy(at, word.bytes.data, word.bytes.length);
        at += word.bytes.length + 1;
    }
    *arguments = words;
    return 0;
}

static int create_tables(struct msgpack_reader *reader, struct server *server, struct error *error) {
    struct msgpack_value list;
    if (!msgpack_read(reader, &list) || list.type != MSGPACK_ARRAY) return malformed(error);
    for (uint32_t i = 0; i < list.count; i++) {
        const uint8_t *spec = reader->at;
        if (!msgpack_skip(reader)) return malformed(error);
        struct error why = {0};
        if (replay_registry_create(server->replay->tables, spec, (size_t)(reader->at - spec), &why) < 0)
            return error_set(error, why.code, "table %u of --setup-fd: %s", i + 1, why.message);
    }
    return 0;
}

int setup_create_tables(const struct setup *setup, struct server *server, struct error *error) {
    struct msgpack_reader reader;
    return find_member(setup, "tables", &reader) ? create_tables(&reader, server, error) : 0;
}
