#include "base/thread.h"

#ifdef __linux__

#include <sched.h>
#include <stdbool.h>

static struct {
    bool known;
    cpu_set_t allowed;
} processors;

void thread_remember_processors(void) {
    processors.known = sched_getaffinity(0, sizeof processors.allowed, &processors.allowed) == 0;
}

void thread_avoid_processor(int processor) {
    if (!processors.known || processor < 0 || processor >= CPU_SETSIZE) return;
    cpu_set_t others = processors.allowed;
    CPU_CLR(processor, &others);
    if (CPU_COUNT(&others) > 0) processors.allowed = others;
}

int thread_start(pthread_t *thread, void *(*run)(void *argument), void *argument) {
    if (!processors.known) return pthread_create(thread, NULL, run, argument);
    pthread_attr_t attributes;
    int result = pthread_attr_init(&attributes);
    if (result != 0) return result;
    pthread_attr_setaffinity_np(&attributes, sizeof processors.allowed, &processors.allowed);
    result = pthread_create(thread, &attributes, run, argument);
    pthread_attr_destroy(&attributes);
    /* What was allowed at the start may be forbidden by now. */
    return result == 0 ? 0 : pthread_create(thread, NULL, run, argument);
}

#else

void thread_remember_processors(void) {}

void thread_avoid_processor(int processor) {
    (void)processor;
}

int thread_start(pthread_t *thread, void *(*run)(void *argument), void *argument) {
    return pthread_create(thread, NULL, run, argument);
}

#endif
