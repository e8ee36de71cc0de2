/* script_reply: replies of commands as values of Lua, and values of Lua as replies.
 *
 * Both may take many turns, in which what is there of a reply is sent. A value rests before it is written, never behind:
 * so no turn of this file lies between the end of a reply and the record of what its script has changed. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "server/core/server.h"
#include "server/redis/script/script_engine.h"

/* ---- from a reply to a value ------------------------------------------------------------------------------- */

struct reader {
    const char *at, *end;
};

static const char *take_line(struct reader *reader, size_t *length) {
    const char *line = reader->at, *end = memchr(line, '\r', (size_t)(reader->end - line));
    *length = (size_t)(end - line);
    reader->at = end + 2;
    return line;
}

static long long take_number(struct reader *reader) {
    size_t length;
    const char *line = take_line(reader, &length);
    uint64_t magnitude = 0; /* that of the least integer is no long long */
    bool negative = line[0] == '-';
    for (size_t i = negative ? 1 : 0; i < length; i++) magnitude = magnitude * 10 + (uint64_t)(line[i] - '0');
    return (long long)(negative ? 0 - magnitude : magnitude);
}

static void push_value(lua_State *lua, struct reader *reader);

static void push_bytes(lua_State *lua, struct reader *reader, long long length) {
    lua_pushlstring(lua, reader->at, (size_t)length);
    reader->at += length + 2;
}

/* A table with one field, which holds what is on the stack. */
static void put_in_field(lua_State *lua, const char *name) {
    lua_createtable(lua, 0, 1);
    lua_insert(lua, -2);
    lua_setfield(lua, -2, name);
}

static void push_line(lua_State *lua, struct reader *reader) {
    size_t length;
    const char *line = take_line(reader, &length);
    lua_pushlstring(lua, line, length);
}

static void push_array(lua_State *lua, struct reader *reader, long long count) {
    lua_createtable(lua, count < INT32_MAX ? (int)count : 0, 0);
    for (long long i = 1; i <= count; i++) {
        push_value(lua, reader);
        lua_rawseti(lua, -2, (int)i);
    }
}

static void push_map(lua_State *lua, struct reader *reader, long long pairs) {
    lua_newtable(lua);
    for (long long i = 0; i < pairs; i++) {
        push_value(lua, reader);
        push_value(lua, reader);
        lua_rawset(lua, -3);
    }
    put_in_field(lua, "map");
}

static void push_set(lua_State *lua, struct reader *reader, long long count) {
    lua_newtable(lua);
    for (long long i = 0; i < count; i++) {
        push_value(lua, reader);
        lua_pushboolean(lua, 1);
        lua_rawset(lua, -3);
    }
    put_in_field(lua, "set");
}

/* "txt:…" */
static void push_verbatim(lua_State *lua, struct reader *reader, long long length) {
    lua_createtable(lua, 0, 2);
    lua_pushlstring(lua, reader->at, 3);
    lua_setfield(lua, -2, "format");
    lua_pushlstring(lua, reader->at + 4, (size_t)length - 4);
    lua_setfield(lua, -2, "string");
    reader->at += length + 2;
    put_in_field(lua, "verbatim_string");
}

static void push_double(lua_State *lua, struct reader *reader) {
    size_t length;
    const char *line = take_line(reader, &length);
    char text[64];
    if (length >= sizeof text) length = sizeof text - 1;
    memcpy(text, line, length);
    text[length] = '\0';
    lua_pushnumber(lua, strtod(text, NULL));
    put_in_field(lua, "double");
}

static void push_error(lua_State *lua, struct reader *reader) {
    push_line(lua, reader);
    script_push_command_error(lua, lua_tostring(lua, -1));
    lua_remove(lua, -2);
}

static void push_counted(lua_State *lua, struct reader *reader, char type) {
    long long count = take_number(reader);
    if (count < 0) {
        lua_pushboolean(lua, 0);
        return;
    }
    switch (type) {
    case '$': push_bytes(lua, reader, count); break;
    case '=': push_verbatim(lua, reader, count); break;
    case '%': push_map(lua, reader, count); break;
    case '~': push_set(lua, reader, count); break;
    default: push_array(lua, reader, count); break; /* '*', '>' */
    }
}

