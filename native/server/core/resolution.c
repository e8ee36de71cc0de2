/* resolution: getaddrinfo on a thread of its own. The call cannot be cancelled. If its owner gives up, the thread keeps the
 * struct; whichever of the two uses it last frees it. */
#include "server/core/resolution.h"

#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>

#include "base/memory.h"
#include "base/thread.h"

enum { RUNS, ENDED, LEFT };

struct resolution {
    char host[256], port[8];
    struct addrinfo *found;
    int failure;
    atomic_int state;
};

static void release(struct resolution *resolution) {
    if (resolution->found) freeaddrinfo(resolution->found);
    memory_free(resolution);
}

static void *resolve(void *argument) {
    struct resolution *resolution = argument;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    resolution->failure = getaddrinfo(resolution->host, resolution->port, &hints, &resolution->found);
    int state = RUNS;
    if (!atomic_compare_exchange_strong(&resolution->state, &state, ENDED)) release(resolution);
    return NULL;
}

struct resolution *resolution_begin(const char *host, int64_t port) {
    struct resolution *resolution = memory_calloc(1, sizeof *resolution);
    if (!resolution) return NULL;
    snprintf(resolution->host, sizeof resolution->host, "%s", host);
    snprintf(resolution->port, sizeof resolution->port, "%d", (int)port);
    pthread_t thread;
    if (thread_start(&thread, resolve, resolution) != 0) {
        memory_free(resolution);
        return NULL;
    }
    pthread_detach(thread);
    return resolution;
}

bool resolution_has_ended(const struct resolution *resolution) {
    return atomic_load(&resolution->state) == ENDED;
}

const struct addrinfo *resolution_found(const struct resolution *resolution, const char **why) {
    *why = resolution->failure != 0 ? gai_strerror(resolution->failure) : NULL;
    return resolution->failure == 0 ? resolution->found : NULL;
}

void resolution_free(struct resolution *resolution) {
    int state = RUNS;
    if (resolution && !atomic_compare_exchange_strong(&resolution->state, &state, LEFT)) release(resolution);
}
