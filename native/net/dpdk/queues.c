/* queues: a process may be killed at any instruction, and the others go on. So no two processes write to the same word, but
 * for claims on a place, and nobody waits for anybody while frames flow:
 *
 * - Each queue has its own pool, and only the process that serves the queue takes from it and gives back to it. (While nobody
 *   does, the first process does; it copies what comes into its own pool, and has given all back before it grants the queue.)
 * - A ring for each direction between two processes. The giver writes `given`, after the frame's address; the taker copies
 *   the frame into its own pool, then writes `taken`; then the giver frees the frame. So a frame's memory never changes
 *   hands, and a ring whose taker has died is full for ever and does no more harm than that.
 *
 * What a killed process leaves is its queue: it may have died half-way through the driver's bookkeeping, so nobody can serve
 * that queue until the device has been started again. A lock on a file tells whether a process lives, because it goes with the
 * process, however that ends. */
#include "net/dpdk/queues.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <rte_arp.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_ether.h>
#include <rte_ip.h>
#include <rte_lcore.h>
#include <rte_memzone.h>

#include "base/clock.h"
#include "base/memory.h"

#define ZONE "replay_queues"
#define LINE_BYTES 64
#define PORTS_MOST 4 /* that one process listens on */
#define BURST 32u
#define GRANT_US 10000000u /* in which the first process gives up a queue: it looks at every turn of its loop */
#define LEAVE_US 5000000u /* in which all others have ended */
#define LOCK_TRIES 100 /* at PAUSE_US: the first process may hold the lock while it looks whether another does */
#define PAUSE_US 1000u
#define EVERYBODY (-1)

enum place_state {
    PLACE_UNPOLLED, /* nobody's, and the first process does not poll yet: may be taken */
    PLACE_FREE, /* the first process polls it */
    PLACE_WANTED, /* it is asked to stop that */
    PLACE_TAKEN
};

struct place {
    _Alignas(LINE_BYTES) _Atomic int state; /* enum place_state */
    _Atomic int process; /* to be told of */
    _Atomic uint32_t address; /* 0: none */
    _Atomic uint16_t ports[PORTS_MOST]; /* 0: none */
};

struct ring {
    _Alignas(LINE_BYTES) _Atomic uint32_t given; /* the giver's line */
    uint32_t freed;
    _Alignas(LINE_BYTES) _Atomic uint32_t taken; /* the taker's */
    _Alignas(LINE_BYTES) struct rte_mbuf *frames[QUEUES_RING];
};

struct shared {
    uint16_t count;
    struct device device;
    _Atomic bool is_ending, is_up;
    struct place places[QUEUES_MOST];
    struct ring rings[]; /* from one to another: of from × count + to */
};

struct queues {
    struct shared *shared;
    uint16_t mine, port;
    bool is_polling; /* of the first: it has begun */
    int locks[QUEUES_MOST]; /* descriptors: of the first to look at all, of others only their own */
    bool is_known_dead[QUEUES_MOST];
    struct rte_mempool *pools[QUEUES_MOST]; /* in the first all of them, in others only its own */
    uint64_t given, taken, adopted, refused;
};

void queues_pool_name(uint16_t queue, char name[RTE_MEMPOOL_NAMESIZE]) {
    snprintf(name, RTE_MEMPOOL_NAMESIZE, "frames%u", (unsigned)queue);
}

struct rte_mempool *queues_pool(uint16_t queue) {
    char name[RTE_MEMPOOL_NAMESIZE];
    queues_pool_name(queue, name);
    return rte_mempool_lookup(name);
}

/* ---- making, joining, leaving ---------------------------------------------------------------------------------- */

static int open_lock(uint16_t queue, struct error *error) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/" QUEUES_LOCK, rte_eal_get_runtime_dir(), (unsigned)queue);
    int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    return lock >= 0 ? lock : error_set(error, ERROR_GENERIC, "cannot open %s: %s", path, strerror(errno));
}

static void queues_free(struct queues *queues) {
    for (uint16_t queue = 0; queue < QUEUES_MOST; queue++)
        if (queues->locks[queue] >= 0) close(queues->locks[queue]);
    memory_free(queues);
}

