/* command_line: options, in the order of the usage text, and the rules that hold between them. */
#include "server/process/command_line.h"

#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "server/admin/about.h"

static const char usage[] =
    "usage: %s [--host H] [--port P] [--admin-port P] [--unixsocket PATH] [--unixsocketperm OCTAL]\n"
    "       [--maxmemory BYTES] [--maxclients N] [--dir D] [--restore FILE|latest] [--busy-poll-us N] "
    "[--allow-remote] [--check]\n"
    "       [--dpdk-device D] [--dpdk-address A/MASK] [--dpdk-gateway A] [--dpdk-mtu N] [--dpdk-lcore N]\n"
    "       [--dpdk-memory BYTES] [--dpdk-eal ARGUMENTS] [--dpdk-offloads auto|none|NAMES]\n"
    "       [--dpdk-queues N] [--dpdk-queue I] [--fstack-config FILE] [--setup-fd N] [--lifeline-fd N]\n"
    "       %s --build-info | --settings\n"
    "--port 0 takes any free port, --port -1 opens none. Started by `replay-server serve`, which documents it.\n";

int start_failed(int code, const char *message) {
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
        about_build(data->program, data->libraries ? data->libraries() : NULL, &said);
    else
        about_settings(&said);
    if (said.failed) return start_failed(EXIT_FAILED, "no memory");
    fputs(said.data, stdout);
    text_free(&said);
    return fflush(stdout) == 0 ? EXIT_CLEAN : EXIT_FAILED;
}

/* --host, or a setting of the same name. */
static bool take_setting(struct options *options, const char *name, const char *value, const char *program) {
    struct error error;
    if (config_assign(&options->config, strcmp(name, "host") == 0 ? "bind" : name, value, false, &error) >= 0)
        return true;
    fprintf(stderr, "%s: --%s %s: %s\n", program, name, value, error.message);
    return false;
}

int command_line_parse(int argc, char **argv, const struct data_transport *data, struct options *options, bool *done) {
    static const struct option known[] = {
        {"host", required_argument, NULL, 's'},
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
        {"dpdk-queues", required_argument, NULL, 's'},
        {"dpdk-queue", required_argument, NULL, 's'},
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
        } else if (option == 's') {
            if (!take_setting(options, known[which].name, optarg, data->program)) return EXIT_USAGE;
        } else if (option == 'B' || option == 'S') {
            *done = true;
            return tell(option, data);
        } else {
            *done = option == 'H';
            fprintf(*done ? stdout : stderr, usage, data->program, data->program);
            return *done ? EXIT_CLEAN : EXIT_USAGE;
        }
        if (!parsed) {
            fprintf(stderr, "%s: --%s %s: expected a descriptor's number\n", data->program, known[which].name, optarg);
            return EXIT_USAGE;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "%s: unexpected argument '%s'\n", data->program, argv[optind]);
        fprintf(stderr, usage, data->program, data->program);
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
        return start_failed(EXIT_USAGE, message);
    }
    snprintf(config->host, sizeof config->host, "%s", host);
    return 0;
}

int command_line_check(struct options *options, const struct data_transport *data) {
    struct server_config *config = &options->config;
    char message[PATH_MAX + 256];
    int code = data->open ? check_user_space(config) : 0;
    if (code != 0) return code;
    if (config->port < 0 && config->tls_port < 0 && config->unixsocket[0] == '\0')
        return start_failed(EXIT_USAGE, "nothing to listen on: --port -1 needs --unixsocket PATH or a tls-port");
    if (options->allow_remote) config->protected_mode = 0;
    bool is_remote = (config->port >= 0 || config->tls_port >= 0) && !is_loopback(config->host);
    bool has_users = config->requirepass[0] != '\0' || config->aclfile[0] != '\0';
    if (is_remote && !has_users && config->protected_mode) {
        snprintf(message, sizeof message,
                 "--host %s lets other machines in, but there is no password: set one, or say --allow-remote if the "
                 "network is private",
                 config->host);
        return start_failed(EXIT_USAGE, message);
    }
    if (config->metrics_port >= 0 && !is_loopback(config->metrics_host) && !options->allow_remote) {
        snprintf(message, sizeof message,
                 "metrics-host %s shows metrics to other machines, which need no password for it: say --allow-remote "
                 "if the network is private",
                 config->metrics_host);
        return start_failed(EXIT_USAGE, message);
    }
    if (chdir(config->dir) < 0) {
        snprintf(message, sizeof message, "--dir %s: %s%s", config->dir, strerror(errno),
                 errno == ENOENT ? "; make the folder, or name another" : "");
        return start_failed(EXIT_USAGE, message);
    }
    return 0;
}
