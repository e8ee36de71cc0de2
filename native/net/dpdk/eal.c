/* eal: arguments made from settings, and a log that is kept for the error's message. */
#include "net/dpdk/eal.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_log.h>

#include "base/clock.h"
#include "net/dpdk/memif.h"
#include "net/dpdk/queues.h"
#include "net/dpdk/start.h"

#define ARGUMENTS_MAX 64
#define ARGUMENTS_BYTES 4096
#define KEPT_BYTES 1024
#define ETHERNET_MTU 1500u
#define RING_BYTES (16u << 20) /* each way */
#define RING_BLOCK_BYTES 65536u
#define READY_US 10000000u /* in which another server has brought the device up */
#define PAUSE_US 10000u
#define RING_HEADER_BYTES 80 /* what net_af_packet's rings put before a frame, rounded up */

/* ---- the log --------------------------------------------------------------------------------------------------- */

static struct {
    char text[KEPT_BYTES]; /* the last lines, joined by "; " */
    size_t length;
    FILE *stream;
} kept;

static bool runs_memif;

/* What the EAL tells of every start. */
static bool is_usual(const char *line, size_t length) {
    static const char *const usual[] = {"EAL: Detected ", "EAL: Selected ", "EAL: Multi-process socket ",
                                        "EAL: Physical addresses are unavailable"};
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
        size_t begin = strlen(usual[i]);
        if (length >= begin && memcmp(line, usual[i], begin) == 0) return true;
    }
    return false;
}

static void keep_line(const char *line, size_t length) {
    while (length > 0 && isspace((unsigned char)line[length - 1])) length--;
    if (length == 0 || is_usual(line, length)) return;
    if (length > sizeof kept.text / 4) length = sizeof kept.text / 4;
    size_t more = length + (kept.length > 0 ? 2 : 0);
    while (kept.length + more >= sizeof kept.text) { /* the oldest go */
        char *next = strstr(kept.text, "; ");
        if (!next) {
            kept.length = 0;
            more = length;
            break;
        }
        kept.length -= (size_t)(next + 2 - kept.text);
        memmove(kept.text, next + 2, kept.length + 1);
    }
    if (kept.length > 0) {
        memcpy(kept.text + kept.length, "; ", 2);
        kept.length += 2;
    }
    memcpy(kept.text + kept.length, line, length);
    kept.length += length;
    kept.text[kept.length] = '\0';
}

static ssize_t keep_log(void *cookie, const char *text, size_t length) {
    (void)cookie;
    for (size_t from = 0; from < length;) {
        const char *end = memchr(text + from, '\n', length - from);
        size_t line = end ? (size_t)(end - text) - from : length - from;
        keep_line(text + from, line);
        from += line + 1;
    }
    return (ssize_t)length;
}

static void forget_log(void) {
    kept.length = 0;
    kept.text[0] = '\0';
}

const char *eal_last_words(void) {
    return kept.text;
}

static void open_log(void) {
    const cookie_io_functions_t functions = {.write = keep_log};
    kept.stream = fopencookie(NULL, "w", functions);
    if (!kept.stream) return; /* then it goes to stderr */
    setvbuf(kept.stream, NULL, _IOLBF, 0);
    rte_openlog_stream(kept.stream);
}

/* ---- arguments ------------------------------------------------------------------------------------------------- */

struct arguments {
    char *list[ARGUMENTS_MAX + 1];
    int count;
    char bytes[ARGUMENTS_BYTES];
    size_t used;
    bool failed;
};

