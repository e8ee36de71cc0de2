"""Libraries of functions answer as Redis 7.0's, outlive a restart, travel to Redis and back, and hold up nobody."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from against_redis import SLOW_IS_FINE, Pair
from busy_scripts import running
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rdb_file import Redis

import replay_server

HEADER = "#!lua name=lib\n"
ADD = "redis.register_function"


def one(name: str, body: str, library: str = "lib", flags: str = "") -> bytes:
    """A library with one function."""
    callback = f"function(keys, args) {body} end"
    return f"#!lua name={library}\n{ADD}{{function_name='{name}', callback={callback}, flags={{{flags}}}}}".encode()


def listed(reply: tuple[str, Any]) -> Any:
    """FUNCTION LIST without the order of libraries and functions, which Redis leaves to a hash table."""
    kind, libraries = reply
    if kind != "*":
        return reply
    out = []
    for _, fields in libraries:
        at = fields.index(("$", b"functions")) + 1
        functions = [(kind, [*function[:-1], sorted(function[-1][1])]) for kind, function in fields[at][1]]
        out.append([*fields[:at], sorted(functions, key=repr), *fields[at + 1 :]])
    return sorted(out, key=repr)


def without_names(reply: tuple[str, Any]) -> tuple[str, Any]:
    kind, said = reply
    return kind, re.sub(rb" \S+ already exists", b" ? already exists", said) if kind == "-" else said


class Both:
    """Commands to both servers, whose replies must agree."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair

    def __call__(self, *words: str | bytes) -> tuple[str, Any]:
        return self.pair.run(tuple(word.encode() if isinstance(word, str) else word for word in words))[0]

    def restore(self, payload: bytes, policy: str) -> None:
        """Of several libraries that are in the way Redis names the one that its hash table has first."""
        words = (b"FUNCTION", b"RESTORE", payload, policy.encode())
        redis, ours = (server.run(*words) for server in (self.pair.redis, self.pair.ours))
        assert without_names(ours) == without_names(redis)

    def list(self) -> Any:
        redis, ours = (server.run(b"FUNCTION", b"LIST", b"WITHCODE") for server in (self.pair.redis, self.pair.ours))
        assert listed(ours) == listed(redis)
        return listed(redis)

    def dumps(self) -> list[bytes]:
        return [server.run(b"FUNCTION", b"DUMP")[1] for server in (self.pair.redis, self.pair.ours)]


@pytest.fixture
def both(pair: Pair) -> Iterator[Both]:
    compared = Both(pair)
    compared("FUNCTION", "FLUSH")
    compared("FLUSHALL")
    yield compared
    compared("FUNCTION", "FLUSH")


# ---- against Redis ----------------------------------------------------------------------------------------------

REFUSED_HEADERS = [
    *("", "x", "return 1", "#!lua", "#!lua name=lib", "#!lua\n", "#!\n", "#!lua name=\n", "#!lua name=a-b\n"),
    *("#! name=t\n", "#!js name=lib\n", "#!lua name=lib foo=bar\n", "#!lua name=a name=b\n", '#!lua name="lib\n'),
    "#!lua name=\x00\n",
]

CODES = [
    "bad script",
    "return 1",
    "local a = nil; a.x = 1",
    "error('x')",
    "a = 1",
    "redis.x = 1",
    "redis.nope()",
    "return math.random()",
    "redis.call('ping')",
    "redis.setresp(3)",
    "return redis.REPL_ALL",
    "getmetatable(_G)",
    "pcall(1)",
    "return KEYS",
    "redis.log(1)",
    "redis.log(redis.LOG_WARNING, 'x')",
    f"{ADD}()",
    f"{ADD}('f')",
    f"{ADD}('f', function() end, 1)",
    f"{ADD}(nil, function() end)",
    f"{ADD}('f', 'x')",
    f"{ADD}('a b', function() end)",
    f"{ADD}('', function() end)",
    f"{ADD}(12, function() return 5 end)",
    f"{ADD}{{}}",
    f"{ADD}{{1}}",
    f"{ADD}{{[true]=1}}",
    f"{ADD}{{function_name=function() end}}",
    f"{ADD}{{function_name='f', callback=1}}",
    f"{ADD}{{function_name='f', callback=function() end, flags=1}}",
    f"{ADD}{{function_name='f', callback=function() end, flags={{1}}}}",
    f"{ADD}{{function_name='f', callback=function() end, flags={{'no-writes', 'x'}}}}",
    f"{ADD}{{function_name='f', callback=function() end, description={{}}}}",
    f"{ADD}{{function_name='f', callback=function() end, name='x'}}",
    f"{ADD}{{callback=function() end}}",
    f"{ADD}{{function_name='f'}}",
    f"{ADD}('f', function() end) {ADD}('f', function() end)",
    f"{ADD}('f', function() return 1 end) {ADD}('g', 'x')",
    f"{ADD}{{FUNCTION_NAME='f', Callback=function(k, a) return {{k, a}} end, description='what\\0it is',"
    " flags={'NO-WRITES', 'allow-stale', 'no-cluster', 'allow-cross-slot-keys', 'allow-oom'}}",
    f"local x = ('abc'):upper() {ADD}('f', function() return x end)",
    f"{ADD}('f', function() return {{redis.REDIS_VERSION, redis.REDIS_VERSION_NUM}} end)",
    f"local n = 0 {ADD}('f', function() n = n + 1 return n end)",
    f"local lib = redis {ADD}('f', function() lib.redis = redis end)",
    f"local lib = redis {ADD}('f', function() lib.register_function('g', function() end) end)",
]

