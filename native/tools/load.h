/* load: runs a plan: opens its connections, keeps each busy with its requests, and measures. One thread. */
#ifndef REPLAY_TOOLS_LOAD_H
#define REPLAY_TOOLS_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"
#include "tools/load_plan.h"
#include "tools/reply_reader.h"

#define LOAD_BUFFER_BYTES (256u << 10) /* stays in the second cache */

struct connection;

struct load_connection {
    struct load_role *role;
    int descriptor; /* of the kernel's socket, −1: there is none */
    struct connection *connection; /* over DPDK, once it stands */
    /* the request under way */
    bool busy;
    bool measured; /* it was begun after the warm-up */
    bool wants_write; /* as epoll was told */
    uint32_t turn;    /* of the role's requests */
    uint32_t replies_left;
    size_t sent;
    uint64_t begun_ns;
    struct reply_reader reader;
    /* rounds */
    uint64_t due_ns; /* while not busy: when the next request begins, UINT64_MAX: never */
    uint64_t rounds;
    uint64_t measured_rounds;
    uint64_t round_begun_ns;
    uint64_t measured_from_ns, measured_to_ns; /* of the measured rounds, the pause after the last one included */
    uint64_t received_bytes; /* between the warm-up and the end, of whichever request */
};

struct load {
    struct load_plan *plan;
    struct load_connection *connections;
    uint32_t connection_count;
    uint32_t busy;
    int epoll, timer;
    uint8_t *buffer; /* of LOAD_BUFFER_BYTES: replies are read to here */
    uint64_t measure_from_ns, end_ns;
    uint64_t moved;        /* grows with every byte sent or received */
    uint64_t moved_seen, moved_seen_ns; /* how far it was when somebody last looked and found it grown */
    uint64_t processor_ns; /* of this process while it measured */
};

/* Memory for a plan's connections, none of which is opened: load_open without sockets. */
int load_make(struct load *load, struct load_plan *plan, struct error *error);
/* The time begins that the plan gives; load_run does it. */
void load_start(struct load *load, uint64_t now_ns);
int load_open(struct load *load, struct load_plan *plan, struct error *error);
int load_run(struct load *load, struct error *error);
void load_report(const struct load *load, struct text *out); /* a JSON object */
void load_close(struct load *load);

/* ---- one connection (load_connection.c) --------------------------------------------------------------- */

int load_connect(struct load *load, struct load_connection *connection, struct error *error);
/* Begins the next request of a connection that is not busy. */
void load_begin(struct load *load, struct load_connection *connection);
/* Sends what the socket takes. 0; −1 with `error` set. */
int load_send(struct load *load, struct load_connection *connection, struct error *error);
/* Receives once, with flags of recv. 0; −1 with `error` set. */
int load_receive(struct load *load, struct load_connection *connection, int flags, struct error *error);
/* Follows what was received: counts replies, and ends the request with its last. 0; −1 with `error` set. */
int load_take(struct load *load, struct load_connection *connection, const uint8_t *bytes, size_t size,
              struct error *error);
/* Whether it begins nothing more: the time is over, and it has done one round at least that counts. */
bool load_done(const struct load *load, const struct load_connection *connection, uint64_t now_ns);
/* −1 with `error` set where nothing has moved for longer than the plan's patience. */
int load_check_patience(struct load *load, struct error *error);

#endif
