"""DEBUG: who may use it, digests of what is kept, loading what was saved, and calls that take long."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from against_redis import Pair

import replay_server as rs

ZEROS = b"0" * 40


@contextlib.contextmanager
def started(tmp_path: Path, **config: Any) -> Iterator[redis.Redis]:
    config = {"enable-debug-command": "yes", **{name.replace("_", "-"): value for name, value in config.items()}}
    with rs.Server(directory=tmp_path, config=config) as server, redis.Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
def server(tmp_path: Path) -> Iterator[redis.Redis]:
    with started(tmp_path) as client:
        yield client


def another(client: redis.Redis) -> redis.Redis:
    """A second connection to the same server."""
    place = client.connection_pool.connection_kwargs
    return redis.Redis(host=place["host"], port=place["port"])


def debug(client: redis.Redis, *words: Any) -> Any:
    return client.execute_command("DEBUG", *words)


def digest(client: redis.Redis) -> bytes:
    return debug(client, "DIGEST")


# ---- who may ------------------------------------------------------------------------------------------------------


def test_it_is_refused_unless_the_configuration_allows_it(tmp_path: Path) -> None:
    with rs.Server(unix=tmp_path / "socket") as server, redis.Redis.from_url(server.url) as client:
        for words in (["SLEEP", "0"], ["HELP"], ["RELOAD"], ["NOSUCH"]):
            with pytest.raises(redis.ResponseError, match=r"DEBUG command not allowed.*enable-debug-command"):
                debug(client, *words)
        with pytest.raises(redis.ResponseError, match="immutable"):
            client.config_set("enable-debug-command", "yes")
        assert client.config_get("enable-debug-command") == {"enable-debug-command": "no"}


def test_it_may_be_allowed_to_this_host_alone(tmp_path: Path) -> None:
    config = {"enable-debug-command": "local"}
    with rs.Server(unix=tmp_path / "socket", config=config) as server:
        for url in (server.url, server.unix_url):
            assert url is not None
            with redis.Redis.from_url(url) as client:
                assert debug(client, "SLEEP", "0") == b"OK"


def test_scripts_may_use_it_where_debug_says_so(server: redis.Redis) -> None:
    script = "return redis.call('DEBUG', 'PROTOCOL', 'integer')"
    with pytest.raises(redis.ResponseError, match="not allowed from script"):
        server.eval(script, 0)
    debug(server, "SET-DISABLE-DENY-SCRIPTS", "1")
    assert server.eval(script, 0) == 12345
    for other in ("'EVAL', 'return 1', 0", "'SUBSCRIBE', 'c'", "'CLIENT', 'LIST'", "'DEBUG', 'RELOAD'"):
        with pytest.raises(redis.ResponseError):
            server.eval(f"return redis.call({other})", 0)
    debug(server, "SET-DISABLE-DENY-SCRIPTS", "0")
    with pytest.raises(redis.ResponseError, match="not allowed from script"):
        server.eval(script, 0)


def test_help_names_the_subcommands_with_their_arguments(server: redis.Redis) -> None:
    lines = debug(server, "HELP")
    assert lines[0] == b"DEBUG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    assert lines[lines.index(b"LOG <message>") + 1] == b"    Write a line into the log."
    assert lines[-2:] == [b"HELP", b"    Prints this help."]


@pytest.mark.parametrize(
    "line",
    [
        "DEBUG PROTOCOL attrib",
        "DEBUG PROTOCOL bignum",
        "DEBUG QUICKLIST-PACKED-THRESHOLD 100b",
        "DEBUG QUICKLIST-PACKED-THRESHOLD 5gb",
        "DEBUG QUICKLIST-PACKED-THRESHOLD x",
        "DEBUG QUICKLIST-PACKED-THRESHOLD 1gb",
        "DEBUG REPLYBUFFER PEAK-RESET-TIME never",
        "DEBUG REPLYBUFFER PEAK-RESET-TIME 100",
        "DEBUG REPLYBUFFER PEAK-RESET-TIME x",
        "DEBUG REPLYBUFFER PEAK-RESET-TIME reset",
        "DEBUG REPLYBUFFER RESIZING 1",
        "DEBUG REPLYBUFFER nosuch 1",
        "DEBUG REPLYBUFFER RESIZING",
        "DEBUG HELP x",
        "DEBUG LOG text",
        "DEBUG DIGEST x",
        "DEBUG DIGEST-VALUE nosuch nosuch",
    ],
)
def test_subcommands_answer_as_those_of_redis(pair: Pair, line: str) -> None:
    pair.run((b"FLUSHALL",))
    pair.words(line)


# ---- digests ------------------------------------------------------------------------------------------------------


def fill(client: redis.Redis, forwards: bool = True, large: bool = False) -> None:
    """The same keys, in either order, and in either form."""
    order = range(20) if forwards else range(19, -1, -1)
    more = [f"more{i}" for i in range(1000)] if large else []
    for name in ["string", "list", "hash", "set", "zset", "numbers"] if forwards else ["zset", "set", "hash", "list"]:
        if name == "hash":
            fields: Any = dict.fromkeys(more, "x") | {f"f{i}": f"v{i}" for i in order}
            client.hset("hash", mapping=fields)
            client.hdel("hash", "nosuch", *more)
        elif name == "set":
            client.sadd("set", *more, *(f"m{i}" for i in order))
            client.srem("set", "nosuch", *more)
        elif name == "zset":
            client.zadd("zset", dict.fromkeys(more, 1.0) | {f"m{i}": i / 3 for i in order})
            client.zrem("zset", "nosuch", *more)
        elif name == "list":
            client.rpush("list", *(f"e{i}" for i in range(20)))
    client.set("string", "value")
    client.delete("numbers")
    client.sadd("numbers", *(i for i in order))
    client.pexpireat("string", 4_000_000_000_000)


def test_a_digest_does_not_depend_on_order_or_encoding(server: redis.Redis) -> None:
    fill(server)
    small, encodings = digest(server), [server.object("ENCODING", key) for key in ("hash", "set", "zset")]
    values = debug(server, "DIGEST-VALUE", "hash", "set", "zset", "list", "string", "numbers")
    server.flushall()
    assert digest(server) == ZEROS
    fill(server, forwards=False, large=True)
    assert [server.object("ENCODING", key) for key in ("hash", "set", "zset")] != encodings, "the forms should differ"
    assert debug(server, "DIGEST-VALUE", "hash", "set", "zset", "list", "string", "numbers") == values
    assert digest(server) == small
    assert len(set(values)) == len(values)
    server.copy("hash", "other")
    assert debug(server, "DIGEST-VALUE", "other", "nosuch") == [values[0], ZEROS]


CHANGES: list[tuple[Any, ...]] = [
    ("SET", "string", "Value", "KEEPTTL"),
    ("PERSIST", "string"),
    ("PEXPIREAT", "string", 4_000_000_000_001),
    ("RENAME", "string", "string2"),
    ("MOVE", "string", 1),
    ("SET", "new", ""),
    ("DEL", "list"),
    ("LSET", "list", 3, "e4"),
    ("RPUSH", "list", ""),
    ("LMOVE", "list", "list", "LEFT", "RIGHT"),
    ("HSET", "hash", "f1", "v2"),
    ("HDEL", "hash", "f1"),
    ("HSET", "hash", "", ""),
    ("SADD", "set", "m"),
    ("SREM", "numbers", 7),
    ("ZADD", "zset", 0.33, "m1"),
    ("ZREM", "zset", "m19"),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: " ".join(map(str, change)))
def test_a_digest_tells_every_change(server: redis.Redis, change: tuple[Any, ...]) -> None:
    fill(server)
    before = digest(server)
    server.execute_command(*change)
    assert digest(server) != before


def test_names_and_values_of_fields_are_told_apart(server: redis.Redis) -> None:
    server.hset("a", mapping={"xy": "z", "p": "q"})
    server.hset("b", mapping={"x": "yz", "p": "q"})
    server.hset("c", mapping={"xy": "q", "p": "z"})
    assert len(set(debug(server, "DIGEST-VALUE", "a", "b", "c"))) == 3


# ---- loading again ------------------------------------------------------------------------------------------------


def place(client: redis.Redis, key: str) -> bytes:
    """Where the value lies in memory."""
    return re.findall(rb"at:(\S+)", debug(client, "OBJECT", key))[0]


def test_reload_saves_and_loads_keys_and_tables(tmp_path: Path) -> None:
    table = rs.Table("t", 100, {"x": rs.Column("float32", (2,))})
    config = {"enable-debug-command": "yes"}
    with rs.Server([table], directory=tmp_path, config=config) as server, rs.Client(server.url) as client:
        values = np.arange(40, dtype=np.float32).reshape(20, 2)
        ids = client.add("t", {"x": values})
        client.publish_weights("policy", {"w": np.ones(3, np.float32)})
        store = client.redis
        for number in range(50):
            store.set(f"key:{number}", "x" * 100)
        fill(store)
        before, places = digest(store), [place(store, f"key:{number}") for number in range(50)]
        saved = store.info("persistence")["snapshots_saved"]
        assert debug(store, "RELOAD") == b"OK"
        assert digest(store) == before
        assert [place(store, f"key:{number}") for number in range(50)] != places, "the values are the old ones"
        assert store.info("persistence")["snapshots_saved"] == saved + 1
        assert len(list(tmp_path.glob("*.snapshot"))) == 1
        np.testing.assert_array_equal(client.get("t", ids).data["x"], values)
        assert client.info("t")["size"] == 20
        version, arrays = client.fetch_weights("policy") or pytest.fail("the weights are gone")
        assert version == 1
        assert arrays["w"].tolist() == [1, 1, 1]
        assert store.info("persistence")["rdb_changes_since_last_save"] == 0
        for words in (["NOSAVE"], ["MERGE"], ["x"]):
            with pytest.raises(redis.ResponseError, match="takes no options"):
                debug(store, "RELOAD", *words)


def test_no_write_of_another_client_is_lost_by_reload_and_loadaof(tmp_path: Path) -> None:
    with started(tmp_path, appendonly="yes") as client:
        counted: list[int] = []
        stop = threading.Event()

        def count() -> None:
            with another(client) as other:
                while not stop.is_set():
                    counted.append(int(other.incr("n")))  # type: ignore[arg-type]

        thread = threading.Thread(target=count)
        thread.start()
        try:
            for _ in range(5):
                debug(client, "RELOAD")
                debug(client, "LOADAOF")
        finally:
            stop.set()
            thread.join()
        assert counted == list(range(1, len(counted) + 1))
        assert int(client.get("n") or 0) == len(counted) > 0  # type: ignore[arg-type]


def test_loadaof_loads_the_append_only_file_which_goes_on(tmp_path: Path) -> None:
    with started(tmp_path) as client:
        with pytest.raises(redis.ResponseError, match="no append-only file"):
            debug(client, "LOADAOF")
        fill(client)
        client.config_set("appendonly", "yes")
        client.set("later", "x" * 100)
        client.lpop("list")
        client.mset({f"key:{number}": "x" * 100 for number in range(50)})
        before, places = digest(client), [place(client, f"key:{number}") for number in range(50)]
        commands = client.info("commandstats")["cmdstat_set"]["calls"]
        assert debug(client, "LOADAOF") == b"OK"
        assert digest(client) == before
        assert [place(client, f"key:{number}") for number in range(50)] != places, "the values are the old ones"
        assert client.info("commandstats")["cmdstat_set"]["calls"] == commands, "what is loaded was called by nobody"
        client.set("last", "1")
        after = digest(client)
    with started(tmp_path, appendonly="yes") as client:
        assert digest(client) == after


def test_loadaof_does_not_rest_in_the_midst_of_what_it_loads(tmp_path: Path) -> None:
    """A command of the file that has much to do is put down by clients' slices, but not here: half would be loaded."""
    with started(tmp_path, appendonly="yes") as client:
        client.sadd("large", *range(50_000))
        for number in range(20):
            client.sunionstore(f"copy:{number}", ["large"])
        before = digest(client)
        assert debug(client, "LOADAOF") == b"OK"
        assert digest(client) == before
        assert client.ping()