BODIES = [
    *("return 1", "return keys", "return args", "return KEYS", "return ARGV[1]", "error('x')", "error({err='my own'})"),
    *("return redis.call('get', 'x')", "return redis.call('set', 'x', 1)", "return redis.pcall('nope')"),
    *("return redis.call('nope')", "redis.register_function('a', function() end)", "return type(redis.debug)"),
    *("return type(redis.replicate_commands)", "foo = 1", "return foo", "local x = nil; return x.y", "redis.x = 1"),
    *("return {err='x y'}", "return {ok='fine'}", "return redis.sha1hex('a')", "return cjson.encode({1})"),
    *("return redis.call('fcall', 'f', 0)", "return redis.call('function', 'list')", "rawset(_G, 'x', 1)"),
    *("redis.setresp(3) return redis.call('hgetall', 'h')", "return redis.status_reply('x')", "return type(os)"),
    "local ok, e = pcall(function() error('in') end) return e",
    "redis.call('set', 'x', 1) error('late')",
]


@pytest.mark.parametrize("code", REFUSED_HEADERS)
def test_first_lines_are_refused_alike(both: Both, code: str) -> None:
    both("FUNCTION", "LOAD", f"{code}{ADD}('f', function() end)" if code.endswith("\n") else code)
    assert both.list() == []


@pytest.mark.parametrize("line", ["#!LUA NAME=lib", '#!lua name="lib"', "#!lua \t name='lib' ", "#!lua name=\\x6c"])
def test_first_lines_are_understood_alike(both: Both, line: str) -> None:
    both("FUNCTION", "LOAD", f"{line}\n{ADD}('f', function() return 1 end)")
    both("FCALL", "f", "0")
    both.list()


@pytest.mark.parametrize("code", CODES)
def test_libraries_are_loaded_or_refused_alike(both: Both, code: str) -> None:
    both("FUNCTION", "LOAD", one("f", "return 'as before'"))
    for words in (("FUNCTION", "LOAD"), ("FUNCTION", "LOAD", "REPLACE")):
        both(*words, HEADER + code)
        both.list()
        for name in ("f", "F", "g", "12"):
            both("FCALL", name, "1", "k", "a")


@pytest.mark.parametrize("body", BODIES)
def test_functions_answer_alike(both: Both, body: str) -> None:
    both("HSET", "h", "f", "v")
    for flags in ("", "'no-writes'", "'allow-oom'"):
        both("FUNCTION", "LOAD", "REPLACE", one("f", body, flags=flags))
        both("FCALL", "f", "1", "k", "a", "b")
        both("FCALL_RO", "f", "0", "a")
        both("GET", "x")


def test_wrong_arguments_are_refused_alike(both: Both) -> None:
    both("FUNCTION", "LOAD", one("f", "return 1"))
    for line in """fcall nope 0|fcall f x|fcall f 5|fcall f -1|fcall f|fcall_ro nope x|function load|function load a b
function load replace|function load replace replace x|function delete|function delete x|function list x
function list libraryname|function list withcode withcode|function list libraryname a libraryname b
function flush x|function flush sync x|function flush ASYNC|function kill|function dump x|function restore
function restore x|function restore x y|function restore x flush z|function nope|function stats x
command getkeys fcall f 2 a b c|command getkeys fcall_ro f 1 a b|function delete lib|function delete lib
function stats""".replace("\n", "|").split("|"):
        both.pair.words(line)


