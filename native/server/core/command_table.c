#include "server/core/command_table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/memory.h"
#include "server/core/client.h"
#include "server/core/subsystem.h"

#define MAX_COMMANDS 512u
#define MAX_ALIASES 128u
#define SLOTS 1024u         /* open addressing, at most half full */
#define MAX_NAME_BYTES 64u
#define LOWER 0x2020202020202020u

struct command_table {
    size_t count, used; /* the second with subcommands */
    struct command_entry *sorted[MAX_COMMANDS];
    struct command_entry *slots[SLOTS];
    struct command_entry entries[MAX_COMMANDS];
    struct command_alias {
        char name[MAX_NAME_BYTES + 1];
        struct command_entry *entry;
    } aliases[MAX_ALIASES]; /* of commands that were renamed */
    size_t alias_count;
};

const struct command_group group_connection = {"connection", ACL_CONNECTION, DATA_SERVER};
const struct command_group group_server = {"server", 0, DATA_SERVER};

/* The first and the last eight bytes of a name; they overlap where it is shorter than both, and with its length they are
 * the whole of it then. */
static inline struct name_words words_of(const void *name, size_t length) {
    const uint8_t *bytes = name;
    struct name_words words = {0, 0};
    if (length >= 8) {
        memcpy(&words.first, bytes, 8);
        memcpy(&words.last, bytes + length - 8, 8);
    } else if (length >= 4) {
        uint32_t first, last;
        memcpy(&first, bytes, 4);
        memcpy(&last, bytes + length - 4, 4);
        words.first = (uint64_t)first << 32 | last;
    } else {
        words.first = (uint64_t)bytes[0] << 16 | (uint64_t)bytes[length / 2] << 8 | bytes[length - 1];
    }
    return words;
}

/* The same for a name in lower case and in upper case; what it makes the same of other bytes, is_named tells apart. */
static inline uint32_t hash_words(struct name_words words, size_t length) {
    uint64_t first = words.first | LOWER, last = words.last | LOWER;
    uint64_t hash = (first ^ last << 3 ^ length) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(hash >> 40) % SLOTS;
}

static void keep_name(struct command_entry *entry) {
    const char *name = entry->command->name;
    char cases[MAX_NAME_BYTES + 1];
    size_t length = strlen(name);
    for (size_t i = 0; i < length; i++) cases[i] = name[i] >= 'a' && name[i] <= 'z' ? 0x20 : 0;
    entry->name_length = (uint32_t)length;
    entry->name = words_of(name, length);
    entry->letters = words_of(cases, length);
}

static inline bool is_named(const struct command_entry *entry, struct name_words words, const void *name,
                            size_t length) {
    /* Of each byte only the case of a letter may differ. */
    if (((words.first ^ entry->name.first) & ~entry->letters.first) != 0 ||
        ((words.last ^ entry->name.last) & ~entry->letters.last) != 0 || entry->name_length != length)
        return false;
    return length <= 16 || strncasecmp(name, entry->command->name, length) == 0;
}

static int compare_entries(const void *left, const void *right) {
    const struct command_entry *const *a = left;
    const struct command_entry *const *b = right;
    return strcmp((*a)->command->name, (*b)->command->name);
}

static void add(struct command_table *table, const struct command *command, bool is_listed) {
    assert(table->used < MAX_COMMANDS && strlen(command->name) <= MAX_NAME_BYTES);
    struct command_entry *entry = &table->entries[table->used++];
    entry->command = command;
    if (is_listed) table->sorted[table->count++] = entry;
    if (command->flags & COMMAND_TIMED) entry->times = request_times_new();
    keep_name(entry);
    uint32_t slot = hash_words(entry->name, entry->name_length);
    while (table->slots[slot]) {
        assert(strcmp(table->slots[slot]->command->name, command->name) != 0);
        slot = (slot + 1) % SLOTS;
    }
    table->slots[slot] = entry;
    entry->subcommands = &table->entries[table->used];
    for (const struct command *part = command->subcommands; part && part->name; part++) {
        entry->subcommand_count++;
        table->entries[table->used].container = entry;
        add(table, part, false);
    }
}

struct command_table *command_table_new(void) {
    struct command_table *table = memory_calloc(1, sizeof *table);
    if (!table) return NULL;
    for (const struct subsystem *const *each = server_subsystems; *each; each++) {
        for (const struct command *const *rows = (*each)->commands; rows && *rows; rows++)
            for (const struct command *command = *rows; command->name; command++) add(table, command, true);
    }
    qsort(table->sorted, table->count, sizeof *table->sorted, compare_entries);
    return table;
}

