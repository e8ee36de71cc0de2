/* option: values of command lines' options that several programs have. */
#ifndef REPLAY_TOOLS_OPTION_H
#define REPLAY_TOOLS_OPTION_H

#include "base/error.h"

/* A number from `least` to `most`. -1 with `error`. */
int option_number(const char *option, const char *text, double least, double most, double *value, struct error *error);
/* Keeps the thread on the processor of --processor; a negative one: on any. -1 with `error`. */
int option_pin(int processor, struct error *error);

#endif
