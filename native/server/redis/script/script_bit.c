/* script_bit: the table `bit`: operations on 32 bits, as in LuaJIT's library of that name. */
#include <ctype.h>
#include <stdio.h>

#include "server/redis/script/script_engine.h"

/* Any number, reduced to 32 bits, as its bits are in two's complement. */
static uint32_t bits_argument(lua_State *lua, int index) {
    double number = luaL_checknumber(lua, index);
    union {
        double number;
        uint64_t bits;
    } sum = {.number = number + 6755399441055744.0}; /* 2^52 + 2^51: the low bits are the rounded number's */
    return (uint32_t)sum.bits;
}

static int push_bits(lua_State *lua, uint32_t bits) {
    lua_pushnumber(lua, (lua_Number)(int32_t)bits);
    return 1;
}

static int bit_tobit(lua_State *lua) {
    return push_bits(lua, bits_argument(lua, 1));
}

static int bit_bnot(lua_State *lua) {
    return push_bits(lua, ~bits_argument(lua, 1));
}

static int bit_band(lua_State *lua) {
    uint32_t bits = bits_argument(lua, 1);
    for (int i = lua_gettop(lua); i > 1; i--) bits &= bits_argument(lua, i);
    return push_bits(lua, bits);
}

static int bit_bor(lua_State *lua) {
    uint32_t bits = bits_argument(lua, 1);
    for (int i = lua_gettop(lua); i > 1; i--) bits |= bits_argument(lua, i);
    return push_bits(lua, bits);
}

static int bit_bxor(lua_State *lua) {
    uint32_t bits = bits_argument(lua, 1);
    for (int i = lua_gettop(lua); i > 1; i--) bits ^= bits_argument(lua, i);
    return push_bits(lua, bits);
}

static uint32_t rotate_left(uint32_t bits, uint32_t by) {
    by &= 31;
    return by == 0 ? bits : bits << by | bits >> (32 - by);
}

static int bit_lshift(lua_State *lua) {
    return push_bits(lua, bits_argument(lua, 1) << (bits_argument(lua, 2) & 31));
}

static int bit_rshift(lua_State *lua) {
    return push_bits(lua, bits_argument(lua, 1) >> (bits_argument(lua, 2) & 31));
}

static int bit_arshift(lua_State *lua) {
    uint32_t bits = bits_argument(lua, 1), by = bits_argument(lua, 2) & 31;
    uint32_t sign = bits >> 31 ? ~(UINT32_MAX >> by) : 0;
    return push_bits(lua, bits >> by | sign);
}

static int bit_rol(lua_State *lua) {
    return push_bits(lua, rotate_left(bits_argument(lua, 1), bits_argument(lua, 2)));
}

static int bit_ror(lua_State *lua) {
    return push_bits(lua, rotate_left(bits_argument(lua, 1), 32 - (bits_argument(lua, 2) & 31)));
}

static int bit_bswap(lua_State *lua) {
    return push_bits(lua, __builtin_bswap32(bits_argument(lua, 1)));
}

static int bit_tohex(lua_State *lua) {
    uint32_t bits = bits_argument(lua, 1);
    int32_t digits = lua_isnoneornil(lua, 2) ? 8 : (int32_t)bits_argument(lua, 2);
    bool upper = digits < 0;
    if (upper) digits = digits == INT32_MIN ? INT32_MAX : -digits;
    if (digits > 8) digits = 8;
    char hex[9];
    snprintf(hex, sizeof hex, "%08x", bits);
    for (char *c = hex; upper && *c; c++) *c = (char)toupper((unsigned char)*c);
    lua_pushlstring(lua, hex + 8 - digits, (size_t)digits);
    return 1;
}

static const luaL_Reg functions[] = {
    {"tobit", bit_tobit},     {"tohex", bit_tohex},   {"bnot", bit_bnot},     {"band", bit_band}, {"bor", bit_bor},
    {"bxor", bit_bxor},       {"lshift", bit_lshift}, {"rshift", bit_rshift}, {"rol", bit_rol},   {"ror", bit_ror},
    {"arshift", bit_arshift}, {"bswap", bit_bswap},   {NULL, NULL},
};

void script_open_bit(lua_State *lua) {
    lua_newtable(lua);
    luaL_register(lua, NULL, functions);
}
