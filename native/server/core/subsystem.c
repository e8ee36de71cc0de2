#include "server/core/subsystem.h"

#include "base/clock.h"

bool subsystems_create(struct server *server) {
    for (const struct subsystem *const *each = server_subsystems; *each; each++)
        if ((*each)->create && !(*each)->create(server)) return false;
    return true;
}

void subsystems_free(struct server *server) {
    size_t count = 0;
    while (server_subsystems[count]) count++;
    while (count-- > 0)
        if (server_subsystems[count]->free) server_subsystems[count]->free(server);
}

bool subsystems_retry(struct server *server, uint64_t until_us) {
    for (const struct subsystem *const *each = server_subsystems; *each; each++)
        if ((*each)->retry && !(*each)->retry(server, until_us)) return false;
    return true;
}

bool subsystems_have_stalled(const struct client *client) {
    for (const struct subsystem *const *each = server_subsystems; *each; each++)
        if ((*each)->has_stalled && (*each)->has_stalled(client)) return true;
    return false;
}

uint32_t subsystems_descriptors(struct server *server, bool let_go) {
    uint32_t count = 0;
    for (const struct subsystem *const *each = server_subsystems; *each; each++)
        if ((*each)->descriptors) count += (*each)->descriptors(server, let_go);
    return count;
}

uint64_t subsystems_before_write(struct server *server) {
    uint64_t next_us = CLOCK_NEVER;
    for (const struct subsystem *const *each = server_subsystems; *each; each++) {
        uint64_t at_us = (*each)->before_write ? (*each)->before_write(server) : CLOCK_NEVER;
        if (at_us < next_us) next_us = at_us;
    }
    return next_us;
}
