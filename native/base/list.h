/* list: doubly linked lists whose links are members of the linked structs.
 *
 * The owner of a list has two pointers, to its first and to its last element, both NULL when it is empty. An owner
 * that never needs the last element has `first` alone. `next` and `previous` are the names of the elements' members,
 * which are NULL at the ends. Arguments are evaluated more than once. */
#ifndef REPLAY_BASE_LIST_H
#define REPLAY_BASE_LIST_H

#include <stddef.h>

/* For a list with pointers to its first and its last element: puts an element at the end, or removes one. */
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

/* For a list that has `first` alone: puts an element at the front, or removes one. */
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
