/* option: numbers, and the processor to run on. */
#include "tools/option.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

int option_number(const char *option, const char *text, double least, double most, double *value, struct error *error) {
    char *end;
    *value = strtod(text, &end);
    if (*text == '\0' || *end != '\0' || !(*value >= least && *value <= most))
        return error_set(error, ERROR_GENERIC, "--%s %s: expected a number from %g to %g", option, text, least, most);
    return 0;
}

int option_pin(int processor, struct error *error) {
    if (processor < 0) return 0;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((unsigned)processor, &set);
    if (sched_setaffinity(0, sizeof set, &set) == 0) return 0;
    return error_set(error, ERROR_GENERIC, "--processor %d: %s", processor, strerror(errno));
}
