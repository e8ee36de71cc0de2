/* parse_fast: a shorter way to parse a request that has arrived completely, as nearly all have. */
#ifndef REPLAY_RESP_PARSE_FAST_H
#define REPLAY_RESP_PARSE_FAST_H

#include <stddef.h>
#include <stdint.h>

struct resp_parser;

/* Takes a request of small arguments that is there from its '*' to its end, and returns its bytes. 0: it is not, or
 * something about it is wrong or beyond a limit: nothing has changed, and the parser goes through it step by step. */
size_t resp_parse_fast(struct resp_parser *parser, const uint8_t *data, size_t length);

#endif
