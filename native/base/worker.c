/* worker: two lists, newest first; each is taken whole, and turned round by the thread that takes it. */
#include "base/worker.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/thread.h"

#define WORKER_NICE 10

struct worker {
    pthread_t thread;
    sem_t given_count, finished_count;
    _Atomic(struct worker_job *) given, finished;
    atomic_bool stopping;
    bool steps_back; /* its owner goes first where both want one core */
    void (*notify)(void *context); /* NULL: its owner is not woken */
    void *context;
};

static void push(_Atomic(struct worker_job *) *list, struct worker_job *job) {
    job->next = atomic_load_explicit(list, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(list, &job->next, job, memory_order_release, memory_order_relaxed)) {
    }
}

/* All of a list, oldest first. */
static struct worker_job *take(_Atomic(struct worker_job *) *list) {
    struct worker_job *newest = atomic_exchange_explicit(list, NULL, memory_order_acquire), *oldest = NULL;
    while (newest) {
        struct worker_job *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    return oldest;
}

/* Most workers are less urgent than their owner: where both want one core, the owner goes first. */
static void step_back(void) {
#ifdef __linux__
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), WORKER_NICE);
#endif
}

static void *work(void *argument) {
    struct worker *worker = argument;
    if (worker->steps_back) step_back();
    for (;;) {
        /* Looks at the wish to stop before the list, so that what was given before it is still done. */
        bool stopping = atomic_load_explicit(&worker->stopping, memory_order_acquire);
        struct worker_job *job = take(&worker->given);
        if (!job && stopping) return NULL;
        while (job) {
            struct worker_job *next = job->next;
            job->run(job);
            push(&worker->finished, job);
            sem_post(&worker->finished_count);
            if (worker->notify) worker->notify(worker->context);
            job = next;
        }
        while (sem_wait(&worker->given_count) < 0 && errno == EINTR) {
        }
    }
}

static struct worker *start(bool steps_back, void (*finished)(void *context), void *context) {
    struct worker *worker = memory_calloc(1, sizeof *worker);
    if (!worker) return NULL;
    worker->steps_back = steps_back;
    worker->notify = finished;
    worker->context = context;
    if (sem_init(&worker->given_count, 0, 0) == 0 && sem_init(&worker->finished_count, 0, 0) == 0 &&
        thread_start(&worker->thread, work, worker) == 0)
        return worker;
    memory_free(worker);
    return NULL;
}

struct worker *worker_new(void) {
    return start(true, NULL, NULL);
}

struct worker *worker_new_urgent(void (*finished)(void *context), void *context) {
    return start(false, finished, context);
}

struct worker *worker_new_patient(void (*finished)(void *context), void *context) {
    return start(true, finished, context);
}

void worker_free(struct worker *worker) {
    if (!worker) return;
    atomic_store_explicit(&worker->stopping, true, memory_order_release);
    sem_post(&worker->given_count);
    pthread_join(worker->thread, NULL);
    sem_destroy(&worker->given_count);
    sem_destroy(&worker->finished_count);
    memory_free(worker);
}

void worker_give(struct worker *worker, struct worker_job *job) {
    push(&worker->given, job);
    sem_post(&worker->given_count);
}

struct worker_job *worker_finished(struct worker *worker) {
    return take(&worker->finished);
}

struct worker_job *worker_wait(struct worker *worker) {
    for (;;) {
        struct worker_job *job = take(&worker->finished);
        if (job) return job;
        while (sem_wait(&worker->finished_count) < 0 && errno == EINTR) {
        }
    }
}