def test_functions_are_found_in_any_case_and_their_names_are_taken_once(both: Both) -> None:
    both("FUNCTION", "LOAD", one("First", "return 1", "a"))
    both("FUNCTION", "LOAD", one("FIRST", "return 2", "b"))
    both("FCALL", "fIRST", "0")
    both("FUNCTION", "DELETE", "A")
    both("FUNCTION", "DELETE", "a")
    both("FUNCTION", "LOAD", one("FIRST", "return 2", "b"))
    both("FCALL", "first", "0")


def test_functions_that_change_libraries_are_restored(both: Both) -> None:
    both("FUNCTION", "LOAD", one("f", "return 1", "a", ""))
    both("FUNCTION", "LOAD", one("g", "return 2", "b", ""))
    payload = both.dumps()[0]
    both("FUNCTION", "FLUSH")
    both("FUNCTION", "LOAD", one("g", "return 3", "a", ""))
    both("FUNCTION", "LOAD", one("f", "return 4", "b", ""))
    both.restore(payload, "REPLACE")
    assert [both("FCALL", name, "0") for name in "fg"] == [(":", 1), (":", 2)]
    both("FUNCTION", "FLUSH")
    both.list()


def test_dumps_are_restored_by_either_server(both: Both) -> None:
    for number in range(4):
        both("FUNCTION", "LOAD", one(f"f{number}", f"return {number} -- " + "x" * 200 + "\n", f"l{number}"))
    payloads = both.dumps()
    for payload in payloads:
        for policy in ("APPEND", "REPLACE", "FLUSH"):
            both.restore(payload, policy)
            both.list()
            both("FUNCTION", "DELETE", "l2")
            both("FUNCTION", "LOAD", one("F2", "return 'in the way'", "other"))
            both.restore(payload, policy)
            both.list()
            both("FCALL", "f2", "0")
            both.restore(payload, "FLUSH")
    for damaged in (payloads[0][:-1] + b"x", payloads[0][:40], b"", b"\xf5\x01x" + payloads[0][-10:]):
        both("FUNCTION", "RESTORE", damaged, "FLUSH")
    both.list()


def test_what_lacks_memory_is_refused_alike(both: Both) -> None:
    both("FUNCTION", "LOAD", one("f", "return redis.call('set', 'x', 1)"))
    both("FUNCTION", "LOAD", one("g", "return redis.call('set', 'x', 1)", "free", "'allow-oom'"))
    both("FUNCTION", "LOAD", one("h", "return redis.call('get', 'x')", "read", "'no-writes'"))
    payload = both.dumps()[0]
    both("CONFIG", "SET", "maxmemory", "1")
    try:
        for name in "fgh":
            both("FCALL", name, "0")
            both("FCALL_RO", name, "0")
        both("FUNCTION", "LOAD", "REPLACE", one("f", "return 1"))
        both("FUNCTION", "RESTORE", payload, "REPLACE")
        both("FUNCTION", "DELETE", "read")
        both("FUNCTION", "FLUSH")
    finally:
        both("CONFIG", "SET", "maxmemory", "0")


def test_libraries_change_in_transactions(both: Both) -> None:
    both("MULTI")
    both("FUNCTION", "LOAD", one("f", "return redis.call('incr', keys[1])"))
    both("FCALL", "f", "1", "n")
    both("FUNCTION", "LOAD", "REPLACE", one("f", "return 'other'"))
    both("FCALL", "f", "0")
    both("FUNCTION", "LOAD", one("f", "return 1"))
    both("EXEC")
    both("FCALL", "f", "0")


LIBRARIES = st.sampled_from(["a", "b", "c"])
FUNCTIONS = st.sampled_from(["f", "F", "g", "h"])
BODY = st.sampled_from(["return 1", "return {keys, args}", "return redis.call('incr', 'n')", "error('x')", "return x"])
FLAGS = st.sampled_from(["", "'no-writes'", "'allow-oom'", "'nope'"])
LOADED = st.builds(one, FUNCTIONS, BODY, LIBRARIES, FLAGS)
COMMANDS = st.one_of(
    st.tuples(st.just("FUNCTION"), st.just("LOAD"), LOADED),
    st.tuples(st.just("FUNCTION"), st.just("LOAD"), st.just("REPLACE"), LOADED),
    st.tuples(st.just("FUNCTION"), st.just("DELETE"), LIBRARIES),
    st.tuples(st.just("FUNCTION"), st.just("STATS")),
    st.tuples(st.sampled_from(["FCALL", "FCALL_RO"]), FUNCTIONS, st.just("1"), st.just("k"), st.just("a")),
    st.tuples(st.just("dump"), st.sampled_from(["APPEND", "REPLACE", "FLUSH"])),
    st.tuples(st.just("FUNCTION"), st.just("FLUSH")),
)


