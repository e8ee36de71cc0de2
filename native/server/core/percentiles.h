/* percentiles: the setting latency-tracking-info-percentiles: which percentiles of commands' times INFO shows. */
#ifndef REPLAY_SERVER_PERCENTILES_H
#define REPLAY_SERVER_PERCENTILES_H

#include <stddef.h>

#include "base/error.h"

#define PERCENTILES_MOST 16

/* Numbers from 0 to 100 with blanks between them; returns how many. −1 with `error`: they are none. */
int percentiles_parse(const char *text, double percentiles[PERCENTILES_MOST], struct error *error);
/* The same in their shortest form, as CONFIG GET shows them. */
int percentiles_tidy(const char *text, char *tidy, size_t size, struct error *error);

#endif
