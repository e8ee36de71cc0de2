/* check: the whole test framework of the C unit tests. A failed CHECK prints where and what, and the program exits 1. */
#ifndef REPLAY_TESTS_CHECK_H
#define REPLAY_TESTS_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s: failed: %s\n", __FILE__, __LINE__, __func__, #condition); \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

#define RUN(test)              \
    do {                       \
        printf("%s\n", #test); \
        fflush(stdout);        \
        test();                \
    } while (0)

#endif