def run_sequence(both: Both, sequence: list[tuple[str | bytes, ...]]) -> None:
    both("FUNCTION", "FLUSH")
    payloads = both.dumps()
    for command in sequence:
        if command[0] == "dump":
            both.restore(payloads[0], str(command[1]))
            payloads = both.dumps()
        else:
            both(*command)
    both.list()


def test_random_libraries_agree(pair: Pair) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=SLOW_IS_FINE)
    @given(st.lists(COMMANDS, min_size=1, max_size=25))
    def run(sequence: list[tuple[str | bytes, ...]]) -> None:
        run_sequence(Both(pair), sequence)

    run()


@pytest.mark.slow
def test_many_random_libraries_agree(pair: Pair) -> None:
    @settings(max_examples=2000, deadline=None, suppress_health_check=SLOW_IS_FINE)
    @given(st.lists(COMMANDS, min_size=10, max_size=60))
    def run(sequence: list[tuple[str | bytes, ...]]) -> None:
        run_sequence(Both(pair), sequence)

    run()


# ---- kept -------------------------------------------------------------------------------------------------------

KEPT = one("f", "return redis.call('incrby', keys[1], args[1])", "kept", "'allow-oom'")


def codes(client: redis.Redis) -> list[bytes]:
    return sorted(
        dict(zip(row[::2], row[1::2], strict=True))[b"library_code"] for row in client.function_list(withcode=True)
    )


@contextlib.contextmanager
def serving(directory: Path, **options: Any) -> Iterator[redis.Redis]:
    with (
        replay_server.Server([], directory=directory, **options) as server,
        redis.Redis.from_url(server.url, protocol=2) as client,
    ):
        yield client


def test_libraries_are_in_snapshots(tmp_path: Path) -> None:
    large = one("large", "return 2 --" + "x" * 700_000 + "\n", "large")
    with serving(tmp_path) as client:
        client.function_load(KEPT.decode())
        client.function_load(large.decode())
        client.set("k", 1)
        client.execute_command("SAVE")
    with serving(tmp_path, restore="latest") as client:
        assert codes(client) == sorted([KEPT, large])
        assert client.fcall("f", 1, "k", 5) == 6
        assert client.fcall("large", 0) == 2


def test_libraries_are_in_the_append_only_file(tmp_path: Path) -> None:
    config = {"appendonly": "yes"}
    with serving(tmp_path, config=config) as client:
        client.function_load(one("g", "return 1", "gone").decode())
        client.function_load(KEPT.decode())
        client.function_load(KEPT.decode(), replace=True)
        payload = client.function_dump()
        client.function_flush()
        client.execute_command("FUNCTION", "RESTORE", payload)
        client.function_delete("gone")
        assert client.fcall("f", 1, "k", 5) == 5
    with serving(tmp_path, config=config) as client:
        assert codes(client) == [KEPT]
        assert client.get("k") == b"5"
        client.execute_command("BGREWRITEAOF")
        deadline = time.monotonic() + 60
        while client.info("persistence")["aof_rewrite_in_progress"] and time.monotonic() < deadline:
            time.sleep(0.02)
        client.function_load(one("after", "return 7", "after").decode())
    with serving(tmp_path, config=config) as client:
        assert client.fcall("f", 1, "k", 1) == 6
        assert client.fcall("after", 0) == 7


def test_a_reload_keeps_libraries(tmp_path: Path) -> None:
    with serving(tmp_path, config={"enable-debug-command": "yes", "appendonly": "yes"}) as client:
        client.function_load(KEPT.decode())
        for how in ("RELOAD", "LOADAOF"):
            client.execute_command("DEBUG", how)
            assert codes(client) == [KEPT]
            assert client.fcall("f", 1, "k", 1) in {1, 2}


