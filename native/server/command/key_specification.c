/* key_specification: facts of commands by name, and keys found by what they say. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/admin/command_facts.h"

static int compare_name(const void *name, const void *facts) {
    return strcmp(name, ((const struct command_facts *)facts)->name);
}

const struct command_facts *command_facts_find(const char *name) {
    return bsearch(name, command_facts, command_facts_count, sizeof *command_facts, compare_name);
}

static void parse_begin(const char *text, struct key_specification *specification) {
    specification->begin = KEY_BEGIN_UNKNOWN;
    if (sscanf(text, "index %d", &specification->index) == 1)
        specification->begin = KEY_BEGIN_INDEX;
    else if (sscanf(text, "keyword %31s %d", specification->keyword, &specification->index) == 2)
        specification->begin = KEY_BEGIN_KEYWORD;
}

static void parse_find(const char *text, struct key_specification *specification) {
    int *numbers = specification->numbers;
    specification->find = KEY_FIND_UNKNOWN;
    if (sscanf(text, "range %d %d %d", &numbers[0], &numbers[1], &numbers[2]) == 3)
        specification->find = KEY_FIND_RANGE;
    else if (sscanf(text, "keynum %d %d %d", &numbers[0], &numbers[1], &numbers[2]) == 3)
        specification->find = KEY_FIND_NUMBER;
}

bool key_specification_next(const char **line, struct key_specification *specification) {
    const char *at = *line;
    if (*at == '\0') return false;
    *specification = (struct key_specification){0};
    const char *begin = strchr(at, ';'), *find = strchr(begin + 1, ';'), *end = strchr(find, '\n');
    snprintf(specification->flags, sizeof specification->flags, "%.*s", (int)(begin - at), at);
    parse_begin(begin + 1, specification);
    parse_find(find + 1, specification);
    *line = end ? end + 1 : find + strlen(find);
    return true;
}

/* The first argument that the specification speaks of; 0: it is not there. */
static int64_t first_of(const struct key_specification *specification, uint32_t argc,
                        const struct resp_argument *argv) {
    if (specification->begin == KEY_BEGIN_INDEX) return specification->index;
    bool backwards = specification->index < 0;
    int64_t at = backwards ? (int64_t)argc + specification->index : specification->index;
    for (; at > 0 && at < (int64_t)argc; at += backwards ? -1 : 1) {
        if (argument_is(&argv[at], specification->keyword)) return at + 1;
    }
    return 0;
}

struct run {
    int64_t first, last, step;
};

/* False: the number of keys makes no sense. */
static bool run_of(const struct key_specification *specification, int64_t first, uint32_t argc,
                   const struct resp_argument *argv, struct run *run) {
    const int *numbers = specification->numbers;
    if (specification->find == KEY_FIND_RANGE) {
        int64_t last = numbers[0] >= 0 ? first + numbers[0] : (int64_t)argc + numbers[0];
        if (numbers[0] < 0 && numbers[2] > 1) last = first + ((int64_t)argc - first) / numbers[2] + numbers[0];
        *run = (struct run){first, last, numbers[1]};
        return true;
    }
    int64_t count, at = first + numbers[0];
    if (at >= (int64_t)argc || !argument_int64(&argv[at], &count) || count < 0) return false;
    if (count > ((int64_t)argc - first - numbers[1]) / numbers[2]) return false;
    *run = (struct run){first + numbers[1], first + numbers[1] + (count - 1) * numbers[2], numbers[2]};
    return true;
}

int command_facts_keys(const struct command_facts *facts, uint32_t argc, const struct resp_argument *argv,
                       struct flagged_key *keys, int max) {
    int count = 0;
    const char *line = facts->keys;
    struct key_specification specification;
    while (key_specification_next(&line, &specification)) {
        if (specification.begin == KEY_BEGIN_UNKNOWN || specification.find == KEY_FIND_UNKNOWN) return -1;
        int64_t first = first_of(&specification, argc, argv);
        struct run run;
        if (first == 0 || first >= (int64_t)argc) continue;
        if (!run_of(&specification, first, argc, argv, &run) || run.last >= (int64_t)argc) return -1;
        for (int64_t i = run.first; i <= run.last; i += run.step, count++) {
            if (count >= max) continue;
            keys[count].index = (uint32_t)i;
            memcpy(keys[count].flags, specification.flags, sizeof keys[count].flags);
        }
    }
    return count;
}