static void add(struct arguments *arguments, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(struct arguments *arguments, const char *format, ...) {
    size_t room = sizeof arguments->bytes - arguments->used;
    va_list values;
    va_start(values, format);
    int length = vsnprintf(arguments->bytes + arguments->used, room, format, values);
    va_end(values);
    if (arguments->count == ARGUMENTS_MAX || length < 0 || (size_t)length >= room) {
        arguments->failed = true;
        return;
    }
    arguments->list[arguments->count++] = arguments->bytes + arguments->used;
    arguments->used += (size_t)length + 1;
}

static bool is_given(const char *arguments, const char *name) {
    size_t length = strlen(name);
    for (const char *at = strstr(arguments, name); at; at = strstr(at + 1, name)) {
        bool begins = at == arguments || at[-1] == ' ';
        if (begins && (at[length] == '\0' || at[length] == ' ' || at[length] == '=')) return true;
    }
    return false;
}

static void add_given(struct arguments *arguments, const char *given) {
    while (*given) {
        size_t length = strcspn(given, " ");
        if (length > 0) add(arguments, "%.*s", (int)length, given);
        given += length;
        given += strspn(given, " ");
    }
}

/* "0000:3b:00.0", "3b:00.0" */
static bool is_pci_address(const char *device) {
    size_t digits = strspn(device, "0123456789abcdefABCDEF:.");
    return strchr(device, ':') && (device[digits] == '\0' || device[digits] == ',');
}

static uint64_t free_hugepage_bytes(void) {
    static const unsigned kilobytes[] = {2048, 1048576};
    uint64_t bytes = 0;
    for (size_t i = 0; i < sizeof kilobytes / sizeof *kilobytes; i++) {
        char path[96];
        snprintf(path, sizeof path, "/sys/kernel/mm/hugepages/hugepages-%ukB/free_hugepages", kilobytes[i]);
        FILE *file = fopen(path, "re");
        unsigned long long pages = 0;
        if (file && fscanf(file, "%llu", &pages) == 1) bytes += (uint64_t)pages * kilobytes[i] * 1024;
        if (file) fclose(file);
    }
    return bytes;
}

static bool is_shared(const struct eal_settings *settings) {
    return settings->queues > 1;
}

/* Processes share memory by files of huge pages, and by nothing else. The lcores are their numbers, because each lcore has
 * frames at hand in the pools that they share. */
static int check_shared(const struct eal_settings *settings, struct error *error) {
    static const char *const against[] = {"--no-huge", "--in-memory", "--no-shconf", "--huge-unlink", "--proc-type",
                                          "--lcores",  "-l",          "-c",          "--main-lcore"};
    for (size_t i = 0; i < sizeof against / sizeof *against; i++)
        if (is_given(settings->arguments, against[i]))
            return error_set(error, ERROR_GENERIC,
                             "dpdk-eal: %s does not go with dpdk-queues %u, where processes share huge pages and each "
                             "has its own lcore: leave it out",
                             against[i], (unsigned)settings->queues);
    return 0;
}

/* Where the machine has too few huge pages set aside, ordinary ones serve: virtual devices need no others. */
static void add_memory(struct arguments *arguments, const struct eal_settings *settings) {
    const char *given = settings->arguments;
    if (is_shared(settings) || is_given(given, "--no-huge") || is_given(given, "--in-memory") ||
        is_given(given, "-m") || is_given(given, "--socket-mem"))
        return;
    if (free_hugepage_bytes() >= settings->memory_bytes) {
        add(arguments, "--in-memory"); /* leaves no files behind */
        return;
    }
    if (is_pci_address(settings->device))
        fprintf(stderr,
                "replay-server-dpdk: %llu MB of huge pages are wanted and %llu MB are free: ordinary pages serve, more "
                "slowly; setup_dpdk.sh reserves huge ones\n",
                (unsigned long long)(settings->memory_bytes >> 20), (unsigned long long)(free_hugepage_bytes() >> 20));
    add(arguments, "--no-shconf");
    add(arguments, "--no-huge");
    add(arguments, "-m");
    add(arguments, "%llu", (unsigned long long)((settings->memory_bytes + (1 << 20) - 1) >> 20));
}

/* One lcore, on the processor asked for, or floating over those that the thread may run on. */
static void add_lcore(struct arguments *arguments, const struct eal_settings *settings) {
    if (is_given(settings->arguments, "-l") || is_given(settings->arguments, "--lcores") ||
        is_given(settings->arguments, "-c"))
        return;
    unsigned number = is_shared(settings) ? settings->queue : 0;
    if (settings->lcore >= 0) {
        add(arguments, "--lcores=%u@%d", number, settings->lcore);
        return;
    }
    char text[2048] = "";
    size_t length = 0;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) < 0) return;
    for (int cpu = 0; cpu < CPU_SETSIZE && length < sizeof text - 8; cpu++) {
        if (!CPU_ISSET(cpu, &set)) continue;
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%d", length > 0 ? "," : "", cpu);
    }
    add(arguments, "--lcores=%u@(%s)", number, text);
}

