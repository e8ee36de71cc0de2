/* script_struct: the table `struct`: numbers and strings to and from bytes as C structs hold them, by a format:
 *
 *   b B h H l L T i I   integers of a char, a short, a long, a size_t, an int; "i3" has 3 bytes; capitals have no sign
 *   f d x               a float, a double, a byte of padding
 *   cN c0 s             N characters, as many as the number before said, a string that ends at a zero byte
 *   > < !N and space    big endian, little endian, alignment to at most N bytes, nothing
 */
#include <ctype.h>
#include <limits.h>
#include <string.h>

#include "server/redis/script/script_engine.h"

#define INTEGER_BYTES 32 /* the most that an integer may have */
#define ALIGNMENT 8      /* of "!" alone */

struct layout {
    lua_State *lua;
    const char *format; /* what is left of it */
    bool big_endian;
    size_t alignment;
};

static struct layout layout_of(lua_State *lua) {
    return (struct layout){.lua = lua, .format = luaL_checkstring(lua, 1), .alignment = 1};
}

/* ---- the format ------------------------------------------------------------------------------------------ */

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static int take_number(struct layout *layout, int otherwise) {
    if (!is_digit(*layout->format)) return otherwise;
    int64_t number = 0;
    for (; is_digit(*layout->format); layout->format++) {
        number = number * 10 + (*layout->format - '0');
        if (number > INT_MAX) luaL_error(layout->lua, "integral size overflow");
    }
    return (int)number;
}

static size_t take_integer_size(struct layout *layout) {
    int size = take_number(layout, sizeof(int));
    if (size > INTEGER_BYTES)
        luaL_error(layout->lua, "integral size %d is larger than limit of %d", size, INTEGER_BYTES);
    return (size_t)size;
}

/* Of the option that was just taken; 0 also of those that have none. */
static size_t take_size(struct layout *layout, char option) {
    switch (option) {
    case 'B':
    case 'b':
    case 'x': return 1;
    case 'H':
    case 'h': return sizeof(short);
    case 'L':
    case 'l': return sizeof(long);
    case 'T': return sizeof(size_t);
    case 'f': return sizeof(float);
    case 'd': return sizeof(double);
    case 'c': return (size_t)take_number(layout, 1);
    case 'i':
    case 'I': return take_integer_size(layout);
    default: return 0;
    }
}

/* Bytes before what comes at `offset`. */
static size_t padding(const struct layout *layout, size_t offset, char option, size_t size) {
    if (size == 0 || option == 'c') return 0;
    if (size > layout->alignment) size = layout->alignment;
    return (size - (offset & (size - 1))) & (size - 1);
}

static void take_alignment(struct layout *layout) {
    int alignment = take_number(layout, ALIGNMENT);
    if (alignment <= 0 || (alignment & (alignment - 1)) != 0)
        luaL_error(layout->lua, "alignment %d is not a power of 2", alignment);
    layout->alignment = (size_t)alignment;
}

/* An option that stands for no value. */
static void control(struct layout *layout, char option) {
    switch (option) {
    case ' ': return;
    case '>': layout->big_endian = true; return;
    case '<': layout->big_endian = false; return;
    case '!': take_alignment(layout); return;
    default: luaL_argerror(layout->lua, 1, lua_pushfstring(layout->lua, "invalid format option '%c'", option));
    }
}

/* ---- values ---------------------------------------------------------------------------------------------- */

/* Numbers that fit in no integer of 64 bits become what x86 makes of them. */
static uint64_t integer_bits(double number) {
    const double most = 9223372036854775808.0;
    if (number < 0) return number < -most ? UINT64_C(1) << 63 : (uint64_t)(int64_t)number;
    if (number >= 2 * most) return 0;
    return number == number ? (uint64_t)number : UINT64_C(1) << 63;
}

static void put_integer(struct layout *layout, struct script_buffer *buffer, int argument, size_t size) {
    uint64_t bits = integer_bits(luaL_checknumber(layout->lua, argument));
    uint8_t bytes[INTEGER_BYTES] = {0};
    for (size_t i = 0; i < size && i < sizeof bits; i++)
        bytes[layout->big_endian ? size - 1 - i : i] = (uint8_t)(bits >> (8 * i));
    script_buffer_add(layout->lua, buffer, bytes, size);
}

/* Of more than 8 bytes the lowest 8 count. */
static double get_integer(const struct layout *layout, const char *data, size_t size, bool has_sign) {
    uint64_t bits = 0;
    for (size_t i = 0; i < size; i++) bits = bits << 8 | (uint8_t)data[layout->big_endian ? i : size - 1 - i];
    if (!has_sign) return (double)bits;
    uint64_t above = UINT64_MAX << ((size * 8 - 1) & 63); /* the sign's bit and those before it */
    return (double)(int64_t)(bits & above ? bits | above : bits);
}

static void reverse(void *value, size_t size) {
    uint8_t *bytes = value;
    for (size_t i = 0; i < size / 2; i++) {
        uint8_t byte = bytes[i];
        bytes[i] = bytes[size - 1 - i];
        bytes[size - 1 - i] = byte;
    }
}

