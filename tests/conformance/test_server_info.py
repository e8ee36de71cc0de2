"""INFO, CONFIG, MEMORY, DEBUG and their like beside Redis 7.0, and what redis-py and redis-cli make of them."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from against_redis import Pair

import replay_server

LEFT_OUT = {"current_save_keys_processed", "current_save_keys_total"}
"""A snapshot is cut from a store that goes on changing: how many keys it has still to write is not counted."""


def sections(server: Any, *names: bytes) -> dict[str, dict[str, str]]:
    kind, text = server.run(b"INFO", *names)
    assert kind in "$="
    found: dict[str, dict[str, str]] = {}
    for line in text.decode().removeprefix("txt:").split("\r\n"):
        if line.startswith("# "):
            assert line[2:] not in found
            current = found[line[2:]] = {}
        elif line:
            name, _, value = line.partition(":")
            assert name not in current, f"{name} twice"
            current[name] = value
    return found


def test_info_has_the_sections_and_fields_of_redis(pair: Pair) -> None:
    for server in (pair.redis, pair.ours):
        server.run(b"NOSUCH")
        server.run(b"SET", b"k", b"v", b"EX", b"100")
    redis_all, ours_all = (sections(server, b"everything") for server in (pair.redis, pair.ours))
    assert set(redis_all) <= set(ours_all)
    for name in (
        "Server",
        "Clients",
        "Memory",
        "Persistence",
        "Stats",
        "Replication",
        "CPU",
        "Modules",
        "Cluster",
        "Keyspace",
    ):
        assert redis_all[name].keys() - ours_all[name].keys() <= LEFT_OUT, name
    default = set(sections(pair.ours))
    assert set(sections(pair.redis)) <= default
    assert "Commandstats" not in default
    assert set(sections(pair.ours, b"server", b"nosuch", b"CPU")) == {"Server", "CPU"}


def test_info_tells_the_settings_of_replication_as_redis_does(pair: Pair) -> None:
    told = ("min_slaves_good_slaves", "repl_backlog_size")
    for line in ("repl-backlog-size 2mb", "min-replicas-to-write 1", "min-replicas-max-lag 0"):
        pair.words(f"CONFIG SET {line}")
        redis_told, ours_told = (sections(server, b"replication")["Replication"] for server in (pair.redis, pair.ours))
        assert [ours_told.get(name) for name in told] == [redis_told.get(name) for name in told], line
    pair.words("CONFIG SET repl-backlog-size 1mb min-replicas-to-write 0 min-replicas-max-lag 10")


def test_commands_and_errors_are_counted_as_redis_counts_them(pair: Pair) -> None:
    pair.words("CONFIG RESETSTAT")
    pair.words("DEL k l")
    pair.words("RPUSH l a")
    for line in ("GET l", "INCR l", "GET", "NOSUCH", "CLIENT GETNAME", "CLIENT NOSUCH", "EXPIRE l x", "CONFIG SET a b"):
        pair.words(line)
    for server in (pair.redis, pair.ours):
        errors = sections(server, b"errorstats")["Errorstats"]
        assert errors == {"errorstat_WRONGTYPE": "count=2", "errorstat_ERR": "count=5"}
        calls = sections(server, b"commandstats")["Commandstats"]
        for name, count, rejected, failed in (
            ("get", 1, 1, 1),
            ("incr", 1, 0, 1),
            ("client|getname", 1, 0, 0),
            ("expire", 1, 0, 1),
            ("config|set", 1, 0, 1),
        ):
            told = dict(part.split("=") for part in calls[f"cmdstat_{name}"].split(","))
            assert (int(told["calls"]), int(told["rejected_calls"]), int(told["failed_calls"])) == (
                count,
                rejected,
                failed,
            ), name
        assert "latency_percentiles_usec_client|getname" in sections(server, b"latencystats")["Latencystats"]
    pair.words("CONFIG RESETSTAT")
    assert sections(pair.ours, b"errorstats")["Errorstats"] == {}


RAISES = ["return redis.call('incr','l')", "return redis.call('nosuch')", "error('x')"]
RETURNS = ["return redis.pcall('incr','l')", "return redis.pcall('nosuch')", "return redis.error_reply('MINE x')"]
CATCHES = ["redis.pcall('incr','l') return 1", "redis.pcall('nosuch') return 1", "pcall(redis.call,'get') return 1"]
REFUSED = ["return redis.call('get')", "return redis.call('subscribe','c')", "return redis.call('incr','l','x')"]
BAD_ARGUMENTS = ["redis.pcall({}) return 1", "redis.pcall() return 1", "return redis.pcall({})", "redis.call({})"]


@pytest.mark.parametrize("script", [*RAISES, *RETURNS, *CATCHES, *REFUSED, *BAD_ARGUMENTS])
def test_an_error_within_a_script_is_counted_once_if_at_all(pair: Pair, script: str) -> None:
    pair.words("DEL l")
    pair.words("RPUSH l a")
    pair.words("CONFIG RESETSTAT")
    pair.run((b"EVAL", script.encode(), b"0"))
    redis_told, ours_told = (sections(server, b"everything") for server in (pair.redis, pair.ours))
    assert ours_told["Errorstats"] == redis_told["Errorstats"]
    expected = "0" if script in BAD_ARGUMENTS[:2] else "1"
    replies = "total_error_replies"
    assert ours_told["Stats"][replies] == redis_told["Stats"][replies] == expected
    for name in ("eval", "incr", "get", "subscribe"):
        ours, theirs = (
            REFUSALS.search(told["Commandstats"].get(f"cmdstat_{name}", "")) for told in (ours_told, redis_told)
        )
        assert (ours and ours[0]) == (theirs and theirs[0]), name


REFUSALS = re.compile("rejected_calls=[0-9]+,failed_calls=[0-9]+")


@pytest.mark.parametrize(
    "line",
    [
        "CONFIG",
        "CONFIG NOSUCH",
        "CONFIG GET",
        "CONFIG GET nosuch",
        "CONFIG GET MAXMEMORY maxmemory",
        "CONFIG SET",
        "CONFIG SET maxmemory",
        "CONFIG SET maxmemory 0 timeout",
        "CONFIG SET nosuch 1",
        "CONFIG SET timeout 0 nosuch 1",
        "CONFIG SET maxmemory 0 maxmemory 0",
        "CONFIG SET maxmemory x",
        "CONFIG SET timeout 1.5",
        "CONFIG SET timeout x maxmemory 0",
        "CONFIG SET maxmemory 0 timeout 0",
        "CONFIG SET maxmemory 100mb",
        "CONFIG GET maxmemory",
        "CONFIG SET maxmemory 0",
        "CONFIG SET databases 3",
        "CONFIG REWRITE",
        "CONFIG RESETSTAT x",
        "CONFIG GET hash-max-listpack-entries",
        "CONFIG GET databases",
        "MEMORY",
        "MEMORY NOSUCH",
        "MEMORY USAGE",
        "MEMORY USAGE nosuch",
        "MEMORY USAGE nosuch SAMPLES",
        "MEMORY USAGE nosuch SAMPLES x",
        "MEMORY USAGE nosuch SAMPLES -1",
        "MEMORY USAGE nosuch SAMPLES 5 x",
        "MEMORY PURGE",
        "MEMORY STATS x",
        "ROLE",
        "ROLE x",
        "WAIT 0 10",
        "WAIT 1 10",
        "WAIT -1 10",
        "WAIT x 10",
        "WAIT 0 x",
        "WAIT 0 -1",
        "WAIT 0 9223372036854775807",
        "WAIT 0",
        "TIME x",
        "LOLWUT VERSION x",
        "REPLICAOF NO ONE",
        "SLAVEOF no one",
        "INFO nosuch",
        "DEBUG",
        "DEBUG NOSUCH",
        "DEBUG JMAP",
        "DEBUG SLEEP 0",
        "DEBUG SLEEP",
        "DEBUG OBJECT nosuch",
        "DEBUG SET-ACTIVE-EXPIRE 1",
        "DEBUG PROTOCOL string",
        "DEBUG PROTOCOL integer",
        "DEBUG PROTOCOL double",
        "DEBUG PROTOCOL null",
        "DEBUG PROTOCOL array",
        "DEBUG PROTOCOL set",
        "DEBUG PROTOCOL map",
        "DEBUG PROTOCOL verbatim",
        "DEBUG PROTOCOL true",
        "DEBUG PROTOCOL false",
        "FUNCTION",
        "FUNCTION NOSUCH",
        "FUNCTION LIST",
        "FUNCTION LIST WITHCODE LIBRARYNAME *",
        "FUNCTION LIST LIBRARYNAME",
        "FUNCTION LIST WITHCODE WITHCODE",
        "FUNCTION LIST NOSUCH",
        "FUNCTION FLUSH",
        "FUNCTION FLUSH ASYNC",
        "FUNCTION FLUSH NOSUCH",
        "FUNCTION FLUSH ASYNC SYNC",
        "FUNCTION STATS",
        "FUNCTION STATS x",
        "MODULE",
        "MODULE LIST",
        "MODULE LIST x",
        "CLUSTER",
        "CLUSTER INFO",
        "CLUSTER NODES",
        "CLUSTER SLOTS",
        "CLUSTER KEYSLOT k",
        "CLUSTER KEYSLOT",
        "CLUSTER NOSUCH",
        "READONLY",
        "READWRITE",
        "READONLY x",
        "ASKING",
        "SHUTDOWN x",
        "SHUTDOWN ABORT",
        "SHUTDOWN ABORT NOW",
        "SHUTDOWN SAVE NOSAVE",
    ],
)
def test_questions_about_the_server_are_answered_as_by_redis(pair: Pair, line: str) -> None:
    pair.words(line)


def test_the_last_save_is_the_start_before_there_is_one(tmp_path: pathlib.Path) -> None:
    before = int(time.time())
    with replay_server.Server(directory=tmp_path) as started, redis.Redis.from_url(started.url) as client:
        first: Any = client.execute_command("LASTSAVE")
        assert before <= first.timestamp() <= time.time()
        assert client.info("persistence")["rdb_last_save_time"] == int(first.timestamp())
        while int(time.time()) <= int(first.timestamp()):
            time.sleep(0.05)
        client.save()
        later: Any = client.lastsave()
        assert later > first


def info(client: redis.Redis) -> dict[str, Any]:
    told: Any = client.info("all")
    return told


@pytest.fixture
def own(tmp_path: pathlib.Path) -> Iterator[redis.Redis]:
    """A server of the test's own."""
    config = {"enable-debug-command": "yes"}
    with (
        replay_server.Server(directory=tmp_path, config=config) as started,
        redis.Redis.from_url(started.url, protocol=2) as client,
    ):
        yield client


