/* resolution: the addresses of a host. A thread asks for them, since the answer may take seconds. */
#ifndef REPLAY_SERVER_RESOLUTION_H
#define REPLAY_SERVER_RESOLUTION_H

#include <stdbool.h>
#include <stdint.h>

struct addrinfo;
struct resolution;

struct resolution *resolution_begin(const char *host, int64_t port); /* NULL: no memory, or no thread */
bool resolution_has_ended(const struct resolution *resolution);
/* After that: the addresses, linked by ai_next and freed with the resolution. NULL: there are none, and `why` says so. */
const struct addrinfo *resolution_found(const struct resolution *resolution, const char **why);
void resolution_free(struct resolution *resolution); /* ended or not; NULL is allowed */

#endif
