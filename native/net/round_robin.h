/* round_robin: deficit round robin (Shreedhar and Varghese, SIGCOMM 1995): which of many waiting members sends next,
 * fair by bytes.
 *
 * Members wait in one queue. The first in it is served: it gets a quantum of credit, sends what its credit pays for,
 * and goes to the end of the queue if it has more to send. It keeps the rest of its credit as long as it waits.
 *
 * Why it is fair: a message costs at most a quantum. So each service sends at least one message, and the credit that
 * is left is less than the next message costs. Between two services of one member, every other member has sent at
 * most its quantum and the credit that it had left: less than two quanta. `gap_most_bytes` is the most that was ever
 * sent between two services of one member. */
#ifndef REPLAY_NET_ROUND_ROBIN_H
#define REPLAY_NET_ROUND_ROBIN_H

#include <stdbool.h>
#include <stdint.h>

struct round_robin_member {
    struct round_robin_member *next, *previous;
    uint32_t credit_bytes;
    bool waits;
    uint64_t since_bytes; /* what all had sent when it began to wait */
};

struct round_robin {
    struct round_robin_member *first, *last;
    uint32_t quantum_bytes; /* at least the longest message */
    uint32_t waiting, waiting_most;
    uint64_t sent_bytes; /* by all members */
    uint64_t gap_most_bytes; /* that others sent while one waited */
};

/* Puts a member at the end of the line; nothing where it stands there already. */
void round_robin_wait(struct round_robin *line, struct round_robin_member *member);
/* Takes the first out of the line and gives it its quantum. NULL: nobody waits. */
struct round_robin_member *round_robin_serve(struct round_robin *line);
/* The member sends a message, which its credit pays for. */
void round_robin_spend(struct round_robin *line, struct round_robin_member *member, uint32_t bytes);
/* After a service: who does not wait again has nothing to send, and keeps no credit. */
void round_robin_end_service(struct round_robin_member *member);
/* Takes the member out of the line, if it waits there, and sets its credit to 0. */
void round_robin_leave(struct round_robin *line, struct round_robin_member *member);

#endif
