#include "tools/load_plan.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/limits.h"
#include "base/memory.h"
#include "resp/parse.h"
#include "tools/option.h"

static const char usage[] =
    "usage: replay-bench-client --connect ADDRESS:PORT [options] --role NAME [options of the role] [--role …]\n"
    "\n"
    "Sends prepared requests to a server that speaks RESP2, follows the replies to their ends without keeping them,\n"
    "and prints counts, latencies (microseconds) and rates as JSON.\n"
    "\n"
    "  --connect ADDRESS:PORT  an IPv4 address\n"
    "  --seconds S             how long, and one round at least (without it, until all rounds are done)\n"
    "  --warm-up S             before that, not measured (0)\n"
    "  --processor N           run there alone\n"
    "  --spin                  ask for replies again and again instead of sleeping\n"
    "  --first FILE            requests sent once on each connection, before anything is timed\n"
    "  --patience S            fail when nothing has moved for so long (30)\n"
    "  --keep FILE             write the replies there, as they come\n"
    "of a role:\n"
    "  --connections N         (1)\n"
    "  --request FILE          what is sent: one request, or several at once; given again: taken in turns\n"
    "  --rounds N              times that each connection sends all of its requests (no bound)\n"
    "  --pause-us U            from the last reply of a round to the next round (0)\n"
    "  --rate R                rounds begun each second by all connections of the role together, where they can\n"
    "  --spread                by --rate the requests of a round are spread over its time, not sent in a row\n";

/* ---- requests ---------------------------------------------------------------------------------------- */

static void discard(void *context, const struct resp_argument *arguments, uint32_t index, uint32_t count, size_t length,
                    struct resp_landing *landing) {
    (void)context, (void)arguments, (void)index, (void)count, (void)length;
    landing->kind = RESP_LAND_DISCARD;
}

/* How many requests the bytes hold. */
static int count_requests(struct load_request *request, const char *path, struct error *error) {
    struct resp_limits limits = {LIMIT_REQUEST_BYTES, LIMIT_BULK_BYTES, LIMIT_ARGUMENTS, LIMIT_INLINE_BYTES, false};
    struct resp_parser parser;
    resp_parser_init(&parser, &limits, discard, NULL);
    enum resp_status status = RESP_REQUEST;
    for (size_t at = 0; at < request->size && status != RESP_PROTOCOL_ERROR;) {
        size_t consumed;
        status = resp_parser_feed(&parser, request->bytes + at, request->size - at, &consumed);
        at += consumed;
        if (status != RESP_REQUEST) continue;
        request->replies++;
        resp_parser_next(&parser);
    }
    int result = 0;
    if (status == RESP_PROTOCOL_ERROR)
        result = error_set(error, ERROR_GENERIC, "%s: not a request: %s", path, parser.error);
    else if (request->replies == 0 || resp_parser_midway(&parser))
        result = error_set(error, ERROR_GENERIC, "%s: expected whole requests, it ends within one", path);
    resp_parser_free(&parser);
    return result;
}

static void name_request(struct load_request *request, const char *path) {
    const char *slash = strrchr(path, '/');
    snprintf(request->name, sizeof request->name, "%s", slash ? slash + 1 : path);
}

static int read_request(struct load_request *request, const char *path, struct error *error) {
    *request = (struct load_request){0};
    name_request(request, path);
    FILE *file = fopen(path, "rb");
    struct stat about;
    if (!file || fstat(fileno(file), &about) < 0) {
        if (file) fclose(file);
        return error_set(error, ERROR_GENERIC, "%s: %s", path, strerror(errno));
    }
    request->size = (size_t)about.st_size;
    request->bytes = memory_alloc(request->size + 1);
    size_t got = request->bytes ? fread(request->bytes, 1, request->size, file) : 0;
    fclose(file);
    if (!request->bytes || got < request->size)
        return error_set(error, ERROR_GENERIC, "%s: its %zu bytes could not be read", path, request->size);
    return count_requests(request, path, error);
}

static int add_request(struct load_role *role, const char *path, struct error *error) {
    if (!role->requests) role->requests = memory_calloc(LOAD_REQUESTS, sizeof *role->requests);
    if (!role->requests) return error_set(error, ERROR_GENERIC, "no memory for the requests of role %s", role->name);
    if (role->request_count == LOAD_REQUESTS)
        return error_set(error, ERROR_GENERIC, "role %s: expected at most %u requests", role->name, LOAD_REQUESTS);
    return read_request(&role->requests[role->request_count++], path, error);
}

/* ---- options ----------------------------------------------------------------------------------------- */

static int parse_address(struct load_plan *plan, const char *text, struct error *error) {
    const char *colon = strrchr(text, ':');
    double port;
    if (!colon || colon == text || (size_t)(colon - text) >= sizeof plan->host)
        return error_set(error, ERROR_GENERIC, "--connect %s: expected ADDRESS:PORT, such as 10.0.0.2:6379", text);
    snprintf(plan->host, sizeof plan->host, "%.*s", (int)(colon - text), text);
    if (option_number("connect", colon + 1, 1, 65535, &port, error) < 0) return -1;
    plan->port = (uint16_t)port;
    return 0;
}

static int add_role(struct load_plan *plan, const char *name, struct error *error) {
    if (plan->role_count == LOAD_ROLES)
        return error_set(error, ERROR_GENERIC, "--role %s: expected at most %u roles", name, LOAD_ROLES);
    struct load_role *role = &plan->roles[plan->role_count++];
    snprintf(role->name, sizeof role->name, "%s", name);
    role->connections = 1;
    return 0;
}

