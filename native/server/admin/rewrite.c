/* rewrite: settings that are not as the file had them go to a program, which puts them into it; one client waits at a time. */
#include "server/admin/rewrite.h"

#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/msgpack.h"
#include "server/admin/admin_subsystem.h"
#include "server/core/client.h"
#include "server/core/config.h"
#include "server/core/config_table.h"
#include "server/core/program.h"
#include "server/core/secret_arguments.h"

struct rewrite {
    struct server *server;
    struct program *program;
    char **arguments; /* of the program, ended by NULL */
    struct server_config read, sent; /* as the file has it; as it is being written */
    struct wait_queue waiting; /* who sent CONFIG REWRITE */
    struct error outcome;
    bool ended; /* `outcome` is that of who waits */
    bool again; /* it is to be written once more: settings have changed since `sent` */
};

/* The live settings that differ, as a map of their names and values, and those that commands change. −1 with `error`. */
static int write_changes(const struct rewrite *rewrite, struct msgpack_writer *out, struct error *error) {
    char value[CONFIG_VALUE_BYTES], before[CONFIG_VALUE_BYTES];
    uint32_t count = 0;
    struct msgpack_writer pairs = {0};
    for (size_t i = 0; i < config_count(); i++) {
        const struct setting *setting = config_setting(i);
        if (!setting->live && !setting->by_command) continue;
        config_value(&rewrite->sent, i, value);
        config_value(&rewrite->read, i, before);
        if (strcmp(value, before) == 0 && !setting->by_command) continue;
        if (config_is_secret(setting->name, strlen(setting->name))) {
            memory_free(pairs.data);
            return error_set(error, ERROR_GENERIC,
                             "%s was changed by CONFIG SET, and passwords are not written: put it into password_file, "
                             "and send SIGHUP",
                             setting->name);
        }
        msgpack_write_string(&pairs, setting->name, strlen(setting->name));
        msgpack_write_string(&pairs, value, strlen(value));
        count++;
    }
    msgpack_write_map(out, count);
    if (pairs.length > 0) msgpack_write_encoded(out, pairs.data, pairs.length);
    bool failed = out->failed || pairs.failed;
    memory_free(pairs.data);
    return failed ? error_set(error, ERROR_GENERIC, "no memory") : 0;
}

static int begin(struct rewrite *rewrite, struct error *error) {
    struct msgpack_writer changes = {0};
    rewrite->again = false;
    rewrite->sent = rewrite->server->config;
    int failed = write_changes(rewrite, &changes, error) < 0
                     ? -1
                     : program_start(rewrite->program, rewrite->arguments, changes.data, changes.length, error);
    memory_free(changes.data);
    rewrite->ended = failed;
    return failed;
}

static void say_failed(const struct error *error) {
    log_event(LOG_WARNING, "rewrite_failed", NULL, "the configuration file is not rewritten: %s", error->message);
}

/* ---- the client ------------------------------------------------------------------------------------------------------- */

static void reply_outcome(struct client *client, const struct error *outcome) {
    if (outcome->code == ERROR_NONE)
        reply_status(client, "OK");
    else
        reply_error(client, "ERR Rewriting config file: %s", outcome->message);
}

static bool retry(struct client *client) {
    const struct rewrite *rewrite = client->server->admin->rewrite;
    if (!rewrite->ended) return false;
    reply_outcome(client, &rewrite->outcome);
    return true;
}

static void expired(struct client *client) {
    reply_error(client, "ERR Rewriting config file continues unless the server stops; the log tells how it ends");
}

void rewrite_for_client(struct client *client) {
    struct rewrite *rewrite = client->server->admin->rewrite;
    struct error error = {0};
    if (!rewrite) {
        reply_error(client, "ERR The server is running without a config file");
        return;
    }
    /* A transaction, as Sentinel's, does not wait: what goes wrong is said in the log. */
    bool waits = client_may_block(client);
    if (waits && (program_runs(rewrite->program) || rewrite->waiting.length > 0)) {
        reply_error(client, "ERR Rewriting config file: it is being rewritten already");
    } else if (program_runs(rewrite->program)) {
        rewrite->again = true;
        reply_status(client, "OK");
    } else if (begin(rewrite, &error) < 0 || !waits) {
        reply_outcome(client, &error);
    } else {
        client->has_begun = true;
        client_block(client, &rewrite->waiting, CLOCK_NEVER, retry, expired);
    }
}

/* ---- the program ------------------------------------------------------------------------------------------------------ */

static void on_program_ended(void *context, struct program_end *end) {
    struct rewrite *rewrite = context;
    close(end->output);
    rewrite->ended = true;
    rewrite->outcome = (struct error){0};
    if (end->failed == 0) {
        rewrite->read = rewrite->sent;
        log_event(LOG_NOTICE, "rewritten", NULL, "the configuration file is rewritten");
    } else {
        end->complaints[strcspn(end->complaints, "\r\n")] = '\0';
        error_set(&rewrite->outcome, ERROR_GENERIC, "%s",
                  end->complaints[0] ? end->complaints : "the program that writes it was killed, or took too long");
        say_failed(&rewrite->outcome);
    }
    wait_queue_wake(rewrite->server, &rewrite->waiting);
    struct error error;
    if (rewrite->again && begin(rewrite, &error) < 0) say_failed(&error);
}

int rewrite_open(struct server *server, const struct setup *setup, struct transport *kernel, struct error *error) {
    char **arguments;
    if (setup_reload_arguments(setup, &arguments, error) < 0) return -1;
    if (!arguments) return 0;
    struct rewrite *rewrite = memory_calloc(1, sizeof *rewrite);
    if (!rewrite) {
        memory_free(arguments);
        return error_set(error, ERROR_GENERIC, "no memory");
    }
    rewrite->server = server;
    rewrite->arguments = arguments;
    rewrite->read = server->config;
    rewrite->program = program_new(kernel, on_program_ended, rewrite, error);
    if (!rewrite->program) {
        rewrite_free(rewrite);
        return -1;
    }
    server->admin->rewrite = rewrite;
    return 0;
}

void rewrite_free(struct rewrite *rewrite) {
    if (!rewrite) return;
    program_free(rewrite->program);
    memory_free(rewrite->arguments);
    memory_free(rewrite);
}

void rewrite_note(struct server *server) {
    if (server->admin->rewrite) server->admin->rewrite->read = server->config;
}
