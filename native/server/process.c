/* process: an executable from its arguments to its exit code: set-up, transports, signals, the ready line. */
#include "server/process.h"

#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/thread.h"
#include "server/acl/acl.h"
#include "server/admin/about.h"
#include "server/admin/config.h"
#include "server/admin/descriptors.h"
#include "server/admin/reload.h"
#include "server/admin/rewrite.h"
#include "server/certificates.h"
#include "server/durability/append_log.h"
#include "server/durability/snapshots.h"
#include "server/metrics/metrics.h"
#include "server/replay/replay_registry.h"
#include "server/server.h"
#include "server/service_manager.h"
#include "server/setup.h"

enum { EXIT_CLEAN = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_IN_USE = 3, EXIT_REFUSED = 4 };

struct options {
    struct server_config config;
    int setup_descriptor, lifeline_descriptor; /* −1: none */
    bool allow_remote;
    bool only_check; /* the settings and tables, and end */
    const char *restore; /* a snapshot's file, "latest", or NULL */
};

static const char usage[] =
    "usage: %s [--host H] [--port P] [--admin-port P] [--unixsocket PATH] [--unixsocketperm OCTAL]\n"
    "       [--maxmemory BYTES] [--maxclients N] [--dir D] [--restore FILE|latest] [--busy-poll-us N] "
    "[--allow-remote] [--check]\n"
    "       [--dpdk-device D] [--dpdk-address A/MASK] [--dpdk-gateway A] [--dpdk-mtu N] [--dpdk-lcore N]\n"
    "       [--dpdk-memory BYTES] [--dpdk-eal ARGUMENTS] [--dpdk-offloads auto|none|NAMES]\n"
    "       [--fstack-config FILE] [--setup-fd N] [--lifeline-fd N]\n"
    "       %s --build-info | --settings\n"
    "--port 0 takes any free port, --port -1 opens none. Started by `replay-server serve`, which documents it.\n";

static const char *program = "replay-server"; /* as messages call it */

static int fail(int code, const char *message) {
    log_event(LOG_ERROR, "start_failed", LOG_FIELDS({"status", .number = code}), "%s", message);
    return code;
}

static bool parse_descriptor(const char *text, int *descriptor) {
    char *end;
    long number = strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || number < 0 || number > 1 << 20) return false;
    *descriptor = (int)number;
    return true;
}

/* Tells of the build, or of the settings, in JSON. */
static int tell(int what, const struct data_transport *data) {
    struct text said = {0};
    if (what == 'B')
        about_build(program, data->libraries ? data->libraries() : NULL, &said);
    else
        about_settings(&said);
    if (said.failed) return fail(EXIT_FAILED, "no memory");
    fputs(said.data, stdout);
    text_free(&said);
    return fflush(stdout) == 0 ? EXIT_CLEAN : EXIT_FAILED;
}