enum {
    OPTION_CONNECT = 'a',
    OPTION_SECONDS,
    OPTION_WARM_UP,
    OPTION_PROCESSOR,
    OPTION_SPIN,
    OPTION_FIRST,
    OPTION_PATIENCE,
    OPTION_KEEP,
    OPTION_ROLE,
    OPTION_CONNECTIONS,
    OPTION_REQUEST,
    OPTION_ROUNDS,
    OPTION_PAUSE,
    OPTION_RATE,
    OPTION_SPREAD,
    OPTION_HELP
};

static const struct option known[] = {
    {"connect", required_argument, NULL, OPTION_CONNECT},
    {"seconds", required_argument, NULL, OPTION_SECONDS},
    {"warm-up", required_argument, NULL, OPTION_WARM_UP},
    {"processor", required_argument, NULL, OPTION_PROCESSOR},
    {"spin", no_argument, NULL, OPTION_SPIN},
    {"first", required_argument, NULL, OPTION_FIRST},
    {"patience", required_argument, NULL, OPTION_PATIENCE},
    {"keep", required_argument, NULL, OPTION_KEEP},
    {"role", required_argument, NULL, OPTION_ROLE},
    {"connections", required_argument, NULL, OPTION_CONNECTIONS},
    {"request", required_argument, NULL, OPTION_REQUEST},
    {"rounds", required_argument, NULL, OPTION_ROUNDS},
    {"pause-us", required_argument, NULL, OPTION_PAUSE},
    {"rate", required_argument, NULL, OPTION_RATE},
    {"spread", no_argument, NULL, OPTION_SPREAD},
    {"help", no_argument, NULL, OPTION_HELP},
    {0},
};

static int take_role_option(struct load_plan *plan, int option, const char *name, const char *text,
                            struct error *error) {
    if (plan->role_count == 0) return error_set(error, ERROR_GENERIC, "--%s: expected after --role NAME", name);
    struct load_role *role = &plan->roles[plan->role_count - 1];
    double number;
    if (option == OPTION_SPREAD) {
        role->spread = true;
        return 0;
    }
    if (option == OPTION_REQUEST) return add_request(role, text, error);
    if (option == OPTION_RATE) return option_number(name, text, 1e-3, 1e9, &role->rate_per_s, error);
    double least = option == OPTION_PAUSE ? 0 : 1, most = option == OPTION_CONNECTIONS ? LOAD_CONNECTIONS : 1e12;
    if (option_number(name, text, least, most, &number, error) < 0) return -1;
    if (option == OPTION_CONNECTIONS)
        role->connections = (uint32_t)number;
    else if (option == OPTION_ROUNDS)
        role->most_rounds = (uint64_t)number;
    else
        role->pause_us = (uint64_t)number;
    return 0;
}

static int take_option(struct load_plan *plan, int option, const char *name, const char *text, struct error *error) {
    double number;
    switch (option) {
    case OPTION_CONNECT: return parse_address(plan, text, error);
    case OPTION_SECONDS: return option_number(name, text, 0, 1e6, &plan->seconds, error);
    case OPTION_WARM_UP: return option_number(name, text, 0, 1e6, &plan->warm_up_s, error);
    case OPTION_PATIENCE: return option_number(name, text, 0.01, 1e6, &plan->patience_s, error);
    case OPTION_PROCESSOR:
        if (option_number(name, text, 0, 1023, &number, error) < 0) return -1;
        plan->processor = (int)number;
        return 0;
    case OPTION_SPIN: plan->spin = true; return 0;
    case OPTION_KEEP:
        if (!plan->kept) plan->kept = fopen(text, "wb");
        return plan->kept ? 0 : error_set(error, ERROR_GENERIC, "--keep %s: %s", text, strerror(errno));
    case OPTION_FIRST: return read_request(&plan->first, text, error);
    case OPTION_ROLE: return add_role(plan, text, error);
    default: return take_role_option(plan, option, name, text, error);
    }
}

static int check(const struct load_plan *plan, struct error *error) {
    if (plan->port == 0) return error_set(error, ERROR_GENERIC, "expected --connect ADDRESS:PORT");
    if (plan->role_count == 0) return error_set(error, ERROR_GENERIC, "expected at least one --role");
    for (uint32_t i = 0; i < plan->role_count; i++) {
        const struct load_role *role = &plan->roles[i];
        if (role->request_count == 0) return error_set(error, ERROR_GENERIC, "role %s: expected --request", role->name);
        if (plan->seconds <= 0 && role->most_rounds == 0)
            return error_set(error, ERROR_GENERIC, "role %s: expected --rounds, or --seconds for all: when to end",
                             role->name);
        if (role->spread && role->rate_per_s <= 0)
            return error_set(error, ERROR_GENERIC, "role %s: expected --rate with --spread", role->name);
    }
    return 0;
}

int load_plan_read(struct load_plan *plan, int argc, char **argv, struct error *error) {
    *plan = (struct load_plan){.processor = -1, .patience_s = 30};
    int which = 0, option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, "", known, &which)) != -1) {
        if (option == OPTION_HELP) {
            fputs(usage, stdout);
            return 1;
        }
        if (option == '?')
            return error_set(error, ERROR_GENERIC, "%s: unknown, or without its value; --help lists the options",
                             argv[optind - 1]);
        if (take_option(plan, option, known[which].name, optarg, error) < 0) return -1;
    }
    if (optind < argc) return error_set(error, ERROR_GENERIC, "unexpected argument '%s'", argv[optind]);
    return check(plan, error);
}

void load_plan_free(struct load_plan *plan) {
    if (plan->kept) fclose(plan->kept);
    memory_free(plan->first.bytes);
    for (uint32_t i = 0; i < plan->role_count; i++) {
        struct load_role *role = &plan->roles[i];
        for (uint32_t j = 0; j < role->request_count; j++) memory_free(role->requests[j].bytes);
        memory_free(role->requests);
    }
}
