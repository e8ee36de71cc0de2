/* eal: what F-Stack tells DPDK when it starts, put right: its config.ini knows no virtual devices but virtio_user. */
#include "net/fstack/eal.h"

#include <ctype.h>
#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_ethdev.h>
#include <rte_mbuf.h>

#include "base/memory.h"
#include "net/dpdk/pool.h"

#define ARGUMENTS_MAX 128
#define QUEUE_FRAMES 2048

int __real_rte_eal_init(int count, char **arguments);
int __wrap_rte_eal_init(int count, char **arguments);
int __real_rte_eth_dev_adjust_nb_rx_tx_desc(uint16_t port, uint16_t *received, uint16_t *sent);
int __wrap_rte_eth_dev_adjust_nb_rx_tx_desc(uint16_t port, uint16_t *received, uint16_t *sent);
struct rte_mempool *__wrap_rte_pktmbuf_pool_create(const char *name, unsigned count, unsigned cache_size,
                                                   uint16_t private_size, uint16_t room, int socket);

static struct eal_plan plan;
static struct rte_mempool *pool;

/* They live as long as the process: DPDK keeps pointers to its arguments. */
static struct {
    char text[4096];
    size_t used;
    char *pointers[ARGUMENTS_MAX + 1];
    int count;
} line;

void eal_plan_set(const struct eal_plan *wanted) {
    plan = *wanted;
}

bool eal_is_pci_address(const char *device) {
    size_t hex = strspn(device, "0123456789abcdefABCDEF:");
    return hex > 3 && device[hex] == '.' && isdigit((unsigned char)device[hex + 1]);
}

bool eal_huge_pages_free(uint64_t bytes) {
    static const char folder[] = "/sys/kernel/mm/hugepages";
    DIR *sizes = opendir(folder);
    if (!sizes) return false;
    uint64_t free_bytes = 0;
    for (const struct dirent *entry; (entry = readdir(sizes));) {
        unsigned long long page_kb, pages;
        char path[sizeof folder + sizeof entry->d_name + 16];
        snprintf(path, sizeof path, "%s/%s/free_hugepages", folder, entry->d_name);
        if (sscanf(entry->d_name, "hugepages-%llukB", &page_kb) != 1) continue;
        FILE *file = fopen(path, "r");
        if (!file) continue;
        if (fscanf(file, "%llu", &pages) == 1) free_bytes += pages * page_kb * 1024;
        fclose(file);
    }
    closedir(sizes);
    return free_bytes >= bytes && free_bytes > 0;
}

static void add(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void add(const char *format, ...) {
    if (line.count == ARGUMENTS_MAX || line.used >= sizeof line.text) return;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line.text + line.used, sizeof line.text - line.used, format, arguments);
    va_end(arguments);
    line.pointers[line.count++] = line.text + line.used;
    line.used += (size_t)length + 1;
}

/* Lcore 0, F-Stack's only one, on the processors that it is to run on. */
static void add_lcore(void) {
    if (plan.lcore >= 0) {
        add("--lcores=0@%d", plan.lcore);
        return;
    }
    char list[1024] = "";
    size_t used = 0;
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (int i = 0; i < CPU_SETSIZE && used < sizeof list - 8; i++) {
        if (CPU_ISSET(i, &allowed))
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%d", used ? "," : "", i);
    }
    add("--lcores=0@(%s)", list);
}

static void add_device(void) {
    if (plan.device[0] == '\0') return;
    if (eal_is_pci_address(plan.device)) {
        add("--allow=%s", plan.device);
    } else {
        add("--vdev=%s", plan.device);
        add("--no-pci");
    }
}

int __wrap_rte_eal_init(int count, char **arguments) {
    for (int i = 0; i < count; i++) {
        if (plan.places_lcore && strncmp(arguments[i], "-c", 2) == 0) continue;
        add("%s", arguments[i]);
    }
    if (plan.places_lcore) add_lcore();
    add_device();
    if (plan.memory_bytes > 0) {
        add("-m%llu", (unsigned long long)(plan.memory_bytes >> 20));
        /* Shares nothing and leaves nothing: several servers run side by side, and one may be killed. */
        add(plan.huge_pages ? "--in-memory" : "--no-huge");
        if (!plan.huge_pages) add("--no-shconf");
    }
    add("--no-telemetry");
    char *more = memory_alloc(strlen(plan.arguments) + 1);
    if (!more) return -1;
    strcpy(more, plan.arguments);
    char *rest = more;
    for (char *word; (word = strtok_r(rest, " ", &rest));) add("%s", word);
    memory_free(more);
    if (line.used > sizeof line.text || line.count == ARGUMENTS_MAX) {
        fprintf(stderr, "more than %d arguments for DPDK, or more than %zu bytes of them\n", ARGUMENTS_MAX - 1,
                sizeof line.text);
        return -1;
    }
    fputs("DPDK's arguments:", stderr);
    for (int i = 1; i < line.count; i++) fprintf(stderr, " %s", line.pointers[i]);
    fputc('\n', stderr);
    return __real_rte_eal_init(line.count, line.pointers);
}

/* F-Stack counts its frames for rings and bursts; received bytes that nobody has read yet lie in frames, too. */
struct rte_mempool *__wrap_rte_pktmbuf_pool_create(const char *name, unsigned count, unsigned cache_size,
                                                   uint16_t private_size, uint16_t room, int socket) {
    if (count < plan.frames) count = plan.frames;
    struct pool_shape shape = {
        .frames = count,
        .cached = cache_size,
        .private_bytes = private_size,
        .room_bytes = room,
        .socket = socket,
        .dense = pool_may_be_dense(plan.device),
    };
    pool = pool_create(name, &shape);
    return pool;
}

/* F-Stack's queues of 512 frames overflow under a few senders with windows of a megabyte: losses that look like the
 * network's. The device takes what it can of this. */
int __wrap_rte_eth_dev_adjust_nb_rx_tx_desc(uint16_t port, uint16_t *received, uint16_t *sent) {
    if (*received < QUEUE_FRAMES) *received = QUEUE_FRAMES;
    if (*sent < QUEUE_FRAMES) *sent = QUEUE_FRAMES;
    return __real_rte_eth_dev_adjust_nb_rx_tx_desc(port, received, sent);
}

struct eal_frames eal_frames_count(void) {
    if (!pool) return (struct eal_frames){0};
    return (struct eal_frames){.count = pool->size, .free = rte_mempool_avail_count(pool)};
}
