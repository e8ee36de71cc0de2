/* process: an executable from its start to its exit code: set-up, transports, signals, the ready line. */
#include "server/process/process.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/thread.h"
#include "server/admin/certificates.h"
#include "server/admin/reload.h"
#include "server/admin/rewrite.h"
#include "server/admin/setup.h"
#include "server/core/descriptors.h"
#include "server/core/server.h"
#include "server/core/service_manager.h"
#include "server/durability/append_log.h"
#include "server/durability/durability_subsystem.h"
#include "server/durability/snapshots.h"
#include "server/metrics/metrics.h"
#include "server/process/command_line.h"
#include "server/redis/acl/acl.h"
#include "server/redis/redis_subsystem.h"
#include "server/replay/replay_cold.h"
#include "server/replay/replay_registry.h"
#include "server/replay/replay_subsystem.h"

/* ---- signals ---------------------------------------------------------------------------------------- */

struct signals {
    struct server *server;
    struct reload *reload; /* NULL: not yet, or it has a parent, which has no file to read again */
};

static void on_signal(void *context, int descriptor) {
    const struct signals *signals = context;
    struct server *server = signals->server;
    struct signalfd_siginfo information;
    while (read(descriptor, &information, sizeof information) == (ssize_t)sizeof information) {
        if (information.ssi_signo == SIGHUP) {
            if (signals->reload && !server->ending.begun) reload_begin(signals->reload);
        } else if (server->durability->stop.saving &&
                   information.ssi_signo == SIGINT) /* who presses Ctrl-C again does not want to wait */
            server_ask_stop(server);
        else
            stop_by_rules(server, false);
    }
}

/* The parent holds the other end: whatever happens to it, this end becomes readable. */
static void on_lifeline(void *context, int descriptor) {
    (void)descriptor;
    stop_by_rules(context, true);
}

static int watch_signals(struct signals *signals, struct transport *transport, int lifeline, struct error *error) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGIO, SIG_IGN); /* someone opens shared memory in the very moment in which memory_shared_is_held looks */
    signal(SIGXFSZ, SIG_IGN); /* saving or sharing more than a file may hold fails and says so, and service goes on */
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
        return error_set(error, ERROR_GENERIC, "cannot block signals: %s", strerror(errno));
    int descriptor = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (descriptor < 0) return error_set(error, ERROR_GENERIC, "cannot receive signals: %s", strerror(errno));
    if (transport_kernel_watch(transport, descriptor, on_signal, signals, error) < 0) return -1;
    return lifeline >= 0 ? transport_kernel_watch(transport, lifeline, on_lifeline, signals->server, error) : 0;
}

/* ---- starting ---------------------------------------------------------------------------------------- */

/* The transport that carries the data port: of user space where there is one, else the kernel's. */
static struct transport *data_transport(struct server *server) {
    return server->transports.all[server->transports.count - 1];
}

static int open_user_space(struct server *server, const struct data_transport *data, struct error *error) {
    const struct server_config *config = &server->config;
    struct transport_settings settings = {
        .device = config->dpdk_device,
        .address = config->dpdk_address,
        .gateway = config->dpdk_gateway,
        .mtu = (uint16_t)config->dpdk_mtu,
        .lcore = (int)config->dpdk_lcore,
        .memory_bytes = (uint64_t)config->dpdk_memory_bytes,
        .eal_arguments = config->dpdk_eal,
        .offloads = config->dpdk_offloads,
        .faults = config->dpdk_faults,
        .fstack_config = config->fstack_config,
        .max_connections = (uint32_t)config->maxclients,
        .queues = (uint16_t)config->dpdk_queues,
        .queue = (uint16_t)config->dpdk_queue,
    };
    thread_avoid_processor(settings.lcore);
    struct transport *transport = data->open(&settings, server_events(server), error);
    return transport ? server_add_transport(server, transport, error) : -1;
}

/* With the certificates and the port for TLS, which are of the kernel's sockets. */
static int open_tls(struct server_config *config, struct transport *kernel, struct error *error) {
    if (certificates_use(config, kernel, error) < 0) return -1;
    struct listen_address address = {.host = config->host, .port = (uint16_t)config->tls_port, .is_tls = true};
    if (kernel->operations->listen(kernel, &address, error) < 0) return -1;
    config->tls_port = address.port;
    return 0;
}

