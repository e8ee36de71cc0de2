/* reload: what the program that reads the file wrote is compared and applied. */
#include "server/admin/reload.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "replay/table.h"
#include "server/admin/admin_subsystem.h"
#include "server/admin/certificates.h"
#include "server/admin/rewrite.h"
#include "server/core/config.h"
#include "server/core/config_table.h"
#include "server/core/descriptors.h"
#include "server/core/program.h"
#include "server/core/secret_arguments.h"
#include "server/core/service_manager.h"
#include "server/durability/append_log.h"
#include "server/durability/durability_subsystem.h"
#include "server/replay/replay_registry.h"
#include "server/replay/replay_subsystem.h"

struct reload {
    struct server *server;
    struct transport *kernel;
    struct program *program;
    struct server_config *started;
    char **arguments; /* of the program, ended by NULL; NULL: there is no file to read again */
    bool again;
};

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...) {
    char line[CONFIG_VALUE_BYTES * 2 + 256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    log_event(LOG_NOTICE, "reload", NULL, "reload: %s", line);
}

/* ---- settings --------------------------------------------------------------------------------------------------------- */

/* Whether the file does not say: the password then came by other ways, and is never taken away by leaving it out. */
static bool is_unsaid(const char *name, const char *wanted) {
    return strcmp(name, "requirepass") == 0 && wanted[0] == '\0';
}

/* What `wanted` changes: into `changed` what can change live; what cannot is said once all is known to be well. */
static void compare(const struct reload *reload, const struct server_config *wanted, struct server_config *changed,
                    struct text *said, int counts[2]) {
    char new_value[CONFIG_VALUE_BYTES], value[CONFIG_VALUE_BYTES];
    struct error error;
    for (size_t i = 0; i < config_count(); i++) {
        const struct setting *setting = config_setting(i);
        if (setting->kind == SETTING_FIXED) continue;
        config_value(wanted, i, new_value);
        config_value(setting->live || setting->by_command ? changed : reload->started, i, value);
        if (strcmp(value, new_value) == 0 || is_unsaid(setting->name, new_value)) continue;
        counts[setting->live ? 0 : 1]++;
        if (setting->live && config_assign(changed, setting->name, new_value, true, &error) < 0) {
            text_append(said, "%s stays as it is: %s\n", setting->name, error.message);
            continue;
        }
        const char *before = setting->live ? "" : "needs a restart: ";
        if (config_is_secret(setting->name, strlen(setting->name)))
            text_append(said, "%s%s, which is not shown\n", before, setting->name);
        else
            text_append(said, "%s%s '%s' to '%s'\n", before, setting->name, value, new_value);
    }
}

static int apply(struct reload *reload, const struct server_config *wanted, struct text *said, int counts[2],
                 struct error *error) {
    struct server *server = reload->server;
    struct server_config *changed = memory_alloc(sizeof *changed);
    if (!changed) return error_set(error, ERROR_GENERIC, "no memory");
    *changed = server->config;
    compare(reload, wanted, changed, said, counts);
    /* What can fail comes first, and nothing is taken before all of it has not. */
    bool has_tls = server->config.tls_port >= 0;
    struct tls *tls = has_tls ? certificates_read(changed, error) : NULL;
    int failed =
        has_tls && !tls ? -1 : append_log_configure(server->durability->append_log, changed->appendonly, error);
    if (failed) {
        tls_free(tls);
    } else {
        if (tls) transport_kernel_use_tls(reload->kernel, tls);
        if (descriptors_raise(changed, error) < 0) changed->maxclients = server->config.maxclients; /* it serves on */
        server->config = *changed;
        config_apply(server);
        rewrite_note(server);
    }
    memory_free(changed);
    return failed;
}

/* ---- tables ----------------------------------------------------------------------------------------------------------- */

/* One table: made, or given the settings that can change. What cannot be is said; the others go on. */
static void adopt(struct server *server, const struct setup_table *given, const char *name, struct text *said,
                  int counts[2]) {
    struct replay_registry *registry = server->replay->tables;
    struct text adopted = {0};
    struct error error = {0};
    uint32_t before = registry->count;
    registry->adopting = &adopted;
    int failed = replay_registry_create(registry, given->spec, given->length, &error);
    registry->adopting = NULL;
    bool is_changed = adopted.length > 0;
    text_free(&adopted);
    counts[failed ? 1 : 0] += failed || is_changed || registry->count > before;
    if (failed && error.code == ERROR_EXISTS)
        text_append(said, "needs a restart, or REPLAY.DROP: table '%s' differs in more than can change in it\n", name);
    else if (failed)
        text_append(said, "table '%s' stays as it is: %s\n", name, error.message);
    else if (registry->count > before)
        text_append(said, "table '%s' is made\n", name);
    else if (is_changed)
        text_append(said, "table '%s' has the settings given now\n", name);
    struct replay_entry *entry =
        failed || !is_changed ? NULL : replay_registry_find(registry, name, strlen(name), &error);
    if (!entry) return;
    wait_queue_wake(server, &entry->adders); /* they may wait for what has changed */
    wait_queue_wake(server, &entry->samplers);
}

/* All specs are looked at before any is used, unless `said`. */
static int each_table(struct reload *reload, const struct setup *setup, struct text *said, int counts[2],
                      struct error *error) {
    struct setup_table given = {0};
    struct table_config *config = memory_alloc(sizeof *config);
    int failed = config ? 0 : error_set(error, ERROR_GENERIC, "no memory");
    while (!failed && setup_next_table(setup, &given)) {
        failed = table_config_parse(config, NULL, given.spec, given.length, error);
        if (!failed && said) adopt(reload->server, &given, config->name, said, counts);
    }
    memory_free(config);
    return failed;
}

/* ---- both ------------------------------------------------------------------------------------------------------------- */

static int take(struct reload *reload, const struct setup *setup, struct text *said, int counts[2],
                struct error *error) {
    struct server_config *wanted = memory_alloc(sizeof *wanted);
    if (!wanted) return error_set(error, ERROR_GENERIC, "no memory");
    server_config_defaults(wanted);
    int failed = setup_configure(setup, wanted, error);
    if (!failed) failed = each_table(reload, setup, NULL, counts, error);
    if (!failed) failed = apply(reload, wanted, said, counts, error);
    memory_free(wanted);
    return failed ? failed : each_table(reload, setup, said, counts, error);
}

static void say_lines(char *text) {
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) say("%s", line);
}

