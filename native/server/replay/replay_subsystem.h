/* replay_subsystem: tables of experience, weights and gradients, and the memory shared with clients. */
#ifndef REPLAY_SERVER_REPLAY_SUBSYSTEM_H
#define REPLAY_SERVER_REPLAY_SUBSYSTEM_H

#include "server/core/subsystem.h"
#include "server/replay/shared_memory.h"

struct cold_readers;
struct gradients_registry;
struct replay_registry;
struct weights_registry;

struct replay_subsystem {
    struct replay_registry *tables;
    struct weights_registry *weights;
    struct gradients_registry *gradients;
    struct cold_readers *cold;
    struct share_totals shares;
    char share_socket[64]; /* name of the abstract socket for clients of this host; "": none */
};

extern const struct subsystem replay_subsystem;

/* Sections of INFO: "# Replay\r\n…" as far as the client may see tables, "# Gradients\r\n…". */
void replay_info(const struct client *client, struct text *out);
void gradients_info(const struct client *client, struct text *out);

#endif
