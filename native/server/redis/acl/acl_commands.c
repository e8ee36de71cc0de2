/* acl_commands: commands and subcommands as access rules know them. Categories follow from a command's group and flags
 * where its row says nothing else. */
#include "server/redis/acl/acl_commands.h"

#include <assert.h>
#include <string.h>
#include <strings.h>

#include "base/memory.h"

static const char *const category_names[ACL_CATEGORIES] = {
    "keyspace", "read",        "write",      "set",         "sortedset", "list",   "hash",    "string",
    "bitmap",   "hyperloglog", "geo",        "stream",      "pubsub",    "admin",  "fast",    "slow",
    "blocking", "dangerous",   "connection", "transaction", "scripting", "replay", "weights", "gradients",
};

const char *acl_category_name(size_t index) {
    return category_names[index];
}

static bool is_word(const char *word, const char *name, size_t length) {
    return strlen(word) == length && strncasecmp(word, name, length) == 0;
}

uint32_t acl_category_named(const char *name, size_t length) {
    for (size_t i = 0; i < ACL_CATEGORIES; i++)
        if (is_word(category_names[i], name, length)) return 1u << i;
    return 0;
}

/* ---- categories -------------------------------------------------------------------------------------- */

static uint32_t categories_of_flags(uint32_t flags, bool is_script) {
    uint32_t categories = flags & COMMAND_FAST ? ACL_FAST : ACL_SLOW;
    if (flags & COMMAND_WRITE) categories |= ACL_WRITE;
    if ((flags & COMMAND_READONLY) && !is_script) categories |= ACL_READ;
    if (flags & COMMAND_ADMIN) categories |= ACL_ADMIN | ACL_DANGEROUS;
    if (flags & COMMAND_DANGEROUS) categories |= ACL_DANGEROUS;
    if (flags & COMMAND_PUBSUB) categories |= ACL_PUBSUB;
    if (flags & COMMAND_BLOCKING) categories |= ACL_BLOCKING;
    return categories;
}

#define OURS (ACL_REPLAY | ACL_WEIGHTS | ACL_GRADIENTS)

uint32_t acl_categories(const struct command *command) {
    if (command->categories) return command->categories;
    if (command->handler == command_container) return ACL_SLOW;
    /* What actors and learners are given must not bring the server's administration with it. */
    if ((command->group->category & OURS) && (command->flags & COMMAND_ADMIN))
        return ACL_ADMIN | ACL_DANGEROUS | ACL_SLOW;
    return categories_of_flags(command->flags, command->group->data == DATA_SCRIPTS) | command->group->category;
}

/* ---- numbers ------------------------------------------------------------------------------------------ */

static struct acl_item *add_item(struct acl_commands *commands, struct command_entry *entry) {
    const struct command *command = entry->command;
    entry->acl_id = commands->count;
    struct acl_item *item = &commands->items[commands->count++];
    *item = (struct acl_item){
        .name = command->name,
        .command = command,
        .arity = command->arity,
        .categories = acl_categories(command),
        .is_subcommand = entry->container,
    };
    return item;
}

/* The parts of a container, behind it. */
static void add_subcommands(struct acl_commands *commands, struct command_entry *entry, struct acl_item *whole) {
    for (size_t i = 0; i < entry->subcommand_count; i++) add_item(commands, &entry->subcommands[i]);
    whole->subcommands = (uint32_t)entry->subcommand_count;
}

const struct acl_item *acl_commands_find(const struct acl_commands *commands, const char *name, size_t length) {
    for (uint32_t i = 0; i < commands->count; i++)
        if (is_word(commands->items[i].name, name, length)) return &commands->items[i];
    return NULL;
}

/* NULL: it is here after all. */
static struct acl_item *add_absent(struct acl_commands *commands, const struct acl_absent *absent) {
    if (acl_commands_find(commands, absent->name, strlen(absent->name))) return NULL;
    struct acl_item *item = &commands->items[commands->count++];
    *item = (struct acl_item){
        .name = absent->name,
        .categories = absent->categories,
        .is_subcommand = strchr(absent->name, '|'),
        .is_absent = true,
    };
    return item;
}

/* Those of the absent that are parts of this one; returns what follows them. */
static const struct acl_absent *add_absent_parts(struct acl_commands *commands, const struct acl_absent *absent,
                                                 struct acl_item *whole) {
    size_t length = strlen(whole->name);
    for (; absent->name && strncmp(absent->name, whole->name, length) == 0 && absent->name[length] == '|'; absent++) {
        struct acl_item *item = add_absent(commands, absent);
        if (!item) continue;
        item->command = whole->command;
        whole->subcommands++;
    }
    return absent;
}

/* Those of the absent that come before the name (NULL: all of them); returns what follows them. */
static const struct acl_absent *add_absent_before(struct acl_commands *commands, const struct acl_absent *absent,
                                                  const char *name) {
    while (absent->name && (!name || strcmp(absent->name, name) < 0)) {
        struct acl_item *item = add_absent(commands, absent++);
        if (item) absent = add_absent_parts(commands, absent, item);
    }
    return absent;
}

struct acl_commands *acl_commands_new(struct command_table *table) {
    struct acl_commands *commands = memory_calloc(1, sizeof *commands + ACL_COMMANDS * sizeof *commands->items);
    if (!commands) return NULL;
    const struct acl_absent *absent = acl_absent;
    for (size_t i = 0; i < command_table_count(table); i++) {
        struct command_entry *entry = command_table_at(table, i);
        absent = add_absent_before(commands, absent, entry->command->name);
        struct acl_item *item = add_item(commands, entry);
        add_subcommands(commands, entry, item);
        if (absent->name && strcmp(absent->name, item->name) == 0) absent++;
        absent = add_absent_parts(commands, absent, item);
    }
    add_absent_before(commands, absent, NULL);
    assert(commands->count < ACL_COMMANDS);
    return commands;
}

const struct acl_item *acl_commands_of_request(const struct acl_commands *commands, const struct command_entry *entry,
                                               uint32_t argc, const struct resp_argument *argv) {
    const struct acl_item *item = &commands->items[entry->acl_id];
    if (argc < 2 || !argv[1].data) return item;
    size_t prefix = strlen(item->name) + 1;
    for (uint32_t i = 1; i <= item->subcommands; i++)
        if (is_word(item[i].name + prefix, (const char *)argv[1].data, argv[1].length)) return &item[i];
    return item;
}
