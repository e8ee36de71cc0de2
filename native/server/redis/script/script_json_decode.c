/* script_json_decode: cjson.decode: JSON as a value, which is read token by token. It is lenient where lua-cjson is: control
 * characters in strings, numbers as strtod takes them, and an end at the first zero byte. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "server/redis/script/script_json.h"

enum token {
    TOKEN_OBJECT,
    TOKEN_OBJECT_END,
    TOKEN_ARRAY,
    TOKEN_ARRAY_END,
    TOKEN_STRING,
    TOKEN_NUMBER,
    TOKEN_BOOLEAN,
    TOKEN_NULL,
    TOKEN_COLON,
    TOKEN_COMMA,
    TOKEN_END,
    TOKEN_ERROR,
};

static const char *const token_names[] = {
    "T_OBJ_BEGIN", "T_OBJ_END", "T_ARR_BEGIN", "T_ARR_END", "T_STRING", "T_NUMBER",
    "T_BOOLEAN",   "T_NULL",    "T_COLON",     "T_COMMA",   "T_END",    "T_ERROR",
};

struct reader {
    lua_State *lua;
    const struct json_settings *settings;
    struct script_buffer *buffer; /* of strings that are not as they stand in the text */
    const char *text, *next; /* ends with a zero byte, as all strings of Lua's do */
    int depth;

    enum token token;
    const char *place; /* where it begins, or where the error is */
    const char *error; /* of TOKEN_ERROR */
    const char *string;
    size_t length;
    double number;
    bool boolean;
};

/* ---- tokens ------------------------------------------------------------------------------------------------ */

static void set_error(struct reader *reader, const char *error) {
    reader->token = TOKEN_ERROR;
    reader->place = reader->next;
    reader->error = error;
}

/* Four hexadecimal digits; -1: they are not. */
static int32_t hex_unit(const char *text) {
    int32_t unit = 0;
    for (int i = 0; i < 4; i++) {
        char c = text[i];
        int digit;
        if (c >= '0' && c <= '9')
            digit = c - '0';
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            digit = (c | 0x20) - 'a' + 10;
        else
            return -1;
        unit = unit << 4 | digit;
    }
    return unit;
}

static void add_code_point(struct reader *reader, int32_t code) {
    char bytes[4];
    size_t length = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const int first[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = length; i-- > 1; code >>= 6) bytes[i] = (char)(0x80 | (code & 0x3f));
    bytes[0] = (char)(first[length] | code);
    script_buffer_add(reader->lua, reader->buffer, bytes, length);
}

/* \uXXXX, or two of them for what is above 0xFFFF. */
static bool read_unicode(struct reader *reader) {
    int32_t code = hex_unit(reader->next + 2);
    if (code < 0) return false;
    reader->next += 6;
    if ((code & 0xf800) == 0xd800) {
        int32_t low = -1;
        if (!(code & 0x400) && reader->next[0] == '\\' && reader->next[1] == 'u') low = hex_unit(reader->next + 2);
        if ((low & ~0x3ff) != 0xdc00) {
            reader->next -= 6;
            return false;
        }
        reader->next += 6;
        code = 0x10000 + ((code & 0x3ff) << 10 | (low & 0x3ff));
    }
    add_code_point(reader, code);
    return true;
}

/* False: the token is an error. */
static bool read_escape(struct reader *reader) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char c = reader->next[1];
    if (c == 'u') {
        if (read_unicode(reader)) return true;
        set_error(reader, "invalid unicode escape code");
        return false;
    }
    const char *name = c ? strchr(names, c) : NULL;
    if (!name) {
        set_error(reader, "invalid escape code");
        return false;
    }
    script_buffer_add_byte(reader->lua, reader->buffer, values[name - names]);
    reader->next += 2;
    return true;
}

static void read_string(struct reader *reader) {
    const char *start = ++reader->next;
    reader->buffer->size = 0;
    reader->token = TOKEN_STRING;
    for (;;) {
        const char *plain = reader->next;
        size_t length = strcspn(plain, "\"\\");
        reader->next += length;
        if (*reader->next == '"' && plain == start) { /* nothing is escaped */
            reader->string = start;
            reader->length = length;
            break;
        }
        script_buffer_add(reader->lua, reader->buffer, plain, length);
        if (*reader->next == '"') {
            reader->string = reader->buffer->bytes;
            reader->length = reader->buffer->size;
            break;
        }
        if (*reader->next == 0) {
            set_error(reader, "unexpected end of string");
            return;
        }
        if (!read_escape(reader)) return;
        script_work(reader->lua);
    }
    reader->next++;
}

/* What strtod takes but JSON does not know. */
static bool is_invalid_number(const char *text) {
    if (*text == '+') return true;
    if (*text == '-') text++;
    if (*text == '0') return (text[1] | 0x20) == 'x' || (text[1] >= '0' && text[1] <= '9');
    if (*text <= '9') return false;
    return strncasecmp(text, "inf", 3) == 0 || strncasecmp(text, "nan", 3) == 0;
}

static void read_number(struct reader *reader) {
    char *end;
    reader->token = TOKEN_NUMBER;
    reader->number = strtod(reader->next, &end);
    if (end == reader->next)
        set_error(reader, "invalid number");
    else
        reader->next = end;
}

