/* read_ahead: has the disk bring the next bytes of a file into memory while those before them are used. Without it the
 * disk rests meanwhile. Nothing depends on it. */
#ifndef REPLAY_BASE_READ_AHEAD_H
#define REPLAY_BASE_READ_AHEAD_H

#include <stdint.h>

/* Of one file; all zeros at its beginning. */
struct read_ahead {
    uint64_t asked; /* all before it the disk has been asked for */
};

/* Before each read. `at`: where it begins; places only ascend. `size`: of the file. */
void read_ahead(struct read_ahead *ahead, int descriptor, uint64_t at, uint64_t size);

#endif
