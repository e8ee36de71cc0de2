/* parts: what a server is made of. */
#include "server/admin/admin_part.h"
#include "server/durability/durability_part.h"
#include "server/metrics/metrics.h"
#include "server/redis/redis_part.h"
#include "server/replay/replay_part.h"

/* A part stands behind those that it uses, and is freed before them: snapshots hold tables. */
const struct subsystem *const server_parts[] = {&replay_part, &redis_part,   &durability_part,
                                                &admin_part,  &metrics_part, NULL};