/* Returns 0, or the exit code after saying what is wrong. `*done` is set for --help and what tells of the program. */
static int parse_options(int argc, char **argv, const struct data_transport *data, struct options *options,
                         bool *done) {
    static const struct option known[] = {
        {"host", required_argument, NULL, 'h'},
        {"port", required_argument, NULL, 's'},
        {"admin-port", required_argument, NULL, 's'},
        {"busy-poll-us", required_argument, NULL, 's'},
        {"dpdk-device", required_argument, NULL, 's'},
        {"dpdk-address", required_argument, NULL, 's'},
        {"dpdk-gateway", required_argument, NULL, 's'},
        {"dpdk-mtu", required_argument, NULL, 's'},
        {"dpdk-lcore", required_argument, NULL, 's'},
        {"dpdk-memory", required_argument, NULL, 's'},
        {"dpdk-eal", required_argument, NULL, 's'},
        {"dpdk-offloads", required_argument, NULL, 's'},
        {"fstack-config", required_argument, NULL, 's'},
        {"unixsocket", required_argument, NULL, 's'},
        {"unixsocketperm", required_argument, NULL, 's'},
        {"maxmemory", required_argument, NULL, 's'},
        {"maxclients", required_argument, NULL, 's'},
        {"dir", required_argument, NULL, 's'},
        {"restore", required_argument, NULL, 'R'},
        {"setup-fd", required_argument, NULL, 'f'},
        {"lifeline-fd", required_argument, NULL, 'l'},
        {"allow-remote", no_argument, NULL, 'r'},
        {"check", no_argument, NULL, 'c'},
        {"help", no_argument, NULL, 'H'},
        {"build-info", no_argument, NULL, 'B'},
        {"settings", no_argument, NULL, 'S'},
        {0},
    };
    int which = 0;
    int option;
    while ((option = getopt_long(argc, argv, "", known, &which)) != -1) {
        struct error error;
        bool parsed = true;
        if (option == 'r') {
            options->allow_remote = true;
        } else if (option == 'c') {
            options->only_check = true;
        } else if (option == 'R') {
            options->restore = optarg;
        } else if (option == 'f') {
            parsed = parse_descriptor(optarg, &options->setup_descriptor);
        } else if (option == 'l') {
            parsed = parse_descriptor(optarg, &options->lifeline_descriptor);
        } else if (option == 'h' || option == 's') {
            if (config_assign(&options->config, option == 'h' ? "bind" : known[which].name, optarg, false, &error) <
                0) {
                fprintf(stderr, "%s: --%s %s: %s\n", program, known[which].name, optarg, error.message);
                return EXIT_USAGE;
            }
        } else if (option == 'B' || option == 'S') {
            *done = true;
            return tell(option, data);
        } else {
            *done = option == 'H';
            fprintf(*done ? stdout : stderr, usage, program, program);
            return *done ? EXIT_CLEAN : EXIT_USAGE;
        }
        if (!parsed) {
            fprintf(stderr, "%s: --%s %s: expected a descriptor's number\n", program, known[which].name, optarg);
            return EXIT_USAGE;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "%s: unexpected argument '%s'\n", program, argv[optind]);
        fprintf(stderr, usage, program, program);
        return EXIT_USAGE;
    }
    return 0;
}

