/* command_facts: what COMMAND INFO tells of commands beside arity, flags and places of keys, and the keys found by it. */
#ifndef REPLAY_SERVER_COMMAND_FACTS_H
#define REPLAY_SERVER_COMMAND_FACTS_H

#include <stddef.h>

#include "server/command/command.h"

struct command_facts {
    const char *name;
    const char *since; /* which version of Redis */
    const char *categories; /* of ACL, separated by spaces */
    const char *tips; /* one a line */
    const char
        *keys; /* one specification a line: "RO access;index 1;range 0 1 0": flags, where to begin, how to go on */
};

/* Of Redis's commands (command_facts.c, generated), in alphabetical order. */
extern const struct command_facts command_facts[];
extern const size_t command_facts_count;

/* NULL: Redis has no such command. */
const struct command_facts *command_facts_find(const char *name);

/* A line of `keys`, taken apart. */
enum key_begin { KEY_BEGIN_INDEX, KEY_BEGIN_KEYWORD, KEY_BEGIN_UNKNOWN };
enum key_find { KEY_FIND_RANGE, KEY_FIND_NUMBER, KEY_FIND_UNKNOWN };
struct key_specification {
    char flags[64];
    enum key_begin begin;
    char keyword[32];
    int index; /* of the first argument, or from where the keyword is looked for */
    enum key_find find;
    int numbers[3]; /* range: last key, step, limit; number: where it stands, first key, step */
};
/* The next line from *line on, which moves behind it. False: there is none. */
bool key_specification_next(const char **line, struct key_specification *specification);

/* Keys with their flags as the specifications say: fills at most `max`, returns how many there are; -1: they cannot all be
 * found so, or the arguments make no sense. */
struct flagged_key {
    uint32_t index;
    char flags[64];
};
int command_facts_keys(const struct command_facts *facts, uint32_t argc, const struct resp_argument *argv,
                       struct flagged_key *keys, int max);

#endif
