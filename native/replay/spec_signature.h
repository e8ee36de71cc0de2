/* spec_signature: a table's columns as they stand in its spec. */
#ifndef REPLAY_REPLAY_SPEC_SIGNATURE_H
#define REPLAY_REPLAY_SPEC_SIGNATURE_H

#include "base/msgpack.h"
#include "replay/spec_reader.h"
#include "replay/table.h"

/* Reads the map of columns, binds windows to the columns that they look at, and checks sizes. -1 with ERROR_BADSCHEMA. */
int spec_read_signature(struct spec_reader *spec, struct table_config *config);
void spec_write_signature(struct msgpack_writer *writer, const struct table_config *config);

#endif
