/* script_msgpack: the table `cmsgpack`: values to and from MessagePack, as of lua-cmsgpack 0.4: strings are of the old kind,
 * without binary ones and extensions. */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "server/redis/script/script_engine.h"

#define DEPTH_MOST 16 /* tables nested deeper are packed as nil: they may go in circles */
#define TOO_MANY "too many return values at once; use unpack_one or unpack_limit instead."

/* ---- packing ----------------------------------------------------------------------------------------------- */

static void pack_value(lua_State *lua, struct script_buffer *buffer, int depth);

/* A byte that says what comes, and the number behind it in `size` bytes, the highest first. */
static void put(lua_State *lua, struct script_buffer *buffer, int kind, uint64_t number, size_t size) {
    uint8_t bytes[9] = {(uint8_t)kind};
    for (size_t i = 0; i < size; i++) bytes[1 + i] = (uint8_t)(number >> (8 * (size - 1 - i)));
    script_buffer_add(lua, buffer, bytes, 1 + size);
}

static void pack_integer(lua_State *lua, struct script_buffer *buffer, int64_t number) {
    uint64_t bits = (uint64_t)number;
    if (number >= -32 && number <= 127)
        put(lua, buffer, (int)(bits & 0xff), 0, 0);
    else if (number >= 0 && number <= UINT8_MAX)
        put(lua, buffer, 0xcc, bits, 1);
    else if (number >= 0 && number <= UINT16_MAX)
        put(lua, buffer, 0xcd, bits, 2);
    else if (number >= 0 && number <= UINT32_MAX)
        put(lua, buffer, 0xce, bits, 4);
    else if (number >= 0)
        put(lua, buffer, 0xcf, bits, 8);
    else if (number >= INT8_MIN)
        put(lua, buffer, 0xd0, bits, 1);
    else if (number >= INT16_MIN)
        put(lua, buffer, 0xd1, bits, 2);
    else if (number >= INT32_MIN)
        put(lua, buffer, 0xd2, bits, 4);
    else
        put(lua, buffer, 0xd3, bits, 8);
}

static void pack_number(lua_State *lua, struct script_buffer *buffer) {
    double number = lua_tonumber(lua, -1);
    if (number >= -0x1p63 && number < 0x1p63 && number == floor(number)) {
        pack_integer(lua, buffer, (int64_t)number);
        return;
    }
    float single = (float)number;
    if (number == (double)single) {
        uint32_t bits;
        memcpy(&bits, &single, sizeof bits);
        put(lua, buffer, 0xca, bits, sizeof bits);
    } else {
        uint64_t bits;
        memcpy(&bits, &number, sizeof bits);
        put(lua, buffer, 0xcb, bits, sizeof bits);
    }
}

static void pack_string(lua_State *lua, struct script_buffer *buffer) {
    size_t length;
    const char *string = lua_tolstring(lua, -1, &length);
    if (length < 32)
        put(lua, buffer, 0xa0 | (int)length, 0, 0);
    else if (length <= UINT8_MAX)
        put(lua, buffer, 0xd9, length, 1);
    else if (length <= UINT16_MAX)
        put(lua, buffer, 0xda, length, 2);
    else
        put(lua, buffer, 0xdb, length, 4);
    script_buffer_add(lua, buffer, string, length);
}

/* `few`: with the count in it, 16 bits of it, 32 bits of it. */
static void put_count(lua_State *lua, struct script_buffer *buffer, int few, int some, uint32_t count) {
    if (count <= 15)
        put(lua, buffer, few | (int)count, 0, 0);
    else if (count <= UINT16_MAX)
        put(lua, buffer, some, count, 2);
    else
        put(lua, buffer, some + 1, count, 4);
}

/* How many entries the table on the stack has, and whether their keys are just 1, 2, … */
static uint32_t count_entries(lua_State *lua, bool *is_array) {
    uint32_t count = 0;
    double most = 0;
    *is_array = true;
    for (lua_pushnil(lua); lua_next(lua, -2); lua_pop(lua, 1)) {
        double key = lua_type(lua, -2) == LUA_TNUMBER ? lua_tonumber(lua, -2) : 0;
        if (key < 1 || key > INT_MAX || key != floor(key)) *is_array = false;
        if (key > most) most = key;
        count++;
        script_work(lua);
    }
    if (most != count) *is_array = false;
    return count;
}

static void pack_table(lua_State *lua, struct script_buffer *buffer, int depth) {
    bool is_array;
    luaL_checkstack(lua, 4, "in function mp_encode_lua_table_as_map");
    if (script_push_original(lua, lua_gettop(lua))) lua_replace(lua, -2);
    uint32_t count = count_entries(lua, &is_array);
    if (is_array) {
        put_count(lua, buffer, 0x90, 0xdc, count);
        for (uint32_t i = 1; i <= count; i++) {
            lua_rawgeti(lua, -1, (int)i);
            pack_value(lua, buffer, depth + 1);
        }
        return;
    }
    put_count(lua, buffer, 0x80, 0xde, count);
    lua_pushnil(lua);
    while (lua_next(lua, -2)) {
        lua_pushvalue(lua, -2);
        pack_value(lua, buffer, depth + 1);
        pack_value(lua, buffer, depth + 1);
    }
}

