/* write: writes all of a buffer to a descriptor, even if the system takes only a part at a time. */
#ifndef REPLAY_BASE_WRITE_H
#define REPLAY_BASE_WRITE_H

#include <stddef.h>
#include <sys/uio.h>

/* -1 with `errno` set; part of it may be written then. */
int write_all(int descriptor, const void *bytes, size_t length);
int write_all_pieces(int descriptor, struct iovec *pieces, int count); /* which are no more what they were */

#endif
