/* certificates: reads the TLS certificates and keys that the settings name from their files. */
#ifndef REPLAY_SERVER_CERTIFICATES_H
#define REPLAY_SERVER_CERTIFICATES_H

#include "net/transport.h"
#include "server/core/server.h"

/* NULL with `error`: a file is not as it should be. */
struct tls *certificates_read(const struct server_config *config, struct error *error);
/* Reads them for connections that come from then on. -1 with `error`: what was used before stays. */
int certificates_use(const struct server_config *config, struct transport *kernel, struct error *error);

#endif
