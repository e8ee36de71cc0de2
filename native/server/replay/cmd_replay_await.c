/* cmd_replay_await: REPLAY.AWAIT waits until a table has so many items, or more than there were. A program that starts
 * learners need not ask again and again. Nothing is sampled. */
#include <inttypes.h>

#include "server/core/client.h"
#include "server/core/server.h"
#include "server/replay/cmd_replay.h"
#include "server/replay/replay_arguments.h"
#include "server/replay/replay_subsystem.h"

static const char usage[] = "syntax error; expected SINCE added, or SIZE n, then [BLOCK ms]";

static int parse(const struct client *client, struct replay_request *request, struct error *error) {
    const struct resp_argument *argv = client->argv;
    request->since = argument_is(&argv[2], "since");
    if (!request->since && !argument_is(&argv[2], "size")) return error_set(error, ERROR_GENERIC, "%s", usage);
    if (!argument_int64(&argv[3], &request->wanted) || request->wanted < 0)
        return error_set(error, ERROR_GENERIC, "expected a number of items, an integer >= 0");
    if (client->argc == 4) return 0;
    if (client->argc != 6 || !argument_is(&argv[4], "block")) return error_set(error, ERROR_GENERIC, "%s", usage);
    return replay_parse_block(&argv[5], request, error);
}

/* Whether there is what is waited for; otherwise the reason to wait, or why that would be of no use. */
static bool has_enough(const struct replay_request *request, struct table_info *info, struct error *error) {
    if (replay_entry_missing(request->entry, error)) return false;
    table_info(request->entry->table, info);
    uint64_t wanted = (uint64_t)request->wanted;
    if (request->since ? info->added != wanted : info->size >= wanted) return true;
    if (table_check_open(request->entry->table, error)) return false;
    if (request->since)
        return error_because(error, ERROR_TIMEOUT, "nothing was added since there were %" PRIu64, info->added);
    return error_because(error, ERROR_TIMEOUT, "%" PRIu64 " items, %" PRIu64 " are wanted", info->size, wanted);
}

/* Replies; false when it must wait. */
static bool attempt(struct client *client) {
    const struct replay_request *request = client_state(client);
    struct table_info info;
    struct error error;
    if (!has_enough(request, &info, &error)) {
        if (error.code == ERROR_TIMEOUT && request->blocks) return false;
        reply_failure(client, &error);
        return true;
    }
    reply_array(client, 2);
    reply_integer(client, (int64_t)info.added);
    reply_integer(client, (int64_t)info.size);
    return true;
}

static void expired(struct client *client) {
    struct table_info info;
    struct error error;
    if (has_enough(client_state(client), &info, &error)) error_set(&error, ERROR_TIMEOUT, "the time was over");
    reply_failure(client, &error);
}

void replay_await_command(struct client *client) {
    struct error error = {.code = ERROR_NONE};
    struct replay_request *request = replay_request_or_reply(client, REPLAY_REQUEST_AWAIT);
    if (!request) return;
    if (parse(client, request, &error)) {
        reply_failure(client, &error);
        return;
    }
    if (!attempt(client))
        client_block(client, &request->entry->watchers, replay_block_deadline(request), attempt, expired);
}
