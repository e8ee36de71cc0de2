/* relay: carries Ethernet frames between two interfaces, with the delay, the rate and the faults of a network link.
 * The two ends keep their own TCP connection. Frames come and go through packet sockets. The relay makes the
 * interfaces promiscuous; at the ends, switch segmentation and checksum offloads off. One thread. */
#ifndef REPLAY_TOOLS_RELAY_H
#define REPLAY_TOOLS_RELAY_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"
#include "net/faults.h"
#include "tools/latency.h"

#define RELAY_FRAME_OVERHEAD 24u /* bytes a frame takes on a line beside its own: preamble, check sequence, gap */

struct relay_settings {
    const char *interfaces[2];
    uint64_t delay_ns; /* one way */
    double rate_bits_per_s; /* 0: no bound */
    uint64_t queue_bytes; /* that may wait for the line before frames are dropped; 0: what the line holds both ways, at
                              * least RELAY_QUEUE_LEAST */
    uint64_t memory_bytes; /* of frames under way; 0: RELAY_MEMORY */
    uint32_t frame_bytes; /* the largest frame */
    uint64_t spin_ns; /* so long before a frame is due it waits awake: sleeping ends late */
    const struct fault_settings *faults; /* NULL: none */
};

#define RELAY_QUEUE_LEAST (256u << 10)
#define RELAY_MEMORY (128u << 20)
#define RELAY_BURST 64u

struct relay_frame {
    struct relay_frame *next;
    uint64_t due_ns;
    uint32_t size;
    uint8_t bytes[];
};

/* From one interface to the other. */
struct relay_path {
    int from, to; /* packet sockets */
    struct relay_frame *first, *last; /* under way, the earliest due first */
    uint64_t free_ns; /* when the line has sent what it was given */
    uint64_t frames, bytes;
    uint64_t dropped_queue, dropped_memory, dropped_oversize, dropped_send;
};

struct relay {
    struct relay_settings settings;
    struct relay_path paths[2]; /* from the first interface, and from the second */
    struct relay_frame *free;
    void *memory;
    size_t mapped_bytes;
    struct faults *faults;
    uint64_t now_ns;
    struct latency late; /* how long after it was due a frame was sent */
};

int relay_open(struct relay *relay, const struct relay_settings *settings, struct error *error);
/* Until `*stopping`. Signals that set it should be blocked: they are let in with `waiting`. */
int relay_run(struct relay *relay, const volatile sig_atomic_t *stopping, const sigset_t *waiting, struct error *error);
void relay_report(struct relay *relay, struct text *out); /* a JSON object */
void relay_close(struct relay *relay);

#endif
