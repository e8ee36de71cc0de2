/* cmd_absent: commands about what is not here (modules), answered as by a Redis that has none. */
#include "server/core/client.h"
#include "server/core/command_table.h"
#include "server/redis/redis_rows.h"

/* ---- modules --------------------------------------------------------------------------------------------------------- */

static void module_list(struct client *client) {
    reply_array(client, 0);
}

#define ANY_TIME (COMMAND_LOADING | COMMAND_STALE)

static const struct command module_subcommands[] = {
    {"module|help", reply_help, 2, ANY_TIME, &group_server, "Lists the subcommands.", "5.0.0"},
    {"module|list", module_list, 2, COMMAND_ADMIN | COMMAND_NOSCRIPT, &group_server, "Returns an empty list.", "4.0.0",
     .tips = "nondeterministic_output_order"},
    {0},
};

const struct command commands_absent[] = {
    {"module", command_container, -2, 0, &group_server, "Tells that there are no modules.", "4.0.0",
     .subcommands = module_subcommands},
    {0},
};
