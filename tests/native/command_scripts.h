/* command_scripts: scripts that call other commands, and use what scripts are given. */
#ifndef REPLAY_TESTS_COMMAND_SCRIPTS_H
#define REPLAY_TESTS_COMMAND_SCRIPTS_H

#include <stdarg.h>

#include "base/crc64.h"
#include "base/sha1.h"
#include "command_grammar.h"

#define SCRIPT_TEXT 60000u

static char script_text[SCRIPT_TEXT];
static size_t script_length;
static struct request script_call; /* the command that a script calls; a script in a script calls none */

static void make_request(struct maker *maker, struct request *out);

__attribute__((format(printf, 1, 2))) static inline void write_script(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(script_text + script_length, SCRIPT_TEXT - script_length, format, arguments);
    va_end(arguments);
    script_length += (size_t)length < SCRIPT_TEXT - script_length ? (size_t)length : SCRIPT_TEXT - script_length - 1;
}

static inline void write_literal(const uint8_t *bytes, size_t length) {
    write_script("'");
    for (size_t i = 0; i < length && script_length < SCRIPT_TEXT - 16; i++)
        if (isalnum(bytes[i]))
            write_script("%c", bytes[i]);
        else
            write_script("\\%03u", bytes[i]);
    write_script("'");
}

/* redis.call('get','s0') */
static inline void write_call(struct maker *maker) {
    struct maker inner = *maker;
    make_request(&inner, &script_call);
    maker->random = inner.random;
    write_script("redis.%s(", one_in(maker, 3) ? "call" : "pcall");
    for (uint32_t i = 0; i < script_call.count; i++) {
        size_t length;
        const uint8_t *word = request_word(&script_call, i, &length);
        if (i > 0) write_script(",");
        if (i == 1 && one_in(maker, 8))
            write_script("%s", one_in(maker, 2) ? "KEYS[1]" : "ARGV[1]");
        else
            write_literal(word, length);
    }
    write_script(")");
}

static inline const char *choose_expression(struct maker *maker) {
    return CHOOSE(
        maker, "KEYS[1]", "ARGV", "{1,2.5,'x',false,{true,{}},nil,7}", "{ok='FINE'}", "{err='ERR no'}", "{double=3.5}",
        "{map={a=1,b={2}}}", "{set={a=true,b=true}}", "{big_number='123456789012345678901'}",
        "{verbatim_string={format='txt',string='hi'}}", "cjson.encode({a=1,b={1,2,{c='x'}},d=cjson.null})",
        "cjson.decode('{\"a\":[1,2,{\"b\":null}],\"c\":1e3}').a", "cjson.decode(ARGV[1])",
        "cmsgpack.pack({1,2,{a='b'}},'x',3.5)", "{cmsgpack.unpack(cmsgpack.pack({a=1},2))}", "cmsgpack.unpack(ARGV[1])",
        "struct.pack('>I2hb','1',2,3)", "{struct.unpack('<i4',ARGV[1])}", "struct.size('i4d')",
        "bit.bxor(7,bit.lshift(1,5))", "bit.tohex(-1)", "redis.sha1hex('a')", "redis.error_reply('MINE error')",
        "redis.status_reply('OK')", "string.rep('abc',3000)", "string.format('%q %5.2f %s',ARGV[1] or '',2,'x')",
        "tostring(math.random(100))", "string.gsub(ARGV[1] or 'aXb','%a','%%')", "table.concat({1,2,3},',')", "#ARGV",
        "loadstring('return 1')()", "pcall(error,'x')", "redis.setresp(3)", "redis.acl_check_cmd('get','s0')",
        "redis.REDIS_VERSION_NUM", "unpack({1,2,3})", "setmetatable({},{__index=function() error('no') end}).x",
        "redis.log(redis.LOG_DEBUG,'x')", "math.huge", "nil", "redis.set_repl(redis.REPL_ALL)",
        "redis.replicate_commands()", "coroutine.wrap(function() return 1 end)()");
}

/* It can be called by its hash from now on. */
static inline void see_script(void) {
    char hex[SHA1_HEX_BYTES];
    sha1_hex(script_text, script_length, hex);
    memcpy(seen.words[seen.word_count++ % SEEN_WORDS], hex, sizeof hex);
}