static bool is_loopback(const char *host) {
    /* By number, or the one name that means it: "127.example.org" is whatever its owner says it is. */
    struct in_addr address;
    if (inet_pton(AF_INET, host, &address) == 1) return ntohl(address.s_addr) >> 24 == 127;
    return strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0;
}

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
            if (signals->reload && !server->stopping) reload_begin(signals->reload);
        } else if (server->stop.saving &&
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
    return server->transports[server->transport_count - 1];
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
    char name[sizeof server->share_socket];
    snprintf(name, sizeof name, "replay-server-%s", server->run_id);
    struct listen_address address = {.path = name, .is_abstract = true};
    struct error error;
    if (transport->operations->listen(transport, &address, &error) == 0)
        snprintf(server->share_socket, sizeof server->share_socket, "%s", name);
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
    bool is_v6 = strchr(host, ':') != NULL;
    const char *before = is_v6 ? "[" : "", *after = is_v6 ? "]" : "";
    printf("ready url=");
    if (config->port >= 0) printf("redis://%s%s%s:%lld", before, host, after, (long long)config->port);
    printf(" unix=%s pid=%ld", config->unixsocket, (long)getpid());
    if (config->admin_port >= 0) printf(" admin=redis://127.0.0.1:%lld", (long long)config->admin_port);
    if (config->tls_port >= 0) printf(" tls=rediss://%s%s%s:%lld", before, host, after, (long long)config->tls_port);
    if (config->metrics_port >= 0) {
        bool is_metrics_v6 = strchr(metrics_host, ':') != NULL;
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

/* Tables out of a snapshot, then those of the configuration: what is in both takes the limits that are given now. */
static int fill(struct server *server, const struct options *options, const struct setup *setup) {
    struct error error = {0};
    struct text said = {0};
    int code = EXIT_CLEAN;
    if (options->restore) {
        if (snapshots_restore_at_start(server->snapshots, options->restore, &said, &error) < 0) code = EXIT_REFUSED;
        server->replay->adopting = &said;
    }
    if (code == EXIT_CLEAN && setup->bytes && setup_create_tables(setup, server, &error) < 0)
        code = options->restore && error.code == ERROR_EXISTS ? EXIT_REFUSED : EXIT_USAGE;
    server->replay->adopting = NULL;
    if (code == EXIT_CLEAN && append_log_start(server->append_log, &said, &error) < 0) code = EXIT_REFUSED;
    server->snapshots->saved_changes = server->store->changes; /* what is loaded is on the disk */
    if (code == EXIT_CLEAN && said.data) say_loaded(said.data);
    text_free(&said);
    return code == EXIT_CLEAN ? code : fail(code, error.message);
}

/* Users out of their file, before anybody can connect. */
static int load_users(struct server *server) {
    struct text why = {0};
    const char *path = server->config.aclfile;
    if (path[0] == '\0' || acl_load(server->acl, path, NULL, &why)) return EXIT_CLEAN;
    int code = fail(EXIT_FAILED, why.data ? why.data : "no memory for the file of users");
    text_free(&why);
    return code;
}

/* A server with a parent is not what the service manager started, and its parent's service is not its own to tell of. */
static void run(struct server *server, bool has_parent) {
    if (!has_parent) service_manager_tell("READY=1");
    log_as("replay-server");
    log_event(LOG_INFO, "ready", LOG_FIELDS({"port", .number = server->config.port}), "ready");
    server_run(server);
    log_event(LOG_INFO, "stopped", LOG_FIELDS({"clients", .number = server->clients.count}), "stopped");
    if (!has_parent) service_manager_tell("STOPPING=1");
}

static int serve(struct server *server, const struct options *options, const struct server_config *started,
                 const struct setup *setup, const struct data_transport *data) {
    struct error error = {0};
    struct signals signals = {.server = server};
    bool has_parent = options->lifeline_descriptor >= 0;
    struct transport *transport = transport_kernel_new(server_events(server), &error);
    if (!transport) return fail(EXIT_FAILED, error.message);
    transport_kernel_keepalive(transport, server->config.tcp_keepalive_s);
    if (server_add_transport(server, transport, &error) < 0 ||
        watch_signals(&signals, transport, options->lifeline_descriptor, &error) < 0)
        return fail(EXIT_FAILED, error.message);
    if (data->open && open_user_space(server, data, &error) < 0) return fail(EXIT_FAILED, error.message);
    int code = load_users(server);
    if (code == EXIT_CLEAN && append_log_watch(server->append_log, transport, &error) < 0)
        code = fail(EXIT_FAILED, error.message);
    if (code == EXIT_CLEAN) code = fill(server, options, setup);
    if (code != EXIT_CLEAN) return code;
    if (open_listeners(server, transport, &error) < 0)
        return fail(error.code == ERROR_EXISTS ? EXIT_IN_USE : EXIT_FAILED, error.message);
    open_share_socket(server, transport);
    memory_count_alone(true);
    memory_keep_heap();
    memory_start_reclaimer(); /* after signals were blocked, so that its thread takes none */
    if (!has_parent && (!(signals.reload = reload_new(server, setup, started, transport, &error)) ||
                        rewrite_open(server, setup, transport, &error) < 0))
        return fail(EXIT_FAILED, error.message);
    print_ready(&server->config);
    run(server, has_parent);
    reload_free(signals.reload);
    memory_stop_reclaimer();
    return EXIT_CLEAN;
}

/* All that a start would look at before it listens, files of data apart. */
static int only_check(struct server *server, const struct setup *setup) {
    struct error error = {0};
    struct transport *transport = transport_kernel_new(server_events(server), &error);
    if (!transport || server_add_transport(server, transport, &error) < 0) return fail(EXIT_FAILED, error.message);
    int code = load_users(server);
    if (code != EXIT_CLEAN) return code;
    if ((setup->bytes && setup_create_tables(setup, server, &error) < 0) ||
        (server->config.tls_port >= 0 && certificates_use(&server->config, transport, &error) < 0))
        return fail(EXIT_USAGE, error.message);
    printf("the settings are in order\n");
    return fflush(stdout) == 0 ? EXIT_CLEAN : EXIT_FAILED;
}

/* What is wrong with an address for one host in its network; NULL: nothing. */
static const char *misuse_of(uint32_t address, long bits) {
    uint32_t within = bits < 32 ? UINT32_MAX >> bits : 0, host = address & within, first = address >> 24;
    if (first == 0 || first == 127 || first >= 224) return "expected the address of a host, which this one never is";
    if (bits < 31 && host == 0) return "expected the address of a host, but this is the network's own";
    if (bits < 31 && host == within) return "expected the address of a host, but this is the network's broadcast";
    return NULL;
}

/* In user space the data port has the address of the device, and no other. */
static int check_user_space(struct server_config *config) {
    const char *given = config->dpdk_address, *wrong = "expected an IPv4 address and its mask, such as 10.0.0.2/24";
    struct in_addr address;
    char host[sizeof config->dpdk_address];
    snprintf(host, sizeof host, "%s", given);
    char *mask = strchr(host, '/');
    if (mask) *mask++ = '\0';
    char *end = mask;
    long bits = mask ? strtol(mask, &end, 10) : 0;
    if (end != mask && *end == '\0' && bits >= 1 && bits <= 32 && inet_pton(AF_INET, host, &address) == 1)
        wrong = misuse_of(ntohl(address.s_addr), bits);
    if (wrong) {
        char message[256];
        snprintf(message, sizeof message, "--dpdk-address '%s': %s", given, wrong);
        return fail(EXIT_USAGE, message);
    }
    snprintf(config->host, sizeof config->host, "%s", host);
    return 0;
}

static int check(struct options *options, const struct data_transport *data) {
    struct server_config *config = &options->config;
    char message[PATH_MAX + 256];
    int code = data->open ? check_user_space(config) : 0;
    if (code != 0) return code;
    if (config->port < 0 && config->tls_port < 0 && config->unixsocket[0] == '\0')
        return fail(EXIT_USAGE, "nothing to listen on: --port -1 needs --unixsocket PATH or a tls-port");
    if (options->allow_remote) config->protected_mode = 0;
    bool is_remote = (config->port >= 0 || config->tls_port >= 0) && !is_loopback(config->host);
    bool has_users = config->requirepass[0] != '\0' || config->aclfile[0] != '\0';
    if (is_remote && !has_users && config->protected_mode) {
        snprintf(message, sizeof message,
                 "--host %s lets other machines in, but there is no password: set one, or say --allow-remote if the "
                 "network is private",
                 config->host);
        return fail(EXIT_USAGE, message);
    }
    if (config->metrics_port >= 0 && !is_loopback(config->metrics_host) && !options->allow_remote) {
        snprintf(message, sizeof message,
                 "metrics-host %s shows metrics to other machines, which need no password for it: say --allow-remote "
                 "if the network is private",
                 config->metrics_host);
        return fail(EXIT_USAGE, message);
    }
    if (chdir(config->dir) < 0) {
        snprintf(message, sizeof message, "--dir %s: %s%s", config->dir, strerror(errno),
                 errno == ENOENT ? "; make the folder, or name another" : "");
        return fail(EXIT_USAGE, message);
    }
    return 0;
}

int process_main(int argc, char **argv, const struct data_transport *data) {
    program = data->program;
    log_as(program);
    thread_remember_processors();
    struct options options = {.setup_descriptor = -1, .lifeline_descriptor = -1};
    server_config_defaults(&options.config);
    bool done = false;
    int code = parse_options(argc, argv, data, &options, &done);
    if (code != 0 || done) return code;
    struct setup setup = {0};
    struct error error = {0};
    if (options.setup_descriptor >= 0 && (setup_read(&setup, options.setup_descriptor, &error) < 0 ||
                                          setup_configure(&setup, &options.config, &error) < 0)) {
        setup_free(&setup);
        return fail(EXIT_USAGE, error.message);
    }
    static struct server_config started; /* as it was told; what is chosen at the start, such as ports, comes after */
    started = options.config;
    log_configure((enum log_level)started.log_level, (enum log_format)started.log_format);
    code = check(&options, data);
    if (code != 0) {
        setup_free(&setup);
        return code;
    }
    descriptors_raise(&options.config);
    struct server *server = server_new(&options.config, &error);
    if (!server)
        code = fail(options.only_check ? EXIT_USAGE : EXIT_FAILED, error.message);
    else
        code = options.only_check ? only_check(server, &setup) : serve(server, &options, &started, &setup, data);
    setup_free(&setup);
    if (server) server_free(server);
    return code;
}
