/* replication_info: the lines of INFO replication, which Sentinel reads. */
#include <inttypes.h>

#include "server/replication/epoch.h"
#include "server/replication/received_file.h"
#include "server/replication/replicas.h"
#include "server/replication/replication_subsystem.h"
#include "server/replication/table_replication.h"

static const char *const state_names[] = {"", "wait_bgsave", "send_bulk", "online"};

static const char *const failover_names[] = {"no-failover", "waiting-for-sync", "failover-in-progress"};

static void replicas_lines(const struct server *server, struct text *out) {
    unsigned number = 0;
    for (const struct replica *replica = server->replication->replicas; replica; replica = replica->next) {
        char host[256];
        replica_host(replica, host);
        uint64_t lag_s = replica->state == REPLICA_ONLINE ? (server->now_us - replica->acknowledged_us) / 1000000u : 0;
        text_append(out, "slave%u:ip=%s,port=%" PRId64 ",state=%s,offset=%" PRIu64 ",lag=%" PRIu64 "\r\n", number++,
                    host, replica->port, state_names[replica->state], replica->acknowledged, lag_s);
    }
}

static void primary_lines(const struct server *server, struct text *out) {
    const struct replication_settings *settings = &server->config.replication;
    const struct replication_subsystem *replication = server->replication;
    const struct primary_link *link = &replication->link;
    bool is_up = link->state == LINK_UP, is_synchronising = link->state == LINK_RECEIVES || link->state == LINK_LOADS;
    int64_t heard_s = link->client ? (int64_t)((server->now_us - link->client->input_us) / 1000000u) : -1;
    uint64_t offset = change_stream_end(&replication->stream);
    text_append(out, "master_host:%s\r\nmaster_port:%" PRId64 "\r\nmaster_link_status:%s\r\n", link->host, link->port,
                is_up ? "up" : "down");
    text_append(out, "master_last_io_seconds_ago:%" PRId64 "\r\nmaster_sync_in_progress:%d\r\n", heard_s,
                is_synchronising);
    text_append(out, "slave_read_repl_offset:%" PRIu64 "\r\nslave_repl_offset:%" PRIu64 "\r\n", offset, offset);
    if (is_synchronising)
        text_append(out, "master_sync_read_bytes:%" PRIu64 "\r\n", link->file ? received_file_bytes(link->file) : 0);
    if (!is_up)
        text_append(out, "master_link_down_since_seconds:%" PRId64 "\r\n",
                    (int64_t)((server->now_us - link->down_us) / 1000000u));
    text_append(out, "slave_priority:%" PRId64 "\r\nslave_read_only:%" PRId64 "\r\nreplica_announced:%" PRId64 "\r\n",
                settings->priority, settings->is_read_only, settings->announced);
}

void replication_info(const struct client *client, struct text *out) {
    const struct server *server = client->server;
    const struct replication_settings *settings = &server->config.replication;
    const struct replication_subsystem *replication = server->replication;
    const struct change_stream *stream = &replication->stream;
    bool is_kept = change_stream_is_kept(stream);
    text_append(out, "# Replication\r\nrole:%s\r\n", server->place.is_replica ? "slave" : "master");
    if (server->place.is_replica) primary_lines(server, out);
    text_append(out, "connected_slaves:%" PRIu32 "\r\n", replication->replica_count);
    if (settings->min_replicas_to_write > 0 && settings->min_replicas_max_lag_s > 0)
        text_append(out, "min_slaves_good_slaves:%" PRIu32 "\r\n", server->place.good_replicas);
    replicas_lines(server, out);
    table_replication_info(client, out);
    text_append(out,
                "master_failover_state:%s\r\nmaster_replid:%s\r\nmaster_replid2:%s\r\nmaster_repl_offset:%" PRIu64
                "\r\nsecond_repl_offset:%" PRId64 "\r\n",
                failover_names[replication->failover.state], replication->id, replication->former_id,
                change_stream_end(stream), replication->former_until);
    text_append(out,
                "master_epoch:%" PRIu64 "\r\nmaster_newest_epoch:%" PRIu64 "\r\nmaster_origin:" EPOCH_ORIGIN_FORMAT
                "\r\nmaster_fenced:%d\r\n",
                server->place.epoch, server->place.newest_epoch, server->place.origin, server_is_fenced(server));
    text_append(out,
                "repl_backlog_active:%d\r\nrepl_backlog_size:%" PRId64 "\r\nrepl_backlog_first_byte_offset:%" PRIu64
                "\r\nrepl_backlog_histlen:%" PRIu64 "\r\n",
                is_kept, settings->backlog_bytes, is_kept ? stream->begin + 1 : 0,
                is_kept ? change_stream_end(stream) - stream->begin : 0);
}
