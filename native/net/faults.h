/* faults: loses, doubles, reorders and cuts frames between a port and a stack, for tests. The same seed and the same frames
 * give the same faults in each direction, whatever the other direction does. Frames are opaque here. */
#ifndef REPLAY_NET_FAULTS_H
#define REPLAY_NET_FAULTS_H

#include <stdint.h>

#include "base/error.h"

#define FAULTS_HELD_MAX 64u /* frames held back at once in one direction; with so many the next is not held */

struct fault_settings {
    double loss; /* probabilities, of each frame by itself; to a lost frame nothing else happens */
    double duplicate;
    double reorder; /* of being held back until others have overtaken */
    double cut; /* of losing its end */
    uint64_t seed;
    uint32_t hold_frames; /* goes on after 1 to this many that were not held */
    uint32_t hold_us; /* and after this a frame goes on, whether others came or not */
};

enum fault_direction { FAULTS_RECEIVE, FAULTS_TRANSMIT, FAULTS_DIRECTIONS };

struct fault_counters {
    uint64_t frames, lost, duplicated, reordered, cut;
};

struct fault_callbacks {
    void *context;
    /* The frame goes on: to the stack or to the device. It belongs to the callee. */
    void (*pass)(void *context, enum fault_direction direction, void *frame);
    void (*drop)(void *context, enum fault_direction direction, void *frame);
    void *(*copy)(void *context, enum fault_direction direction, void *frame); /* NULL: no memory; then there is one */
    void (*cut)(void *context, enum fault_direction direction, void *frame,
                double share); /* leaves this share of it, < 1 */
};

struct faults;

/* Reads "loss=0.01,duplicate=0.01,reorder=0.01,cut=0.01,seed=1"; also hold-frames (8) and hold-us (2000). What is not said
 * is 0, but the seed is 1. Returns -1 with what is wrong. */
int faults_parse(const char *text, struct fault_settings *settings, struct error *error);
/* NULL: no memory. */
struct faults *faults_new(const struct fault_settings *settings, const struct fault_callbacks *callbacks);
/* A frame came. It is passed, dropped or held; `pass` is called from inside, also for frames held earlier. */
void faults_frame(struct faults *faults, enum fault_direction direction, void *frame, uint64_t now_us);
/* Passes the frames that were held long enough. Returns when the next is due (UINT64_MAX: none is held). */
uint64_t faults_poll(struct faults *faults, uint64_t now_us);
struct fault_counters faults_counters(const struct faults *faults, enum fault_direction direction);
void faults_free(struct faults *faults); /* drops what is held */

#endif