static int open_listeners(struct server *server, struct transport *kernel, struct error *error) {
    struct server_config *config = &server->config;
    if (config->port >= 0) {
        struct transport *transport = data_transport(server);
        struct listen_address tcp = {.host = config->host, .port = (uint16_t)config->port};
        if (transport->operations->listen(transport, &tcp, error) < 0) return -1;
        config->port = tcp.port;
    }
    if (config->tls_port >= 0 && open_tls(config, kernel, error) < 0) return -1;
    if (config->tls_port < 0 && config->replication.uses_tls && certificates_use(config, kernel, error) < 0) return -1;
    if (config->admin_port >= 0) {
        struct listen_address admin = {.host = "127.0.0.1", .port = (uint16_t)config->admin_port, .is_admin = true};
        if (kernel->operations->listen(kernel, &admin, error) < 0) return -1;
        config->admin_port = admin.port;
    }
    if (config->unixsocket[0] != '\0') {
        struct listen_address local = {.path = config->unixsocket, .mode = (uint32_t)config->unixsocketperm};
        if (kernel->operations->listen(kernel, &local, error) < 0) return -1;
    }
    return metrics_open(server, kernel, error);
}

/* For clients that came over TCP and turn out to be on this host; without it they stay on TCP. */
static void open_share_socket(struct server *server, struct transport *transport) {
    if (transport != data_transport(server) || server->config.port < 0 || server->config.shared_memory_limit_bytes == 0)
        return;
    char name[sizeof server->replay->share_socket];
    snprintf(name, sizeof name, "replay-server-%s", server->start.run_id);
    struct listen_address address = {.path = name, .is_abstract = true};
    struct error error;
    if (transport->operations->listen(transport, &address, &error) == 0)
        snprintf(server->replay->share_socket, sizeof server->replay->share_socket, "%s", name);
    else
        log_event(LOG_NOTICE, "no_shared_memory", NULL, "no memory is shared with TCP clients: %s", error.message);
}

/* Where a client on this machine connects to. */
static const char *reachable(const char *host) {
    if (strcmp(host, "0.0.0.0") == 0) return "127.0.0.1";
    return strcmp(host, "::") == 0 ? "::1" : host;
}

static void print_ready(const struct server_config *config) {
    const char *host = reachable(config->host), *metrics_host = reachable(config->metrics_host);
    bool is_v6 = strchr(host, ':');
    const char *before = is_v6 ? "[" : "", *after = is_v6 ? "]" : "";
    printf("ready url=");
    if (config->port >= 0) printf("redis://%s%s%s:%lld", before, host, after, (long long)config->port);
    printf(" unix=%s pid=%ld", config->unixsocket, (long)getpid());
    if (config->admin_port >= 0) printf(" admin=redis://127.0.0.1:%lld", (long long)config->admin_port);
    if (config->tls_port >= 0) printf(" tls=rediss://%s%s%s:%lld", before, host, after, (long long)config->tls_port);
    if (config->metrics_port >= 0) {
        bool is_metrics_v6 = strchr(metrics_host, ':');
        printf(" metrics=http://%s%s%s:%lld/metrics", is_metrics_v6 ? "[" : "", metrics_host, is_metrics_v6 ? "]" : "",
               (long long)config->metrics_port);
    }
    printf("\n");
    fflush(stdout);
}

