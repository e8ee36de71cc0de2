/* script_buffer: where scripts' libraries put together what becomes a string of Lua's: no garbage grows with it, and it counts
 * as the scripts' memory. */
#include <string.h>

#include "server/redis/script/script_engine.h"

#define FIRST_BYTES 1024
#define KEPT_BYTES (256u << 10) /* a larger buffer is given back once it has been used */

static bool resize(lua_State *lua, struct script_buffer *buffer, size_t capacity) {
    void *context;
    lua_Alloc allocate = lua_getallocf(lua, &context);
    char *moved = allocate(context, buffer->bytes, buffer->capacity, capacity);
    if (!moved && capacity > 0) return false;
    buffer->bytes = moved;
    buffer->capacity = capacity;
    return true;
}

struct script_buffer *script_buffer_start(lua_State *lua) {
    struct script_buffer *buffer = &script_of(lua)->buffer;
    buffer->size = 0;
    return buffer;
}

static void script_buffer_reserve(lua_State *lua, struct script_buffer *buffer, size_t more) {
    if (more <= buffer->capacity - buffer->size) return;
    size_t least = buffer->size + more, step = buffer->capacity / 2;
    if (step < FIRST_BYTES) step = FIRST_BYTES;
    /* Where the limit is near, by a good part of what is left: never byte after byte. */
    for (size_t wished = SIZE_MAX; wished > least; step /= 2) {
        wished = buffer->capacity + step;
        if (wished < least) wished = least;
        if (resize(lua, buffer, wished)) return;
    }
    lua_pushliteral(lua, "not enough memory"); /* as Lua's own, without the place */
    lua_error(lua);
}

void script_buffer_add(lua_State *lua, struct script_buffer *buffer, const void *bytes, size_t length) {
    if (length == 0) return;
    script_buffer_reserve(lua, buffer, length);
    memcpy(buffer->bytes + buffer->size, bytes, length);
    buffer->size += length;
}

void script_buffer_add_byte(lua_State *lua, struct script_buffer *buffer, int byte) {
    script_buffer_reserve(lua, buffer, 1);
    buffer->bytes[buffer->size++] = (char)byte;
}

void script_buffer_push(lua_State *lua, struct script_buffer *buffer) {
    lua_pushlstring(lua, buffer->bytes ? buffer->bytes : "", buffer->size);
    script_buffer_trim(lua);
}

void script_buffer_trim(lua_State *lua) {
    if (script_of(lua)->buffer.capacity > KEPT_BYTES) script_buffer_free(lua);
}

void script_buffer_free(lua_State *lua) {
    struct script_buffer *buffer = &script_of(lua)->buffer;
    buffer->size = 0;
    if (buffer->capacity > 0) resize(lua, buffer, 0);
}
