/* script_interrupt: a script that runs long is interrupted: it rests until the next turn of the loop, and ends where SCRIPT
 * KILL asked for it. Lua calls a hook every so many instructions; a library, which runs none, counts its own steps. */
#include "server/core/exclusive_execution.h"
#include "server/core/server.h"
#include "server/redis/script/library.h"
#include "server/redis/script/script_engine.h"

#define INSTRUCTIONS 1000 /* between two looks at the clock */
#define WORK 200 /* steps of a library likewise */
#define STEP_BYTES 1024 /* so many make another step */

void script_rest(lua_State *lua) {
    struct script_engine *engine = script_of(lua);
    exclusive_rest(engine->server);
    if (engine->killed) script_raise(lua, SCRIPT_KILLED);
    if (engine->loading && library_is_late(engine)) script_raise(lua, "ERR FUNCTION LOAD timeout");
}

/* True: it is time to rest. */
static bool has_worked(struct script_engine *engine, size_t bytes) {
    size_t work = engine->work + 1 + bytes / STEP_BYTES;
    engine->work = work < WORK ? (uint32_t)work : 0;
    return work >= WORK;
}

void script_work_on(lua_State *lua, size_t bytes) {
    if (has_worked(script_of(lua), bytes)) script_rest(lua);
}

void script_work(lua_State *lua) {
    script_work_on(lua, 0);
}

void script_work_outside(struct script_engine *engine, size_t bytes) {
    if (has_worked(engine, bytes)) exclusive_rest(engine->server);
}

static void count_hook(lua_State *lua, lua_Debug *activity) {
    (void)activity;
    script_rest(lua);
}

void script_watch(lua_State *lua) {
    lua_sethook(lua, count_hook, LUA_MASKCOUNT, INSTRUCTIONS);
}
