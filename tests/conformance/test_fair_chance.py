"""What chance picks out of hash tables, small and large: everything has the same chance.

The server draws its own seed. Each check compares a chi-squared statistic with what it exceeds by chance once in 10⁹:
the whole file fails falsely less than once in 10⁷ runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import pytest
import redis

import replay_server

SIZES = [(10, 200), (100, 200), (1000, 40)]  # and draws for each element
NORMAL_QUANTILE = 5.998  # exceeded once in 10⁹


@pytest.fixture(scope="module")
def server() -> Iterator[redis.Redis]:
    with replay_server.Server([]) as started, redis.Redis.from_url(started.url, decode_responses=True) as client:
        yield client


def assert_fair(seen: Counter[str], names: Iterable[str]) -> None:
    expected = list(names)
    assert set(seen) <= set(expected)
    degrees = len(expected) - 1
    mean = sum(seen.values()) / len(expected)
    statistic = sum((seen[name] - mean) ** 2 for name in expected) / mean
    width = 2 / (9 * degrees)  # Wilson and Hilferty
    assert statistic < degrees * (1 - width + NORMAL_QUANTILE * math.sqrt(width)) ** 3


def members(count: int) -> list[str]:
    return [f"member-that-is-no-number:{i}:{'x' * 64}" for i in range(count)]  # too long to be packed


def pipelined(client: redis.Redis, times: int, add: Callable[[redis.client.Pipeline], object]) -> list[str]:
    pipeline = client.pipeline(transaction=False)
    for _ in range(times):
        add(pipeline)
    return [name for reply in pipeline.execute() for name in (reply if isinstance(reply, list) else [reply])]


@pytest.mark.parametrize(("count", "draws"), SIZES)
def test_members_of_a_set(server: redis.Redis, count: int, draws: int) -> None:
    names = members(count)
    server.flushall()
    server.sadd("set", *names)
    assert_fair(Counter(pipelined(server, draws * count, lambda p: p.srandmember("set"))), names)
    assert_fair(Counter(server.srandmember("set", -draws * count)), names)
    assert_fair(Counter(pipelined(server, draws * 10, lambda p: p.srandmember("set", count // 10))), names)


@pytest.mark.parametrize(("count", "draws"), SIZES)
def test_fields_of_a_hash(server: redis.Redis, count: int, draws: int) -> None:
    names = members(count)
    server.flushall()
    server.hset("hash", mapping=dict.fromkeys(names, "1"))
    assert_fair(Counter(pipelined(server, draws * count, lambda p: p.hrandfield("hash"))), names)
    assert_fair(Counter(server.hrandfield("hash", -draws * count)), names)
    assert_fair(Counter(pipelined(server, draws * 10, lambda p: p.hrandfield("hash", count // 10))), names)


@pytest.mark.parametrize(("count", "draws"), SIZES)
def test_members_of_a_sorted_set(server: redis.Redis, count: int, draws: int) -> None:
    names = members(count)
    server.flushall()
    server.zadd("zset", dict.fromkeys(names, 1.0))
    assert_fair(Counter(pipelined(server, draws * count, lambda p: p.zrandmember("zset"))), names)
    assert_fair(Counter(pipelined(server, draws * 10, lambda p: p.zrandmember("zset", count // 10))), names)


@pytest.mark.parametrize(("count", "draws"), SIZES)
def test_keys_of_a_database(server: redis.Redis, count: int, draws: int) -> None:
    names = members(count)
    server.flushall()
    server.mset(dict.fromkeys(names, "1"))
    assert_fair(Counter(pipelined(server, draws * count, lambda p: p.randomkey())), names)


def test_members_popped(server: redis.Redis) -> None:
    names = members(40)
    server.flushall()
    seen: Counter[str] = Counter()
    for _ in range(800):  # of the same ten places in the table each time, and of what is left of it
        server.sadd("set", *names)
        seen.update(server.spop("set", 5))
        seen.update(pipelined(server, 5, lambda p: p.spop("set")))
    assert_fair(seen, names)


@pytest.mark.parametrize("policy", ["allkeys-random", "volatile-random"])
def test_keys_evicted_at_random(server: redis.Redis, policy: str) -> None:
    """How often each key is among the first tenth to go."""
    count = 400
    names = [f"key:{i}" for i in range(count)]
    gone: Counter[str] = Counter()
    server.flushall()
    server.config_set("maxmemory-policy", policy)
    for _ in range(100):
        server.config_set("maxmemory", 0)
        pipeline = server.pipeline(transaction=False)
        for name in names:
            pipeline.set(name, "x" * 4000, ex=100_000)
        pipeline.execute()
        before = int(server.info("memory")["used_memory"])
        server.config_set("maxmemory", before - 40 * 4000)
        while int(server.info("memory")["used_memory"]) > before - 40 * 4000 + 100_000:
            pass
        left = set(server.keys())
        gone.update(name for name in names if name not in left)
    server.config_set("maxmemory", 0)
    server.config_set("maxmemory-policy", "noeviction")
    assert sum(gone.values()) > 1000
    assert_fair(gone, names)