def test_watched_keys_and_subscribers_are_not_told_of_what_is_loaded(tmp_path: Path) -> None:
    with started(tmp_path, appendonly="yes", notify_keyspace_events="KEA") as client:
        client.set("k", "v")
        events = client.pubsub()
        events.psubscribe("__key*__:*")
        while events.get_message(timeout=60) is None:
            continue
        debug(client, "RELOAD")
        debug(client, "LOADAOF")
        client.publish("__keyevent@0__:done", "done")
        message = events.get_message(timeout=60)
        assert message is not None
        assert message["data"] == b"done"
        events.close()


@pytest.mark.parametrize("subcommand", ["RELOAD", "LOADAOF"])
def test_neither_is_for_transactions(server: redis.Redis, subcommand: str) -> None:
    pipeline = server.pipeline(transaction=True)
    pipeline.execute_command("DEBUG", subcommand)
    with pytest.raises(redis.ResponseError, match="outside transactions"):
        pipeline.execute()


# ---- calls that take long -----------------------------------------------------------------------------------------


def slowest(client: redis.Redis) -> dict[str, Any]:
    """The one slow command that there is."""
    found: Any = client.slowlog_get()
    (slow,) = found
    return slow


def test_a_sleep_is_in_slowlog_and_latency_and_others_are_served(server: redis.Redis) -> None:
    server.config_set("slowlog-log-slower-than", 100_000)
    server.config_set("latency-monitor-threshold", 100)
    with another(server) as other:
        sleeper = threading.Thread(target=debug, args=(server, "SLEEP", "0.3"))
        sleeper.start()
        while other.info("clients")["blocked_clients"] == 0 and sleeper.is_alive():
            time.sleep(0.005)
        assert sleeper.is_alive(), "the other client was answered only after the sleep"
        sleeper.join()
        slow = slowest(other)
        assert slow["command"] == b"DEBUG SLEEP 0.3"
        assert slow["duration"] >= 300_000
        told: Any = other.execute_command("LATENCY", "LATEST")
        ((name, _, latest, most),) = told
        assert name == b"command"
        assert latest == most >= 300


def test_a_sleep_in_a_transaction_keeps_others_waiting(server: redis.Redis) -> None:
    server.config_set("slowlog-log-slower-than", 100_000)
    pipeline = server.pipeline(transaction=True)
    pipeline.set("k", "v")
    pipeline.execute_command("DEBUG", "SLEEP", "0.2")
    pipeline.get("k")
    replies = pipeline.execute()
    assert replies == [True, b"OK", b"v"]
    assert slowest(server)["command"] == b"DEBUG SLEEP 0.2"
