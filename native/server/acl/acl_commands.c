/* acl_commands: commands and subcommands as access rules know them. Categories follow from a command's group and flags, but
 * for some that Redis puts elsewhere. */
#include "server/acl/acl_commands.h"

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
    for (size_t i = 0; i < ACL_CATEGORIES; i++) {
        if (is_word(category_names[i], name, length)) return 1u << i;
    }
    return 0;
}

/* ---- categories -------------------------------------------------------------------------------------- */

static const struct {
    const char *group;
    uint32_t category;
} groups[] = {
    {"bitmap", ACL_BITMAP},
    {"connection", ACL_CONNECTION},
    {"generic", ACL_KEYSPACE},
    {"gradients", ACL_GRADIENTS},
    {"hash", ACL_HASH},
    {"list", ACL_LIST},
    {"pubsub", ACL_PUBSUB},
    {"replay", ACL_REPLAY},
    {"scripting", ACL_SCRIPTING},
    {"set", ACL_SET},
    {"sorted-set", ACL_SORTEDSET},
    {"sorted_set", ACL_SORTEDSET},
    {"string", ACL_STRING},
    {"transactions", ACL_TRANSACTION},
    {"weights", ACL_WEIGHTS},
};

#define SORTS (ACL_SET | ACL_SORTEDSET | ACL_LIST | ACL_DANGEROUS)

static const struct {
    const char *name;
    int64_t more, fewer;
} exceptions[] = {
    {"asking", ACL_CONNECTION, 0},
    {"client", 0, ~ACL_SLOW},
    {"command", ACL_CONNECTION, 0},
    {"config", 0, ~ACL_SLOW},
    {"dbsize", ACL_KEYSPACE, 0},
    {"flushall", ACL_KEYSPACE | ACL_DANGEROUS, 0},
    {"flushdb", ACL_KEYSPACE | ACL_DANGEROUS, 0},
    {"function", 0, ~ACL_SLOW},
    {"info", ACL_DANGEROUS, 0},
    {"keys", ACL_DANGEROUS, 0},
    {"latency", 0, ~ACL_SLOW},
    {"lastsave", ACL_ADMIN | ACL_DANGEROUS, 0},
    {"memory", 0, ~ACL_SLOW},
    {"object", 0, ~ACL_SLOW},
    {"pubsub", 0, ~ACL_SLOW},
    {"pubsub|help", 0, ACL_PUBSUB},
    {"readonly", ACL_CONNECTION, 0},
    {"readwrite", ACL_CONNECTION, 0},
    {"restore", ACL_DANGEROUS, 0},
    {"role", ACL_ADMIN | ACL_DANGEROUS, 0},
    {"script", 0, ~ACL_SLOW},
    {"save", 0, ACL_BLOCKING}, /* it waits here, and stops everything there */
    {"slowlog", 0, ~ACL_SLOW},
    {"sort", SORTS, ACL_KEYSPACE},
    {"sort_ro", SORTS, ACL_KEYSPACE},
    {"swapdb", ACL_KEYSPACE | ACL_DANGEROUS, 0},
    {"wait", ACL_CONNECTION, ACL_KEYSPACE},
};

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
    uint32_t categories = categories_of_flags(command->flags, strcmp(command->group, "scripting") == 0);
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        if (strcmp(groups[i].group, command->group) == 0) categories |= groups[i].category;
    }
    /* What actors and learners are given must not bring the server's administration with it. */
    if ((categories & OURS) && (command->flags & COMMAND_ADMIN)) return ACL_ADMIN | ACL_DANGEROUS | ACL_SLOW;
    if (strncmp(command->name, "command|", 8) == 0) categories |= ACL_CONNECTION;
    for (size_t i = 0; i < sizeof exceptions / sizeof *exceptions; i++) {
        if (strcmp(exceptions[i].name, command->name) == 0)
            categories = (categories | (uint32_t)exceptions[i].more) & (uint32_t)~exceptions[i].fewer;
    }
    return categories;
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
        .is_subcommand = entry->container != NULL,
    };
    return item;
}