/* The value of "iface=" in a device's arguments; "" where there is none. */
static void find_interface(const char *device, char name[IF_NAMESIZE]) {
    name[0] = '\0';
    const char *at = strstr(device, ",iface=");
    if (!at) return;
    at += strlen(",iface=");
    size_t length = strcspn(at, ",");
    if (length < IF_NAMESIZE) snprintf(name, IF_NAMESIZE, "%.*s", (int)length, at);
}

uint16_t eal_device_mtu(const char *device) {
    if (memif_is(device)) return memif_mtu(device);
    struct ifreq request = {0};
    find_interface(device, request.ifr_name);
    int probe = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool known = probe >= 0 && ioctl(probe, SIOCGIFMTU, &request) == 0;
    if (probe >= 0) close(probe);
    return known && request.ifr_mtu > 0 && request.ifr_mtu <= UINT16_MAX ? (uint16_t)request.ifr_mtu : ETHERNET_MTU;
}

/* The driver's own ring loses frames when several clients send at once (512 frames), and may hold no jumbo frame. */
static void add_af_packet(struct arguments *arguments, const struct eal_settings *settings) {
    unsigned frame = settings->frame_bytes > 0 ? settings->frame_bytes : eal_device_mtu(settings->device) + 18u;
    unsigned size = 2048;
    while (size < frame + RING_HEADER_BYTES && size < RING_BLOCK_BYTES) size *= 2;
    add(arguments, "--vdev=%s,framesz=%u,blocksz=%u,framecnt=%u", settings->device, size, RING_BLOCK_BYTES,
        RING_BYTES / size);
}

static bool is_veth(const char *interface) {
    struct ethtool_drvinfo driver = {.cmd = ETHTOOL_GDRVINFO};
    struct ifreq request = {.ifr_data = (char *)&driver};
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", interface);
    int probe = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool known = probe >= 0 && ioctl(probe, SIOCETHTOOL, &request) == 0;
    if (probe >= 0) close(probe);
    return known && strcmp(driver.driver, "veth") == 0;
}

/* The driver has the kernel poll the interface with a call whenever nothing has come. On a veth the sender's processor brings
 * the frames in anyway, and is only kept from it. (Elsewhere it is left as it is: without, the driver may wait in a call.) */
static void add_af_xdp(struct arguments *arguments, const char *device, const char *interface) {
    bool as_it_is = strstr(device, "busy_budget=") || !is_veth(interface);
    add(arguments, "--vdev=%s%s", device, as_it_is ? "" : ",busy_budget=0");
}

static int add_device(struct arguments *arguments, const struct eal_settings *settings, struct error *error) {
    const char *device = settings->device;
    if (device[0] == '\0') return 0; /* the given arguments name it */
    if (is_pci_address(device)) {
        add(arguments, "-a");
        add(arguments, "%s", device);
        return 0;
    }
    if (strncmp(device, "net_", 4) != 0 && strncmp(device, "eth_", 4) != 0)
        return error_set(
            error, ERROR_GENERIC,
            "dpdk-device '%s' is neither a PCI address (0000:3b:00.0; dpdk-devbind.py --status lists them) "
            "nor a virtual device (net_af_xdp0,iface=NAME)",
            device);
    char interface[IF_NAMESIZE];
    find_interface(device, interface);
    bool on_interface = strncmp(device, "net_af_", 7) == 0;
    if (on_interface && interface[0] == '\0')
        return error_set(error, ERROR_GENERIC, "dpdk-device '%s' names no interface: expected %.*s,iface=NAME", device,
                         (int)strcspn(device, ","), device);
    if (on_interface && if_nametoindex(interface) == 0)
        return error_set(
            error, ERROR_GENERIC,
            "dpdk-device '%s': there is no interface %s here (ip link lists them; a server in another network "
            "namespace sees others)",
            device, interface);
    add(arguments, "--no-pci");
    if (is_shared(settings) && settings->queue > 0) return 0; /* the first process tells of its virtual devices */
    if (strncmp(device, "net_af_packet", 13) == 0 && !strstr(device, "framesz="))
        add_af_packet(arguments, settings);
    else if (strncmp(device, "net_af_xdp", 10) == 0)
        add_af_xdp(arguments, device, interface);
    else
        add(arguments, "--vdev=%s", device);
    return 0;
}