def test_info_counts_what_its_fields_say(own: redis.Redis) -> None:
    before = info(own)
    assert (before["rdb_saves"], before["rdb_last_bgsave_time_sec"], before["rdb_current_bgsave_time_sec"]) == (
        0,
        -1,
        -1,
    )
    assert before["used_memory_scripts_eval"] == before["number_of_cached_scripts"] == before["lazyfreed_objects"] == 0
    own.rpush("list", *range(100_000))
    own.mset({f"key:{number}": number for number in range(5000)})
    for number in range(10):
        own.eval(f"return {number}", 0)
    own.save()
    own.execute_command("DEBUG", "RELOAD")
    own.unlink("list")
    own.flushall(asynchronous=True)
    own.config_set("hz", 50)
    while info(own)["lazyfree_pending_objects"] > 0:
        time.sleep(0.01)
    after = info(own)
    assert (after["rdb_saves"], after["rdb_last_load_keys_loaded"]) == (2, 5001)
    assert after["rdb_last_bgsave_time_sec"] >= 0
    assert after["lazyfreed_objects"] == 5001 + 5001  # RELOAD replaces all keys
    assert after["number_of_cached_scripts"] == 10
    assert after["used_memory_scripts_eval"] == after["used_memory_scripts"] >= 400
    assert after["used_memory_vm_total"] == after["used_memory_lua"] > 0
    assert after["configured_hz"] == 50
    for field in ("total_reads_processed", "total_writes_processed"):
        assert after[field] > before[field] > 0
    own.config_resetstat()
    assert info(own)["lazyfreed_objects"] == 0


