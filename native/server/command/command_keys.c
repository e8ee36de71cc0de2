/* command_keys: which arguments of a request are keys. */
#include <string.h>

#include "server/command/command_table.h"
#include "store/number.h"

static uint32_t access_of(const struct command *command) {
    return command->flags & COMMAND_WRITE ? KEY_WRITE | KEY_READ : KEY_READ;
}

int command_keys(const struct command *command, uint32_t argc, const struct resp_argument *argv,
                 struct key_place *places, int max) {
    if (command->keys) return command->keys(argc, argv, places, max);
    if (command->first_key == 0) return 0;
    int64_t last = command->last_key < 0 ? (int64_t)argc + command->last_key : command->last_key;
    int count = 0;
    for (int64_t i = command->first_key; i <= last && i < (int64_t)argc; i += command->key_step, count++) {
        if (count < max) places[count] = (struct key_place){(uint32_t)i, access_of(command)};
    }
    return count;
}

int command_keys_counted(uint32_t argc, const struct resp_argument *argv, uint32_t at, uint32_t access,
                         struct key_place *places, int max) {
    int64_t keys;
    if (at >= argc || !number_parse_int64(argv[at].data, argv[at].length, &keys)) return -1;
    if (keys < 1 || keys > (int64_t)argc - at - 1) return -1;
    for (int i = 0; i < keys && i < max; i++) places[i] = (struct key_place){at + 1 + (uint32_t)i, access};
    return (int)keys;
}