/* Between two values it may be suspended, and killed. */
static void push_value(lua_State *lua, struct reader *reader) {
    luaL_checkstack(lua, 8, "too many nested replies");
    const char *began = reader->at;
    char type = *reader->at++;
    switch (type) {
    case ':': lua_pushnumber(lua, (lua_Number)take_number(reader)); break;
    case '+':
        push_line(lua, reader);
        put_in_field(lua, "ok");
        break;
    case '-': push_error(lua, reader); break;
    case ',': push_double(lua, reader); break;
    case '(':
        push_line(lua, reader);
        put_in_field(lua, "big_number");
        break;
    case '#':
        lua_pushboolean(lua, *reader->at == 't');
        reader->at += 3;
        break;
    case '_':
        lua_pushnil(lua);
        reader->at += 2;
        break;
    default: push_counted(lua, reader, type); break;
    }
    script_work_on(lua, type == '$' || type == '=' ? (size_t)(reader->at - began) : 0);
}

/* The reply's bytes in one piece; NULL: memory is exhausted. */
static const char *flatten(lua_State *lua, struct script_engine *engine, size_t length) {
    struct output *output = &engine->client->output;
    struct iovec vectors[64];
    memory_free(engine->flat);
    engine->flat = NULL;
    if (output_vectors(output, length, vectors, 1) == 1 && vectors[0].iov_len == length) return vectors[0].iov_base;
    engine->flat = memory_alloc(length);
    if (!engine->flat) return NULL;
    for (size_t done = 0; done < length;) {
        int count = output_vectors(output, length - done, vectors, 64);
        size_t before = done;
        for (int i = 0; i < count; i++) {
            memcpy(engine->flat + done, vectors[i].iov_base, vectors[i].iov_len);
            done += vectors[i].iov_len;
        }
        output_sent(output, done - before);
        script_work_on(lua, done - before);
    }
    return (const char *)engine->flat;
}

void script_take_reply(lua_State *lua, struct script_engine *engine) {
    struct client *client = engine->client;
    size_t length = client->output.unsent_bytes;
    const char *bytes = client->output_failed || length == 0 ? NULL : flatten(lua, engine, length);
    if (bytes) {
        struct reader reader = {bytes, bytes + length};
        push_value(lua, &reader);
    } else {
        script_push_error(lua, "OOM no memory for the reply of a command that a script called");
    }
    client->output_failed = false;
    output_clear(&client->output, &engine->server->output_pool);
}

/* ---- from a value to a reply ------------------------------------------------------------------------------ */

#define NESTED_MOST 1000 /* tables in tables, and their keys: each takes some of the stack */

/* Pushes the field; false, and nothing is pushed, if it is of another type. */
static bool push_field(lua_State *lua, const char *name, int type) {
    lua_pushstring(lua, name);
    lua_rawget(lua, -2);
    if (lua_type(lua, -1) == type) return true;
    lua_pop(lua, 1);
    return false;
}

static void send_value(lua_State *lua, struct script_engine *engine);

static void send_string(lua_State *lua, struct client *client) {
    size_t length;
    const char *text = lua_tolstring(lua, -1, &length);
    reply_bulk(client, text, length);
}

static size_t count_pairs(lua_State *lua, struct script_engine *engine) {
    size_t count = 0;
    lua_pushnil(lua);
    while (lua_next(lua, -2)) {
        lua_pop(lua, 1);
        count++;
        script_work_outside(engine, 0);
    }
    return count;
}

/* The keys of the table on the stack, each with its value or without. */
static void send_pairs(lua_State *lua, struct script_engine *engine, bool with_values) {
    lua_pushnil(lua);
    while (lua_next(lua, -2)) {
        lua_pushvalue(lua, -2);
        send_value(lua, engine);
        if (with_values)
            send_value(lua, engine);
        else
            lua_pop(lua, 1);
    }
}

static void send_array(lua_State *lua, struct script_engine *engine) {
    struct client *client = engine->caller;
    size_t count = 0;
    for (;; count++) {
        lua_rawgeti(lua, -1, (int)count + 1);
        bool ends = lua_isnil(lua, -1);
        lua_pop(lua, 1);
        if (ends) break;
        script_work_outside(engine, 0);
    }
    reply_array(client, count);
    for (size_t i = 1; i <= count; i++) {
        lua_rawgeti(lua, -1, (int)i);
        send_value(lua, engine);
    }
}