# ---- what CLIENT LIST tells of buffers -----------------------------------------------------------------------------


def buffers(client: redis.Redis, name: str) -> dict[str, int]:
    told: Any = client.client_list()
    (line,) = (line for line in told if line["name"] == name)
    names = ("qbuf", "qbuf-free", "argv-mem", "multi-mem", "rbs", "rbp", "obl", "oll", "omem", "tot-mem")
    return {field: int(line[field]) for field in names}


def buffers_until(client: redis.Redis, name: str, holds: Callable[[dict[str, int]], bool]) -> dict[str, int]:
    deadline = time.monotonic() + 60
    while not holds(found := buffers(client, name)):
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return found


@pytest.fixture
def bare(own: redis.Redis) -> Iterator[socket.socket]:
    """A connection named "bare" that can send anything."""
    place = own.connection_pool.connection_kwargs
    with socket.create_connection((place["host"], place["port"])) as connection:
        connection.sendall(b"CLIENT SETNAME bare\r\n")
        assert connection.recv(5) == b"+OK\r\n"
        yield connection


def test_the_request_that_asks_is_counted_as_by_redis(pair: Pair) -> None:
    for server in (pair.redis, pair.ours):
        _, text = server.run(b"CLIENT", b"INFO")
        assert b" qbuf=26 " in text
        assert b" multi-mem=0 " in text
        assert b" obl=0 oll=0 omem=0 " in text


