/* start: F-Stack brought up in this process, which its ff_init ends where it fails: then with a message that helps. */
#include "net/fstack/start.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ff_api.h>

#define SAID_MOST_BYTES 8192

static struct {
    bool under_way;
    int output, error; /* the real ones */
    int said; /* a file in memory that both lead to meanwhile */
    const char *device;
} start = {.output = -1, .error = -1, .said = -1};

/* What to type, by what the stack or DPDK said last. */
static const struct {
    const char *said, *advice;
} known[] = {
    {"hugepage", "reserve hugepages (setup_dpdk.sh), or set dpdk-memory to what is free"},
    {"Cannot init memory", "reserve hugepages (setup_dpdk.sh), or set dpdk-memory to what is free"},
    {"Cannot create mbuf pool", "set a larger dpdk-memory, or reserve more hugepages (setup_dpdk.sh)"},
    {"failed to initialize", "is the interface there, up and not used by another program? `ip link` shows it"},
    {"No probed ethernet devices", "dpdk-device names none that DPDK can use: a virtual one needs its interface "
                                   "(net_af_xdp0,iface=veth0), a PCI one must "
                                   "be bound to vfio-pci (setup_dpdk.sh)"},
    {"doesn't have port", "port_list names a device that is not there"},
    {"unable to parse", "dpdk-eal or dpdk-device is not as DPDK wants it"},
    {"unrecognized option", "dpdk-eal has an argument that this DPDK does not know"},
    {"init_port_start failed", "the device refused its settings"},
    {"Permission", "run as root, or grant CAP_NET_RAW, CAP_NET_ADMIN and (for AF_XDP) CAP_BPF"},
    {"not permitted", "run as root, or grant CAP_NET_RAW, CAP_NET_ADMIN and (for AF_XDP) CAP_BPF"},
};

static void put(const char *text) {
    ssize_t ignored = write(start.error, text, strlen(text));
    (void)ignored;
}

static const char *advice_for(const char *said) {
    const char *advice = "see what it said above, and `replay-server doctor`";
    const char *latest = NULL;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const char *found = strstr(said, known[i].said);
        if (found && (!latest || found < latest)) { /* the first is the cause of the rest */
            latest = found;
            advice = known[i].advice;
        }
    }
    return advice;
}

/* Called by exit, which ff_init calls where it fails, and before the end by abort. Only write is used, so that it may run
 * wherever that was. */
static void explain(void) {
    if (!start.under_way) return;
    start.under_way = false;
    static char said[SAID_MOST_BYTES + 1];
    off_t end = lseek(start.said, 0, SEEK_END);
    off_t from = end > SAID_MOST_BYTES ? end - SAID_MOST_BYTES : 0;
    ssize_t got = pread(start.said, said, SAID_MOST_BYTES, from);
    said[got > 0 ? got : 0] = '\0';
    put(said);
    put("\nreplay-server-fstack: F-Stack could not start on ");
    put(start.device[0] ? start.device : "the device of its configuration");
    put(": ");
    put(advice_for(said));
    put("\n");
}

static void on_exit_while_starting(void) {
    if (!start.under_way) return;
    fflush(stdout);
    explain();
}

static void on_abort(int signal_number) {
    (void)signal_number;
    explain();
    _exit(EXIT_FAILURE);
}

void fstack_start(const char *path, const char *device) {
    start.device = device;
    start.said = memfd_create("fstack-start", MFD_CLOEXEC);
    start.output = dup(STDOUT_FILENO);
    start.error = dup(STDERR_FILENO);
    if (start.said < 0 || start.output < 0 || start.error < 0) {
        fprintf(stderr, "replay-server-fstack: cannot keep what F-Stack prints apart: %s\n", strerror(errno));
        exit(EXIT_FAILURE);
    }
    fflush(stdout);
    dup2(start.said, STDOUT_FILENO);
    dup2(start.said, STDERR_FILENO);
    atexit(on_exit_while_starting);
    struct sigaction before, now = {.sa_handler = on_abort};
    sigaction(SIGABRT, &now, &before);
    start.under_way = true;
    char configuration[280];
    snprintf(configuration, sizeof configuration, "--conf=%s", path);
    char program[] = "replay-server", type[] = "--proc-type=primary", process[] = "--proc-id=0";
    char *const arguments[] = {program, configuration, type, process, NULL};
    ff_init(4, arguments);
    start.under_way = false;
    sigaction(SIGABRT, &before, NULL);
    fflush(stdout);
    dup2(start.output, STDOUT_FILENO);
    dup2(start.error, STDERR_FILENO);
    close(start.output);
    close(start.error);
    close(start.said);
}

void fstack_silence_output(void) {
    fflush(stdout);
    dup2(STDERR_FILENO, STDOUT_FILENO);
}
