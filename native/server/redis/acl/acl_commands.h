/* acl_commands: commands and subcommands as access rules see them: as numbers and in categories. */
#ifndef REPLAY_SERVER_ACL_COMMANDS_H
#define REPLAY_SERVER_ACL_COMMANDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/core/command_table.h"

#define ACL_COMMANDS 1024u /* more than there are: the last bit stands for commands of the future */
#define ACL_NAME_BYTES 48u

#define ACL_CATEGORIES 24u /* of enum acl_category */

const char *acl_category_name(size_t index);
uint32_t acl_category_named(const char *name, size_t length); /* 0: there is none */
/* The categories of a command or a subcommand. */
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

#endif
