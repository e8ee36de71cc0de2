/* gradients_registry: queues of gradients by key, the clients that wait for them, and what snapshots hold of them. */
#ifndef REPLAY_SERVER_GRADIENTS_REGISTRY_H
#define REPLAY_SERVER_GRADIENTS_REGISTRY_H

#include "replay/gradient_queue.h"
#include "server/core/command.h"

#define GRADIENTS_MAX_KEYS 256u
#define GRADIENTS_MAX_KEY_BYTES 255u

struct gradients_entry {
    struct gradients_entry *next;
    uint64_t sequence; /* 1 for the first entry ever made, one more for each that followed */
    struct gradient_queue *queue; /* NULL: it was deleted, and who waited has not gone elsewhere yet */
    struct wait_queue takers;     /* TAKE, AWAIT */
    size_t key_length;
    char key[];
};

struct gradients_registry {
    struct server *server;
    struct gradients_entry *entries;
    uint64_t entered;         /* entries that there have ever been */
    uint32_t queues;          /* entries that have one */
    struct wait_queue absent; /* TAKE of keys that are not there: waiting makes none */
};

struct gradients_registry *gradients_registry_new(struct server *server); /* NULL: memory is exhausted */
void gradients_registry_free(struct gradients_registry *registry);        /* NULL is allowed */
/* NULL: there is no such key. */
struct gradients_entry *gradients_registry_find(const struct gradients_registry *registry, const void *key,
                                                size_t length);
/* The key's entry with its queue, made where there is none: who waits for keys to come is woken. NULL: refused. */
struct gradients_entry *gradients_registry_open(struct gradients_registry *registry, const void *key, size_t length,
                                                struct error *error);
/* Where one stands who waits for a key, which need not be there: among those of the key, or of all that are absent. */
struct wait_queue *gradients_registry_takers(struct gradients_registry *registry, const void *key, size_t length);
/* How many clients wait for a key, in time proportional to those who wait for absent ones where it is not there. */
uint32_t gradients_registry_count_takers(const struct gradients_registry *registry, const void *key, size_t length);
/* Forgets what waits and every name. Who waits there goes on. False: there was nothing. */
bool gradients_registry_remove(struct gradients_registry *registry, const void *key, size_t length);
void gradients_registry_clear(struct gradients_registry *registry); /* removes every key */
bool gradients_registry_holds_something(const struct gradients_registry *registry);
uint64_t gradients_vector_bytes(const struct gradients_entry *entry); /* of all that wait */

/* What snapshots and the base of the append-only file hold, as records each with a key of bytes and a version. They are
 * handed out in the order in which they are to be adopted. False: `add` has said so, or memory is exhausted. */
bool gradients_registry_save(const struct gradients_registry *registry,
                             bool (*add)(void *context, const void *key, size_t length, int64_t version,
                                         struct blob *blob),
                             void *context);
int gradients_registry_adopt(struct gradients_registry *registry, const uint8_t *key, size_t length, int64_t version,
                             struct blob *blob, struct error *error);

/* Σ w_k x_k of the oldest `count` gradients, replied as a bulk string that is summed up slice by slice as the socket
 * takes it; they may leave the queue meanwhile. Made first and replied last, since a client may go while it is being
 * replied to. NULL: memory is exhausted. */
struct gradients_sum;
struct gradients_sum *gradients_sum_new(const struct gradient_queue *queue, uint32_t count, const double *weights);
void gradients_sum_reply(struct client *client, struct gradients_sum *sum);

void gradients_take_command(struct client *client);
void gradients_await_command(struct client *client);

#endif
