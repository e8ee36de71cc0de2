/* command_keys: which arguments of a request are keys, as the command's row says. */

#include "server/core/command_table.h"

struct run {
    int64_t first, last, step;
};

/* Keys behind a word, in any case; none where it is not there. With a limit of n they are the first of n equal parts of
 * what follows the word. */
static struct run run_behind_word(const struct key_specification *specification, uint32_t argc,
                                  const struct resp_argument *argv) {
    const int8_t *numbers = specification->numbers;
    for (int64_t i = specification->index; i + 1 < (int64_t)argc; i++) {
        if (!argument_is(&argv[i], specification->word)) continue;
        int64_t parts = numbers[2] > 0 ? ((int64_t)argc - i - 1) / numbers[2] : 0;
        return (struct run){i + 1, i + 1 + parts + numbers[0], numbers[1]};
    }
    return (struct run){0, -1, 1};
}

/* False: a number of keys that is none, 0, or more than there are arguments. Then the request names no key, not even one
 * before the number: the command refuses it, or is a script without keys. */
static bool run_of(const struct key_specification *specification, uint32_t argc, const struct resp_argument *argv,
                   struct run *run) {
    const int8_t *numbers = specification->numbers;
    int64_t first = specification->index;
    if (specification->find == KEY_RANGE) {
        *run = (struct run){first, numbers[0] >= 0 ? first + numbers[0] : (int64_t)argc + numbers[0], numbers[1]};
        return true;
    }
    if (specification->find == KEY_AFTER_WORD) {
        *run = run_behind_word(specification, argc, argv);
        return true;
    }
    int64_t count, at = first + numbers[0];
    if (at >= (int64_t)argc || !argument_int64(&argv[at], &count) || count < 1) return false;
    if (count > ((int64_t)argc - first - numbers[1]) / numbers[2]) return false;
    *run = (struct run){first + numbers[1], first + numbers[1] + (count - 1) * numbers[2], numbers[2]};
    return true;
}

int command_keys(const struct command *command, uint32_t argc, const struct resp_argument *argv,
                 struct key_place *places, int max) {
    if (command->find_keys) return command->find_keys(argc, argv, places, max);
    int count = 0;
    for (const struct key_specification *each = command->keys; each && each->flags; each++) {
        struct run run;
        if (each->find == KEY_UNKNOWN || each->index >= (int64_t)argc) continue;
        if (!run_of(each, argc, argv, &run)) return -1;
        for (int64_t i = run.first; i <= run.last && i < (int64_t)argc; i += run.step, count++)
            if (count < max) places[count] = (struct key_place){(uint32_t)i, each->access, each->flags};
    }
    return count;
}

struct key_range command_key_range(const struct command *command) {
    struct key_range range = {0, 0, 0};
    for (const struct key_specification *each = command->keys; each && each->flags; each++) {
        if (each->find != KEY_RANGE) continue;
        int last = each->numbers[0] >= 0 ? each->index + each->numbers[0] : each->numbers[0];
        if (range.first == 0) range = (struct key_range){each->index, last, each->numbers[1]};
        range.last = last;
    }
    return range;
}

const char *key_place_flags(const struct key_place *place) {
    if (place->flags) return place->flags;
    return place->access == KEY_READ ? "RO access" : place->access == KEY_WRITE ? "OW update" : "RW access update";
}
