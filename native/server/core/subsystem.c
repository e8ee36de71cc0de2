/* subsystem: calls the same function of every subsystem. */
#include "server/core/subsystem.h"

#include "base/clock.h"

bool parts_create(struct server *server) {
    for (const struct subsystem *const *part = server_parts; *part; part++)
        if ((*part)->create && !(*part)->create(server)) return false;
    return true;
}

void parts_free(struct server *server) {
    size_t count = 0;
    while (server_parts[count]) count++;
    while (count-- > 0)
        if (server_parts[count]->free) server_parts[count]->free(server);
}

bool parts_retry(struct server *server, uint64_t until_us) {
    for (const struct subsystem *const *part = server_parts; *part; part++)
        if ((*part)->retry && !(*part)->retry(server, until_us)) return false;
    return true;
}

bool parts_have_stalled(const struct client *client) {
    for (const struct subsystem *const *part = server_parts; *part; part++)
        if ((*part)->has_stalled && (*part)->has_stalled(client)) return true;
    return false;
}

uint32_t parts_descriptors(struct server *server, bool let_go) {
    uint32_t count = 0;
    for (const struct subsystem *const *part = server_parts; *part; part++)
        if ((*part)->descriptors) count += (*part)->descriptors(server, let_go);
    return count;
}

uint64_t parts_before_write(struct server *server) {
    uint64_t next_us = CLOCK_NEVER;
    for (const struct subsystem *const *part = server_parts; *part; part++) {
        uint64_t at_us = (*part)->before_write ? (*part)->before_write(server) : CLOCK_NEVER;
        if (at_us < next_us) next_us = at_us;
    }
    return next_us;
}
