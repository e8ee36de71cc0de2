/* fiber: work with its own stack, such as a script or a transaction, which can be suspended half way and resumed
 * later. */
#ifndef REPLAY_BASE_FIBER_H
#define REPLAY_BASE_FIBER_H

#include <stdbool.h>
#include <stddef.h>

/* Committed as it is used, with a guard page below. Lua nests 200 C calls, each of which may hold a buffer of BUFSIZ. */
#define FIBER_STACK_BYTES (4u << 20)

struct fiber;

struct fiber *fiber_new(void); /* NULL: memory is exhausted */
/* Also while its work is suspended, which is then never resumed: what the work holds is its owner's to free. */
void fiber_free(struct fiber *fiber); /* NULL is allowed */

/* Runs body(context) on the fiber's stack until it returns (true) or yields (false). */
bool fiber_start(struct fiber *fiber, void (*body)(void *context), void *context);
/* Goes on behind the yield; returns as fiber_start. */
bool fiber_resume(struct fiber *fiber);
/* Called on the fiber's stack: goes back to the code that started or resumed it. */
void fiber_yield(struct fiber *fiber);

#endif