/* What was restored and what was lost: in text as it stands, else each line an event. */
static void say_loaded(char *lines) {
    char *rest = NULL;
    for (char *line = strtok_r(lines, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        log_event(LOG_NOTICE, "loaded", NULL, "%s", line);
}

/* Tables out of a snapshot, those of the append-only file, which has what came later, then those of the configuration: what
 * was there takes the limits that are given now. */
static int fill(struct server *server, const struct options *options, const struct setup *setup) {
    struct error error = {0};
    struct text said = {0};
    int code = EXIT_CLEAN;
    if (options->restore) {
        if (snapshots_restore_at_start(server->durability->snapshots, options->restore, &said, &error) < 0)
            code = EXIT_REFUSED;
    }
    if (code == EXIT_CLEAN && append_log_start(server->durability->append_log, &said, &error) < 0) code = EXIT_REFUSED;
    bool had_tables = server->replay->tables->count > 0;
    server->replay->tables->adopting = had_tables ? &said : NULL;
    if (code == EXIT_CLEAN && setup->bytes && setup_create_tables(setup, server, &error) < 0)
        code = had_tables && error.code == ERROR_EXISTS ? EXIT_REFUSED : EXIT_USAGE;
    server->replay->tables->adopting = NULL;
    server->durability->snapshots->saved_changes = server->store->changes; /* what is loaded is on the disk */
    if (code == EXIT_CLEAN && said.data) say_loaded(said.data);
    text_free(&said);
    return code == EXIT_CLEAN ? code : start_failed(code, error.message);
}

/* Users out of their file, before anybody can connect. */
static int load_users(struct server *server) {
    struct text why = {0};
    const char *path = server->config.aclfile;
    if (path[0] == '\0' || acl_load(server->redis->acl, path, NULL, &why)) return EXIT_CLEAN;
    int code = start_failed(EXIT_FAILED, why.data ? why.data : "no memory for the file of users");
    text_free(&why);
    return code;
}

static int run(struct server *server) {
    service_manager_tell("READY=1");
    log_as("replay-server");
    log_event(LOG_INFO, "ready", LOG_FIELDS({"port", .number = server->config.port}), "ready");
    int code = server_run(server) < 0 ? EXIT_FAILED : EXIT_CLEAN;
    log_event(LOG_INFO, "stopped", LOG_FIELDS({"clients", .number = server->clients.count}), "stopped");
    return code;
}

static int serve(struct server *server, const struct options *options, const struct server_config *started,
                 const struct setup *setup, const struct data_transport *data) {
    struct error error = {0};
    struct signals signals = {.server = server};
    bool has_parent = options->lifeline_descriptor >= 0;
    if (has_parent) log_keep_end();
    if (has_parent) service_manager_ignore();
    struct transport *transport = transport_kernel_new(server_events(server), &error);
    if (!transport) return start_failed(EXIT_FAILED, error.message);
    transport_kernel_keepalive(transport, server->config.tcp_keepalive_s);
    if (server_add_transport(server, transport, &error) < 0 ||
        watch_signals(&signals, transport, options->lifeline_descriptor, &error) < 0)
        return start_failed(EXIT_FAILED, error.message);
    if (data->open && open_user_space(server, data, &error) < 0) return start_failed(EXIT_FAILED, error.message);
    int code = load_users(server);
    if (code == EXIT_CLEAN && (append_log_watch(server->durability->append_log, transport, &error) < 0 ||
                               cold_readers_watch(server->replay->cold, transport, &error) < 0))
        code = start_failed(EXIT_FAILED, error.message);
    if (code == EXIT_CLEAN) code = fill(server, options, setup);
    if (code != EXIT_CLEAN) return code;
    if (open_listeners(server, transport, &error) < 0)
        return start_failed(error.code == ERROR_EXISTS ? EXIT_IN_USE : EXIT_FAILED, error.message);
    open_share_socket(server, transport);
    memory_count_alone(true);
    memory_keep_heap();
    memory_start_reclaimer(); /* after signals were blocked, so that its thread takes none */
    if (!has_parent && (!(signals.reload = reload_new(server, setup, started, transport, &error)) ||
                        rewrite_open(server, setup, transport, &error) < 0))
        return start_failed(EXIT_FAILED, error.message);
    print_ready(&server->config);
    code = run(server);
    reload_free(signals.reload);
    memory_stop_reclaimer();
    return code;
}

/* All that a start would look at before it listens, files of data apart. */
static int only_check(struct server *server, const struct setup *setup) {
    struct error error = {0};
    struct transport *transport = transport_kernel_new(server_events(server), &error);
    if (!transport || server_add_transport(server, transport, &error) < 0)
        return start_failed(EXIT_FAILED, error.message);
    int code = load_users(server);
    if (code != EXIT_CLEAN) return code;
    if ((setup->bytes && setup_create_tables(setup, server, &error) < 0) ||
        (server->config.tls_port >= 0 && certificates_use(&server->config, transport, &error) < 0))
        return start_failed(EXIT_USAGE, error.message);
    printf("the settings are in order\n");
    return fflush(stdout) == 0 ? EXIT_CLEAN : EXIT_FAILED;
}

int process_main(int argc, char **argv, const struct data_transport *data) {
    log_as(data->program);
    thread_remember_processors();
    struct options options = {.setup_descriptor = -1, .lifeline_descriptor = -1};
    server_config_defaults(&options.config);
    bool done = false;
    int code = command_line_parse(argc, argv, data, &options, &done);
    if (code != 0 || done) return code;
    struct setup setup = {0};
    struct error error = {0};
    if (options.setup_descriptor >= 0 && (setup_read(&setup, options.setup_descriptor, &error) < 0 ||
                                          setup_configure(&setup, &options.config, &error) < 0)) {
        setup_free(&setup);
        return start_failed(EXIT_USAGE, error.message);
    }
    static struct server_config started; /* as it was told; what is chosen at the start, such as ports, comes after */
    started = options.config;
    log_configure((enum log_level)started.log_level, (enum log_format)started.log_format);
    code = command_line_check(&options, data);
    if (code != 0) {
        setup_free(&setup);
        return code;
    }
    if (descriptors_raise(&options.config, &error) < 0) {
        setup_free(&setup);
        return start_failed(EXIT_FAILED, error.message);
    }
    struct server *server = server_new(&options.config, &error);
    if (!server)
        code = start_failed(options.only_check ? EXIT_USAGE : EXIT_FAILED, error.message);
    else
        code = options.only_check ? only_check(server, &setup) : serve(server, &options, &started, &setup, data);
    setup_free(&setup);
    if (server) server_free(server);
    return code;
}
