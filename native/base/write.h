/* write: all of something to a descriptor, however often the system takes only a part of it. */
#ifndef REPLAY_BASE_WRITE_H
#define REPLAY_BASE_WRITE_H

#include <stddef.h>
#include <sys/uio.h>

/* -1 with `errno` set; part of it may be written then. */
int write_all(int descriptor, const void *bytes, size_t length);
int write_all_pieces(int descriptor, struct iovec *pieces, int count); /* which are no more what they were */

#endif
