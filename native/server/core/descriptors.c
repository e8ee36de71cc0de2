/* descriptors: asks the system for as many file descriptors as there may be clients. If it gives fewer, the server serves fewer
 * clients, or does not start. */
#include "server/core/descriptors.h"

#include <sys/resource.h>

#include "base/limits.h"
#include "base/log.h"
#include "net/http.h"

#define DESCRIPTORS_APART_FROM_CLIENTS 64u
#define DESCRIPTORS_OF_ITS_OWN 24u /* listeners, the loop's, a snapshot, the append-only file that is written anew */

/* What is kept from clients where there is less than twice what should be. */
static rlim_t least_apart(const struct server_config *config) {
    return DESCRIPTORS_OF_ITS_OWN + (config->admin_port >= 0 ? LIMIT_ADMIN_CLIENTS : 0) +
           (config->metrics_port >= 0 ? HTTP_CONNECTIONS : 0);
}

int descriptors_raise(struct server_config *config, struct error *error) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0) return 0;
    rlim_t wanted = (rlim_t)config->maxclients + DESCRIPTORS_APART_FROM_CLIENTS;
    if (limit.rlim_cur >= wanted) return 0;
    rlim_t most = limit.rlim_max;
    limit.rlim_cur = wanted;
    if (limit.rlim_max < wanted) limit.rlim_max = wanted; /* root may */
    if (setrlimit(RLIMIT_NOFILE, &limit) == 0) return 0;
    limit.rlim_cur = limit.rlim_max = most;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0) return 0;
    rlim_t apart = most < 2 * DESCRIPTORS_APART_FROM_CLIENTS ? least_apart(config) : DESCRIPTORS_APART_FROM_CLIENTS;
    if (most <= apart)
        return error_set(error, ERROR_GENERIC,
                         "the system allows %llu descriptors (ulimit -n), expected at least %llu: for a client, and to "
                         "write snapshots and the append-only file; raise the limit",
                         (unsigned long long)most, (unsigned long long)apart + 1);
    if (config->maxclients <= (int64_t)(most - apart)) return 0;
    config->maxclients = (int64_t)(most - apart);
    log_event(LOG_NOTICE, "maxclients_lowered", LOG_FIELDS({"maxclients", .number = config->maxclients}),
              "the system allows %llu descriptors, so maxclients is now %lld (ulimit -n)", (unsigned long long)most,
              (long long)config->maxclients);
    return 0;
}