/* The parts of a container, behind it. */
static void add_subcommands(struct acl_commands *commands, struct command_entry *entry, struct acl_item *whole) {
    for (size_t i = 0; i < entry->subcommand_count; i++) add_item(commands, &entry->subcommands[i]);
    whole->subcommands = (uint32_t)entry->subcommand_count;
}

const struct acl_item *acl_commands_find(const struct acl_commands *commands, const char *name, size_t length) {
    for (uint32_t i = 0; i < commands->count; i++) {
        if (is_word(commands->items[i].name, name, length)) return &commands->items[i];
    }
    return NULL;
}

/* NULL: it is here after all. */
static struct acl_item *add_absent(struct acl_commands *commands, const struct acl_absent *absent) {
    if (acl_commands_find(commands, absent->name, strlen(absent->name))) return NULL;
    struct acl_item *item = &commands->items[commands->count++];
    *item = (struct acl_item){
        .name = absent->name,
        .categories = absent->categories,
        .is_subcommand = strchr(absent->name, '|') != NULL,
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
    for (uint32_t i = 1; i <= item->subcommands; i++) {
        if (is_word(item[i].name + prefix, (const char *)argv[1].data, argv[1].length)) return &item[i];
    }
    return item;
}

/* ---- keys -------------------------------------------------------------------------------------------- */

/* What commands need of their first key, and of the others, where it is not to read for those that only read and both for
 * those that write. */
static const struct {
    const char *name;
    uint8_t first, others;
} key_rights[] = {
    {"append", KEY_WRITE, 0},
    {"bitop", KEY_WRITE, KEY_READ},
    {"blmove", KEY_READ | KEY_WRITE, KEY_WRITE},
    {"brpoplpush", KEY_READ | KEY_WRITE, KEY_WRITE},
    {"copy", KEY_READ, KEY_WRITE},
    {"del", KEY_WRITE, KEY_WRITE},
    {"eval", KEY_READ | KEY_WRITE, KEY_READ | KEY_WRITE},
    {"evalsha", KEY_READ | KEY_WRITE, KEY_READ | KEY_WRITE},
    {"exists", 0, 0},
    {"expire", KEY_WRITE, 0},
    {"expireat", KEY_WRITE, 0},
    {"grad.await", 0, 0},
    {"grad.del", KEY_WRITE, KEY_WRITE},
    {"grad.drop", KEY_WRITE, 0},
    {"grad.info", 0, 0},
    {"grad.publish", KEY_WRITE, KEY_WRITE},
    {"grad.push", KEY_WRITE, 0},
    {"hdel", KEY_WRITE, 0},
    {"hexists", 0, 0},
    {"hlen", 0, 0},
    {"hmset", KEY_WRITE, 0},
    {"hset", KEY_WRITE, 0},
    {"hsetnx", KEY_WRITE, 0},
    {"hstrlen", 0, 0},
    {"linsert", KEY_WRITE, 0},
    {"llen", 0, 0},
    {"lmove", KEY_READ | KEY_WRITE, KEY_WRITE},
    {"lpush", KEY_WRITE, 0},
    {"lpushx", KEY_WRITE, 0},
    {"lrem", KEY_WRITE, 0},
    {"lset", KEY_WRITE, 0},
    {"ltrim", KEY_WRITE, 0},
    {"memory", 0, 0},
    {"memory|usage", 0, 0},
    {"mset", KEY_WRITE, KEY_WRITE},
    {"msetnx", KEY_WRITE, KEY_WRITE},
    {"object", 0, 0},
    {"object|encoding", 0, 0},
    {"object|freq", 0, 0},
    {"object|idletime", 0, 0},
    {"object|refcount", 0, 0},
    {"persist", KEY_WRITE, 0},
    {"pexpire", KEY_WRITE, 0},
    {"pexpireat", KEY_WRITE, 0},
    {"psetex", KEY_WRITE, 0},
    {"rename", KEY_READ | KEY_WRITE, KEY_WRITE},
    {"renamenx", KEY_READ | KEY_WRITE, KEY_WRITE},
    {"replay.add", KEY_WRITE, 0},
    {"replay.append", KEY_WRITE, 0},
    {"replay.await", 0, 0},
    {"replay.close", KEY_WRITE, 0},
    {"replay.closetable", KEY_WRITE, 0},
    {"replay.config", KEY_WRITE, 0},
    {"replay.create", KEY_WRITE, 0},
    {"replay.del", KEY_WRITE, 0},
    {"replay.drop", KEY_WRITE, 0},
    {"replay.end", KEY_WRITE, 0},
    {"replay.item", KEY_WRITE, 0},
    {"replay.opentable", KEY_WRITE, 0},
    {"replay.reset", KEY_WRITE, 0},
    {"replay.sample", KEY_READ, 0}, /* that it may remove what was sampled often enough is the table's doing */
    {"replay.update", KEY_WRITE, 0},
    {"restore", KEY_WRITE, 0},
    {"rpoplpush", KEY_READ | KEY_WRITE, KEY_WRITE},
    {"rpush", KEY_WRITE, 0},
    {"rpushx", KEY_WRITE, 0},
    {"sadd", KEY_WRITE, 0},
    {"scard", 0, 0},
    {"sdiffstore", KEY_WRITE, KEY_READ},
    {"setex", KEY_WRITE, 0},
    {"setnx", KEY_WRITE, 0},
    {"setrange", KEY_WRITE, 0},
    {"sinterstore", KEY_WRITE, KEY_READ},
    {"sismember", 0, 0},
    {"smove", KEY_READ | KEY_WRITE, KEY_WRITE},
    {"sort", KEY_READ, KEY_WRITE},
    {"srem", KEY_WRITE, 0},
    {"strlen", 0, 0},
    {"sunionstore", KEY_WRITE, KEY_READ},
    {"touch", 0, 0},
    {"type", 0, 0},
    {"unlink", KEY_WRITE, KEY_WRITE},
    {"watch", 0, 0},
    {"weights.del", KEY_WRITE, KEY_WRITE},
    {"weights.publish", KEY_WRITE, 0},
    {"zadd", KEY_WRITE, 0},
    {"zcard", 0, 0},
    {"zdiffstore", KEY_WRITE, KEY_READ},
    {"zinterstore", KEY_WRITE, KEY_READ},
    {"zrangestore", KEY_WRITE, KEY_READ},
    {"zrem", KEY_WRITE, 0},
    {"zremrangebylex", KEY_WRITE, 0},
    {"zremrangebyrank", KEY_WRITE, 0},
    {"zremrangebyscore", KEY_WRITE, 0},
    {"zunionstore", KEY_WRITE, KEY_READ},
};

static bool has_word(uint32_t argc, const struct resp_argument *argv, uint32_t from, const char *word) {
    for (uint32_t i = from; i < argc; i++) {
        if (argument_is(&argv[i], word)) return true;
    }
    return false;
}

/* Of BITFIELD: whether nothing is set. */
static bool only_gets(uint32_t argc, const struct resp_argument *argv) {
    for (uint32_t i = 2; i < argc;) {
        if (argument_is(&argv[i], "get"))
            i += 3;
        else if (argument_is(&argv[i], "overflow"))
            i += 2;
        else
            return false;
    }
    return true;
}

uint32_t acl_key_access(const struct command *command, uint32_t argc, const struct resp_argument *argv,
                        const struct key_place *place) {
    bool is_first = place->index == 1;
    /* Behind a count of keys (EVAL script 2 a b) there is no first one with rights of its own. */
    size_t low = 0, high = sizeof key_rights / sizeof *key_rights;
    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = strcmp(command->name, key_rights[middle].name);
        if (order == 0) {
            if (strcmp(command->name, "bitop") == 0) is_first = place->index == 2;
            return is_first ? key_rights[middle].first : key_rights[middle].others;
        }
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    if (strcmp(command->name, "set") == 0) return has_word(argc, argv, 3, "get") ? KEY_READ | KEY_WRITE : KEY_WRITE;
    if (strcmp(command->name, "bitfield") == 0 && only_gets(argc, argv)) return KEY_READ;
    return command->flags & COMMAND_WRITE ? KEY_READ | KEY_WRITE : KEY_READ;
}
