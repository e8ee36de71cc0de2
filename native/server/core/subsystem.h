/* subsystem: how a subsystem of the server enters it. The core includes none of them. It knows each as a row of functions
 * (server_subsystems); the program lists the rows. What the core asks of subsystems on the path of every request goes through
 * upcalls.h instead. */
#ifndef REPLAY_SERVER_SUBSYSTEM_H
#define REPLAY_SERVER_SUBSYSTEM_H

#include "server/core/client.h"
#include "server/core/long_work.h"
#include "server/core/server.h"

/* Some lines of INFO. All of one name are one section, which begins with a heading. */
struct info_section {
    const char *name;
    unsigned place; /* among all: INFO is in this order */
    void (*write)(const struct client *client, struct text *out); /* as far as the client may know of it */
    bool only_if_asked;
};

/* NULL for what a subsystem has no use for. */
struct subsystem {
    const char *name;
    const struct command *const *commands; /* its tables of rows, ended by NULL */
    const struct info_section *info; /* ended by a NULL name */
    const struct long_task *tasks; /* ended by a NULL `run` */
    /* Called before replies are written. Returns when it wants to be called again, as a task does. */
    uint64_t (*before_write)(struct server *server);
    bool (*create)(struct server *server); /* false: memory is exhausted */
    /* After all clients: closes what it has open at transports, which go next. */
    void (*disconnect)(struct server *server);
    /* After the transports; these two also where `create` failed or was not called. */
    void (*free)(struct server *server);
    void (*configure)(struct server *server); /* settings may have changed */
    void (*turn_took)(struct server *server, uint64_t took_us); /* as long as slow_ns, or longer */
    /* Serves clients that wait in no queue until the time; false: some are left. Called while retry_subsystems is set. */
    bool (*retry)(struct server *server, uint64_t until_us);
    void (*client_left)(struct client *client); /* gives up what its requests and its subscriptions hold */
    void (*client_closed)(struct client *client); /* what its connection holds: the connection is no more */
    bool (*has_stalled)(const struct client *client); /* holds back others for too long */
    /* Descriptors beside those of clients, which count against maxclients; `let_go`: looks first which may be closed. */
    uint32_t (*descriptors)(struct server *server, bool let_go);
    void (*stop)(struct server *server); /* the server begins to stop: no new connections */
};

/* In the order in which they are made; they are freed in reverse. Ended by NULL. */
extern const struct subsystem *const server_subsystems[];

/* Calls a function of every subsystem that has it, in their order. */
#define EACH_SUBSYSTEM(function, ...)                                                  \
    do {                                                                               \
        for (const struct subsystem *const *each = server_subsystems; *each; each++) { \
            if ((*each)->function) (*each)->function(__VA_ARGS__);                     \
        }                                                                              \
    } while (0)

bool subsystems_create(struct server *server);
void subsystems_free(struct server *server);
bool subsystems_retry(struct server *server, uint64_t until_us);
bool subsystems_have_stalled(const struct client *client);
uint32_t subsystems_descriptors(struct server *server, bool let_go);
/* Returns the earliest time at which any of them wants to be called again, 0 for at once. */
uint64_t subsystems_before_write(struct server *server);

#endif