/* The EAL wants a folder of its own even where it leaves nothing there. */
static void provide_runtime_folder(void) {
    if (getenv("RUNTIME_DIRECTORY") || access("/var/run", W_OK) == 0) return;
    char path[64];
    snprintf(path, sizeof path, "/tmp/replay-server-%ld", (long)geteuid());
    if (mkdir(path, 0700) == 0 || errno == EEXIST) setenv("RUNTIME_DIRECTORY", path, 0);
}

/* ---- several processes on one device ---------------------------------------------------------------------------- */

static char ready_path[PATH_MAX]; /* of a file that is there while the device runs; "": this process made none */

/* What is the same in all of them: what was given, or made of the device's name. */
static void find_prefix(const struct eal_settings *settings, char *prefix, size_t size) {
    static const char name[] = "--file-prefix";
    const char *given = is_given(settings->arguments, name) ? strstr(settings->arguments, name) + strlen(name) : NULL;
    if (given) {
        given += *given == '=' || *given == ' ';
        snprintf(prefix, size, "%.*s", (int)strcspn(given, " "), given);
        return;
    }
    snprintf(prefix, size, "replay-%.*s", (int)strcspn(settings->device, ","), settings->device);
    for (char *at = prefix; *at; at++)
        if (*at == ':' || *at == '/') *at = '_';
}

/* A file in the folder in which DPDK 22.11 keeps what belongs to a prefix. */
static void find_file(const struct eal_settings *settings, const char *name, char *path, size_t size) {
    const char *runtime = getenv("RUNTIME_DIRECTORY"), *own = getenv("XDG_RUNTIME_DIR");
    char prefix[96];
    find_prefix(settings, prefix, sizeof prefix);
    if (!runtime) runtime = getuid() == 0 ? "/var/run" : own ? own : "/tmp";
    snprintf(path, size, "%s/dpdk/%s/%s", runtime, prefix, name);
}

/* All of them may be started at the same time. */
static int wait_for_first(const struct eal_settings *settings, struct error *error) {
    char configuration[sizeof ready_path], ready[sizeof ready_path];
    find_file(settings, "config", configuration, sizeof configuration);
    find_file(settings, "replay_ready", ready, sizeof ready);
    uint64_t until_us = clock_monotonic_us() + READY_US;
    bool is_there;
    while (!(is_there = rte_eal_primary_proc_alive(configuration)) || access(ready, F_OK) < 0) {
        if (clock_monotonic_us() < until_us) {
            usleep(PAUSE_US);
            continue;
        }
        if (is_there)
            return error_set(
                error, ERROR_GENERIC,
                "dpdk-queue %u: the process that holds %s brings no device up for other processes: is it a "
                "server with dpdk-queues %u?",
                (unsigned)settings->queue, configuration, (unsigned)settings->queues);
        return error_set(
            error, ERROR_GENERIC,
            "dpdk-queue %u: no server with dpdk-queue 0 runs on this device (%s is no running process's): start it "
            "first, with the same dpdk-device, --file-prefix and RUNTIME_DIRECTORY",
            (unsigned)settings->queue, configuration);
    }
    return 0;
}

/* Where the first process was killed, the others notice by the lock on its configuration, which nobody may take before. */
static int wait_for_earlier(const struct eal_settings *settings, struct error *error) {
    uint64_t until_us = clock_monotonic_us() + READY_US;
    for (unsigned queue = 1; queue < QUEUES_MOST; queue++) {
        char name[32], path[sizeof ready_path];
        snprintf(name, sizeof name, QUEUES_LOCK, queue);
        find_file(settings, name, path, sizeof path);
        int lock = open(path, O_RDWR | O_CLOEXEC);
        while (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) < 0) {
            if (clock_monotonic_us() < until_us) {
                usleep(PAUSE_US);
                continue;
            }
            close(lock);
            return error_set(
                error, ERROR_GENERIC,
                "dpdk-queue 0: the server with dpdk-queue %u is still ending after the one with dpdk-queue 0 "
                "has gone: start again when it has",
                queue);
        }
        if (lock >= 0) close(lock);
    }
    return 0;
}

/* Before the EAL starts. */
static int begin_sharing(const struct eal_settings *settings, struct error *error) {
    if (settings->queue > 0) return wait_for_first(settings, error);
    char configuration[sizeof ready_path];
    find_file(settings, "config", configuration, sizeof configuration);
    find_file(settings, "replay_ready", ready_path, sizeof ready_path);
    if (rte_eal_primary_proc_alive(configuration)) {
        ready_path[0] = '\0'; /* it is the other's */
        return error_set(
            error, ERROR_EXISTS,
            "dpdk-queue 0: another process owns the device (it holds %s): give this server another dpdk-queue",
            configuration);
    }
    unlink(ready_path); /* of one that was killed */
    return wait_for_earlier(settings, error);
}

