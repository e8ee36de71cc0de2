/* thread: helper threads, which keep off a processor that the loop's thread polls on. */
#ifndef REPLAY_BASE_THREAD_H
#define REPLAY_BASE_THREAD_H

#include <pthread.h>

/* Threads inherit where their creator may run, and a thread that polls a device is tied to one processor, all of
 * which it takes. Called before anything is tied: helpers that start later run wherever this thread may run now. */
void thread_remember_processors(void);
/* Helpers do not run on this processor, if there are others. */
void thread_avoid_processor(int processor);
/* As pthread_create: 0, or an error's number. */
int thread_start(pthread_t *thread, void *(*run)(void *argument), void *argument);

#endif
