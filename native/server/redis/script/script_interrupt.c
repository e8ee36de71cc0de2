/* script_interrupt: a script that runs long is interrupted: it rests until the next turn of the loop, and ends where SCRIPT
 * KILL asked for it. Lua calls a hook every so many instructions; a library, which runs none, counts its own steps. */
#ifdef REPLAY_LUA

#include "server/core/exclusive.h"
#include "server/core/server.h"
#include "server/redis/script/script_engine.h"

#define INSTRUCTIONS 1000 /* between two looks at the clock */
#define WORK 200 /* steps of a library likewise */
#define STEP_BYTES 1024 /* so many make another step */

void script_rest(lua_State *lua) {
    struct scripts *scripts = script_of(lua);
    exclusive_rest(scripts->server);
    if (scripts->killed) script_raise(lua, SCRIPT_KILLED);
}

/* True: it is time to rest. */
static bool has_worked(struct scripts *scripts, size_t bytes) {
    size_t work = scripts->work + 1 + bytes / STEP_BYTES;
    scripts->work = work < WORK ? (uint32_t)work : 0;
    return work >= WORK;
}

void script_work_on(lua_State *lua, size_t bytes) {
    if (has_worked(script_of(lua), bytes)) script_rest(lua);
}

void script_work(lua_State *lua) {
    script_work_on(lua, 0);
}

void script_work_outside(struct scripts *scripts, size_t bytes) {
    if (has_worked(scripts, bytes)) exclusive_rest(scripts->server);
}

static void count_hook(lua_State *lua, lua_Debug *activity) {
    (void)activity;
    script_rest(lua);
}

void script_watch(lua_State *lua) {
    lua_sethook(lua, count_hook, LUA_MASKCOUNT, INSTRUCTIONS);
}

#else
typedef int script_interrupt_is_not_built; /* a file is never empty */
#endif
