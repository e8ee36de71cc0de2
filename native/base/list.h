/* list: doubly linked lists through members of the things that are linked.
 *
 * A list is two pointers of its owner's, to the first thing and to the last, both NULL when it is empty; `next` and `previous`
 * are the names of the things' members, NULL at the ends. Things of which the last is never asked for have `first` alone.
 * Arguments are evaluated more than once. */
#ifndef REPLAY_BASE_LIST_H
#define REPLAY_BASE_LIST_H

#include <stddef.h>

/* Puts a thing at the end. */
#define LIST_APPEND(first, last, thing, next, previous) \
    do {                                                \
        (thing)->next = NULL;                           \
        (thing)->previous = (last);                     \
        *((last) ? &(last)->next : &(first)) = (thing); \
        (last) = (thing);                               \
    } while (0)

#define LIST_REMOVE(first, last, thing, next, previous)                             \
    do {                                                                            \
        *((thing)->previous ? &(thing)->previous->next : &(first)) = (thing)->next; \
        *((thing)->next ? &(thing)->next->previous : &(last)) = (thing)->previous;  \
    } while (0)

/* The same for a list without a pointer to its last thing. */
#define LIST_PUSH(first, thing, next, previous)   \
    do {                                          \
        (thing)->next = (first);                  \
        (thing)->previous = NULL;                 \
        if ((first)) (first)->previous = (thing); \
        (first) = (thing);                        \
    } while (0)

#define LIST_TAKE_OUT(first, thing, next, previous)                                 \
    do {                                                                            \
        *((thing)->previous ? &(thing)->previous->next : &(first)) = (thing)->next; \
        if ((thing)->next) (thing)->next->previous = (thing)->previous;             \
    } while (0)

#endif
