/* script_json_encode: cjson.encode: a value as JSON. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "server/redis/script/script_json.h"

struct writer {
    lua_State *lua;
    const struct json_settings *settings;
    struct script_buffer *buffer;
};

static void write_value(struct writer *writer, int depth);

static void refuse(struct writer *writer, int index, const char *why) {
    luaL_error(writer->lua, "Cannot serialise %s: %s", luaL_typename(writer->lua, index), why);
}

static void add(struct writer *writer, const char *text, size_t length) {
    script_buffer_add(writer->lua, writer->buffer, text, length);
}

static void add_byte(struct writer *writer, char byte) {
    script_buffer_add_byte(writer->lua, writer->buffer, byte);
}

/* ---- strings and numbers ----------------------------------------------------------------------------------- */

static bool is_plain(unsigned char c) {
    return c >= ' ' && c != '"' && c != '\\' && c != '/' && c != 0x7f;
}

static void write_escaped(struct writer *writer, unsigned char c) {
    char text[7];
    switch (c) {
    case '"':
    case '\\':
    case '/': snprintf(text, sizeof text, "\\%c", c); break;
    case '\b': snprintf(text, sizeof text, "\\b"); break;
    case '\t': snprintf(text, sizeof text, "\\t"); break;
    case '\n': snprintf(text, sizeof text, "\\n"); break;
    case '\f': snprintf(text, sizeof text, "\\f"); break;
    case '\r': snprintf(text, sizeof text, "\\r"); break;
    default: snprintf(text, sizeof text, "\\u%04x", c);
    }
    add(writer, text, strlen(text));
}

static void write_string(struct writer *writer, int index) {
    size_t length;
    const char *string = lua_tolstring(writer->lua, index, &length), *end = string + length;
    add_byte(writer, '"');
    while (string < end) {
        const char *plain = string;
        while (string < end && is_plain((unsigned char)*string)) string++;
        add(writer, plain, (size_t)(string - plain));
        if (string < end) write_escaped(writer, (unsigned char)*string++);
        script_work(writer->lua);
    }
    add_byte(writer, '"');
}

static void write_number(struct writer *writer, int index) {
    double number = lua_tonumber(writer->lua, index);
    int invalid = writer->settings->encode_invalid;
    if (!isfinite(number) && invalid == JSON_INVALID_REFUSED) refuse(writer, index, "must not be NaN or Inf");
    if (!isfinite(number) && invalid == JSON_INVALID_NULL) {
        add(writer, "null", 4);
    } else if (isnan(number)) {
        add(writer, "nan", 3);
    } else {
        char text[32];
        int length = snprintf(text, sizeof text, "%.*g", writer->settings->precision, number);
        add(writer, text, (size_t)length);
    }
}

/* ---- tables ------------------------------------------------------------------------------------------------- */

/* The greatest index of the table on the stack, if it is to be an array; -1 or 0: it is to be an object. */
static int array_length(struct writer *writer) {
    lua_State *lua = writer->lua;
    const struct json_settings *settings = writer->settings;
    int most = 0;
    int64_t count = 0;
    for (lua_pushnil(lua); lua_next(lua, -2); lua_pop(lua, 1)) {
        double key = lua_type(lua, -2) == LUA_TNUMBER ? lua_tonumber(lua, -2) : 0;
        if (key < 1 || floor(key) != key) {
            lua_pop(lua, 2);
            return -1;
        }
        if (key > most) most = key <= INT_MAX ? (int)key : INT_MIN; /* as conversions on x86 have it */
        count++;
        script_work(lua);
    }
    if (settings->sparse_ratio > 0 && most > count * settings->sparse_ratio && most > settings->sparse_safe) {
        if (!settings->sparse_convert) refuse(writer, -1, "excessively sparse array");
        return -1;
    }
    return most;
}

static void write_array(struct writer *writer, int length, int depth) {
    add_byte(writer, '[');
    for (int64_t i = 1; i <= length; i++) {
        if (i > 1) add_byte(writer, ',');
        lua_rawgeti(writer->lua, -1, (int)i);
        write_value(writer, depth);
        lua_pop(writer->lua, 1);
    }
    add_byte(writer, ']');
}

static void write_key(struct writer *writer, int index) {
    switch (lua_type(writer->lua, index)) {
    case LUA_TSTRING: write_string(writer, index); return;
    case LUA_TNUMBER:
        add_byte(writer, '"');
        write_number(writer, index);
        add_byte(writer, '"');
        return;
    default: refuse(writer, index, "table key must be a number or string");
    }
}

static void write_object(struct writer *writer, int depth) {
    bool first = true;
    add_byte(writer, '{');
    for (lua_pushnil(writer->lua); lua_next(writer->lua, -2); lua_pop(writer->lua, 1)) {
        if (!first) add_byte(writer, ',');
        first = false;
        write_key(writer, -2);
        add_byte(writer, ':');
        write_value(writer, depth);
    }
    add_byte(writer, '}');
}

/* Lua's own limit of 8000 values bounds the depth where the settings do not. */
static void write_table(struct writer *writer, int depth) {
    if (depth > writer->settings->encode_depth || !lua_checkstack(writer->lua, 3))
        luaL_error(writer->lua, "Cannot serialise, excessive nesting (%d)", depth);
    if (script_push_original(writer->lua, lua_gettop(writer->lua))) lua_replace(writer->lua, -2);
    int length = array_length(writer);
    if (length > 0)
        write_array(writer, length, depth);
    else
        write_object(writer, depth);
}

/* The value on the stack, which `depth` tables are around. */
static void write_value(struct writer *writer, int depth) {
    lua_State *lua = writer->lua;
    script_work(lua);
    switch (lua_type(lua, -1)) {
    case LUA_TNIL: add(writer, "null", 4); return;
    case LUA_TBOOLEAN: lua_toboolean(lua, -1) ? add(writer, "true", 4) : add(writer, "false", 5); return;
    case LUA_TNUMBER: write_number(writer, -1); return;
    case LUA_TSTRING: write_string(writer, -1); return;
    case LUA_TTABLE: write_table(writer, depth + 1); return;
    case LUA_TLIGHTUSERDATA:
        if (!lua_touserdata(lua, -1)) {
            add(writer, "null", 4);
            return;
        }
    }
    refuse(writer, -1, "type not supported");
}

int json_encode(lua_State *lua) {
    luaL_argcheck(lua, lua_gettop(lua) == 1, 1, "expected 1 argument");
    struct writer writer = {
        .lua = lua,
        .settings = lua_touserdata(lua, lua_upvalueindex(1)),
        .buffer = script_buffer_start(lua),
    };
    write_value(&writer, 0);
    script_buffer_push(lua, writer.buffer);
    return 1;
}