/* The next word of `*text`, which moves on; its length, or −1 where there is none. */
static int next_word(const char **text, const char **word) {
    *text += strspn(*text, " ");
    if (**text == '\0') return -1;
    *word = *text;
    size_t length = strcspn(*text, " ");
    *text += length;
    if (length == 2 && memcmp(*word, "\"\"", 2) == 0) length = 0;
    return (int)length;
}

int command_table_rename(struct command_table *table, const char *pairs, struct error *error) {
    const char *from = "", *to = "";
    int from_length, to_length;
    while ((from_length = next_word(&pairs, &from)) >= 0) {
        to_length = next_word(&pairs, &to);
        struct command_entry *entry = command_table_find(table, from, (size_t)from_length);
        if (!entry || entry->container || entry->hidden)
            return error_set(error, ERROR_GENERIC, "rename-command: there is no command '%.*s'", from_length, from);
        if (to_length < 0 || to_length > (int)MAX_NAME_BYTES || table->alias_count == MAX_ALIASES)
            return error_set(
                error, ERROR_GENERIC,
                "rename-command: expected pairs of a command and its new name, \"\" for none, of at most %u "
                "bytes, and at most %u of them",
                MAX_NAME_BYTES, MAX_ALIASES);
        if (to_length > 0 && command_table_find(table, to, (size_t)to_length))
            return error_set(error, ERROR_GENERIC, "rename-command: there is a command '%.*s' already", to_length, to);
        entry->hidden = true;
        if (to_length == 0) continue;
        struct command_alias *alias = &table->aliases[table->alias_count++];
        memcpy(alias->name, to, (size_t)to_length);
        alias->entry = entry;
    }
    return 0;
}

void command_table_free(struct command_table *table) {
    for (size_t i = 0; i < table->used; i++) memory_free(table->entries[i].times);
    memory_free(table);
}

static struct command_entry *find_alias(struct command_table *table, const void *name, size_t length) {
    for (size_t i = 0; i < table->alias_count; i++) {
        const char *alias = table->aliases[i].name;
        if (strlen(alias) == length && strncasecmp(alias, name, length) == 0) return table->aliases[i].entry;
    }
    return NULL;
}

struct command_entry *command_table_find(struct command_table *table, const void *name, size_t length) {
    if (!name || length == 0 || length > MAX_NAME_BYTES) return NULL;
    struct name_words words = words_of(name, length);
    for (uint32_t slot = hash_words(words, length); table->slots[slot]; slot = (slot + 1) % SLOTS)
        if (is_named(table->slots[slot], words, name, length)) return table->slots[slot];
    return find_alias(table, name, length);
}

struct command_entry *command_entry_subcommand(const struct command_entry *entry, const struct resp_argument *word) {
    size_t prefix = strlen(entry->command->name) + 1;
    for (size_t i = 0; i < entry->subcommand_count; i++)
        if (argument_is(word, entry->subcommands[i].command->name + prefix)) return &entry->subcommands[i];
    return NULL;
}

bool command_table_is_plainly(const struct command_entry *entry, uint32_t argc, const struct resp_argument *argv) {
    if (argc == 0 || argv[0].length != entry->name_length || !argv[0].data) return false;
    if (entry->container || entry->hidden || entry->subcommand_count > 0) return false;
    return is_named(entry, words_of(argv[0].data, argv[0].length), argv[0].data, argv[0].length);
}

struct command_entry *command_table_find_request(struct command_table *table, uint32_t argc,
                                                 const struct resp_argument *argv) {
    struct command_entry *entry = argc > 0 ? command_table_find(table, argv[0].data, argv[0].length) : NULL;
    if (!entry || entry->container) return NULL; /* "client|id" is two words */
    if (entry->hidden && find_alias(table, argv[0].data, argv[0].length) != entry) return NULL;
    if (entry->subcommand_count == 0 || argc < 2) return entry;
    struct command_entry *part = command_entry_subcommand(entry, &argv[1]);
    return part ? part : entry;
}

void command_container(struct client *client) {
    struct command_entry *entry = command_table_find_request(client->server->commands, client->argc, client->argv);
    const struct command *container = client->command;
    if (!entry || entry->command->subcommands) {
        reply_unknown_subcommand(client);
        return;
    }
    client->command = entry->command;
    if (command_arity_holds(entry->command, client->argc))
        entry->command->handler(client);
    else
        reply_arity_error(client);
    client->command = container;
}

bool command_arity_holds(const struct command *command, uint32_t argc) {
    return command->arity > 0 ? (int64_t)argc == command->arity : (int64_t)argc >= -(int64_t)command->arity;
}

uint32_t command_request_flags(const struct client *client, const struct command *command) {
    return command->flags_of ? command->flags_of(client) : command->flags;
}

size_t command_table_count(const struct command_table *table) {
    return table->count;
}

struct command_entry *command_table_at(struct command_table *table, size_t index) {
    assert(index < table->count);
    return table->sorted[index];
}
