/* config: the settings by their CONFIG names. */
#ifndef REPLAY_SERVER_CONFIG_H
#define REPLAY_SERVER_CONFIG_H

#include <stddef.h>

#include "server/core/server.h"

#define CONFIG_VALUE_BYTES 4200u /* enough for any value written by config_value */

/* "100", "64kb", "2gb": k, m, g are powers of 1000, kb, mb, gb of 1024, as in Redis. */
bool config_parse_bytes(const char *text, int64_t *value);
size_t config_count(void);
const char *config_name(size_t index);
int config_find(const char *name); /* in any case; −1: there is none */
/* Writes the value as CONFIG GET shows it. */
void config_value(const struct server_config *config, size_t index, char value[CONFIG_VALUE_BYTES]);
/* Sets one value in `config` only. `live`: refuse what takes effect only at start. */
int config_assign(struct server_config *config, const char *name, const char *value, bool live, struct error *error);
/* The server that this one follows. False: none. */
bool config_follows(const struct server_config *config, char host[256], int *port);
/* Makes the server follow its config after values were assigned. */
void config_apply(struct server *server);

#endif
