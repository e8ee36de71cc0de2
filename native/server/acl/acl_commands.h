/* acl_commands: commands and subcommands as access rules know them: numbers, categories, and what they do with keys. */
#ifndef REPLAY_SERVER_ACL_COMMANDS_H
#define REPLAY_SERVER_ACL_COMMANDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/command/command_table.h"

#define ACL_COMMANDS 1024u /* more than there are: the last bit stands for commands of the future */
#define ACL_NAME_BYTES 48u

/* In the order in which ACL CAT and COMMAND INFO name them. */
enum acl_category {
    ACL_KEYSPACE = 1 << 0,
    ACL_READ = 1 << 1,
    ACL_WRITE = 1 << 2,
    ACL_SET = 1 << 3,
    ACL_SORTEDSET = 1 << 4,
    ACL_LIST = 1 << 5,
    ACL_HASH = 1 << 6,
    ACL_STRING = 1 << 7,
    ACL_BITMAP = 1 << 8,
    ACL_HYPERLOGLOG = 1 << 9,
    ACL_GEO = 1 << 10,
    ACL_STREAM = 1 << 11,
    ACL_PUBSUB = 1 << 12,
    ACL_ADMIN = 1 << 13,
    ACL_FAST = 1 << 14,
    ACL_SLOW = 1 << 15,
    ACL_BLOCKING = 1 << 16,
    ACL_DANGEROUS = 1 << 17,
    ACL_CONNECTION = 1 << 18,
    ACL_TRANSACTION = 1 << 19,
    ACL_SCRIPTING = 1 << 20,
    ACL_REPLAY = 1 << 21,
    ACL_WEIGHTS = 1 << 22,
    ACL_GRADIENTS = 1 << 23,
};

#define ACL_CATEGORIES 24u

const char *acl_category_name(size_t index);
uint32_t acl_category_named(const char *name, size_t length); /* 0: there is none */
/* The categories of a command that is no subcommand. */
uint32_t acl_categories(const struct command *command);

struct acl_item {
    const char *name; /* "config", "config|get" */
    const struct command *command; /* of an absent part the container's; of an absent command NULL */
    int arity;
    uint32_t categories;
    bool is_subcommand;
    bool is_absent; /* Redis has it: rules may name it, no request runs it */
    uint32_t subcommands; /* how many items behind this one are parts of it */
};

/* Commands that rules, which may have been written for Redis, name all the same. Ended by a NULL name: acl_absent.c. */
struct acl_absent {
    const char *name;
    uint32_t categories;
};

extern const struct acl_absent acl_absent[];

/* In alphabetical order, subcommands behind their containers. An item's index is the number of its bit. */
struct acl_commands {
    uint32_t count;
    struct acl_item items[];
};

/* Numbers the entries of the table (their acl_id). NULL: memory is exhausted. */
struct acl_commands *acl_commands_new(struct command_table *table);
/* By name in any case; NULL if there is none. */
const struct acl_item *acl_commands_find(const struct acl_commands *commands, const char *name, size_t length);
/* What a request for `entry` runs: a subcommand where its second word names one. */
const struct acl_item *acl_commands_of_request(const struct acl_commands *commands, const struct command_entry *entry,
                                               uint32_t argc, const struct resp_argument *argv);

/* What a request needs to be allowed to do with its key in `place`: of enum key_access. May be 0: to know of the key, any
 * right to it is enough. */
uint32_t acl_key_access(const struct command *command, uint32_t argc, const struct resp_argument *argv,
                        const struct key_place *place);

#endif
