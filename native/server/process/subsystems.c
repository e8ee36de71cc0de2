/* subsystems: what a server is made of, and which functions answer what its core asks. */
#include "server/admin/admin_subsystem.h"
#include "server/cluster/cluster_subsystem.h"
#include "server/core/upcalls.h"
#include "server/durability/append_log.h"
#include "server/durability/copy_first.h"
#include "server/durability/durability_subsystem.h"
#include "server/durability/snapshots.h"
#include "server/metrics/metrics.h"
#include "server/redis/acl/acl.h"
#include "server/redis/pubsub/notify.h"
#include "server/redis/pubsub/pubsub.h"
#include "server/redis/redis_subsystem.h"
#include "server/redis/tracking/tracking.h"
#include "server/redis/transaction/transaction.h"
#include "server/replay/replay_subsystem.h"
#include "server/replication/replication_subsystem.h"

/* A subsystem stands behind those that it uses, and is freed before them: snapshots hold tables. */
const struct subsystem *const server_subsystems[] = {
    &replay_subsystem,      &redis_subsystem, &cluster_subsystem, &durability_subsystem,
    &replication_subsystem, &admin_subsystem, &metrics_subsystem, NULL,
};

const struct upcalls upcalls = {
    .acl_lets_strangers_in = acl_lets_strangers_in,
    .acl_welcome = acl_welcome,
    .acl_refusal = acl_refusal,
    .acl_may_become_allowed = acl_may_become_allowed,
    .acl_may_access_key = acl_may_access_key,
    .transaction_queue = transaction_queue,
    .transaction_refused = transaction_refused,
    .transaction_refusal_prefix = transaction_refusal_prefix,
    .transaction_flags = transaction_flags,
    .transaction_bytes = transaction_bytes,
    .transaction_has = transaction_has,
    .cluster_refusal = cluster_refusal,
    .cluster_holds = cluster_holds,
    .pubsub_is_subscriber = pubsub_is_subscriber,
    .tracking_read = tracking_read,
    .tracking_request_done = tracking_request_done,
    .tracking_tell_readers = tracking_tell_readers,
    .notify_command = notify_command,
    .durability_refuses_writes = durability_refuses_writes,
    .durability_holds = durability_holds,
    .append_log_buffer = append_log_buffer,
    .append_log_is_behind = append_log_is_behind,
    .append_log_added = append_log_added,
    .append_log_lost = append_log_lost,
    .append_log_replied = append_log_replied,
    .append_log_rests = append_log_rests,
    .replication_buffer = replication_buffer,
    .replication_added = replication_added,
    .replication_lost = replication_lost,
    .replication_applied = replication_applied,
    .replication_is_up = replication_is_up,
    .replication_replied = replication_replied,
    .snapshots_rules_are_valid = snapshots_rules_are_valid,
    .client_describe = client_describe,
    .monitor_feed_script = monitor_feed_script,
    .admin_command_took = admin_command_took,
};
