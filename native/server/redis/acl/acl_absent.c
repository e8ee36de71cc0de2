/* acl_absent: the commands of Redis 7.0 that are not here, and their categories, in alphabetical order. */
#include "server/redis/acl/acl_commands.h"

const struct acl_absent acl_absent[] = {
    {"failover", ACL_ADMIN | ACL_DANGEROUS | ACL_SLOW},
    {"fcall", ACL_SCRIPTING | ACL_SLOW},
    {"fcall_ro", ACL_SCRIPTING | ACL_SLOW},
    {"function|delete", ACL_SCRIPTING | ACL_SLOW | ACL_WRITE},
    {"function|dump", ACL_SCRIPTING | ACL_SLOW},
    {"function|kill", ACL_SCRIPTING | ACL_SLOW},
    {"function|load", ACL_SCRIPTING | ACL_SLOW | ACL_WRITE},
    {"function|restore", ACL_SCRIPTING | ACL_SLOW | ACL_WRITE},
    {"migrate", ACL_DANGEROUS | ACL_KEYSPACE | ACL_SLOW | ACL_WRITE},
    {"module|load", ACL_ADMIN | ACL_DANGEROUS | ACL_SLOW},
    {"module|loadex", ACL_ADMIN | ACL_DANGEROUS | ACL_SLOW},
    {"module|unload", ACL_ADMIN | ACL_DANGEROUS | ACL_SLOW},
    {"restore-asking", ACL_DANGEROUS | ACL_KEYSPACE | ACL_SLOW | ACL_WRITE},
    {0},
};