def test_libraries_come_from_redis_and_go_back(redis_program: str, tmp_path: Path) -> None:
    other = one("g", "return 'other' --" + "y" * 5000 + "\n", "other")
    with Redis(redis_program, tmp_path / "from") as theirs:
        theirs.function_load(KEPT.decode())
        theirs.function_load(other.decode())
        theirs.set("k", 7)
        theirs.save()
    with serving(tmp_path, restore=tmp_path / "from" / "dump.rdb") as client:
        assert codes(client) == sorted([KEPT, other])
        assert client.fcall("f", 1, "k", 1) == 8
        port = client.connection_pool.connection_kwargs["port"]
        (tmp_path / "to").mkdir()
        subprocess.run(
            ["redis-cli", "-p", str(port), "--rdb", str(tmp_path / "to" / "dump.rdb")], check=True, capture_output=True
        )
    with Redis(redis_program, tmp_path / "to") as theirs:
        assert theirs.fcall("f", 1, "k", 1) == 9
        assert theirs.fcall("g", 0) == b"other"


# ---- limits -----------------------------------------------------------------------------------------------------


@pytest.fixture
def impatient() -> Iterator[Any]:
    with replay_server.Server([], config={"busy-reply-threshold": 50}) as server:
        yield server


def wait_until_busy(client: redis.Redis, ended_by: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            client.get("a")
        except redis.ResponseError as busy:
            assert f"You can only call {ended_by} or SHUTDOWN NOSAVE" in str(busy)  # noqa: PT017
            return
        time.sleep(0.01)
    pytest.fail("the server was never busy")


ENDLESS = "while true do end"


def test_a_function_is_ended_by_function_kill_alone(impatient: Any) -> None:
    with redis.from_url(impatient.url, protocol=2) as client:
        client.function_load(one("endless", ENDLESS).decode())
        with running(impatient, "FCALL", "endless", "1", "k", "a") as failures:
            wait_until_busy(client, "FUNCTION KILL")
            with pytest.raises(redis.ResponseError, match="FUNCTION KILL"):
                client.script_kill()
            stats = client.function_stats()
            assert stats[1][:4] == [b"name", b"endless", b"command", [b"FCALL", b"endless", b"1", b"k", b"a"]]
            assert client.execute_command("FUNCTION", "KILL") in {b"OK", True}
        assert "killed by user" in str(failures[0])
        with running(impatient, "EVAL", ENDLESS, "0") as failures:
            wait_until_busy(client, "SCRIPT KILL")
            for command in ("KILL", "STATS"):
                with pytest.raises(redis.ResponseError, match="SCRIPT KILL"):
                    client.execute_command("FUNCTION", command)
            client.script_kill()
        assert failures
        assert client.execute_command("FUNCTION", "STATS")[1] is None


def test_a_function_that_has_written_is_not_killed(impatient: Any) -> None:
    body = "redis.call('set', 'x', 1) for i = 1, 1e6 do redis.call('exists', 'x') end"
    with redis.from_url(impatient.url) as client:
        client.function_load(one("writes", body).decode())
        with running(impatient, "FCALL", "writes", "0"):
            wait_until_busy(client, "FUNCTION KILL")
            with pytest.raises(redis.ResponseError, match="UNKILLABLE"):
                client.execute_command("FUNCTION", "KILL")
        assert client.get("x") == b"1"


def test_a_library_that_takes_long_to_load_is_given_up_and_changes_nothing(impatient: Any) -> None:
    with redis.from_url(impatient.url, protocol=2) as client:
        client.function_load(KEPT.decode())
        for code in (f"#!lua name=kept\n{ADD}('h', function() end) {ENDLESS}", f"#!lua name=other\n{ENDLESS}"):
            with pytest.raises(redis.ResponseError, match="FUNCTION LOAD timeout"):
                client.function_load(code, replace=True)
            assert codes(client) == [KEPT]
            assert client.fcall("f", 1, "n", 1) > 0


def test_a_client_that_leaves_while_its_library_is_loaded_changes_nothing(impatient: Any) -> None:
    with redis.from_url(impatient.url, protocol=2) as client:
        client.function_load(KEPT.decode())
        with redis.from_url(impatient.url, socket_timeout=0.05) as leaving, contextlib.suppress(redis.RedisError):
            leaving.execute_command("FUNCTION", "LOAD", "REPLACE", f"#!lua name=kept\n{ADD}('h', print) {ENDLESS}")
        assert codes(client) == [KEPT]
        assert client.ping()


def test_functions_share_a_limit_of_memory_and_go_on_beyond_it() -> None:
    body = "kept[#kept + 1] = string.rep('x', 100000) .. #kept return #kept"
    code = (
        f"#!lua name=lib\nlocal kept = {{}} {ADD}('grow', function() {body} end) {ADD}('one', function() return 1 end)"
    )
    with (
        replay_server.Server([], config={"script-memory-limit": "2mb"}) as server,
        redis.from_url(server.url) as client,
    ):
        client.function_load(code)
        with pytest.raises(redis.ResponseError, match="not enough memory"):
            all(client.fcall("grow", 0) for _ in range(100))
        assert client.fcall("one", 0) == 1
        assert client.eval("return 1", 0) == 1
        client.function_flush()
        client.function_load(code)
        assert client.fcall("grow", 0) == 1
        with pytest.raises(redis.ResponseError, match="not enough memory"):
            client.function_load(
                f"#!lua name=big\nlocal t = {{}} for i = 1, 1e7 do t[i] = i end {ADD}('b', function() end)"
            )
        assert client.fcall("one", 0) == 1


@pytest.mark.parametrize(
    "load", [lambda client, text: client.eval(text, 0), lambda client, text: client.script_load(text)]
)
def test_scripts_that_do_not_compile_leave_no_memory(load: Callable[[redis.Redis, str], Any]) -> None:
    with (
        replay_server.Server([], config={"script-memory-limit": "1mb"}) as server,
        redis.from_url(server.url) as client,
    ):
        for n in range(6000):
            with pytest.raises(redis.ResponseError, match="unexpected symbol"):
                load(client, f"return ){n}")
        assert client.info()["used_memory_vm_eval"] < 500_000
        assert client.eval("return 1", 0) == 1
        with pytest.raises(redis.ResponseError, match="not enough memory"):
            load(client, f"return '{'x' * 1_000_000}'")
        assert all(client.eval(f"return {n}", 0) == n for n in range(200))


def test_arguments_of_more_than_half_of_the_limit_are_given_again_and_again() -> None:
    with (
        replay_server.Server([], config={"script-memory-limit": "4mb"}) as server,
        redis.from_url(server.url) as client,
    ):
        for n in range(5):
            given = [bytes([letter + n]) * 1_200_000 for letter in b"Aa"]
            assert client.eval("return #ARGV[1] + #KEYS[1]", 1, *given) == 2_400_000


def test_functions_and_scripts_have_separate_globals(our_peer: Any) -> None:
    with redis.Redis(unix_socket_path=str(our_peer.unix_path)) as client:
        client.function_flush()
        client.function_load(one("f", "return type(math.huge)").decode())
        client.script_flush()
        assert client.fcall("f", 0) == b"number"
        with pytest.raises(redis.ResponseError, match=r"register_function' \(a nil value\)"):
            client.eval("redis.register_function('x', tostring)", 0)
        client.function_flush()
        assert client.eval("return 1", 0) == 1


def test_what_a_function_changes_is_taken_down_command_by_command(tmp_path: Path) -> None:
    with serving(tmp_path, config={"appendonly": "yes"}) as client:
        client.function_load(one("f", "redis.call('set', 'a', math.random()) redis.call('incr', 'n')").decode())
        client.fcall("f", 0)
        value = client.get("a")
    text = b"".join(path.read_bytes() for path in tmp_path.rglob("*.aof"))
    assert b"FCALL" not in text.upper()
    with serving(tmp_path, config={"appendonly": "yes"}) as client:
        assert (client.get("a"), client.get("n")) == (value, b"1")


def test_rights_to_functions(our_peer: Any) -> None:
    with redis.Redis(unix_socket_path=str(our_peer.unix_path)) as client:
        client.function_flush()
        client.function_load(one("f", "return redis.call('set', keys[1], 1)").decode())
        client.execute_command("ACL", "SETUSER", "caller", "on", "nopass", "~own:*", "+fcall", "+set")
        path = str(our_peer.unix_path)
        with redis.Redis(unix_socket_path=path, username="caller", password="x") as caller:
            assert caller.fcall("f", 1, "own:a") == b"OK"
            with pytest.raises(redis.ResponseError, match="no permissions to access one of the keys"):
                caller.fcall("f", 1, "other")
            with pytest.raises(redis.ResponseError, match=r"no permissions to run the 'function\|flush'"):
                caller.execute_command("FUNCTION", "FLUSH")
        client.execute_command("ACL", "DELUSER", "caller")
        client.function_flush()