static void make_script(struct maker *maker) {
    if (maker->depth > 0) {
        put(maker, "return 1");
        return;
    }
    maker->depth++;
    script_length = 0;
    if (one_in(maker, 8))
        write_script("#!lua flags=%s\n", CHOOSE(maker, "no-writes", "allow-oom", "no-writes,allow-oom", "", "x"));
    if (one_in(maker, 6)) write_script("redis.setresp(3) ");
    uint32_t kind = below(maker, 12);
    if (kind < 4) {
        write_script("return ");
        write_call(maker);
    } else if (kind < 7) {
        write_script("local r={} ");
        for (uint32_t calls = 1 + below(maker, 4); calls > 0; calls--) {
            write_script("r[#r+1]=");
            write_call(maker);
            write_script(" ");
        }
        write_script("return r");
    } else if (kind < 8) {
        write_script("local x for i=1,%s do x=", CHOOSE(maker, "3", "20", "200"));
        write_call(maker);
        write_script(" end return x");
    } else if (kind < 9) {
        write_script("local n=0 for i=1,%s do n=n+1 end return n",
                     one_in(maker, 12) ? "3000000" : CHOOSE(maker, "10", "10000", "100000"));
    } else {
        write_script("return %s", choose_expression(maker));
    }
    if (one_in(maker, 25)) write_script(" end");
    maker->depth--;
    put_bytes(maker, script_text, script_length);
    see_script();
}

/* #!lua name=l0, and some functions. */
static inline void write_library(struct maker *maker) {
    script_length = 0;
    write_script("#!lua name=%s\n", one_in(maker, 12) ? "l0 x=1" : CHOOSE(maker, "l0", "l1", "l2"));
    for (uint32_t count = 1 + below(maker, 3); count > 0; count--) {
        write_script("redis.register_function{function_name='f%u',flags={%s},callback=function(KEYS,ARGV) ",
                     below(maker, 4), CHOOSE(maker, "", "'no-writes'", "'allow-oom'", "'no-writes'", "'x'"));
        if (one_in(maker, 3)) {
            write_script("return ");
            write_call(maker);
        } else {
            write_script("return %s", one_in(maker, 3) ? "#KEYS" : choose_expression(maker));
        }
        write_script(" end} ");
    }
    if (one_in(maker, 12)) write_script("%s", CHOOSE(maker, "redis.x()", "x=1", "for i=1,100000 do end", "+"));
}

static void make_library(struct maker *maker) {
    if (maker->depth > 0) {
        put(maker, "#!lua name=l0\n");
        return;
    }
    maker->depth++;
    write_library(maker);
    maker->depth--;
    put_bytes(maker, script_text, script_length);
}

/* A library as FUNCTION DUMP has it, at times damaged. */
static void make_libraries(struct maker *maker) {
    static uint8_t bytes[SCRIPT_TEXT + 16];
    if (maker->depth > 0) {
        put(maker, "x");
        return;
    }
    maker->depth++;
    write_library(maker);
    maker->depth--;
    size_t text = script_length < 16383 ? script_length : 16383, length = 3 + text;
    bytes[0] = one_in(maker, 20) ? 0xf6 : 0xf5;
    bytes[1] = (uint8_t)(0x40 | text >> 8);
    bytes[2] = (uint8_t)text;
    memcpy(bytes + 3, script_text, text);
    bytes[length] = 10;
    bytes[length + 1] = 0;
    uint64_t sum = crc64(0, bytes, length + 2) + one_in(maker, 16);
    for (int i = 0; i < 8; i++) bytes[length + 2 + (size_t)i] = (uint8_t)(sum >> (8 * i));
    put_bytes(maker, bytes, length + 10);
}

/* The words of another command, for those that take commands: COMMAND GETKEYS, ACL DRYRUN. */
static void make_command_words(struct maker *maker) {
    if (maker->depth > 0) {
        put(maker, "get");
        put(maker, "s0");
        return;
    }
    struct maker inner = *maker;
    inner.depth++;
    make_request(&inner, &script_call);
    maker->random = inner.random;
    for (uint32_t i = 0; i < script_call.count; i++) {
        size_t length;
        const uint8_t *word = request_word(&script_call, i, &length);
        put_bytes(maker, word, length);
    }
}

#endif
