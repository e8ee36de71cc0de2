#include "tools/relay.h"

#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"

#define SOCKET_BYTES (32 << 20) /* frames wait there while this process is not running */

/* ---- frames ------------------------------------------------------------------------------------------ */

static struct relay_frame *take_frame(struct relay *relay) {
    struct relay_frame *frame = relay->free;
    if (frame) relay->free = frame->next;
    return frame;
}

static void give_back(struct relay *relay, struct relay_frame *frame) {
    frame->next = relay->free;
    relay->free = frame;
}

static bool make_frames(struct relay *relay) {
    size_t size = (sizeof(struct relay_frame) + relay->settings.frame_bytes + 63) & ~(size_t)63;
    size_t count = relay->settings.memory_bytes / size;
    relay->mapped_bytes = count * size;
    relay->memory = memory_map(relay->mapped_bytes);
    if (!relay->memory) return false;
    for (size_t i = count; i > 0; i--)
        give_back(relay, (struct relay_frame *)((uint8_t *)relay->memory + (i - 1) * size));
    return true;
}

/* ---- the line ---------------------------------------------------------------------------------------- */

/* The frame gets onto the line when all before it are off, and arrives its delay later; with too much waiting it is
 * dropped, as by a full queue. */
static void put_on_line(void *context, enum fault_direction direction, void *subject) {
    struct relay *relay = context;
    struct relay_path *path = &relay->paths[direction];
    struct relay_frame *frame = subject;
    double rate = relay->settings.rate_bits_per_s;
    uint64_t start_ns = path->free_ns > relay->now_ns ? path->free_ns : relay->now_ns;
    if (rate > 0) {
        double waiting_bytes = (double)(start_ns - relay->now_ns) * rate / 8e9;
        if (waiting_bytes > (double)relay->settings.queue_bytes) {
            path->dropped_queue++;
            give_back(relay, frame);
            return;
        }
        path->free_ns = start_ns + (uint64_t)((frame->size + RELAY_FRAME_OVERHEAD) * 8e9 / rate);
        start_ns = path->free_ns;
    }
    frame->due_ns = start_ns + relay->settings.delay_ns;
    frame->next = NULL;
    if (path->last)
        path->last->next = frame;
    else
        path->first = frame;
    path->last = frame;
}

static void lose(void *context, enum fault_direction direction, void *frame) {
    (void)direction;
    give_back(context, frame);
}

static void *copy(void *context, enum fault_direction direction, void *subject) {
    (void)direction;
    const struct relay_frame *frame = subject;
    struct relay_frame *made = take_frame(context);
    if (!made) return NULL;
    made->size = frame->size;
    memcpy(made->bytes, frame->bytes, frame->size);
    return made;
}

/* What is shorter than Ethernet's header cannot be sent. */
static void cut(void *context, enum fault_direction direction, void *subject, double share) {
    (void)context;
    (void)direction;
    struct relay_frame *frame = subject;
    uint32_t left = (uint32_t)(frame->size * share);
    if (left < ETH_HLEN) left = ETH_HLEN;
    if (left < frame->size) frame->size = left;
}

/* ---- sockets ----------------------------------------------------------------------------------------- */

static int refuse(struct error *error, const char *interface, const char *step) {
    return error_set(error, ERROR_GENERIC, "interface %s: %s: %s%s", interface, step, strerror(errno),
                     errno == EPERM ? " (packet sockets need CAP_NET_RAW)" : "");
}

static int open_socket(const char *interface, struct error *error) {
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL)};
    address.sll_ifindex = (int)if_nametoindex(interface);
    if (address.sll_ifindex == 0) return refuse(error, interface, "no such interface");
    int number = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (number < 0) return refuse(error, interface, "packet socket");
    int on = 1, bytes = SOCKET_BYTES;
    struct packet_mreq promiscuous = {.mr_ifindex = address.sll_ifindex, .mr_type = PACKET_MR_PROMISC};
    const char *failed = NULL;
    if (setsockopt(number, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) < 0)
        failed = "ignoring what goes out (Linux 4.20)";
    else if (setsockopt(number, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous, sizeof promiscuous) < 0)
        failed = "promiscuous";
    else if (bind(number, (struct sockaddr *)&address, sizeof address) < 0)
        failed = "bind";
    if (failed) {
        refuse(error, interface, failed);
        close(number);
        return -1;
    }
    setsockopt(number, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof on);
    /* More than the system's limit takes a privilege; without it there is less room. */
    if (setsockopt(number, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) < 0)
        setsockopt(number, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    return number;
}