/* Whether what the program wrote was taken. */
static bool finish(struct reload *reload, int output) {
    struct setup setup = {0};
    struct text said = {0};
    struct error error = {0};
    int counts[2] = {0}; /* changes that are made; those that wait for a restart */
    int failed = setup_read(&setup, output, &error); /* closes it where it can be read */
    if (failed)
        close(output);
    else
        failed = take(reload, &setup, &said, counts, &error);
    if (failed) {
        say("nothing has changed: %s", error.message);
    } else {
        if (said.data) say_lines(said.data);
        say("done: %d changed, %d not changed before a restart", counts[0], counts[1]);
    }
    text_free(&said);
    setup_free(&setup);
    return !failed;
}

static void count(struct reload *reload, bool taken) {
    reload->server->admin->reloads.count++;
    reload->server->admin->reloads.failed = !taken;
}

static void run(struct reload *reload) {
    struct error error;
    if (program_start(reload->program, reload->arguments, NULL, 0, &error) < 0) {
        say("nothing has changed: %s", error.message);
        count(reload, false);
        return;
    }
    service_manager_tell_reloading();
}

static void on_program_ended(void *context, struct program_end *end) {
    struct reload *reload = context;
    bool taken = false;
    say_lines(end->complaints);
    if (end->failed == 0) {
        taken = finish(reload, end->output);
    } else {
        close(end->output);
        say("nothing has changed%s", end->failed == -1 ? ""
                                     : WIFSIGNALED(end->failed)
                                         ? ": the program that reads the file was killed, or took too long"
                                         : ": the file, or an option, is refused");
    }
    count(reload, taken);
    service_manager_tell("READY=1");
    if (reload->again) {
        reload->again = false;
        run(reload);
    }
}

void reload_begin(struct reload *reload) {
    if (!reload->arguments)
        say("there is no file to read again: the server was started without --config");
    else if (program_runs(reload->program))
        reload->again = true;
    else
        run(reload);
}

struct reload *reload_new(struct server *server, const struct setup *setup, const struct server_config *started,
                          struct transport *kernel, struct error *error) {
    struct reload *reload = memory_calloc(1, sizeof *reload);
    if (!reload) {
        error_set(error, ERROR_GENERIC, "no memory");
        return NULL;
    }
    *reload = (struct reload){.server = server, .kernel = kernel};
    reload->started = memory_alloc(sizeof *started);
    if (!reload->started) {
        error_set(error, ERROR_GENERIC, "no memory");
        reload_free(reload);
        return NULL;
    }
    *reload->started = *started;
    reload->program = program_new(kernel, on_program_ended, reload, error);
    if (!reload->program || setup_reload_arguments(setup, &reload->arguments, error) < 0) {
        reload_free(reload);
        return NULL;
    }
    return reload;
}

void reload_free(struct reload *reload) {
    if (!reload) return;
    program_free(reload->program);
    memory_free(reload->started);
    memory_free(reload->arguments);
    memory_free(reload);
}