/* The value on the stack, which is popped. What MessagePack does not know is packed as nil. */
static void pack_value(lua_State *lua, struct script_buffer *buffer, int depth) {
    int type = lua_type(lua, -1);
    script_work(lua);
    if (type == LUA_TSTRING)
        pack_string(lua, buffer);
    else if (type == LUA_TBOOLEAN)
        put(lua, buffer, lua_toboolean(lua, -1) ? 0xc3 : 0xc2, 0, 0);
    else if (type == LUA_TNUMBER)
        pack_number(lua, buffer);
    else if (type == LUA_TTABLE && depth < DEPTH_MOST)
        pack_table(lua, buffer, depth);
    else
        put(lua, buffer, 0xc0, 0, 0);
    lua_pop(lua, 1);
}

static int msgpack_pack(lua_State *lua) {
    int count = lua_gettop(lua);
    if (count == 0) return luaL_argerror(lua, 0, "MessagePack pack needs input.");
    struct script_buffer *buffer = script_buffer_start(lua);
    luaL_checkstack(lua, 1, "in function mp_pack");
    for (int i = 1; i <= count; i++) {
        lua_pushvalue(lua, i);
        pack_value(lua, buffer, 0);
    }
    script_buffer_push(lua, buffer);
    return 1;
}

/* ---- unpacking --------------------------------------------------------------------------------------------- */

enum unpacked { UNPACKED, UNPACKED_MISSING, UNPACKED_BAD };

struct source {
    const uint8_t *bytes;
    size_t left;
};

static enum unpacked unpack_value(lua_State *lua, struct source *source);

/* The number in the `size` bytes behind the first, which are taken with it if they are there. */
static bool take(struct source *source, size_t size, uint64_t *number) {
    if (source->left < 1 + size) return false;
    *number = 0;
    for (size_t i = 0; i < size; i++) *number = *number << 8 | source->bytes[1 + i];
    source->bytes += 1 + size;
    source->left -= 1 + size;
    return true;
}

static enum unpacked unpack_string(lua_State *lua, struct source *source, uint64_t length) {
    if (source->left < length) return UNPACKED_MISSING;
    lua_pushlstring(lua, (const char *)source->bytes, (size_t)length);
    source->bytes += length;
    source->left -= (size_t)length;
    return UNPACKED;
}

static enum unpacked unpack_array(lua_State *lua, struct source *source, uint64_t count) {
    lua_newtable(lua);
    luaL_checkstack(lua, 1, "in function mp_decode_to_lua_array");
    for (uint64_t i = 1; i <= count; i++) {
        lua_pushnumber(lua, (double)i);
        enum unpacked result = unpack_value(lua, source);
        if (result != UNPACKED) return result;
        lua_rawset(lua, -3);
    }
    return UNPACKED;
}

static enum unpacked unpack_map(lua_State *lua, struct source *source, uint64_t count) {
    lua_newtable(lua);
    for (; count > 0; count--) {
        enum unpacked result = unpack_value(lua, source);
        if (result == UNPACKED) result = unpack_value(lua, source);
        if (result != UNPACKED) return result;
        lua_rawset(lua, -3);
    }
    return UNPACKED;
}

static enum unpacked unpack_float(lua_State *lua, uint64_t bits, size_t size) {
    double number;
    float single;
    uint32_t low = (uint32_t)bits;
    memcpy(&number, &bits, sizeof number);
    memcpy(&single, &low, sizeof single);
    lua_pushnumber(lua, size == sizeof single ? (double)single : number);
    return UNPACKED;
}

static enum unpacked unpack_signed(lua_State *lua, uint64_t bits, size_t size) {
    int unused = (int)(64 - 8 * size);
    lua_pushnumber(lua, (double)((int64_t)(bits << unused) >> unused));
    return UNPACKED;
}

/* What a first byte of 0xc0 and above says, and how many bytes of a number or a length are behind it. */
struct kind {
    enum { BAD, NIL, FALSE, TRUE, FLOAT, UNSIGNED, SIGNED, STRING, ARRAY, MAP } what;
    size_t size;
};

static const struct kind kinds[32] = {
    [0x00] = {NIL, 0},      [0x02] = {FALSE, 0},    [0x03] = {TRUE, 0},     [0x0a] = {FLOAT, 4},  [0x0b] = {FLOAT, 8},
    [0x0c] = {UNSIGNED, 1}, [0x0d] = {UNSIGNED, 2}, [0x0e] = {UNSIGNED, 4}, [0x0f] = {SIGNED, 8}, [0x10] = {SIGNED, 1},
    [0x11] = {SIGNED, 2},   [0x12] = {SIGNED, 4},   [0x13] = {SIGNED, 8},   [0x19] = {STRING, 1}, [0x1a] = {STRING, 2},
    [0x1b] = {STRING, 4},   [0x1c] = {ARRAY, 2},    [0x1d] = {ARRAY, 4},    [0x1e] = {MAP, 2},    [0x1f] = {MAP, 4},
};

