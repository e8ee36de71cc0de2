#include "server/core/secret_arguments.h"

#include <string.h>
#include <strings.h>

bool command_argument_is_secret(const struct command *command, uint32_t argc, const struct resp_argument *argv,
                                uint32_t index) {
    return index > 0 && command->is_secret && command->is_secret(argc, argv, index);
}

bool every_argument_is_secret(uint32_t argc, const struct resp_argument *argv, uint32_t index) {
    (void)argc;
    (void)argv;
    return index > 0;
}

bool config_is_secret(const void *name, size_t length) {
    static const char *const secrets[] = {"masterauth", "requirepass", "tls-key-file-pass"};
    for (size_t i = 0; i < sizeof secrets / sizeof secrets[0]; i++)
        if (length == strlen(secrets[i]) && strncasecmp(name, secrets[i], length) == 0) return true;
    return false;
}
