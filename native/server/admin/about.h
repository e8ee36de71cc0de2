/* about: what an executable prints about itself without serving: its build, and the settings it knows; both as
 * JSON. */
#ifndef REPLAY_SERVER_ABOUT_H
#define REPLAY_SERVER_ABOUT_H

#include "base/text.h"
#include "net/transport.h"

/* One object: version, compiler, C library, vector instructions, libraries with their versions as they run (null: built
 * without). `more` are those of the transport, ended by one without a name; NULL: none. */
void about_build(const char *program, const struct transport_library *more, struct text *out);
/* An array of objects, one a setting that can be set: name, kind, live, default, and minimum, maximum or choices. */
void about_settings(struct text *out);

#endif
