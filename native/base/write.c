/* write: calls of writev until all is written. */
#include "base/write.h"

#include <errno.h>
#include <stdint.h>

int write_all_pieces(int descriptor, struct iovec *pieces, int count) {
    while (count > 0) {
        ssize_t written = writev(descriptor, pieces, count);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return -1;
        size_t left = (size_t)written;
        int before = count;
        for (; count > 0 && left >= pieces->iov_len; pieces++, count--) left -= pieces->iov_len;
        if (count > 0) {
            pieces->iov_base = (uint8_t *)pieces->iov_base + left;
            pieces->iov_len -= left;
        }
        if (written == 0 && count == before) { /* what takes nothing and does not say why would be asked for ever */
            errno = ENOSPC;
            return -1;
        }
    }
    return 0;
}

int write_all(int descriptor, const void *bytes, size_t length) {
    struct iovec piece = {(void *)(uintptr_t)bytes, length};
    return write_all_pieces(descriptor, &piece, 1);
}