int relay_open(struct relay *relay, const struct relay_settings *settings, struct error *error) {
    *relay = (struct relay){.settings = *settings, .paths = {{.from = -1, .to = -1}, {.from = -1, .to = -1}}};
    struct relay_settings *own = &relay->settings;
    if (own->memory_bytes == 0) own->memory_bytes = RELAY_MEMORY;
    if (own->queue_bytes == 0) {
        own->queue_bytes = (uint64_t)(own->rate_bits_per_s / 8 * 2 * (double)own->delay_ns / 1e9);
        if (own->queue_bytes < RELAY_QUEUE_LEAST) own->queue_bytes = RELAY_QUEUE_LEAST;
    }
    if (!make_frames(relay))
        return error_set(error, ERROR_GENERIC, "no memory for %llu bytes of frames",
                         (unsigned long long)own->memory_bytes);
    const struct fault_callbacks callbacks = {
        .context = relay, .pass = put_on_line, .drop = lose, .copy = copy, .cut = cut};
    if (own->faults && !(relay->faults = faults_new(own->faults, &callbacks)))
        return error_set(error, ERROR_GENERIC, "no memory for faults");
    for (int i = 0; i < 2; i++) {
        int number = open_socket(own->interfaces[i], error);
        if (number < 0) return -1;
        relay->paths[i].from = relay->paths[1 - i].to = number;
    }
    return 0;
}

void relay_close(struct relay *relay) {
    faults_free(relay->faults);
    for (int i = 0; i < 2; i++)
        if (relay->paths[i].from >= 0) close(relay->paths[i].from);
    if (relay->memory) memory_unmap(relay->memory, relay->mapped_bytes);
}

/* ---- carrying ---------------------------------------------------------------------------------------- */

static int prepare(struct relay *relay, struct relay_frame **frames, struct mmsghdr *messages, struct iovec *vectors) {
    int count = 0;
    while (count < (int)RELAY_BURST && (frames[count] = take_frame(relay))) {
        vectors[count] = (struct iovec){.iov_base = frames[count]->bytes, .iov_len = relay->settings.frame_bytes};
        messages[count] = (struct mmsghdr){.msg_hdr = {.msg_iov = &vectors[count], .msg_iovlen = 1}};
        count++;
    }
    return count;
}

/* Takes frames that have come. How many. */
static int receive(struct relay *relay, int direction) {
    struct relay_path *path = &relay->paths[direction];
    struct relay_frame *frames[RELAY_BURST];
    struct mmsghdr messages[RELAY_BURST];
    struct iovec vectors[RELAY_BURST];
    int room = prepare(relay, frames, messages, vectors);
    if (room == 0) { /* read away, so that the socket does not stay readable */
        uint8_t waste;
        if (recv(path->from, &waste, 1, MSG_TRUNC) < 0) return 0;
        path->dropped_memory++;
        return 1;
    }
    int got = recvmmsg(path->from, messages, (unsigned)room, MSG_TRUNC, NULL);
    relay->now_ns = clock_monotonic_ns();
    for (int i = 0; i < room; i++) {
        if (i >= got || messages[i].msg_len > relay->settings.frame_bytes) {
            path->dropped_oversize += i < got;
            give_back(relay, frames[i]);
            continue;
        }
        frames[i]->size = messages[i].msg_len;
        path->frames++;
        path->bytes += frames[i]->size;
        if (relay->faults)
            faults_frame(relay->faults, (enum fault_direction)direction, frames[i], relay->now_ns / 1000);
        else
            put_on_line(relay, (enum fault_direction)direction, frames[i]);
    }
    return got > 0 ? got : 0;
}

