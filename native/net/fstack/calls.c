/* calls: events are asked for as kevents and not through ff_epoll_ctl, which has no word for a peer's end that is noticed
 * while nobody reads. */
#include "net/fstack/calls.h"

#include <limits.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>

#include <ff_api.h>
#include <ff_event.h>

#define VECTORS_PER_CALL 128
#define READ_BYTES_PER_CALL (1u << 30) /* lengths are an `int` there */
/* All of a write is copied before its first frame goes out, and frames come in between writes alone. */
#define WRITE_BYTES_PER_CALL (64u << 10)

static size_t least_room = 2048; /* its own low-water mark */

static struct linux_sockaddr *plain(struct sockaddr *address) {
    return (struct linux_sockaddr *)address;
}

/* Non-blocking is a property of each descriptor, never inherited from a listener. */
static int not_blocking(int number) {
    int on = 1;
    if (number < 0 || ff_ioctl(number, FIONBIO, &on) == 0) return number;
    ff_close(number);
    return -1;
}

static int call_socket(int family) {
    return not_blocking(ff_socket(family, SOCK_STREAM, 0));
}

static int call_bind(int number, const struct sockaddr *address, socklen_t length) {
    return ff_bind(number, (const struct linux_sockaddr *)address, length);
}

static int call_accept(int number) {
    return not_blocking(ff_accept(number, NULL, NULL));
}

static int call_getsockname(int number, struct sockaddr *address, socklen_t *length) {
    return ff_getsockname(number, plain(address), length);
}

static int call_getpeername(int number, struct sockaddr *address, socklen_t *length) {
    return ff_getpeername(number, plain(address), length);
}

/* F-Stack moves the vectors along as it copies: it works on a copy of them, of the first so many bytes. */
static int copy_vectors(struct iovec *to, const struct iovec *from, int count, size_t most) {
    int copied = 0;
    while (copied < count && copied < VECTORS_PER_CALL && most > 0) {
        size_t length = from[copied].iov_len < most ? from[copied].iov_len : most;
        to[copied] = (struct iovec){.iov_base = from[copied].iov_base, .iov_len = length};
        most -= length;
        copied++;
    }
    return copied;
}

static ssize_t call_readv(int number, const struct iovec *vectors, int count) {
    struct iovec copies[VECTORS_PER_CALL];
    return ff_readv(number, copies, copy_vectors(copies, vectors, count, READ_BYTES_PER_CALL));
}

static ssize_t call_writev(int number, const struct iovec *vectors, int count) {
    struct iovec copies[VECTORS_PER_CALL];
    return ff_writev(number, copies, copy_vectors(copies, vectors, count, WRITE_BYTES_PER_CALL));
}

static ssize_t call_read(int number, void *bytes, size_t length) {
    return ff_read(number, bytes, length < READ_BYTES_PER_CALL ? length : READ_BYTES_PER_CALL);
}

static ssize_t call_write(int number, const void *bytes, size_t length) {
    return ff_write(number, bytes, length < WRITE_BYTES_PER_CALL ? length : WRITE_BYTES_PER_CALL);
}

/* ---- events ------------------------------------------------------------------------------------------ */

/* Where reads are not wanted the filter stays, with a mark that no data reaches: only the end of the stream or an error
 * raises it. After that was told, too, it is edge-triggered, for an error that may follow. */
static int read_changes(struct kevent *changes, int operation, int number, const struct epoll_event *event) {
    unsigned short flags = EV_ADD | EV_ENABLE;
    unsigned int mark = 0;
    int count = 0;
    if (!(event->events & EPOLLIN)) {
        mark = NOTE_LOWAT;
        if (!(event->events & EPOLLRDHUP)) flags |= EV_CLEAR;
    }
    if (operation == EPOLL_CTL_MOD) EV_SET(&changes[count++], number, EVFILT_READ, EV_DELETE, 0, 0, NULL);
    EV_SET(&changes[count], number, EVFILT_READ, flags, mark, mark ? INT_MAX : 0, event->data.ptr);
    return count + 1;
}

static int call_epoll_ctl(int set, int operation, int number, struct epoll_event *event) {
    struct kevent changes[3];
    int count = 0;
    if (operation == EPOLL_CTL_DEL) {
        EV_SET(&changes[count++], number, EVFILT_READ, EV_DELETE, 0, 0, NULL);
        ff_kevent(set, changes, count, NULL, 0, NULL);
        EV_SET(&changes[0], number, EVFILT_WRITE, EV_DELETE, 0, 0, NULL);
        ff_kevent(set, changes, count, NULL, 0, NULL); /* there is none where no write ever waited */
        return 0;
    }
    count = read_changes(changes, operation, number, event);
    if (event->events & EPOLLOUT) {
        EV_SET(&changes[count++], number, EVFILT_WRITE, EV_ADD | EV_ENABLE, NOTE_LOWAT, (int64_t)least_room,
               event->data.ptr);
    } else if (operation == EPOLL_CTL_MOD) {
        EV_SET(&changes[count++], number, EVFILT_WRITE, EV_ADD | EV_DISABLE, 0, 0, event->data.ptr);
    }
    return ff_kevent(set, changes, count, NULL, 0, NULL);
}

static void to_epoll(void **next, struct kevent *from) {
    struct epoll_event *event = *next;
    bool ended = from->flags & EV_EOF;
    event->data.ptr = from->udata;
    if (from->filter == EVFILT_READ)
        event->events = EPOLLIN | (ended ? EPOLLRDHUP : 0u) | (ended && from->fflags != 0 ? EPOLLERR : 0u);
    else
        event->events = ended ? EPOLLERR : EPOLLOUT; /* we never end a direction alone: both are gone */
    if (from->flags & EV_ERROR) event->events |= EPOLLERR;
    *next = event + 1;
}

static int call_epoll_wait(int set, struct epoll_event *events, int count, int wait_ms) {
    (void)wait_ms; /* F-Stack's loop never waits */
    return ff_kevent_do_each(set, NULL, 0, events, count, NULL, to_epoll);
}

const struct socket_calls fstack_calls = {
    .socket = call_socket,
    .bind = call_bind,
    .listen = ff_listen,
    .accept = call_accept,
    .getsockname = call_getsockname,
    .getpeername = call_getpeername,
    .setsockopt = ff_setsockopt,
    .read = call_read,
    .readv = call_readv,
    .write = call_write,
    .writev = call_writev,
    .shutdown = ff_shutdown,
    .close = ff_close,
    .dup = ff_dup,
    .epoll_create = ff_kqueue,
    .epoll_ctl = call_epoll_ctl,
    .epoll_wait = call_epoll_wait,
};

void fstack_calls_set_least_room(size_t bytes) {
    least_room = bytes;
}

/* As sysctlbyname: the name is looked up by the variable {0, 3}. */
int fstack_variable(const char *name, void *value, size_t *length) {
    static const int name_to_numbers[2] = {0, 3};
    int numbers[24];
    size_t size = sizeof numbers;
    if (ff_sysctl(name_to_numbers, 2, numbers, &size, name, strlen(name)) < 0) return -1;
    return ff_sysctl(numbers, (unsigned)(size / sizeof *numbers), value, length, NULL, 0);
}
