/* redis_subsystem: Redis's commands: keys, publishing, scripts, transactions, access. */
#ifndef REPLAY_SERVER_REDIS_SUBSYSTEM_H
#define REPLAY_SERVER_REDIS_SUBSYSTEM_H

#include "server/core/subsystem.h"
#include "server/redis/pubsub/notify.h"

struct acl;
struct functions;
struct key_waits;
struct pubsub;
struct script_engine;
struct scripts;
struct tracking;
struct watched_keys;

struct redis_subsystem {
    struct acl *acl;
    struct pubsub *pubsub;
    struct tracking *tracking;
    struct key_waits *key_waits;       /* clients that wait for keys; NULL: there was none yet */
    struct scripts *scripts;           /* NULL: none were yet */
    struct functions *functions;       /* NULL: none were yet */
    struct script_engine *running;     /* whose script or function runs; NULL: none */
    struct watched_keys *watched_keys; /* NULL: none were yet */
    struct notify notify;
    bool scripts_may_debug;      /* DEBUG SET-DISABLE-DENY-SCRIPTS */
};

extern const struct subsystem redis_subsystem;

/* Section of INFO: "# Keyspace\r\n…". */
void keyspace_info(const struct client *client, struct text *out);

#endif