/* Sends a burst of what is due. How many. */
static int deliver(struct relay *relay, struct relay_path *path) {
    struct mmsghdr messages[RELAY_BURST];
    struct iovec vectors[RELAY_BURST];
    int count = 0;
    for (struct relay_frame *at = path->first; at && at->due_ns <= relay->now_ns && count < (int)RELAY_BURST;
         at = at->next, count++) {
        vectors[count] = (struct iovec){.iov_base = at->bytes, .iov_len = at->size};
        messages[count] = (struct mmsghdr){.msg_hdr = {.msg_iov = &vectors[count], .msg_iovlen = 1}};
    }
    for (int sent = 0; sent < count;) {
        int went = sendmmsg(path->to, messages + sent, (unsigned)(count - sent), 0);
        if (went > 0) {
            sent += went;
        } else if (errno != EINTR) { /* the device is down or full: the frame is lost, as on a line */
            path->dropped_send++;
            sent++;
        }
    }
    for (int i = 0; i < count; i++) {
        struct relay_frame *frame = path->first;
        latency_record(&relay->late, relay->now_ns - frame->due_ns);
        path->first = frame->next;
        give_back(relay, frame);
    }
    if (!path->first) path->last = NULL;
    return count;
}

/* When something is due next, after what is due now was done. */
static uint64_t next_due_ns(struct relay *relay) {
    uint64_t due_ns = UINT64_MAX;
    if (relay->faults) {
        uint64_t held_us = faults_poll(relay->faults, relay->now_ns / 1000);
        if (held_us != UINT64_MAX) due_ns = held_us * 1000;
    }
    for (int i = 0; i < 2; i++) {
        const struct relay_frame *first = relay->paths[i].first;
        if (first && first->due_ns < due_ns) due_ns = first->due_ns;
    }
    return due_ns;
}

int relay_run(struct relay *relay, const volatile sig_atomic_t *stopping, const sigset_t *waiting,
              struct error *error) {
    struct pollfd both[2] = {{.fd = relay->paths[0].from, .events = POLLIN},
                             {.fd = relay->paths[1].from, .events = POLLIN}};
    while (!*stopping) {
        relay->now_ns = clock_monotonic_ns();
        uint64_t due_ns = next_due_ns(relay);
        struct timespec until = {0};
        if (due_ns != UINT64_MAX && due_ns > relay->now_ns + relay->settings.spin_ns) {
            uint64_t left_ns = due_ns - relay->now_ns - relay->settings.spin_ns;
            until =
                (struct timespec){.tv_sec = (time_t)(left_ns / 1000000000u), .tv_nsec = (long)(left_ns % 1000000000u)};
        }
        if (ppoll(both, 2, due_ns == UINT64_MAX ? NULL : &until, waiting) < 0 && errno != EINTR)
            return error_set(error, ERROR_GENERIC, "cannot wait for frames: %s", strerror(errno));
        for (int i = 0; i < 2; i++)
            if (both[i].revents) receive(relay, i);
        relay->now_ns = clock_monotonic_ns();
        for (int i = 0; i < 2; i++) deliver(relay, &relay->paths[i]);
    }
    return 0;
}

/* ---- telling ----------------------------------------------------------------------------------------- */

void relay_report(struct relay *relay, struct text *out) {
    text_append(out, "{");
    for (int i = 0; i < 2; i++) {
        const struct relay_path *path = &relay->paths[i];
        struct fault_counters faults = {0};
        if (relay->faults) faults = faults_counters(relay->faults, (enum fault_direction)i);
        struct tpacket_stats socket = {0};
        socklen_t size = sizeof socket;
        getsockopt(path->from, SOL_PACKET, PACKET_STATISTICS, &socket, &size);
        text_append(out,
                    "\"from_%s\":{\"frames\":%llu,\"bytes\":%llu,\"dropped_queue\":%llu,\"dropped_memory\":%llu,"
                    "\"dropped_socket\":%u,\"dropped_oversize\":%llu,\"dropped_send\":%llu,"
                    "\"lost\":%llu,\"duplicated\":%llu,\"reordered\":%llu,\"cut\":%llu},",
                    relay->settings.interfaces[i], (unsigned long long)path->frames, (unsigned long long)path->bytes,
                    (unsigned long long)path->dropped_queue, (unsigned long long)path->dropped_memory, socket.tp_drops,
                    (unsigned long long)path->dropped_oversize, (unsigned long long)path->dropped_send,
                    (unsigned long long)faults.lost, (unsigned long long)faults.duplicated,
                    (unsigned long long)faults.reordered, (unsigned long long)faults.cut);
    }
    latency_append(&relay->late, "late_us", out);
    text_append(out, "}");
}