static struct queues *queues_new(struct shared *shared, uint16_t mine, uint16_t port, struct error *error) {
    struct queues *queues = memory_calloc(1, sizeof *queues);
    if (!queues) {
        error_set(error, ERROR_GENERIC, "no memory for a device's queues");
        return NULL;
    }
    *queues = (struct queues){.shared = shared, .mine = mine, .port = port};
    for (uint16_t queue = 0; queue < QUEUES_MOST; queue++) queues->locks[queue] = -1;
    for (uint16_t queue = 0; queue < shared->count; queue++) {
        if (mine > 0 && queue != mine) continue;
        queues->pools[queue] = queues_pool(queue);
        queues->locks[queue] = open_lock(queue, error);
        if (queues->locks[queue] >= 0) continue;
        queues_free(queues);
        return NULL;
    }
    return queues;
}

struct queues *queues_make(uint16_t count, uint16_t port, const struct device *device, struct error *error) {
    size_t bytes = sizeof(struct shared) + (size_t)count * count * sizeof(struct ring);
    const struct rte_memzone *zone = rte_memzone_reserve_aligned(ZONE, bytes, SOCKET_ID_ANY, 0, LINE_BYTES);
    if (!zone) {
        error_set(error, ERROR_GENERIC, "no memory for the rings between %u queues: %s", (unsigned)count,
                  rte_strerror(rte_errno));
        return NULL;
    }
    struct shared *shared = zone->addr;
    memset(shared, 0, bytes);
    shared->count = count;
    shared->device = *device;
    atomic_store(&shared->places[0].process, (int)getpid());
    atomic_store(&shared->places[0].state, PLACE_TAKEN);
    return queues_new(shared, 0, port, error);
}

/* In the first process, of a place that is taken. */
static bool is_dead(const struct queues *queues, uint16_t queue) {
    if (flock(queues->locks[queue], LOCK_EX | LOCK_NB) < 0) return false;
    flock(queues->locks[queue], LOCK_UN);
    return true;
}

static bool lock_place(const struct queues *queues) {
    for (int i = 0; i < LOCK_TRIES; i++) {
        if (flock(queues->locks[queues->mine], LOCK_EX | LOCK_NB) == 0) return true;
        usleep(PAUSE_US);
    }
    return false;
}

/* The first process may be polling the queue: then it is asked to stop. */
static int take_place(const struct queues *queues, struct error *error) {
    uint16_t queue = queues->mine;
    struct place *place = &queues->shared->places[queue];
    if (!lock_place(queues))
        return error_set(error, ERROR_EXISTS, "dpdk-queue %u is process %d's: choose another", (unsigned)queue,
                         atomic_load(&place->process));
    int found = PLACE_UNPOLLED;
    if (!atomic_compare_exchange_strong(&place->state, &found, PLACE_TAKEN)) {
        found = PLACE_FREE;
        if (!atomic_compare_exchange_strong(&place->state, &found, PLACE_WANTED))
            return error_set(error, ERROR_GENERIC,
                             "dpdk-queue %u was that of process %d, which died without giving it back, and nobody can "
                             "tell how it left the device: end all servers on this device, and start them again",
                             (unsigned)queue, atomic_load(&place->process));
    }
    atomic_store(&place->process, (int)getpid());
    uint64_t until_us = clock_monotonic_us() + GRANT_US;
    while (atomic_load(&place->state) != PLACE_TAKEN) {
        int wanted = PLACE_WANTED;
        if (clock_monotonic_us() > until_us && atomic_compare_exchange_strong(&place->state, &wanted, PLACE_FREE))
            return error_set(error, ERROR_GENERIC, "dpdk-queue %u: the server with dpdk-queue 0 does not give it up",
                             (unsigned)queue);
        usleep(PAUSE_US);
    }
    return 0;
}

struct queues *queues_join(uint16_t count, uint16_t queue, uint16_t port, struct device *device, struct error *error) {
    const struct rte_memzone *zone = rte_memzone_lookup(ZONE);
    if (!zone) {
        error_set(error, ERROR_GENERIC,
                  "dpdk-queue %u: the DPDK process of that --file-prefix is no server with dpdk-queue 0",
                  (unsigned)queue);
        return NULL;
    }
    struct shared *shared = zone->addr;
    if (shared->count != count) {
        error_set(error, ERROR_GENERIC, "dpdk-queues %u: the server with dpdk-queue 0 was started with dpdk-queues %u",
                  (unsigned)count, (unsigned)shared->count);
        return NULL;
    }
    struct queues *queues = queues_new(shared, queue, port, error);
    if (queues && take_place(queues, error) < 0) {
        queues_free(queues);
        return NULL;
    }
    *device = shared->device;
    return queues;
}