def test_an_idle_client_holds_no_request(own: redis.Redis, bare: socket.socket) -> None:
    idle = buffers(own, "bare")
    assert (idle["qbuf"], idle["argv-mem"], idle["obl"], idle["oll"], idle["omem"]) == (0, 0, 0, 0, 0)
    assert idle["tot-mem"] > 0


def test_what_of_a_request_was_sent_is_told(own: redis.Redis, bare: socket.socket) -> None:
    bare.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\n" + b"x" * 50_000)
    half = buffers_until(own, "bare", lambda told: told["qbuf"] >= 50_000)
    assert half["qbuf"] == 50_000 + len(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\n")
    assert half["argv-mem"] >= 50_000
    assert half["tot-mem"] >= half["argv-mem"]
    bare.sendall(b"x" * 50_000 + b"\r\n")
    assert bare.recv(5) == b"+OK\r\n"
    assert buffers(own, "bare")["qbuf"] == 0


def test_what_waits_behind_a_blocked_request_is_told(own: redis.Redis, bare: socket.socket) -> None:
    first, behind = b"BLPOP nosuch 0\r\n", b"PING\r\n" * 100
    bare.sendall(first)
    buffers_until(own, "bare", lambda told: told["qbuf"] == len(first))
    bare.sendall(behind)
    buffers_until(own, "bare", lambda told: told["qbuf"] == len(first) + len(behind))


def test_what_a_transaction_keeps_is_told(own: redis.Redis, bare: socket.socket) -> None:
    bare.sendall(b"MULTI\r\nSET k " + b"x" * 10_000 + b"\r\n")
    buffers_until(own, "bare", lambda told: told["multi-mem"] >= 10_000)


def test_what_a_client_does_not_read_is_told(own: redis.Redis, bare: socket.socket) -> None:
    own.set("large", "x" * 1_000_000)
    own.rpush("list", *("y" * 100 for _ in range(1000)))
    bare.sendall(b"GET large\r\n" * 30 + b"LRANGE list 0 -1\r\n" * 30)
    told = buffers_until(own, "bare", lambda told: told["oll"] > 0 and told["obl"] > 1_000_000)
    assert told["omem"] >= 1_000_000
    assert told["rbp"] >= told["rbs"] >= told["obl"]
    assert told["tot-mem"] >= told["omem"] + told["rbs"]


def test_keys_stay_while_active_expiry_is_off(our_peer: Any) -> None:
    ours = our_peer.connect()
    ours.run(b"FLUSHALL")
    ours.run(b"DEBUG", b"SET-ACTIVE-EXPIRE", b"0")
    ours.run(b"SET", b"k", b"v", b"PX", b"1")
    ours.run(b"DEBUG", b"SLEEP", b"0.1")
    assert ours.run(b"DBSIZE") == (":", 1)
    ours.run(b"DEBUG", b"SET-ACTIVE-EXPIRE", b"1")
    ours.run(b"DEBUG", b"SLEEP", b"0.1")
    assert ours.run(b"DBSIZE") == (":", 0)
    ours.close()


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_asks_about_the_server(our_peer: Any, protocol: int) -> None:
    with redis.Redis(unix_socket_path=str(our_peer.unix_path), protocol=protocol) as client:
        assert client.info()["redis_version"].startswith("7.0.")
        assert client.info("memory")["used_memory"] > 0
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_set("slowlog-max-len", 128)
        assert client.config_resetstat()
        assert client.client_setname("asking")
        assert client.client_getname() in ("asking", b"asking")
        mine = client.client_info()
        assert mine["name"] == "asking"
        assert len(client.client_list(client_id=[str(mine["id"])])) == 1
        assert client.client_id() == int(mine["id"])
        assert client.client_pause(1)
        assert client.client_unpause()
        assert client.client_no_evict("ON")
        assert client.client_kill_filter(_id="123456789") == 0
        assert client.client_trackinginfo() is not None
        assert client.slowlog_reset()
        assert client.slowlog_len() >= 0
        assert client.slowlog_get(5) is not None
        assert client.latency_latest() == []
        assert client.latency_reset() == 0
        client.set("key", "value")
        assert client.memory_usage("key") > 0
        assert client.memory_stats()["keys.count"] >= 1
        assert client.memory_purge()
        assert client.command_count() == len(client.command())
        assert client.command_getkeys("MSET", "a", "1", "b", "2") in ([b"a", b"b"], ["a", "b"])
        assert client.command_list()
        assert client.role()
        assert client.wait(0, 10) == 0
        assert client.time()[0] > 0
        assert client.lolwut()
        client.reset()


def test_redis_py_monitors(our_peer: Any) -> None:
    with redis.Redis(unix_socket_path=str(our_peer.unix_path)) as client, client.monitor() as monitor:
        client.set("monitored", 'a "b"')
        said = monitor.next_command()
        while "monitored" not in said["command"]:
            said = monitor.next_command()
        assert said["command"] == 'SET monitored a "b"'
        assert said["client_type"] == "unix"


# ---- redis-cli and redis-benchmark --------------------------------------------------------------------------------


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}: apt-get install redis-tools")
    return found


