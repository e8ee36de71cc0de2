/* descriptors: room for every client's; where the system allows fewer, fewer clients are served. */
#include "server/admin/descriptors.h"
#include "base/log.h"

#include <stdio.h>
#include <sys/resource.h>

#define DESCRIPTORS_APART_FROM_CLIENTS 64

void descriptors_raise(struct server_config *config) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0) return;
    rlim_t wanted = (rlim_t)config->maxclients + DESCRIPTORS_APART_FROM_CLIENTS;
    if (limit.rlim_cur >= wanted) return;
    rlim_t hard = limit.rlim_max;
    limit.rlim_cur = wanted;
    if (limit.rlim_max < wanted) limit.rlim_max = wanted; /* root may */
    if (setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
    limit.rlim_cur = limit.rlim_max = hard;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0 || hard <= 2 * DESCRIPTORS_APART_FROM_CLIENTS) return;
    config->maxclients = (int64_t)(hard - DESCRIPTORS_APART_FROM_CLIENTS);
    log_event(LOG_NOTICE, "maxclients_lowered", LOG_FIELDS({"maxclients", .number = config->maxclients}),
              "the system allows %llu descriptors, so maxclients is now %lld (ulimit -n)", (unsigned long long)hard,
              (long long)config->maxclients);
}