/* Whether all have left. One that was killed never will. */
static bool wait_for_others(const struct queues *queues) {
    uint64_t until_us = clock_monotonic_us() + LEAVE_US;
    bool have_left = true;
    for (uint16_t queue = 1; queue < queues->shared->count; queue++) {
        const struct place *place = &queues->shared->places[queue];
        bool is_taken;
        while ((is_taken = atomic_load(&place->state) >= PLACE_WANTED) && !is_dead(queues, queue) &&
               clock_monotonic_us() < until_us)
            usleep(PAUSE_US);
        have_left = have_left && !is_taken;
    }
    return have_left;
}

bool queues_leave(struct queues *queues) {
    struct shared *shared = queues->shared;
    struct place *place = &shared->places[queues->mine];
    bool is_nobodys = false;
    for (int i = 0; i < PORTS_MOST; i++) atomic_store(&place->ports[i], 0);
    atomic_store(&place->address, 0);
    if (queues->mine == 0) {
        atomic_store(&shared->is_ending, true);
        is_nobodys = wait_for_others(queues);
        if (is_nobodys) rte_memzone_free(rte_memzone_lookup(ZONE));
    } else {
        atomic_store(&place->state, PLACE_FREE);
    }
    queues_free(queues);
    return is_nobodys;
}

/* ---- whose a frame is ------------------------------------------------------------------------------------------ */

static bool has_port(const struct place *place, uint16_t port) {
    for (int i = 0; i < PORTS_MOST; i++)
        if (atomic_load_explicit(&place->ports[i], memory_order_relaxed) == port) return port != 0;
    return false;
}

static bool has_address(const struct place *place, uint32_t address) {
    return address != 0 && atomic_load_explicit(&place->address, memory_order_relaxed) == address;
}

static int first_with(const struct queues *queues, uint32_t address) {
    for (uint16_t queue = 0; queue < queues->shared->count; queue++)
        if (has_address(&queues->shared->places[queue], address)) return queue;
    return queues->mine;
}

static int owner_of_port(const struct queues *queues, uint32_t address, uint16_t port) {
    const struct place *places = queues->shared->places;
    if (has_address(&places[queues->mine], address) && has_port(&places[queues->mine], port)) return queues->mine;
    for (uint16_t queue = 0; queue < queues->shared->count; queue++)
        if (has_address(&places[queue], address) && has_port(&places[queue], port)) return queue;
    return first_with(queues, address); /* which refuses the connection */
}

/* Questions after an address go to who has it. All else of ARP tells where a host is, and every stack keeps its own notes. */
static int owner_of_arp(const struct queues *queues, const struct rte_arp_hdr *arp) {
    bool is_question = arp->arp_opcode == rte_cpu_to_be_16(RTE_ARP_OP_REQUEST);
    for (uint16_t queue = 0; is_question && queue < queues->shared->count; queue++)
        if (has_address(&queues->shared->places[queue], arp->arp_data.arp_tip)) return queue;
    return EVERYBODY;
}

/* A frame that is too short or of another kind stays where it came: the port and the stack judge it. */
static int owner_of(const struct queues *queues, const struct rte_mbuf *frame) {
    uint32_t length = rte_pktmbuf_data_len(frame);
    const struct rte_ether_hdr *ethernet = rte_pktmbuf_mtod(frame, const struct rte_ether_hdr *);
    if (length < sizeof *ethernet + sizeof(struct rte_ipv4_hdr)) return queues->mine;
    if (ethernet->ether_type == rte_cpu_to_be_16(RTE_ETHER_TYPE_ARP)) {
        const struct rte_arp_hdr *arp = (const void *)(ethernet + 1);
        return length < sizeof *ethernet + sizeof *arp ? queues->mine : owner_of_arp(queues, arp);
    }
    if (ethernet->ether_type != rte_cpu_to_be_16(RTE_ETHER_TYPE_IPV4)) return queues->mine;
    const struct rte_ipv4_hdr *ip = (const void *)(ethernet + 1);
    uint32_t header = (ip->version_ihl & 15u) * 4u;
    if (ip->next_proto_id != IPPROTO_TCP || length < sizeof *ethernet + header + 4)
        return first_with(queues, ip->dst_addr);
    uint16_t port;
    memcpy(&port, (const uint8_t *)ip + header + 2, sizeof port);
    return owner_of_port(queues, ip->dst_addr, port);
}

