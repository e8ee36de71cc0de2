/* script_json: what the two halves of the table `cjson` share. */
#ifndef REPLAY_SERVER_SCRIPT_JSON_H
#define REPLAY_SERVER_SCRIPT_JSON_H

#include "server/redis/script/script_engine.h"

enum json_invalid { JSON_INVALID_REFUSED, JSON_INVALID_WRITTEN, JSON_INVALID_NULL };

/* Of one such table; scripts can change them for those that come after, as in Redis. */
struct json_settings {
    int encode_depth, decode_depth;
    int sparse_convert, sparse_ratio, sparse_safe;
    int encode_invalid; /* enum json_invalid: numbers that JSON does not know */
    int decode_invalid; /* whether they are read */
    int precision;
    int keep_buffer; /* is shown, and means nothing */
};

/* The functions `encode` and `decode`; their first upvalue is the settings. */
int json_encode(lua_State *lua);
int json_decode(lua_State *lua);

#endif
