/* cmd_replay_close: REPLAY.CLOSETABLE, the end of a table's data, of which everyone who waits is told, and REPLAY.OPENTABLE. */
#include "base/log.h"
#include "server/core/client.h"
#include "server/replay/cmd_replay.h"
#include "server/replay/replay_arguments.h"

/* Those who wait are tried again after this command, and told; none is answered from within a script or transaction. */
void replay_close_table_command(struct client *client) {
    struct error error;
    if (client->argc > 3) {
        reply_arity_error(client);
        return;
    }
    struct replay_entry *entry = replay_entry_or_reply(client);
    if (!entry) return;
    bool given = client->argc == 3;
    if (table_close(entry->table, given ? (const char *)client->argv[2].data : "", given ? client->argv[2].length : 0,
                    &error)) {
        reply_failure(client, &error);
        return;
    }
    struct table_info info;
    table_info(entry->table, &info);
    const char *name = table_config(entry->table)->name;
    log_event(LOG_INFO, "table_closed", LOG_FIELDS({"table", .text = name}, {"reason", .text = info.closed_reason}),
              "table '%s' is closed%s%s", name, given ? ": " : "", info.closed_reason);
    wait_queue_wake(client->server, &entry->adders);
    wait_queue_wake(client->server, &entry->samplers);
    wait_queue_wake(client->server, &entry->watchers);
    reply_status(client, "OK");
}

void replay_open_table_command(struct client *client) {
    struct replay_entry *entry = replay_entry_or_reply(client);
    if (!entry) return;
    table_open(entry->table);
    const char *name = table_config(entry->table)->name;
    log_event(LOG_INFO, "table_opened", LOG_FIELDS({"table", .text = name}), "table '%s' is open", name);
    reply_status(client, "OK");
}
