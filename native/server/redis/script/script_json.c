/* script_json: the table `cjson` and its settings, as of lua-cjson 2.1. */
#include <limits.h>
#include <stdio.h>

#include "server/redis/script/script_json.h"

#define PRECISION_MOST 14

static struct json_settings *settings_of(lua_State *lua) {
    return lua_touserdata(lua, lua_upvalueindex(1));
}

/* What is missing of `most` arguments becomes nil. */
static struct json_settings *take_arguments(lua_State *lua, int most) {
    luaL_argcheck(lua, lua_gettop(lua) <= most, most + 1, "found too many arguments");
    lua_settop(lua, most);
    return settings_of(lua);
}

/* Sets what the argument says, unless it is nil, and pushes what is set then. */
static void set_integer(lua_State *lua, int argument, int *setting, int least, int most) {
    if (!lua_isnil(lua, argument)) {
        char expected[64];
        int value = (int)luaL_checkinteger(lua, argument);
        snprintf(expected, sizeof expected, "expected integer between %d and %d", least, most);
        luaL_argcheck(lua, least <= value && value <= most, 1, expected);
        *setting = value;
    }
    lua_pushinteger(lua, *setting);
}

/* Of the words the first two are false and true as well. */
static void set_choice(lua_State *lua, int argument, int *setting, const char *const words[]) {
    if (lua_isboolean(lua, argument))
        *setting = lua_toboolean(lua, argument);
    else if (!lua_isnil(lua, argument))
        *setting = luaL_checkoption(lua, argument, NULL, words);
    if (*setting <= 1)
        lua_pushboolean(lua, *setting);
    else
        lua_pushstring(lua, words[*setting]);
}

static const char *const off_or_on[] = {"off", "on", NULL};

static int encode_sparse_array(lua_State *lua) {
    struct json_settings *settings = take_arguments(lua, 3);
    set_choice(lua, 1, &settings->sparse_convert, off_or_on);
    set_integer(lua, 2, &settings->sparse_ratio, 0, INT_MAX);
    set_integer(lua, 3, &settings->sparse_safe, 0, INT_MAX);
    return 3;
}

static int encode_max_depth(lua_State *lua) {
    set_integer(lua, 1, &take_arguments(lua, 1)->encode_depth, 1, INT_MAX);
    return 1;
}

static int decode_max_depth(lua_State *lua) {
    set_integer(lua, 1, &take_arguments(lua, 1)->decode_depth, 1, INT_MAX);
    return 1;
}

static int encode_number_precision(lua_State *lua) {
    set_integer(lua, 1, &take_arguments(lua, 1)->precision, 1, PRECISION_MOST);
    return 1;
}

static int encode_keep_buffer(lua_State *lua) {
    set_choice(lua, 1, &take_arguments(lua, 1)->keep_buffer, off_or_on);
    return 1;
}

static int encode_invalid_numbers(lua_State *lua) {
    static const char *const words[] = {"off", "on", "null", NULL};
    set_choice(lua, 1, &take_arguments(lua, 1)->encode_invalid, words);
    return 1;
}

static int decode_invalid_numbers(lua_State *lua) {
    set_choice(lua, 1, &take_arguments(lua, 1)->decode_invalid, off_or_on);
    return 1;
}

static int json_new(lua_State *lua) {
    script_open_json(lua);
    return 1;
}

static const luaL_Reg functions[] = {
    {"encode", json_encode},
    {"decode", json_decode},
    {"encode_sparse_array", encode_sparse_array},
    {"encode_max_depth", encode_max_depth},
    {"decode_max_depth", decode_max_depth},
    {"encode_number_precision", encode_number_precision},
    {"encode_keep_buffer", encode_keep_buffer},
    {"encode_invalid_numbers", encode_invalid_numbers},
    {"decode_invalid_numbers", decode_invalid_numbers},
    {"new", json_new},
};

void script_open_json(lua_State *lua) {
    lua_newtable(lua);
    *(struct json_settings *)lua_newuserdata(lua, sizeof(struct json_settings)) = (struct json_settings){
        .encode_depth = 1000,
        .decode_depth = 1000,
        .sparse_ratio = 2,
        .sparse_safe = 10,
        .decode_invalid = 1,
        .precision = PRECISION_MOST,
        .keep_buffer = 1,
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        lua_pushvalue(lua, -1);
        lua_pushcclosure(lua, functions[i].func, 1);
        lua_setfield(lua, -3, functions[i].name);
    }
    lua_pop(lua, 1);
    lua_pushlightuserdata(lua, NULL);
    lua_setfield(lua, -2, "null");
    lua_pushliteral(lua, "cjson");
    lua_setfield(lua, -2, "_NAME");
    lua_pushliteral(lua, "2.1.0");
    lua_setfield(lua, -2, "_VERSION");
}