static enum unpacked unpack_kind(lua_State *lua, struct source *source, struct kind kind) {
    uint64_t number;
    if (kind.what == BAD) return UNPACKED_BAD;
    if (!take(source, kind.size, &number)) return UNPACKED_MISSING;
    switch (kind.what) {
    case FALSE:
    case TRUE: lua_pushboolean(lua, kind.what == TRUE); return UNPACKED;
    case FLOAT: return unpack_float(lua, number, kind.size);
    case UNSIGNED: lua_pushnumber(lua, (double)number); return UNPACKED;
    case SIGNED: return unpack_signed(lua, number, kind.size);
    case STRING: return unpack_string(lua, source, number);
    case ARRAY: return unpack_array(lua, source, number);
    case MAP: return unpack_map(lua, source, number);
    default: lua_pushnil(lua); return UNPACKED;
    }
}

/* Pushes the value that comes next. Lua's own limit of 8000 values bounds how deep values are in others. */
static enum unpacked unpack_value(lua_State *lua, struct source *source) {
    if (source->left == 0) return UNPACKED_MISSING;
    luaL_checkstack(lua, 1, TOO_MANY);
    script_work(lua);
    uint8_t first = source->bytes[0];
    if (first >= 0xc0 && first < 0xe0) return unpack_kind(lua, source, kinds[first - 0xc0]);
    uint64_t none;
    take(source, 0, &none);
    if (first < 0x80 || first >= 0xe0) {
        lua_pushinteger(lua, (int8_t)first);
        return UNPACKED;
    }
    if (first >= 0xa0) return unpack_string(lua, source, first & 0x1f);
    return first >= 0x90 ? unpack_array(lua, source, first & 0x0f) : unpack_map(lua, source, first & 0x0f);
}

/* At most `limit` values from `offset` on, behind the offset of the next one (-1: there is none); of both 0: all there are. */
static int unpack_some(lua_State *lua, int limit, int offset) {
    size_t length;
    const char *bytes = luaL_checklstring(lua, 1, &length);
    if (offset < 0 || limit < 0)
        return luaL_error(lua, "Invalid request to unpack with offset of %d and limit of %d.", offset, (int)length);
    if ((size_t)offset > length)
        return luaL_error(lua, "Start offset %d greater than input length %d.", offset, (int)length);
    bool all = limit == 0 && offset == 0;
    if (all) limit = INT_MAX;
    struct source source = {(const uint8_t *)bytes + offset, length - (size_t)offset};
    int count = 0;
    for (; source.left > 0 && count < limit; count++) {
        enum unpacked result = unpack_value(lua, &source);
        if (result == UNPACKED_MISSING) return luaL_error(lua, "Missing bytes in input.");
        if (result == UNPACKED_BAD) return luaL_error(lua, "Bad data format in input.");
    }
    if (all) return count;
    luaL_checkstack(lua, 1, "in function mp_unpack_full");
    lua_pushinteger(lua, source.left == 0 ? -1 : (lua_Integer)(length - source.left));
    lua_insert(lua, 2);
    return count + 1;
}

static int msgpack_unpack(lua_State *lua) {
    return unpack_some(lua, 0, 0);
}

static int msgpack_unpack_one(lua_State *lua) {
    int offset = (int)luaL_optinteger(lua, 2, 0);
    if (lua_gettop(lua) > 1) lua_settop(lua, 1);
    return unpack_some(lua, 1, offset);
}

static int msgpack_unpack_limit(lua_State *lua) {
    int limit = (int)luaL_checkinteger(lua, 2), offset = (int)luaL_optinteger(lua, 3, 0);
    if (lua_gettop(lua) > 1) lua_settop(lua, 1);
    return unpack_some(lua, limit, offset);
}

static const luaL_Reg functions[] = {
    {"pack", msgpack_pack},
    {"unpack", msgpack_unpack},
    {"unpack_one", msgpack_unpack_one},
    {"unpack_limit", msgpack_unpack_limit},
    {NULL, NULL},
};

void script_open_msgpack(lua_State *lua) {
    lua_newtable(lua);
    luaL_register(lua, NULL, functions);
    lua_pushliteral(lua, "cmsgpack");
    lua_setfield(lua, -2, "_NAME");
    lua_pushliteral(lua, "lua-cmsgpack 0.4.0");
    lua_setfield(lua, -2, "_VERSION");
    lua_pushliteral(lua, "MessagePack C implementation for Lua");
    lua_setfield(lua, -2, "_DESCRIPTION");
}