/* ---- handing over ---------------------------------------------------------------------------------------------- */

static struct ring *ring_of(const struct queues *queues, uint16_t from, uint16_t to) {
    return &queues->shared->rings[(size_t)from * queues->shared->count + to];
}

static void give(struct queues *queues, uint16_t to, struct rte_mbuf *frame) {
    struct ring *ring = ring_of(queues, queues->mine, to);
    uint32_t taken = atomic_load_explicit(&ring->taken, memory_order_acquire);
    while (ring->freed != taken) rte_pktmbuf_free(ring->frames[ring->freed++ % QUEUES_RING]);
    uint32_t given = atomic_load_explicit(&ring->given, memory_order_relaxed);
    if (given - taken == QUEUES_RING) {
        queues->refused++;
        rte_pktmbuf_free(frame);
        return;
    }
    ring->frames[given % QUEUES_RING] = frame;
    atomic_store_explicit(&ring->given, given + 1, memory_order_release);
    queues->given++;
}

static void give_copies(struct queues *queues, const struct rte_mbuf *frame) {
    for (uint16_t queue = 0; queue < queues->shared->count; queue++) {
        bool is_there = queue != queues->mine && atomic_load(&queues->shared->places[queue].state) == PLACE_TAKEN;
        struct rte_mbuf *copy = is_there ? rte_pktmbuf_copy(frame, queues->pools[queues->mine], 0, UINT32_MAX) : NULL;
        if (copy) give(queues, queue, copy);
    }
}

uint32_t queues_sort(struct queues *queues, struct rte_mbuf **frames, uint32_t count) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        int owner = owner_of(queues, frames[i]);
        if (owner == EVERYBODY) give_copies(queues, frames[i]);
        if (owner == EVERYBODY || owner == queues->mine)
            frames[kept++] = frames[i];
        else
            give(queues, (uint16_t)owner, frames[i]);
    }
    return kept;
}

/* A copy in this process's own memory, as one more of `frames`; how many there are then. */
static uint32_t copy_in(struct queues *queues, const struct rte_mbuf *frame, struct rte_mbuf **frames, uint32_t count) {
    frames[count] = rte_pktmbuf_copy(frame, queues->pools[queues->mine], 0, UINT32_MAX);
    if (frames[count]) return count + 1;
    queues->refused++;
    return count;
}

static uint32_t take_from(struct queues *queues, uint16_t from, struct rte_mbuf **frames, uint32_t most) {
    struct ring *ring = ring_of(queues, from, queues->mine);
    uint32_t given = atomic_load_explicit(&ring->given, memory_order_acquire);
    uint32_t taken = atomic_load_explicit(&ring->taken, memory_order_relaxed), count = 0;
    while (taken != given && count < most) {
        count = copy_in(queues, ring->frames[taken++ % QUEUES_RING], frames, count);
        atomic_store_explicit(&ring->taken, taken, memory_order_release);
    }
    queues->taken += count;
    return count;
}

/* What came to a queue that nobody serves. */
static uint32_t adopt(struct queues *queues, uint16_t queue, struct rte_mbuf **frames, uint32_t most) {
    struct rte_mbuf *burst[BURST];
    uint32_t count = rte_eth_rx_burst(queues->port, queue, burst, (uint16_t)(most < BURST ? most : BURST)), copied = 0;
    for (uint32_t i = 0; i < count; i++) {
        copied = copy_in(queues, burst[i], frames, copied);
        rte_pktmbuf_free(burst[i]);
    }
    queues->adopted += copied;
    return queues_sort(queues, frames, copied);
}

