/* command_table: every command by name, and what is counted for each. */
#ifndef REPLAY_SERVER_COMMAND_TABLE_H
#define REPLAY_SERVER_COMMAND_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "base/histogram.h"
#include "server/core/command.h"
#include "server/core/request_times.h"

extern const struct command_group group_connection, group_server;

struct command_stats {
    uint64_t calls;
    uint64_t rejected;   /* refused before the handler ran: arity, NOAUTH, OOM */
    uint64_t failed;     /* the handler replied with an error */
    uint64_t total_ns;   /* in the handler, waiting excluded */
    struct histogram latency_ns;   /* the same, of each call; with latency-tracking */
};

struct name_words {
    uint64_t first, last;
};

struct command_entry {
    const struct command *command;
    struct name_words name, letters; /* how it is found: see command_table.c */
    uint32_t name_length;
    struct command_entry *subcommands; /* of a container; they lie in a row, in the order of its table */
    size_t subcommand_count;
    struct command_entry *container; /* of a subcommand; NULL: it is none */
    bool hidden;                     /* clients do not find it by its own name: it was renamed or taken away */
    uint32_t acl_id;                 /* its number in access rules */
    struct request_times *times;     /* NULL: not one of those that are timed */
    struct command_stats stats;      /* large, so it comes last */
};

struct command_table;

bool command_arity_holds(const struct command *command, uint32_t argc);
/* Of a client's request for this command. */
uint32_t command_request_flags(const struct client *client, const struct command *command);
/* The keys of a request for this command, whose arity holds; as a command_keys_of. */
int command_keys(const struct command *command, uint32_t argc, const struct resp_argument *argv,
                 struct key_place *places, int max);
/* What is done to the key, in Redis's words. */
const char *key_place_flags(const struct key_place *place);
/* The keys that stand at fixed places, as COMMAND INFO tells: the first and the last (counted from the end where it is
 * negative) and the step between them; zeros: there are none. */
struct key_range {
    int first, last, step;
};
struct key_range command_key_range(const struct command *command);

struct command_table *command_table_new(void); /* of all subsystems; NULL: memory is exhausted */
void command_table_free(struct command_table *table);
/* "flushall wipe config \"\"": gives commands other names for clients, or none ("" or \"\"), which takes them away. Access rules
 * and files go on with their own names. */
int command_table_rename(struct command_table *table, const char *pairs, struct error *error);
/* By name in any case, subcommands as "client|id"; NULL if there is none. */
struct command_entry *command_table_find(struct command_table *table, const void *name, size_t length);
/* What a request runs: the subcommand where there is one, else the container, whose handler then complains. NULL: there
 * is no such command. */
struct command_entry *command_table_find_request(struct command_table *table, uint32_t argc,
                                                 const struct resp_argument *argv);
/* Whether the request is for this command by its own name, one without subcommands. */
bool command_table_is_plainly(const struct command_entry *entry, uint32_t argc, const struct resp_argument *argv);
/* The subcommand of a container that has this name, without the container's; NULL if there is none. */
struct command_entry *command_entry_subcommand(const struct command_entry *entry, const struct resp_argument *word);
/* Handler of containers: runs the subcommand that the second argument names, if its arity holds. */
void command_container(struct client *client);
/* In alphabetical order, without subcommands, for COMMAND and INFO. */
size_t command_table_count(const struct command_table *table);
struct command_entry *command_table_at(struct command_table *table, size_t index);

#endif