static bool read_word(struct reader *reader, const char *word, enum token token) {
    size_t length = strlen(word);
    if (strncmp(reader->next, word, length) != 0) return false;
    reader->token = token;
    reader->next += length;
    return true;
}

static void read_other(struct reader *reader) {
    bool lenient = reader->settings->decode_invalid != 0;
    char c = *reader->next;
    if (c == '"') {
        read_string(reader);
    } else if (c == '-' || (c >= '0' && c <= '9')) {
        if (!lenient && is_invalid_number(reader->next))
            set_error(reader, "invalid number");
        else
            read_number(reader);
    } else if (read_word(reader, "true", TOKEN_BOOLEAN)) {
        reader->boolean = true;
    } else if (read_word(reader, "false", TOKEN_BOOLEAN)) {
        reader->boolean = false;
    } else if (!read_word(reader, "null", TOKEN_NULL)) {
        if (lenient && c && strchr("+iInN", c) && is_invalid_number(reader->next))
            read_number(reader);
        else
            set_error(reader, "invalid token");
    }
}

static void next_token(struct reader *reader) {
    static const char marks[] = "{}[]:,";
    static const enum token tokens[] = {TOKEN_OBJECT,    TOKEN_OBJECT_END, TOKEN_ARRAY,
                                        TOKEN_ARRAY_END, TOKEN_COLON,      TOKEN_COMMA};
    script_work(reader->lua);
    reader->next += strspn(reader->next, " \t\n\r");
    reader->place = reader->next;
    if (*reader->next == 0) {
        reader->token = TOKEN_END;
        return;
    }
    const char *mark = strchr(marks, *reader->next);
    if (!mark) {
        read_other(reader);
        return;
    }
    reader->token = tokens[mark - marks];
    reader->next++;
}

static void refuse(struct reader *reader, const char *expected) {
    const char *found = reader->token == TOKEN_ERROR ? reader->error : token_names[reader->token];
    luaL_error(reader->lua, "Expected %s but found %s at character %d", expected, found,
               (int)(reader->place - reader->text) + 1);
}

/* ---- values ------------------------------------------------------------------------------------------------ */

static void read_value(struct reader *reader);

/* Lua's own limit of 8000 values bounds the depth where the settings do not. */
static void go_deeper(struct reader *reader, int slots) {
    reader->depth++;
    if (reader->depth > reader->settings->decode_depth || !lua_checkstack(reader->lua, slots))
        luaL_error(reader->lua, "Found too many nested data structures (%d) at character %d", reader->depth,
                   (int)(reader->next - reader->text));
}

/* The token behind a member: true if another comes, whose first token is taken. */
static bool another(struct reader *reader, enum token end, const char *expected) {
    next_token(reader);
    if (reader->token == end) return false;
    if (reader->token != TOKEN_COMMA) refuse(reader, expected);
    next_token(reader);
    return true;
}

static void read_object(struct reader *reader) {
    go_deeper(reader, 3);
    lua_newtable(reader->lua);
    next_token(reader);
    if (reader->token != TOKEN_OBJECT_END) {
        do {
            if (reader->token != TOKEN_STRING) refuse(reader, "object key string");
            lua_pushlstring(reader->lua, reader->string, reader->length);
            next_token(reader);
            if (reader->token != TOKEN_COLON) refuse(reader, "colon");
            next_token(reader);
            read_value(reader);
            lua_rawset(reader->lua, -3);
        } while (another(reader, TOKEN_OBJECT_END, "comma or object end"));
    }
    reader->depth--;
}

static void read_array(struct reader *reader) {
    go_deeper(reader, 2);
    lua_newtable(reader->lua);
    next_token(reader);
    if (reader->token != TOKEN_ARRAY_END) {
        int index = 1;
        do {
            read_value(reader);
            lua_rawseti(reader->lua, -2, index++);
        } while (another(reader, TOKEN_ARRAY_END, "comma or array end"));
    }
    reader->depth--;
}

/* Pushes the value that begins with the token that was just taken. */
static void read_value(struct reader *reader) {
    lua_State *lua = reader->lua;
    switch (reader->token) {
    case TOKEN_STRING: lua_pushlstring(lua, reader->string, reader->length); return;
    case TOKEN_NUMBER: lua_pushnumber(lua, reader->number); return;
    case TOKEN_BOOLEAN: lua_pushboolean(lua, reader->boolean); return;
    case TOKEN_NULL: lua_pushlightuserdata(lua, NULL); return;
    case TOKEN_OBJECT: read_object(reader); return;
    case TOKEN_ARRAY: read_array(reader); return;
    default: refuse(reader, "value");
    }
}

int json_decode(lua_State *lua) {
    luaL_argcheck(lua, lua_gettop(lua) == 1, 1, "expected 1 argument");
    size_t length;
    const char *text = luaL_checklstring(lua, 1, &length);
    if (length >= 2 && (!text[0] || !text[1])) return luaL_error(lua, "JSON parser does not support UTF-16 or UTF-32");
    struct reader reader = {
        .lua = lua,
        .settings = lua_touserdata(lua, lua_upvalueindex(1)),
        .buffer = script_buffer_start(lua),
        .text = text,
        .next = text,
    };
    next_token(&reader);
    read_value(&reader);
    next_token(&reader);
    if (reader.token != TOKEN_END) refuse(&reader, "the end");
    script_buffer_trim(lua);
    return 1;
}
