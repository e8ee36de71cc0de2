/* whole: the short way through a request that lies whole in what is fed, as nearly all do. */
#ifndef REPLAY_RESP_WHOLE_H
#define REPLAY_RESP_WHOLE_H

#include <stddef.h>
#include <stdint.h>

struct resp_parser;

/* Takes a request of small arguments that is there from its '*' to its end, and returns its bytes. 0: it is not, or
 * something about it is wrong or beyond a limit: nothing has changed, and the parser goes through it step by step. */
size_t resp_take_whole(struct resp_parser *parser, const uint8_t *data, size_t length);

#endif
