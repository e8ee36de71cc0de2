/* acl_absent: the commands of Redis 7.0 that are not here, and their categories, in alphabetical order. */
#include "server/redis/acl/acl_commands.h"

const struct acl_absent acl_absent[] = {
    {"module|load", ACL_ADMIN | ACL_DANGEROUS | ACL_SLOW},
    {"module|loadex", ACL_ADMIN | ACL_DANGEROUS | ACL_SLOW},
    {"module|unload", ACL_ADMIN | ACL_DANGEROUS | ACL_SLOW},
    {"restore-asking", ACL_DANGEROUS | ACL_KEYSPACE | ACL_SLOW | ACL_WRITE},
    {0},
};
