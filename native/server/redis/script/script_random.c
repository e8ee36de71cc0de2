/* script_random: math.random and math.randomseed with Redis's generator, so that a seed gives the same numbers: the linear
 * congruence of POSIX's drand48, whose high 31 bits count. */
#include <math.h>

#include "server/redis/script/script_engine.h"

#define MULTIPLIER UINT64_C(0x5DEECE66D)
#define INCREMENT 0xB
#define STATE_BITS 48
#define LOW_OF_SEED 0x330E

void script_seed_first(struct script_engine *engine) {
    engine->random = UINT64_C(0x1234ABCD330E);
}

/* In 0 .. 1, without 1. */
static double draw(struct script_engine *engine) {
    engine->random = (MULTIPLIER * engine->random + INCREMENT) & ((UINT64_C(1) << STATE_BITS) - 1);
    return (double)((engine->random >> (STATE_BITS - 31)) % INT32_MAX) / INT32_MAX;
}

static int math_random(lua_State *lua) {
    double drawn = draw(script_of(lua));
    int arguments = lua_gettop(lua);
    if (arguments == 0) {
        lua_pushnumber(lua, drawn);
        return 1;
    }
    if (arguments > 2) return luaL_error(lua, "wrong number of arguments");
    int least = arguments == 2 ? luaL_checkint(lua, 1) : 1, most = luaL_checkint(lua, arguments);
    luaL_argcheck(lua, least <= most, arguments, "interval is empty");
    lua_pushnumber(lua, floor(drawn * ((double)most - least + 1)) + least);
    return 1;
}

static int math_randomseed(lua_State *lua) {
    script_of(lua)->random = (uint64_t)(uint32_t)luaL_checkint(lua, 1) << 16 | LOW_OF_SEED;
    return 0;
}

void script_open_random(lua_State *lua) {
    lua_pushcfunction(lua, math_random);
    lua_setfield(lua, -2, "random");
    lua_pushcfunction(lua, math_randomseed);
    lua_setfield(lua, -2, "randomseed");
}