static void put_float(struct layout *layout, struct script_buffer *buffer, int argument, size_t size) {
    double number = luaL_checknumber(layout->lua, argument);
    float single = (float)number;
    uint8_t bytes[sizeof number];
    memcpy(bytes, size == sizeof single ? (void *)&single : (void *)&number, size);
    if (layout->big_endian) reverse(bytes, size);
    script_buffer_add(layout->lua, buffer, bytes, size);
}

static double get_float(const struct layout *layout, const char *data, size_t size) {
    uint8_t bytes[sizeof(double)];
    memcpy(bytes, data, size);
    if (layout->big_endian) reverse(bytes, size);
    double number;
    float single;
    memcpy(size == sizeof single ? (void *)&single : (void *)&number, bytes, size);
    return size == sizeof single ? (double)single : number;
}

/* How many bytes were written. */
static size_t put_string(struct layout *layout, struct script_buffer *buffer, int argument, char option, size_t size) {
    size_t length;
    const char *string = luaL_checklstring(layout->lua, argument, &length);
    if (size == 0) size = length;
    luaL_argcheck(layout->lua, length >= size, argument + 1, "string too short");
    script_buffer_add(layout->lua, buffer, string, size);
    if (option == 's') script_buffer_add_byte(layout->lua, buffer, 0);
    return size + (option == 's');
}

/* ---- the functions ---------------------------------------------------------------------------------------- */

static int struct_pack(lua_State *lua) {
    struct layout layout = layout_of(lua);
    struct script_buffer *buffer = script_buffer_start(lua);
    int argument = 2;
    size_t offset = 0;
    lua_pushnil(lua); /* what is found where an argument is missing */
    while (*layout.format) {
        char option = *layout.format++;
        size_t size = take_size(&layout, option), before = padding(&layout, offset, option, size);
        script_work(lua);
        for (size_t i = 0; i < before; i++) script_buffer_add_byte(lua, buffer, 0);
        offset += before;
        if (strchr("bBhHlLTiI", option))
            put_integer(&layout, buffer, argument++, size);
        else if (option == 'x')
            script_buffer_add_byte(lua, buffer, 0);
        else if (option == 'f' || option == 'd')
            put_float(&layout, buffer, argument++, size);
        else if (option == 'c' || option == 's')
            size = put_string(&layout, buffer, argument++, option, size);
        else
            control(&layout, option);
        offset += size;
    }
    script_buffer_push(lua, buffer);
    return 1;
}

/* As many characters as the number on the stack says, which is popped. */
static size_t take_counted(lua_State *lua, int results, size_t position, size_t length) {
    if (results == 0 || !lua_isnumber(lua, -1)) luaL_error(lua, "format 'c0' needs a previous size");
    double wanted = lua_tonumber(lua, -1);
    lua_pop(lua, 1);
    luaL_argcheck(lua, wanted > -1 && wanted <= (double)(length - position), 2, "data string too short");
    return (size_t)wanted;
}

static int struct_unpack(lua_State *lua) {
    struct layout layout = layout_of(lua);
    size_t length;
    const char *data = luaL_checklstring(lua, 2, &length);
    size_t position = (size_t)luaL_optinteger(lua, 3, 1);
    luaL_argcheck(lua, position > 0, 3, "offset must be 1 or greater");
    position--;
    int results = 0;
    while (*layout.format) {
        char option = *layout.format++;
        size_t size = take_size(&layout, option);
        script_work(lua);
        position += padding(&layout, position, option, size);
        luaL_argcheck(lua, size <= length && position <= length - size, 2, "data string too short");
        luaL_checkstack(lua, 2, "too many results");
        if (strchr("bBhHlLTiI", option)) {
            lua_pushnumber(lua, get_integer(&layout, data + position, size, islower((unsigned char)option)));
            results++;
        } else if (option == 'f' || option == 'd') {
            lua_pushnumber(lua, get_float(&layout, data + position, size));
            results++;
        } else if (option == 'c') {
            if (size == 0) {
                size = take_counted(lua, results, position, length);
                results--;
            }
            lua_pushlstring(lua, data + position, size);
            results++;
        } else if (option == 's') {
            const char *end = memchr(data + position, 0, length - position);
            if (!end) return luaL_error(lua, "unfinished string in data");
            size = (size_t)(end - (data + position)) + 1;
            lua_pushlstring(lua, data + position, size - 1);
            results++;
        } else if (option != 'x') {
            control(&layout, option);
        }
        position += size;
    }
    lua_pushinteger(lua, (lua_Integer)position + 1);
    return results + 1;
}

static int struct_size(lua_State *lua) {
    struct layout layout = layout_of(lua);
    size_t offset = 0;
    while (*layout.format) {
        char option = *layout.format++;
        size_t size = take_size(&layout, option);
        script_work(lua);
        offset += padding(&layout, offset, option, size);
        if (option == 's') return luaL_argerror(lua, 1, "option 's' has no fixed size");
        if (option == 'c' && size == 0) return luaL_argerror(lua, 1, "option 'c0' has no fixed size");
        if (!isalnum((unsigned char)option)) control(&layout, option);
        offset += size;
    }
    lua_pushinteger(lua, (lua_Integer)offset);
    return 1;
}

static const luaL_Reg functions[] = {
    {"pack", struct_pack},
    {"unpack", struct_unpack},
    {"size", struct_size},
    {NULL, NULL},
};

void script_open_struct(lua_State *lua) {
    lua_newtable(lua);
    luaL_register(lua, NULL, functions);
}
