"""Settings that Redis has: those without effect here are checked and kept alike; those with one are followed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from against_redis import Pair

import replay_server as rs
from replay_server.build_info import native_settings

NO_EFFECT = [each for each in native_settings() if not each["effect"]]
CLAMPED = {"hz", "repl-backlog-size"}
"""Redis makes a number that is out of its range one that is in it: from 1 to 500, from 16 KiB on."""
BUILT_DIFFERENTLY = {"jemalloc-bg-thread"}


@pytest.fixture
def server() -> Iterator[redis.Redis]:
    with rs.Server() as started, redis.Redis.from_url(started.url) as client:
        yield client


def values_of(setting: dict[str, Any]) -> list[str]:
    if setting["kind"] == "flag":
        return ["yes", "no", "YES", "1", "maybe", ""]
    if setting["kind"] == "choice":
        return [*setting["choices"], setting["choices"][0].upper(), "nosuch", ""]
    least, most = setting["minimum"], setting["maximum"]
    values = [str(least), str(least + 1), "64", "x", "1.5", "1kb"]
    values += ["", str(least - 1)] if setting["kind"] != "bytes" else ["-1", "2mb", "1xb"]
    return [*values, str(most), str(most + 1)] if most < 2**31 else values


@pytest.mark.parametrize("name", [each["name"] for each in NO_EFFECT])
def test_a_setting_without_effect_is_checked_and_kept_as_by_redis(pair: Pair, name: str) -> None:
    (setting,) = (each for each in NO_EFFECT if each["name"] == name)
    if name in BUILT_DIFFERENTLY:
        pytest.skip("Redis has it only with jemalloc")
    line = f"CONFIG GET {name}"
    pair.run((b"CONFIG", b"SET", name.encode(), setting["default"].encode()))  # the Redis of all tests may have another
    pair.words(line)
    for value in values_of(setting):
        if name in CLAMPED and value not in ("x", "", "-1", "1.5", "2mb") and value != setting["default"]:
            continue
        pair.run((b"CONFIG", b"SET", name.encode(), value.encode()))
        pair.words(line)
    pair.run((b"CONFIG", b"SET", name.encode(), setting["default"].encode()))
    pair.words(line)


def test_a_former_name_is_the_same_setting(server: redis.Redis) -> None:
    server.config_set("hash-max-ziplist-entries", 7)
    assert server.config_get("hash-max-*-entries") == {
        "hash-max-listpack-entries": "7",
        "hash-max-ziplist-entries": "7",
    }
    assert set(server.config_get("*-listpack-*")) >= {"hash-max-listpack-value", "zset-max-listpack-entries"}


def test_a_configuration_file_may_name_them() -> None:
    config = {"hash-max-listpack-entries": 64, "rdbcompression": False}
    with rs.Server(config=config) as started, redis.Redis.from_url(started.url) as client:
        assert client.config_get("hash-max-listpack-entries", "rdbcompression") == {
            "hash-max-listpack-entries": "64",
            "rdbcompression": "no",
        }


@pytest.mark.parametrize("name", ["min-replicas-to-write", "min-slaves-to-write"])
def test_writes_are_refused_for_lack_of_replicas_as_by_redis(pair: Pair, name: str) -> None:
    pair.run((b"FLUSHALL",), (b"SET", b"k", b"v"))
    pair.words(f"CONFIG SET {name} 1")
    try:
        pair.words("SET k w")
        pair.words("GET k")
        pair.words("MULTI")
        pair.words("SET k w")
        pair.words("EXEC")
        pair.run((b"EVAL", b"return redis.call('GET', KEYS[1])", b"1", b"k"))
        pair.run((b"EVAL", b"return redis.pcall('SET', KEYS[1], 'w').err", b"1", b"k"))
        pair.words("CONFIG SET min-replicas-max-lag 0")
        pair.words("SET k x")
    finally:
        pair.run((b"CONFIG", b"SET", name.encode(), b"0", b"min-replicas-max-lag", b"10"))
    pair.words("SET k w")


def test_calls_are_timed_unless_told_otherwise(server: redis.Redis) -> None:
    def timed() -> Any:
        told: Any = server.execute_command("LATENCY HISTOGRAM", "set")
        return told[b"set"][b"calls"]

    server.set("k", "v")
    assert timed() == 1
    server.config_set("latency-tracking", "no")
    server.set("k", "v")
    assert timed() == 1
    stats: Any = server.info("commandstats")["cmdstat_set"]
    assert stats["calls"] == 2
    server.config_set("latency-tracking", "yes")
    server.set("k", "v")
    assert timed() == 2


def test_info_tells_the_percentiles_that_are_asked_for(server: redis.Redis) -> None:
    def told() -> list[str]:
        return list(server.info("latencystats")["latency_percentiles_usec_ping"])

    server.ping()
    assert told() == ["p50", "p99", "p99.9"]
    server.config_set("latency-tracking-info-percentiles", "0.0 25 100.0")
    assert server.config_get("latency-tracking-info-percentiles") == {"latency-tracking-info-percentiles": "0 25 100"}
    assert told() == ["p0", "p25", "p100"]
    server.config_set("latency-tracking-info-percentiles", "")
    assert "latency_percentiles_usec_ping" not in server.info("latencystats")


def test_percentiles_are_read_as_by_redis(pair: Pair) -> None:
    name = "latency-tracking-info-percentiles"
    for value in ["10.0 50.0 a", "10.0 50.0 101.0", "-1", "50.0 99.0", "", "0 100", "50 99 99.9"]:
        pair.run((b"CONFIG", b"SET", name.encode(), value.encode()))
        pair.words(f"CONFIG GET {name}")


def test_every_setting_of_redis_is_answered(pair: Pair) -> None:
    told = [server.run(b"CONFIG", b"GET", b"*")[1] for server in (pair.redis, pair.ours)]
    theirs, ours = ({name for _, name in reply[::2]} for reply in told)
    assert theirs - ours == set()


def test_what_cannot_be_changed_is_refused_unless_it_is_so_already(server: redis.Redis) -> None:
    for name, other in (("replicaof", "host 1"), ("pidfile", "x"), ("syslog-enabled", "yes"), ("tls-cluster", "yes")):
        value = server.config_get(name)[name]
        with pytest.raises(redis.ResponseError):
            server.config_set(name, other)
        assert server.config_get(name)[name] == value
