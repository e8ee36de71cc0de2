/* notifier: an eventfd, written and read. */
#include "server/core/notifier.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "net/transport.h"

int notifier_new(struct transport *transport, void (*heard)(void *context, int notifier), void *context,
                 struct error *error) {
    int notifier = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (notifier < 0) return error_set(error, ERROR_GENERIC, "cannot make an eventfd: %s", strerror(errno));
    if (transport_kernel_watch(transport, notifier, heard, context, error) == 0) return notifier;
    close(notifier);
    return -1;
}

void notifier_tell(int notifier) {
    uint64_t one = 1;
    if (notifier >= 0) (void)!write(notifier, &one, sizeof one);
}

void notifier_take(int notifier) {
    uint64_t count;
    (void)!read(notifier, &count, sizeof count);
}