def cli(our_peer: Any, *arguments: str, stdin: str | None = None, seconds: float = 60) -> str:
    """What redis-cli writes; one that would go on for ever is ended after some seconds."""
    with subprocess.Popen(
        [program("redis-cli"), "-s", str(our_peer.unix_path), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            return process.communicate(stdin, timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            process.terminate()
            return process.communicate()[0]


def watched(our_peer: Any, *arguments: str, until: str) -> str:
    """What redis-cli writes to a terminal up to a word, where it would go on for ever."""
    ours, theirs = os.openpty()
    said = ""
    with subprocess.Popen(
        [program("redis-cli"), "-s", str(our_peer.unix_path), *arguments], stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        while until not in said:
            said += os.read(ours, 4096).decode(errors="replace")
        process.terminate()
    os.close(ours)
    os.close(theirs)
    return said


def test_redis_cli_measures_and_watches(our_peer: Any) -> None:
    with redis.Redis(unix_socket_path=str(our_peer.unix_path)) as client:
        client.flushall()
        client.mset({f"key:{i}": "x" * i for i in range(50)})
        client.rpush("list", *range(9))
    told = cli(our_peer, "--memkeys")
    assert "Sampled 51 keys" in told
    assert "Biggest   list found" in told
    assert "Biggest   list found '\"list\"' has 9 items" in cli(our_peer, "--bigkeys")
    assert len(cli(our_peer, "--latency", "-i", "0.2", seconds=20).split()) == 4
    assert "mem" in watched(our_peer, "--stat", "-i", "0.1", until="requests")
    assert "min: " in watched(our_peer, "--latency", until="avg: ")
    assert cli(our_peer, "--raw", "SLOWLOG", "LEN").strip().isdigit()
    assert cli(our_peer, "help", "client", "kill")
    assert cli(our_peer, "-r", "3", "INCR", "counted").split() == ["1", "2", "3"]


def test_redis_cli_understands_a_conversation(our_peer: Any) -> None:
    said = cli(
        our_peer, stdin="HELLO 3\nSET k v\nMULTI\nGET k\nEXEC\nCLIENT SETNAME cli\nCLIENT GETNAME\nOBJECT HELP\n"
    )
    assert "v" in said.splitlines()
    assert "cli" in said
    assert "rror" not in said


@pytest.mark.parametrize("pipeline", ["1", "16"])
def test_redis_benchmark_runs_all_its_tests(our_peer: Any, pipeline: str) -> None:
    command = [program("redis-benchmark"), "-s", str(our_peer.unix_path), "-n", "1000", "-P", pipeline, "--csv"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "rror" not in done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 21  # the heading and all tests
    with contextlib.closing(our_peer.connect()) as ours:
        assert ours.run(b"FLUSHALL") == ("+", b"OK")


def test_shutdown_saves_where_it_is_asked_to(tmp_path: Any) -> None:
    with replay_server.Server([], unix=str(tmp_path / "s"), directory=str(tmp_path)) as server:
        with redis.Redis(unix_socket_path=str(tmp_path / "s")) as client:
            client.set("kept", "v")
            client.shutdown(save=True)
        deadline = time.monotonic() + 60
        while pathlib.Path(f"/proc/{server.pid}/fd").exists() and time.monotonic() < deadline:
            try:
                if pathlib.Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    break
            except FileNotFoundError:
                break
            time.sleep(0.02)
        files = [path for path in tmp_path.iterdir() if path.is_file() and b"kept" in path.read_bytes()]
        assert files


def test_what_the_store_counts_begins_from_zero_again(peers: Any) -> None:
    counted = ("expired_keys", "evicted_keys", "keyspace_hits", "keyspace_misses")
    for peer in peers:
        with redis.Redis(unix_socket_path=str(peer.unix_path)) as client:
            client.set("key", "v", px=1)
            time.sleep(0.01)
            client.get("key")
            client.set("key", "v")
            client.get("key")
            assert any(client.info("stats")[name] > 0 for name in counted)
            client.config_resetstat()
            assert [client.info("stats")[name] for name in counted] == [0, 0, 0, 0], peer.name