int eal_tell_ready(struct error *error) {
    FILE *file = fopen(ready_path, "we");
    if (file && fclose(file) == 0) return 0;
    return error_set(error, ERROR_GENERIC, "cannot write %s: %s", ready_path, strerror(errno));
}

static const char pages_advice[] =
    "servers on one device share files of huge pages: are some reserved, and is a hugetlbfs "
    "mounted (dpdk-hugepages.py --show; setup_dpdk.sh reserves them)?";

/* ---- start and end --------------------------------------------------------------------------------------------- */

static int build(struct arguments *arguments, const struct eal_settings *settings, struct error *error) {
    add(arguments, "replay-server-dpdk");
    if (is_shared(settings)) {
        if (check_shared(settings, error) < 0) return -1;
        char prefix[96];
        find_prefix(settings, prefix, sizeof prefix);
        if (!is_given(settings->arguments, "--file-prefix")) add(arguments, "--file-prefix=%s", prefix);
        add(arguments, "--proc-type=%s", settings->queue == 0 ? "primary" : "secondary");
    }
    add_lcore(arguments, settings);
    add_memory(arguments, settings);
    if (!is_shared(settings) && !is_given(settings->arguments, "--file-prefix"))
        add(arguments, "--file-prefix=replay%ld", (long)getpid());
    if (!is_given(settings->arguments, "--no-telemetry")) add(arguments, "--no-telemetry");
    if (add_device(arguments, settings, error) < 0) return -1;
    add_given(arguments, settings->arguments);
    if (arguments->failed)
        return error_set(error, ERROR_GENERIC, "dpdk-eal: more than %d arguments, or %d bytes of them", ARGUMENTS_MAX,
                         ARGUMENTS_BYTES);
    return 0;
}

const char *eal_advice(const char *device) {
    if (geteuid() != 0) return "try as root, or give the program CAP_NET_RAW, CAP_NET_ADMIN and CAP_IPC_LOCK";
    if (is_pci_address(device))
        return "is the device bound to vfio-pci (dpdk-devbind.py --status shows it, setup_dpdk.sh binds it)? "
               "`replay-server "
               "doctor` looks for what is amiss";
    if (strncmp(device, "net_af_xdp", 10) == 0)
        return "drivers without XDP of their own (e1000e is one) do not carry it: take net_af_packet0,iface=NAME "
               "(setup_dpdk.sh --via af_packet). `replay-server doctor` looks for what is amiss";
    return "is its driver's library there (package librte-net-…)? `replay-server doctor` looks for what is amiss";
}

int eal_start(const struct eal_settings *settings, char name[EAL_NAME_BYTES], struct error *error) {
    static struct arguments arguments; /* the EAL keeps pointers into it */
    if (build(&arguments, settings, error) < 0) return -1;
    provide_runtime_folder();
    if (is_shared(settings) && begin_sharing(settings, error) < 0) return -1;
    runs_memif = memif_is(settings->device);
    if (runs_memif && memif_check_path(settings->device, error) < 0) return -1;
    open_log();
    forget_log();
    snprintf(name, EAL_NAME_BYTES, "%.*s", (int)strcspn(settings->device, ","), settings->device);
    if (start_eal(arguments.count, arguments.list) < 0) {
        int code = rte_errno;
        return error_set(error, ERROR_GENERIC, "DPDK did not start: %s (%s); %s",
                         kept.length > 0 ? kept.text : "it gave no reason", rte_strerror(code),
                         is_shared(settings) ? pages_advice : eal_advice(settings->device));
    }
    rte_log_set_global_level(RTE_LOG_WARNING);
    return 0; /* what it said is kept: a device that it could not make is no failure to the EAL */
}

/* When net_memif is closed, the EAL's interrupt thread looks once more at memory that the cleanup unmaps (DPDK 22.11): the end
 * of the process does instead. */
void eal_end(void) {
    if (ready_path[0] != '\0') unlink(ready_path);
    if (!runs_memif) rte_eal_cleanup();
    rte_openlog_stream(stderr);
    if (kept.stream) fclose(kept.stream);
    kept.stream = NULL;
}