/* {string = "…", format = "txt"}; false: it is not that. */
static bool send_verbatim(lua_State *lua, struct client *client) {
    size_t length, format_length;
    if (!push_field(lua, "string", LUA_TSTRING)) return false;
    const char *text = lua_tolstring(lua, -1, &length);
    lua_insert(lua, -2);
    bool is_verbatim = push_field(lua, "format", LUA_TSTRING);
    if (is_verbatim) {
        const char *format = lua_tolstring(lua, -1, &format_length);
        reply_verbatim_as(client, format, format_length, text, length);
        lua_pop(lua, 1);
    }
    lua_remove(lua, -2);
    return is_verbatim;
}

/* Without ends of lines, with RESP2 too, as Redis sends it. */
static void send_big_number(lua_State *lua, struct client *client) {
    size_t length;
    const char *text = lua_tolstring(lua, -1, &length);
    if (client->resp != 2) {
        reply_line(client, '(', text, length);
        return;
    }
    struct script_buffer *buffer = script_buffer_start(lua);
    for (size_t i = 0; i < length; i++)
        script_buffer_add_byte(lua, buffer, text[i] == '\r' || text[i] == '\n' ? ' ' : text[i]);
    reply_bulk(client, buffer->bytes, length);
}

/* Replies the error in a table, whose text is on top of the stack. */
static void send_error(lua_State *lua, struct client *client) {
    const char *text = lua_tostring(lua, -1);
    lua_pushliteral(lua, SCRIPT_ERROR_IS_COUNTED);
    lua_rawget(lua, -3);
    if (lua_toboolean(lua, -1))
        reply_error_again(client, text);
    else
        reply_error(client, "%s", text);
    lua_pop(lua, 1);
}

/* Tables that stand for a reply of another type; true if this is one. */
static bool send_typed(lua_State *lua, struct script_engine *engine) {
    struct client *client = engine->caller;
    size_t length;
    if (push_field(lua, "err", LUA_TSTRING)) {
        send_error(lua, client);
    } else if (push_field(lua, "ok", LUA_TSTRING)) {
        const char *text = lua_tolstring(lua, -1, &length);
        reply_line(client, '+', text, length);
    } else if (push_field(lua, "double", LUA_TNUMBER)) {
        reply_double(client, lua_tonumber(lua, -1));
    } else if (push_field(lua, "map", LUA_TTABLE)) {
        reply_map(client, count_pairs(lua, engine));
        send_pairs(lua, engine, true);
    } else if (push_field(lua, "set", LUA_TTABLE)) {
        reply_set(client, count_pairs(lua, engine));
        send_pairs(lua, engine, false);
    } else if (push_field(lua, "big_number", LUA_TSTRING)) {
        send_big_number(lua, client);
    } else if (push_field(lua, "verbatim_string", LUA_TTABLE)) {
        if (!send_verbatim(lua, client)) {
            lua_pop(lua, 1);
            return false;
        }
    } else {
        return false;
    }
    lua_pop(lua, 1);
    return true;
}

/* Pops it. */
static void send_value(lua_State *lua, struct script_engine *engine) {
    struct client *client = engine->caller;
    if (!lua_checkstack(lua, 8) || lua_gettop(lua) > NESTED_MOST) {
        reply_error(client, "ERR reached lua stack limit");
        lua_pop(lua, 1);
        return;
    }
    script_work_outside(engine, lua_type(lua, -1) == LUA_TSTRING ? lua_objlen(lua, -1) : 0);
    switch (lua_type(lua, -1)) {
    case LUA_TSTRING: send_string(lua, client); break;
    case LUA_TNUMBER: {
        double number = lua_tonumber(lua, -1);
        bool fits = number > -9223372036854775808.0 && number < 9223372036854775808.0;
        reply_integer(client, fits ? (int64_t)number : INT64_MIN);
        break;
    }
    case LUA_TBOOLEAN:
        if (engine->client->resp == 3)
            reply_boolean(client, lua_toboolean(lua, -1));
        else if (lua_toboolean(lua, -1))
            reply_integer(client, 1);
        else
            reply_null(client);
        break;
    case LUA_TTABLE:
        if (!send_typed(lua, engine)) send_array(lua, engine);
        break;
    default: reply_null(client);
    }
    lua_pop(lua, 1);
}

void script_send_reply(lua_State *lua, struct script_engine *engine) {
    engine->replying = true;
    send_value(lua, engine);
}
