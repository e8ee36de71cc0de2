/* fiber: a stack of its own, entered and left by ucontext. */
#include "base/fiber.h"

#include <assert.h>
#include <stdint.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/memory.h"

#if defined(__SANITIZE_ADDRESS__)
#define HAS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_SANITIZER 1
#endif
#endif

/* AddressSanitizer must be told which stack is in use. */
#ifdef HAS_SANITIZER
#include <sanitizer/common_interface_defs.h>
#define BEFORE_SWITCH(save, bottom, size) __sanitizer_start_switch_fiber(save, bottom, size)
#define AFTER_SWITCH(saved, bottom, size) __sanitizer_finish_switch_fiber(saved, bottom, size)
#else
#define BEFORE_SWITCH(save, bottom, size) ((void)(save), (void)(bottom), (void)(size))
#define AFTER_SWITCH(saved, bottom, size) ((void)(saved), (void)(bottom), (void)(size))
#endif

struct fiber {
    ucontext_t own, other; /* of the fiber, and of whoever resumed it */
    uint8_t *stack;        /* the guard page is its lowest */
    size_t guard_bytes;
    void (*body)(void *context);
    void *context;
    bool ended;
    void *own_fake, *other_fake; /* the sanitizer's */
    const void *other_bottom;
    size_t other_bytes;
};

static void switch_out(struct fiber *fiber) {
    BEFORE_SWITCH(&fiber->own_fake, fiber->other_bottom, fiber->other_bytes);
    swapcontext(&fiber->own, &fiber->other);
    AFTER_SWITCH(fiber->own_fake, &fiber->other_bottom, &fiber->other_bytes);
}

static bool switch_in(struct fiber *fiber) {
    BEFORE_SWITCH(&fiber->other_fake, fiber->stack + fiber->guard_bytes, FIBER_STACK_BYTES);
    swapcontext(&fiber->other, &fiber->own);
    AFTER_SWITCH(fiber->other_fake, NULL, NULL);
    return fiber->ended;
}

/* makecontext passes integers only: the pointer comes in halves. Never returns: one body after the other. */
static void enter(unsigned high, unsigned low) {
    struct fiber *fiber = (struct fiber *)(((uintptr_t)high << 32) | (uintptr_t)low);
    AFTER_SWITCH(NULL, &fiber->other_bottom, &fiber->other_bytes);
    for (;;) {
        fiber->body(fiber->context);
        fiber->ended = true;
        switch_out(fiber);
    }
}

struct fiber *fiber_new(void) {
    struct fiber *fiber = memory_calloc(1, sizeof *fiber);
    if (!fiber) return NULL;
    fiber->guard_bytes = (size_t)sysconf(_SC_PAGESIZE);
    fiber->ended = true;
    void *stack = memory_map(fiber->guard_bytes + FIBER_STACK_BYTES);
    if (!stack) {
        memory_free(fiber);
        return NULL;
    }
    fiber->stack = stack;
    if (mprotect(stack, fiber->guard_bytes, PROT_NONE) || getcontext(&fiber->own)) {
        fiber_free(fiber);
        return NULL;
    }
    fiber->own.uc_stack.ss_sp = fiber->stack + fiber->guard_bytes;
    fiber->own.uc_stack.ss_size = FIBER_STACK_BYTES;
    uint64_t address = (uint64_t)(uintptr_t)fiber;
    makecontext(&fiber->own, (void (*)(void))(uintptr_t)enter, 2, (unsigned)(address >> 32), (unsigned)address);
    return fiber;
}

void fiber_free(struct fiber *fiber) {
    if (!fiber) return;
    (void)mprotect(fiber->stack, fiber->guard_bytes, PROT_READ | PROT_WRITE); /* the reclaimer writes its list there */
    memory_unmap(fiber->stack, fiber->guard_bytes + FIBER_STACK_BYTES);
    memory_free(fiber);
}

bool fiber_start(struct fiber *fiber, void (*body)(void *context), void *context) {
    assert(fiber->ended);
    fiber->body = body;
    fiber->context = context;
    fiber->ended = false;
    return switch_in(fiber);
}

bool fiber_resume(struct fiber *fiber) {
    assert(!fiber->ended);
    return switch_in(fiber);
}

void fiber_yield(struct fiber *fiber) {
    switch_out(fiber);
}
