/* notifier: how a thread of a subsystem wakes the loop: an eventfd that the loop watches. */
#ifndef REPLAY_SERVER_CORE_NOTIFIER_H
#define REPLAY_SERVER_CORE_NOTIFIER_H

#include "base/error.h"

struct transport;

/* A descriptor, the caller's to close. After each word `heard` is called on the loop's thread, and takes it first. −1 with
 * `error` set: there is none, or it cannot be watched. */
int notifier_new(struct transport *transport, void (*heard)(void *context, int notifier), void *context,
                 struct error *error);
void notifier_tell(int notifier); /* from any thread; −1: nobody is told */
void notifier_take(int notifier); /* all that it was told */

#endif
