/* topology: which shard has which slots, as the supervisor says. It comes whole, with a version, and replaces the one
 * before whole: a shard never holds half of one. Every slot has exactly one shard. A slot that moves has a second one,
 * which it moves to. */
#ifndef REPLAY_SERVER_CLUSTER_TOPOLOGY_H
#define REPLAY_SERVER_CLUSTER_TOPOLOGY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"
#include "resp/parse.h"
#include "server/cluster/slots.h"

#define SHARD_ID_BYTES 40u /* in hexadecimal */
#define SHARDS_MOST 256u   /* numbers are 0 to 255 */
#define SHARD_REPLICAS_MOST 1024u /* of all shards together */

struct shard {
    unsigned number;
    char id[SHARD_ID_BYTES + 1];
    char host[256];
    int port;
    int tls_port; /* 0: `port` is the only one */
    char unix_path[108]; /* "": none */
    int first_slot, last_slot; /* it has none outside of them */
    bool leaving; /* clients add nothing to it any more */
};

/* A replica that clients may read from: the supervisor leaves out those that have no copy yet. */
struct shard_replica {
    int place; /* of its shard */
    char id[SHARD_ID_BYTES + 1]; /* the run id of its process */
    char host[256];
    int port;
    int tls_port;
};

struct topology {
    int64_t version;
    unsigned number; /* of the shard that holds this */
    int myself; /* its place in `shards`; TOPOLOGY_GONE: it has gone, and answers for no slot */
    int shard_count;
    struct shard *shards; /* by number */
    int replica_count;
    struct shard_replica *replicas;
    int16_t owner[CLUSTER_SLOTS];  /* place in `shards` */
    int16_t target[CLUSTER_SLOTS]; /* that the slot moves to; the owner: it stays */
    bool gone[SHARDS_MOST]; /* numbers of shards that have gone for good: ids carry them, so no other shard has them */
};

#define TOPOLOGY_GONE (-1)

/* Reads VERSION NUMBER, then SHARD number id host port unix slots for each shard, TLS number port for each that has a
 * port for TLS beside it, REPLICA number id host port tls_port for each replica (0: no port for TLS), MOVE slots number
 * for each move, LEAVING number for each shard that leaves, and GONE number for each that has gone. Slots are
 * "0-100,200", or nothing. NULL with `error` set: the arguments make no whole topology. */
struct topology *topology_parse(uint32_t argc, const struct resp_argument *argv, struct error *error);
void topology_free(struct topology *topology);
/* The least number of a shard that has gone in the one, and not in the other, which is to follow it; -1: there is none. */
int topology_returned(const struct topology *before, const struct topology *after);
/* How many slots this shard has, and how many move to it or away from it. */
struct slot_counts {
    int own, moving;
};
struct slot_counts topology_count_slots(const struct topology *topology);
bool topology_equals(const struct topology *one, const struct topology *other);
/* The next replica behind this place in `replicas` (-1: the first) of the shard at that place; -1: there is none. */
int topology_next_replica(const struct topology *topology, int before, int place);
/* {"version": 1, "shards": [{"shard": 0, …, "slots": [[0, 16383]], "replicas": […]}], "moves": […], "leaving": […],
 * "gone": […]}; NULL: none, as version 0. */
void topology_write_json(const struct topology *topology, struct text *out);

/* Slots of one shard that follow each other. */
struct slot_run {
    int first, last;
};
/* The next run at or behind `from` of the shard at this place (negative: of any one). False: there is none. */
bool topology_next_run(const struct topology *topology, int from, int place, struct slot_run *run);
/* The next run of slots at or behind `from` that move from one shard to one other. */
bool topology_next_move(const struct topology *topology, int from, struct slot_run *run);

#endif
