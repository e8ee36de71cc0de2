/* families_replication: whom this server follows, and who follows it. */
#include <math.h>

#include "server/core/server.h"
#include "server/metrics/families.h"
#include "server/replication/replicas.h"
#include "server/replication/replication_subsystem.h"

static double is_replica(const struct metric_item *item) {
    return item->server->place.is_replica;
}

static double is_fenced(const struct metric_item *item) {
    return server_is_fenced(item->server);
}

static double replicas(const struct metric_item *item) {
    return item->server->replication->replica_count;
}

static double offset(const struct metric_item *item) {
    return (double)change_stream_end(&item->server->replication->stream);
}

/* NaN: it is a primary. */
static double primary_link_up(const struct metric_item *item) {
    return item->server->place.is_replica ? item->server->replication->link.state == LINK_UP : NAN;
}

/* Of the replica that is furthest behind. NaN: none has all of the first copy. */
static double most_behind(const struct metric_item *item,
                          double (*behind)(const struct server *, const struct replica *)) {
    double most = NAN;
    for (const struct replica *each = item->server->replication->replicas; each; each = each->next)
        if (each->state == REPLICA_ONLINE) most = fmax(most, behind(item->server, each));
    return most;
}

static double bytes_behind(const struct server *server, const struct replica *replica) {
    uint64_t end = change_stream_end(&server->replication->stream); /* what a replica says may be more */
    return end > replica->acknowledged ? (double)(end - replica->acknowledged) : 0;
}

static double seconds_behind(const struct server *server, const struct replica *replica) {
    return (double)(server->now_us - replica->acknowledged_us) / 1e6;
}

static double lag_bytes(const struct metric_item *item) {
    return most_behind(item, bytes_behind);
}

static double lag_seconds(const struct metric_item *item) {
    return most_behind(item, seconds_behind);
}

const struct family families_replication[] = {
    {"replay_server_is_replica", METRIC_GAUGE, EACH_SERVER, "1: it follows a primary; 0: it is one.", is_replica},
    {"replay_server_fenced", METRIC_GAUGE, EACH_SERVER,
     "1: it follows nobody and refuses writes, because a newer primary was chosen or its files are a replica's; else "
     "0.",
     is_fenced},
    {"replay_server_primary_link_up", METRIC_GAUGE, EACH_SERVER,
     "Of a replica. 1: the primary's changes arrive; 0: not, or its first copy is still on the way.", primary_link_up},
    {"replay_server_replicas", METRIC_GAUGE, EACH_SERVER, "Replicas that are connected.", replicas},
    {"replay_server_replication_offset_bytes", METRIC_GAUGE, EACH_SERVER,
     "Where the stream of changes ends: of two servers of one history, the larger one has more.", offset},
    {"replay_server_replica_lag_bytes", METRIC_GAUGE, EACH_SERVER,
     "Bytes of changes that the replica which is furthest behind has not acknowledged.", lag_bytes},
    {"replay_server_replica_lag_seconds", METRIC_GAUGE, EACH_SERVER,
     "Time since a replica last acknowledged anything; each does so once a second.", lag_seconds},
    {0},
};