/* What this thread has at hand of the queue's pool is its next process's. */
static void grant(struct queues *queues, uint16_t queue) {
    struct rte_mempool *pool = queues->pools[queue];
    rte_mempool_cache_flush(rte_mempool_default_cache(pool, rte_lcore_id()), pool);
    int wanted = PLACE_WANTED; /* unless it no longer waits */
    atomic_compare_exchange_strong(&queues->shared->places[queue].state, &wanted, PLACE_TAKEN);
}

static void begin_polling(struct queues *queues) {
    queues->is_polling = true;
    for (uint16_t queue = 1; queue < queues->shared->count; queue++) {
        int unpolled = PLACE_UNPOLLED;
        atomic_compare_exchange_strong(&queues->shared->places[queue].state, &unpolled, PLACE_FREE);
    }
}

uint32_t queues_take(struct queues *queues, struct rte_mbuf **frames, uint32_t most) {
    uint32_t count = 0;
    bool is_first = queues->mine == 0;
    if (is_first && !queues->is_polling) begin_polling(queues);
    for (uint16_t queue = 0; queue < queues->shared->count; queue++) {
        if (queue == queues->mine) continue;
        count += take_from(queues, queue, frames + count, most - count);
        if (!is_first) continue;
        int state = atomic_load_explicit(&queues->shared->places[queue].state, memory_order_acquire);
        if (state == PLACE_WANTED) grant(queues, queue);
        if (state == PLACE_FREE) count += adopt(queues, queue, frames + count, most - count);
    }
    return count;
}

/* ---- addresses and ports --------------------------------------------------------------------------------------- */

void queues_own_address(struct queues *queues, uint32_t address) {
    atomic_store(&queues->shared->places[queues->mine].address, address);
}

/* Says what is its own before it looks at the others, so of two that take the same port at the same time one at least notices. */
int queues_own_port(struct queues *queues, uint16_t port, struct error *error) {
    struct place *mine = &queues->shared->places[queues->mine];
    int at = 0;
    while (at < PORTS_MOST && atomic_load(&mine->ports[at]) != 0) at++;
    if (at == PORTS_MOST) return error_set(error, ERROR_LIMIT, "more than %d ports of one queue", PORTS_MOST);
    atomic_store(&mine->ports[at], port);
    for (uint16_t queue = 0; queue < queues->shared->count; queue++) {
        const struct place *place = &queues->shared->places[queue];
        if (queue == queues->mine || !has_address(place, atomic_load(&mine->address)) || !has_port(place, port))
            continue;
        atomic_store(&mine->ports[at], 0);
        return error_set(error, ERROR_EXISTS, "the server with dpdk-queue %u has this port of this address",
                         (unsigned)queue);
    }
    return 0;
}

/* ---- watching and telling -------------------------------------------------------------------------------------- */

static void tell_of_dead(struct queues *queues) {
    for (uint16_t queue = 1; queue < queues->shared->count; queue++) {
        const struct place *place = &queues->shared->places[queue];
        if (queues->is_known_dead[queue] || atomic_load(&place->state) != PLACE_TAKEN || !is_dead(queues, queue))
            continue;
        queues->is_known_dead[queue] = true;
        fprintf(
            stderr,
            "replay-server-dpdk: process %d, which had dpdk-queue %u, died: frames that the device puts into it are "
            "lost, other servers' among them, until all servers on the device are ended and started again\n",
            atomic_load(&place->process), (unsigned)queue);
    }
}

bool queues_look_after(struct queues *queues, bool is_up) {
    if (queues->mine == 0) {
        atomic_store(&queues->shared->is_up, is_up);
        tell_of_dead(queues);
        return true;
    }
    return !atomic_load(&queues->shared->is_ending) && rte_eal_primary_proc_alive(NULL);
}

bool queues_link_is_up(const struct queues *queues) {
    return atomic_load(&queues->shared->is_up);
}

void queues_describe(const struct queues *queues, struct text *out) {
    text_append(out, "transport_queue:%u\r\ntransport_queues:%u\r\n", (unsigned)queues->mine,
                (unsigned)queues->shared->count);
    text_append(out, "transport_frames_handed_over:%llu\r\ntransport_frames_taken_over:%llu\r\n",
                (unsigned long long)queues->given, (unsigned long long)queues->taken);
    text_append(out, "transport_frames_adopted:%llu\r\ntransport_frames_not_handed_over:%llu\r\n",
                (unsigned long long)queues->adopted, (unsigned long long)queues->refused);
}
