/* info_more: fields of INFO that dashboards and exporters expect from any Redis, beside this server's own fields. */
#ifndef REPLAY_SERVER_INFO_MORE_H
#define REPLAY_SERVER_INFO_MORE_H

#include "base/text.h"
#include "server/core/subsystem.h"

/* Each appends to the section of its name. */
void info_more_server(const struct server *server, struct text *out);
void info_more_clients(const struct server *server, struct text *out);
void info_more_memory(const struct server *server, struct text *out);
void info_more_stats(const struct client *client, struct text *out);
void info_more_cpu(const struct server *server, struct text *out);
extern const struct info_section info_admin[];
/* INFO's text for the client: the named sections, or the default ones when count is 0. */
void server_info_text(const struct client *client, const struct resp_argument *sections, uint32_t count,
                      struct text *out);
size_t server_resident_bytes(void); /* of the process, as the system counts */

#endif
