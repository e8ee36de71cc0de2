/* worker: a thread that does jobs for one other thread, in the order in which they were given. There is no lock
 * between the two: in both directions jobs travel as a whole list, which is exchanged atomically. */
#ifndef REPLAY_BASE_WORKER_H
#define REPLAY_BASE_WORKER_H

#include <stdbool.h>

struct worker;

/* Embedded in what the job is about; the worker's until it comes back from worker_finished. */
struct worker_job {
    void (*run)(struct worker_job *job); /* on the worker's thread */
    struct worker_job *next;
};

struct worker *worker_new(void); /* NULL: no memory, or no thread could be started */
/* As worker_new, for jobs that someone waits for: it is as urgent as its owner, and after each job it calls
 * `finished`, on its own thread, so that the owner may be woken. */
struct worker *worker_new_urgent(void (*finished)(void *context), void *context);
/* As that, but its owner goes first where both want one core, as with worker_new. */
struct worker *worker_new_patient(void (*finished)(void *context), void *context);
/* Does the jobs that were given, then ends the thread. Jobs that nobody took back are dropped. NULL is allowed. */
void worker_free(struct worker *worker);
void worker_give(struct worker *worker, struct worker_job *job);
/* The jobs done since the last call, in order, linked by `next`; NULL when there are none. */
struct worker_job *worker_finished(struct worker *worker);
/* As worker_finished, but waits until there is one; some job must be on its way. */
struct worker_job *worker_wait(struct worker *worker);

#endif
