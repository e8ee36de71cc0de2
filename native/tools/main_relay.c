/* main_relay: the executable replay-bench-relay, a line with delay, rate and faults between two interfaces. */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "tools/option.h"
#include "tools/relay.h"

static const char usage[] =
    "usage: replay-bench-relay --between INTERFACE INTERFACE [options]\n"
    "\n"
    "Carries Ethernet frames between two interfaces until SIGTERM, then prints what it carried as JSON. Segmentation "
    "and\n"
    "checksum offloads must be off at the other ends of both.\n"
    "\n"
    "  --delay-us D       one way, in microseconds (0)\n"
    "  --rate-mbit R      of the line each way, in Mb/s, counting what a frame takes on a wire (0: no bound)\n"
    "  --queue-bytes Q    that may wait for the line before frames are dropped (what the line holds both ways)\n"
    "  --frame-bytes F    the largest frame (1514)\n"
    "  --memory-bytes M   for frames under way (128 MiB)\n"
    "  --faults TEXT      loss=0.01,duplicate=0.01,reorder=0.01,cut=0.01,seed=1\n"
    "  --spin-us S        wait awake so long before a frame is due (0)\n"
    "  --processor N      run there alone\n";

static volatile sig_atomic_t stopping;

static void on_signal(int number) {
    (void)number;
    stopping = 1;
}

static int fail(const struct error *error, int status) {
    fprintf(stderr, "replay-bench-relay: %s\n", error->message);
    return status;
}

enum {
    OPTION_BETWEEN = 'a',
    OPTION_DELAY,
    OPTION_RATE,
    OPTION_QUEUE,
    OPTION_FRAME,
    OPTION_MEMORY,
    OPTION_FAULTS,
    OPTION_SPIN,
    OPTION_PROCESSOR,
    OPTION_HELP
};

static const struct option known[] = {
    {"between", required_argument, NULL, OPTION_BETWEEN},
    {"delay-us", required_argument, NULL, OPTION_DELAY},
    {"rate-mbit", required_argument, NULL, OPTION_RATE},
    {"queue-bytes", required_argument, NULL, OPTION_QUEUE},
    {"frame-bytes", required_argument, NULL, OPTION_FRAME},
    {"memory-bytes", required_argument, NULL, OPTION_MEMORY},
    {"faults", required_argument, NULL, OPTION_FAULTS},
    {"spin-us", required_argument, NULL, OPTION_SPIN},
    {"processor", required_argument, NULL, OPTION_PROCESSOR},
    {"help", no_argument, NULL, OPTION_HELP},
    {0},
};

/* 0; −1 with `error` set; 1: help was printed. */
static int take_option(struct relay_settings *settings, struct fault_settings *faults, int option, const char *name,
                       const char *text, struct error *error) {
    double number = 0;
    if (option == OPTION_HELP) {
        fputs(usage, stdout);
        return 1;
    }
    if (option == OPTION_FAULTS) {
        settings->faults = faults;
        return faults_parse(text, faults, error);
    }
    if (option_number(name, text, 0, option == OPTION_PROCESSOR ? 1023 : 1e12, &number, error) < 0) return -1;
    switch (option) {
    case OPTION_DELAY: settings->delay_ns = (uint64_t)(number * 1e3); return 0;
    case OPTION_RATE: settings->rate_bits_per_s = number * 1e6; return 0;
    case OPTION_QUEUE: settings->queue_bytes = (uint64_t)number; return 0;
    case OPTION_FRAME: settings->frame_bytes = (uint32_t)number; return 0;
    case OPTION_MEMORY: settings->memory_bytes = (uint64_t)number; return 0;
    case OPTION_SPIN: settings->spin_ns = (uint64_t)(number * 1e3); return 0;
    default: return option_pin((int)number, error);
    }
}

static int read_options(struct relay_settings *settings, struct fault_settings *faults, int argc, char **argv,
                        struct error *error) {
    *settings = (struct relay_settings){.frame_bytes = 1514};
    int which = 0, option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, "", known, &which)) != -1) {
        if (option == '?')
            return error_set(error, ERROR_GENERIC, "%s: unknown, or without its value; --help lists the options",
                             argv[optind - 1]);
        if (option == OPTION_BETWEEN) {
            if (optind >= argc) return error_set(error, ERROR_GENERIC, "--between: expected two interfaces");
            settings->interfaces[0] = optarg;
            settings->interfaces[1] = argv[optind++];
            continue;
        }
        int taken = take_option(settings, faults, option, known[which].name, optarg, error);
        if (taken != 0) return taken;
    }
    if (optind < argc) return error_set(error, ERROR_GENERIC, "unexpected argument '%s'", argv[optind]);
    if (!settings->interfaces[0]) return error_set(error, ERROR_GENERIC, "expected --between INTERFACE INTERFACE");
    if (settings->frame_bytes < 64 || settings->frame_bytes > 65550)
        return error_set(error, ERROR_GENERIC, "--frame-bytes %u: expected from 64 to 65550", settings->frame_bytes);
    return 0;
}

/* What `relay_run` lets in while it waits; at other times the signals are kept back. */
static sigset_t prepare_signals(void) {
    sigset_t stop, waiting;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    sigaddset(&stop, SIGINT);
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigprocmask(SIG_BLOCK, &stop, &waiting);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    prctl(PR_SET_TIMERSLACK, 1UL); /* sleeps end when they are to end */
    return waiting;
}

int main(int argc, char **argv) {
    static struct relay relay;
    struct relay_settings settings;
    struct fault_settings faults;
    struct error error = {0};
    int read = read_options(&settings, &faults, argc, argv, &error);
    if (read != 0) return read > 0 ? 0 : fail(&error, 2);
    sigset_t waiting = prepare_signals();
    int status = 0;
    if (relay_open(&relay, &settings, &error) < 0) {
        status = fail(&error, 1);
    } else {
        printf("ready\n");
        fflush(stdout);
        if (relay_run(&relay, &stopping, &waiting, &error) < 0) status = fail(&error, 1);
        struct text out = {0};
        relay_report(&relay, &out);
        if (out.failed || printf("%s\n", out.data) < 0) status = 1;
        text_free(&out);
    }
    relay_close(&relay);
    return status;
}
