"""Lua scripts answer as Redis 7.0's do, cannot reach what is not theirs, and hold up nobody but other commands."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from typing import Any

import pytest
import redis
import redis.asyncio
from against_redis import KEYS, SLOW_IS_FINE, VALUES, Pair
from hypothesis import given, settings
from hypothesis import strategies as st

# ---- against Redis ----------------------------------------

SAME = r"""
return 1
return -3.7
return 3.99
return 'text'
return ''
return nil
return true
return false
return {1, 2, nil, 4}
return {true, false, 'x', {1, {2, {}}}}
return {}
return {err='x'}
return {err=''}
return {err='-foo\r\nbar'}
return {ok='fine'}
return {ok='a\r\nb'}
return {double=3.5}
return {map={a=1}}
return {set={a=true}}
return {big_number='123'}
return {big_number='123\r\n123'}
return {big_number=''}
return {verbatim_string={string='abc', format='txt'}}
return {verbatim_string={string='abc'}}
return {verbatim_string={string=1, format='txt'}}
return {err=12}
return {ok=12}
return {big_number=12}
return {1, 2, function() end, 4}
return function() end
return 1e20
return 1, 2
return 0/0

--
local x = 5 local y = x * 2 return y
return foo
foo = 1
KEYS = 1
KEYS[1] = 'z' return KEYS[1]
function f() return 1 end return f()
local function f() return 1 end return f()
return +
error('boo')
error({err='zz'})
error({err='My code'})
error()
error(nil)
error(5)
error('boo', 0)
error('boo', 2)
local x = 5; x()
local t = nil; return t.x
return 'a' .. nil
return redis.call('nope')
return redis.pcall('nope')
return redis.call('client', 'nope')
return redis.call('client')
return redis.call('get')
return redis.pcall('get')
return redis.call('multi')
return redis.call('watch', 'a')
return redis.call('eval', 'return 1', 0)
return redis.call('script', 'load', 'x')
return redis.call('subscribe', 'x')
return redis.call('blpop', 'nolist', 0)
return redis.call()
return redis.pcall()
return redis.call({})
return redis.pcall({})
return redis.call('object')
return redis.call('echo', 1.5)
return redis.call('echo', 1e15)
return redis.call('echo', 0.1)
return redis.call('echo', 10)
return redis.call('set', 'a', 'b', 'c')
return redis.call('set', 's', 'x')
return redis.call('get', 's')
return redis.call('lpush', 's', 1)
return redis.pcall('lpush', 's', 1)
return redis.pcall('lpush', 's', 1).err
return type(redis.pcall('lpush', 's', 1))
return redis.call('incr', 's')
return redis.call('rpush', 'l', 1, 2, 3)
return redis.call('lrange', 'l', 0, -1)
return #redis.call('lrange', 'l', 0, -1)
return redis.call('hset', 'h', 'f', 1)
return redis.call('hgetall', 'h')
return tostring(redis.call('get', 'nokey'))
return tostring(redis.call('lpop', 'nokey', 2))
return redis.call('type', 'l').ok
return redis.call('type', 'l')
return redis.call('select', 3)
return redis.call('set', 'where', 'db3')
return redis.call('expire', 's', 100)
return redis.call('ttl', 's') > 90
return redis.call('del', 's', 'l', 'h')
return redis.call('exists', 's')
redis.setresp(3) return redis.call('hgetall', 'nokey')
redis.setresp(3) redis.call('hset', 'h', 'f', 1) return redis.call('hgetall', 'h')
redis.setresp(3) return redis.call('hgetall', 'h').map.f
redis.setresp(3) return true
redis.setresp(3) return {true, false}
redis.setresp(3) return redis.call('get', 'nokey')
redis.setresp(3) return tostring(redis.call('get', 'nokey'))
redis.setresp(3) return {map={a=1}}
redis.setresp(3) return {double=1.5}
redis.call('zadd', 'z', 1.5, 'm') redis.setresp(3) return redis.call('zscore', 'z', 'm')
redis.setresp(3) return redis.call('zscore', 'z', 'm').double + 1
redis.setresp(3) return redis.call('zrange', 'z', 0, -1, 'withscores')
redis.setresp(3) return redis.call('smembers', 'nokey')
redis.call('sadd', 'members', 'x') redis.setresp(3) return tostring(redis.call('smembers', 'members').set.x)
redis.setresp(4)
redis.setresp()
redis.setresp(3) redis.setresp(2) return redis.call('hgetall', 'h')
return redis.error_reply('x')
return redis.error_reply('-x')
return redis.error_reply('My Err')
return redis.error_reply('')
return redis.error_reply(1)
return redis.status_reply('fine')
return redis.status_reply(1)
return redis.status_reply()
return redis.sha1hex('')
return redis.sha1hex('hello world')
return redis.sha1hex(string.rep('x', 1000))
return redis.sha1hex()
return redis.log()
return redis.log(1, 'x')
return redis.log(9, 'x')
return redis.log('x', 'x')
return redis.set_repl(redis.REPL_ALL)
return redis.set_repl()
return redis.set_repl(9)
return tostring(redis.replicate_commands())
return tostring(redis.breakpoint())
return redis.acl_check_cmd('get', 'x')
return redis.acl_check_cmd('nope', 'x')
return redis.acl_check_cmd()
return {redis.REPL_ALL, redis.REPL_AOF, redis.REPL_NONE, redis.REPL_REPLICA, redis.REPL_SLAVE}
return {redis.LOG_DEBUG, redis.LOG_VERBOSE, redis.LOG_NOTICE, redis.LOG_WARNING, _VERSION}
return {redis.REDIS_VERSION, redis.REDIS_VERSION_NUM}
return pcall(function() return redis.call('lpush', 'h', 1) end)
local ok, e = pcall(redis.call, 'lpush', 'h', 1) return {tostring(ok), type(e), tostring(e)}
local ok, e = pcall(error, {err='zz'}) return {tostring(ok), type(e), e}
local ok, e = pcall(error, 'zz') return e
local ok, e = pcall(function() return x.y end) return e
local ok, e = xpcall(function() return redis.call('nope') end, function(e) return type(e) end) return e
local ok, e = pcall(function() error({1}) end) return type(e)
return select('#', pcall(function() return 1, 2, 3 end))
string.x = 1
string.format = nil
math.pi = 3
redis.call = 1
rawset(_G, 'a', 1)
setmetatable(_G, {})
rawset(string, 'x', 1)
setmetatable(string, {})
table.insert(string, 1)
_G.x = 1
_G.redis = nil
return rawget(_G, 'nope')
return type(rawget(_G, 'redis'))
return print
return os
return io
return require
return dofile
return loadfile
return module
return debug
return package
return getfenv
return setfenv
return newproxy
return os.clock()
return loadstring('return 1')()
return loadstring('return +')
return loadstring('return x')()
return loadstring('x = 1')()
local n = 0 return load(function() n = n + 1 return ({'return ', '4', '2'})[n] end)()
return load(function() return nil end)()
return string.rep('x', 5)
return string.rep('x', -1)
return ('x'):rep(3)
return #string.rep('x', 100000)
return string.format('%d %s %5.2f', 1, 'a', 2.5)
return string.find('hello', 'l+')
return string.gsub('hello', 'l', 'L')
local t = {} for w in string.gmatch('a b c', '%a') do t[#t + 1] = w end return t
return table.concat({1, 2, 3}, ',')
local t = {3, 1, 2} table.sort(t) return t
local t = {3, 1, 2} table.sort(t, function(a, b) return a > b end) return t
return unpack({1, 2})
return math.floor(3.7)
return math.max(1, 5, 3)
return tonumber('0x10')
return type(math.random())
math.randomseed(5) return {math.random(1000000), math.random(-5, 5), tostring(math.random())}
return math.random(1000000)
math.randomseed(-1.9) return {math.random(1000000), math.random(10, 20), tostring(math.random())}
math.randomseed(2^40 + 7) return math.random(1000000)
math.randomseed()
return math.random(1, 2, 3)
return math.random(5, 4)
return math.random(0)
return math.random(2^31)
local t = setmetatable({}, {__index = function(_, k) return k .. '!' end}) return t.x
local co = coroutine.wrap(function() coroutine.yield(1) coroutine.yield(2) end) return {co(), co()}
coroutine.wrap(function() error('in') end)()
return coroutine.resume(coroutine.create(function() return redis.call('echo', 'x') end))
return bit.band(0xff, 0x0f)
return bit.bor(1, 2, 4)
return bit.bxor(5, 3)
return bit.bnot(0)
return {bit.lshift(1, 31), bit.rshift(-1, 4), bit.arshift(-16, 2), bit.rol(0x12345678, 8), bit.ror(0x12345678, 8)}
return {bit.lshift(1, 33), bit.rshift(8, 32), bit.arshift(-1, 31), bit.rol(1, 0), bit.ror(1, 32)}
return bit.tohex(255)
return {bit.tohex(255, 4), bit.tohex(-1, -4), bit.tohex(0x87654321, 2), bit.tohex(1, 0), bit.tohex(1, 99)}
return bit.tobit(0xffffffff)
return {bit.tobit(1.5), bit.tobit(2.5), bit.tobit(-1.5), bit.tobit(2^40 + 7)}
return bit.bswap(0x12345678)
return bit.band()
return bit.band('x')
return collectgarbage('count') > 0
return #KEYS + #ARGV
#!lua
#!lua flags=
#!lu flags=x
#!lua flags=x
#!lua name=x
"""


def same_scripts() -> list[str]:
    return SAME.strip("\n").split("\n")


def test_scripts_answer_as_in_redis(pair: Pair) -> None:
    pair.run((b"FLUSHALL",), (b"SCRIPT", b"FLUSH"), (b"SELECT", b"0"))
    for script in same_scripts():
        pair.run((b"EVAL", script.encode(), b"0"))


def test_keys_and_arguments_are_given_to_scripts(pair: Pair) -> None:
    script = b"return {KEYS[1], KEYS[2], ARGV[1], ARGV[2], #KEYS, #ARGV}"
    for arguments in [
        "0",
        "1 a",
        "2 a b",
        "1 a b",
        "1 a b c d",
        "0 a b",
        "2 a",
        "-1",
        "x",
        "1.5",
        "",
        "99999999999999999999",
    ]:
        pair.run((b"EVAL", script, *(word.encode() for word in arguments.split(" "))))
    pair.run((b"EVAL", b"return {KEYS[1], #ARGV[1], ARGV[2]}", b"1", b"\x00\xff\r\n", b"z" * 20_000, b""))
    pair.run((b"EVAL", b"return redis.call('set', KEYS[1], ARGV[1])", b"1", b"k", b"\x00" * 300_000))
    pair.run((b"STRLEN", b"k"), (b"EVAL", b"return #redis.call('get', KEYS[1])", b"1", b"k"))
    pair.run((b"EVAL", b"return redis.call('get', KEYS[1])", b"1", b"k"))


def test_scripts_that_say_what_they_do(pair: Pair) -> None:
    write = b"redis.call('set', 'a', 1) return redis.call('get', 'a')"
    for line in [
        b"",
        b"#!lua",
        b"#!lua flags=no-writes",
        b"#!lua flags=allow-oom,no-writes",
        b"#!lua  flags=allow-oom",
    ]:
        for name in [b"EVAL", b"EVAL_RO"]:
            for body in [write, b"return redis.call('get', 'a')", b"return foo"]:
                pair.run((name, line + b"\n" + body if line else body, b"0"))


def test_the_cache_of_scripts(pair: Pair) -> None:
    sha = hashlib.sha1(b"return 7").hexdigest()
    for line in ["SCRIPT FLUSH", f"EVALSHA {sha} 0", f"SCRIPT EXISTS {sha} x", "EVALSHA x 0", f"EVALSHA {sha} x"]:
        pair.words(line)
    pair.run((b"SCRIPT", b"LOAD", b"return 7"))
    for line in [f"SCRIPT EXISTS {sha} {sha.upper()} abc", f"EVALSHA {sha} 0", f"EVALSHA {sha.upper()} 0"]:
        pair.words(line)
    for line in [f"EVALSHA_RO {sha} 0", f"EVALSHA {sha} 1", f"EVALSHA {sha} 1 a b", f"EVALSHA {sha}"]:
        pair.words(line)
    pair.run((b"EVAL", b"return 8", b"0"))
    pair.words("SCRIPT EXISTS " + hashlib.sha1(b"return 8").hexdigest())
    pair.run((b"SCRIPT", b"LOAD", b"return +"), (b"SCRIPT", b"LOAD", b"#!lu\nreturn 1"))
    for line in ["SCRIPT FLUSH ASYNC", f"SCRIPT EXISTS {sha}", "SCRIPT FLUSH SYNC", "SCRIPT FLUSH nope"]:
        pair.words(line)
    for line in ["SCRIPT", "SCRIPT nope", "SCRIPT EXISTS", "SCRIPT LOAD", "SCRIPT KILL", "SCRIPT FLUSH a b", "EVAL"]:
        pair.words(line)
    pair.words("SCRIPT DEBUG NO")


def test_scripts_in_transactions(pair: Pair) -> None:
    pair.words("FLUSHALL")
    pair.words("MULTI")
    for script in ["return 1", "return foo", "return redis.call('incr', 'n')", "return {1, {2}}"]:
        pair.run((b"EVAL", script.encode(), b"0"))
    pair.words("GET n")
    pair.words("EXEC")
    pair.words("WATCH n")
    pair.run((b"EVAL", b"return redis.call('incr', 'n')", b"0"))
    for line in ["MULTI", "PING", "EXEC"]:
        pair.words(line)


def test_the_database_that_a_script_selects_is_its_own(pair: Pair) -> None:
    pair.run((b"FLUSHALL",), (b"SELECT", b"0"))
    pair.run((b"EVAL", b"redis.call('select', 5) return redis.call('set', 'x', 1)", b"0"))
    for line in ["GET x", "SELECT 5", "GET x", "SELECT 0"]:
        pair.words(line)


def test_the_commands_describe_themselves_as_in_redis(pair: Pair) -> None:
    for name in ["eval", "evalsha", "eval_ro", "evalsha_ro", "script"]:
        redis_says, we_say = (
            connection.run(b"COMMAND", b"INFO", name.encode())[1][0][1] for connection in (pair.redis, pair.ours)
        )
        assert redis_says[1] == we_say[1]
        assert sorted(redis_says[2][1]) == sorted(we_say[2][1])
        assert redis_says[3:6] == we_say[3:6]
    pair.words("COMMAND GETKEYS EVAL x 2 a b c")


LITERALS = st.recursive(
    st.one_of(
        st.integers(-(10**6), 10**6).map(str),
        st.floats(-1e6, 1e6).map(repr),
        st.sampled_from(
            ["nil", "true", "false", "'x'", "''", "'a\\nb'", "{}", "{err='E x'}", "{ok='y'}", "{double=0.1}"]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda items: "{" + ", ".join(items) + "}"),
        inner.map(lambda item: "{map={k=" + item + "}}"),
        inner.map(lambda item: "{set={[" + (item if item != "nil" else "1") + "]=true}}"),
    ),
    max_leaves=8,
)


def test_tables_are_walked_in_the_order_of_redis(pair: Pair) -> None:
    """It follows from the hash of strings, which looks at every byte: what is long and alike makes no long chains."""
    script = b"""
        local keys, first, last = {}, string.rep(ARGV[2], tonumber(ARGV[1])), string.rep('y', tonumber(ARGV[1]))
        for i = 1, 300 do keys[first .. i .. last] = i end
        local order = {}
        for _, number in pairs(keys) do order[#order + 1] = number end
        return order"""
    for length in [0, 1, 10, 14, 15, 16, 31, 32, 33, 100, 1000, 10_000]:
        pair.run((b"EVAL", script, b"0", b"%d" % length, b"x"))
    pair.run((b"EVAL", script, b"0", b"20", "é\0".encode()))


def test_random_values_are_converted_as_in_redis(pair: Pair) -> None:
    @settings(max_examples=150, deadline=None, suppress_health_check=SLOW_IS_FINE, database=None, derandomize=True)
    @given(LITERALS, st.sampled_from(["", "redis.setresp(3) "]))
    def run(literal: str, before: str) -> None:
        pair.run((b"EVAL", f"{before}return {literal}".encode(), b"0"))

    run()


def test_random_commands_in_scripts_do_as_in_redis(pair: Pair) -> None:
    names = st.sampled_from(
        [b"set", b"get", b"incr", b"append", b"rpush", b"lrange", b"hset", b"del", b"strlen", b"type"]
    )
    arguments = st.one_of(VALUES.filter(lambda value: len(value) < 100), KEYS)

    @settings(max_examples=100, deadline=None, suppress_health_check=SLOW_IS_FINE, database=None, derandomize=True)
    @given(st.lists(st.tuples(names, KEYS, st.lists(arguments, max_size=3)), min_size=1, max_size=8))
    def run(calls: list[tuple[bytes, bytes, list[bytes]]]) -> None:
        pair.run((b"FLUSHALL",))
        for how in [b"call", b"pcall"]:
            for name, key, rest in calls:
                script = b"return redis." + how + b"('" + name + b"', KEYS[1], unpack(ARGV))"
                pair.run((b"EVAL", script, b"1", key, *rest))

    run()


# ---- what a script cannot do ----------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        "getmetatable('').__index.upper = nil",
        "getmetatable(string).__index.upper = nil",
        "for k, v in pairs(string) do end local n, t = pairs(string) t.upper = nil return ('a'):upper()",
        "getmetatable(_G).__newindex = nil x = 1",
        "setmetatable('', {})",
        "return loadstring(string.dump(function() return 1 end))()",
        "return load(function() return '\\27Lua' end)()",
        "table.remove(math)",
        "return string.rep('x', 2 ^ 31)",
        "local t = {} while true do t[#t + 1] = string.rep('x', 1000000) .. #t end",
        "local s = 'x' while true do s = s .. s end",
        "return string.find('a', string.rep('a?', 100000))",
        "local function f() return f() + 1 end return f()",
        "local a = {} a[1] = a return a",
        "local t = {} for i = 1, 5000 do t = {t} end return t",
        "return unpack({}, 1, 1e8)",
        "return unpack({1, 2, 3}, -2, 2147483647)",
        "return unpack({1, 2, 3}, 0, 2147483647)",
        "return unpack({1, 2, 3}, -2147483647, 2147483647)",
        "return unpack({1, 2, 3}, -2147483648, -2147483647)",
        "return redis.call(unpack({}, 1, 7000))",
        "return string.format('%99999d', 1)",
        "error({x = 1})",
        "error(setmetatable({}, {__index = function() error('deep') end}))",
        "return setmetatable({}, {__index = function() error('deep') end})",
        "return tostring(setmetatable({}, {__tostring = function() return 1 end}))",
        "local function loop(n) return pcall(loop, n + 1) end return tostring(loop(1))",
        "return loadstring('return ' .. string.rep('(', 5000) .. '1' .. string.rep(')', 5000))()",
        "return loadstring(string.rep('do ', 5000) .. string.rep('end ', 5000))",
        # Each of these calls has a buffer of 8 kB on the C stack.
        "local function deep() return (string.gsub('x', 'x', deep)) end return deep()",
        "local function deep() return (string.gsub(('x'):rep(999), ('x?'):rep(999), deep)) end return deep()",
        "local function deep() return load(deep) end return deep()",
    ],
)
def test_a_script_that_does_its_worst_harms_nobody(our_peer: Any, client: redis.Redis, script: str) -> None:
    # A reply of tables in tables may be too deep for redis-py.
    culprit = redis.Redis(unix_socket_path=str(our_peer.unix_path))
    with contextlib.suppress(redis.RedisError, RecursionError):
        culprit.eval(script, 0)
    culprit.close()
    assert client.eval("return {('abc'):upper(), string.upper('x'), #redis.sha1hex(''), math.floor(2.5)}", 0) == [
        b"ABC",
        b"X",
        40,
        2,
    ]
    with pytest.raises(redis.ResponseError, match="nonexistent global variable 'x'"):
        client.eval("return x", 0)


def test_memory_of_scripts_is_bounded_and_given_back(client: redis.Redis) -> None:
    for _ in range(3):
        with pytest.raises(redis.ResponseError, match="not enough memory"):
            client.eval("local t = {} while true do t[#t + 1] = string.rep('x', 100000) .. #t end", 0)
    assert client.eval("return #string.rep('x', 20000000)", 0) == 20_000_000


def test_scripts_of_eval_are_forgotten_and_loaded_ones_are_kept(client: redis.Redis) -> None:
    client.script_flush()
    kept = client.script_load("return 'kept'")
    first = hashlib.sha1(b"return 0").hexdigest()
    for number in range(600):
        assert client.eval(f"return {number}", 0) == number
    assert client.script_exists(kept, first) == [True, False]
    assert client.evalsha(kept, 0) == b"kept"
    assert client.info("memory")["number_of_cached_scripts"] == 501
    assert client.info("memory")["used_memory_lua"] > 0
    client.script_flush()


def test_a_script_cannot_use_what_is_about_connections(client: redis.Redis) -> None:
    for name in ["REPLAY.SHARE", "REPLAY.SAVE", "CLIENT ID", "AUTH x", "HELLO 3", "QUIT", "RESET", "MONITOR"]:
        call = ", ".join(f"'{word}'" for word in name.split())
        with pytest.raises(redis.ResponseError, match=r"not allowed from script|Wrong number|Unknown Redis command"):
            client.eval(f"return redis.call({call})", 0)


# ---- redis-py ----------------------------------------


def test_redis_py_locks_work(client: redis.Redis) -> None:
    with client.lock("lock", timeout=60) as lock:
        assert lock.locked()
        assert lock.owned()
        assert not client.lock("lock", blocking=False).acquire()
        assert lock.extend(10)
        assert lock.reacquire()
    assert client.get("lock") is None
    stolen = client.lock("lock", timeout=60)
    assert stolen.acquire()
    client.set("lock", "another")
    with pytest.raises(redis.exceptions.LockNotOwnedError):
        stolen.release()


def test_redis_py_scripts_load_themselves_again(client: redis.Redis) -> None:
    script = client.register_script("return {KEYS[1], ARGV[1]}")
    assert script(keys=["k"], args=["a"]) == [b"k", b"a"]
    client.script_flush()
    assert script(keys=["k"], args=["a"]) == [b"k", b"a"]
    with client.pipeline() as pipe:
        script(keys=["x"], args=["y"], client=pipe)
        assert pipe.execute() == [[b"x", b"y"]]


def test_redis_py_asyncio_locks_exclude_each_other(our_peer: Any, client: redis.Redis) -> None:
    async def count() -> None:
        async with redis.asyncio.Redis(unix_socket_path=str(our_peer.unix_path)) as connected:

            async def one() -> None:
                for _ in range(5):
                    async with connected.lock("lock", timeout=60, sleep=0.001):
                        value = int(await connected.get("n") or 0)
                        await asyncio.sleep(0)
                        await connected.set("n", value + 1)

            await asyncio.gather(*(one() for _ in range(8)))

    asyncio.run(count())
    assert client.get("n") == b"40"


# ---- users ---------------------------------------------------------------------------------------------------------


def test_scripts_and_transactions_do_what_their_user_may(pair: Pair, peers: Any) -> None:
    pair.words("ACL SETUSER limited on nopass ~own:* +@all -incr")
    limited = Pair(peers, 2)
    limited.words("AUTH limited x")
    for script in [
        "return redis.call('set', 'own:a', 1)",
        "return redis.call('set', 'other', 1)",
        "return redis.pcall('set', 'other', 1)",
        "return redis.call('incr', 'own:a')",
        "return redis.acl_check_cmd('set', 'own:a', 1)",
        "return tostring(redis.acl_check_cmd('set', 'other', 1))",
        "return tostring(redis.acl_check_cmd('incr', 'own:a'))",
    ]:
        limited.run((b"EVAL", script.encode(), b"0"))
    for line in ["MULTI", "SET own:a 2", "GET own:a", "SET own:b 2"]:
        limited.words(line)
    pair.words("ACL SETUSER limited -set")
    limited.words("EXEC")
    limited.close()
    pair.words("ACL DELUSER limited")
