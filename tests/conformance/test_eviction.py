"""What is kept when memory is short: maxmemory and its policies, and their settings as Redis has them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from against_redis import Pair

import replay_server

ROOM = 2 << 20
VALUE = b"x" * 1000
KEYS = 6000  # of VALUE: about three times the room


@pytest.fixture
def server() -> Iterator[redis.Redis]:
    with replay_server.Server([]) as started, redis.Redis.from_url(started.url) as client:
        yield client


def limit(client: redis.Redis, policy: str, **settings: Any) -> int:
    """Room for some keys beyond what the server holds without any; returns the limit in bytes."""
    used: Any = client.info("memory")
    most = used["used_memory"] + ROOM
    client.config_set("maxmemory", most)
    client.config_set("maxmemory-policy", policy)
    for name, value in settings.items():
        client.config_set(name.replace("_", "-"), value)
    return most


def fill(client: redis.Redis, first: int, last: int, ends: bool = False) -> None:
    for start in range(first, last, 100):
        pipeline = client.pipeline(transaction=False)
        for i in range(start, min(start + 100, last)):
            pipeline.set(f"key:{i}", VALUE, ex=100_000 if ends else None)
        pipeline.execute()


def used(client: redis.Redis) -> int:
    told: Any = client.info("memory")
    return int(told["used_memory"])


def evicted(client: redis.Redis) -> int:
    told: Any = client.info("stats")
    return int(told["evicted_keys"])


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_what_is_held_stays_below_maxmemory(server: redis.Redis, policy: str) -> None:
    most = limit(server, policy)
    fill(server, 0, KEYS)
    assert used(server) <= most + 65536  # what a request in flight takes
    # The replies to these questions take memory, too.
    before, gone, after = server.dbsize(), evicted(server), server.dbsize()
    assert KEYS - before <= gone <= KEYS - after
    assert after > 500


@pytest.mark.parametrize("policy", ["volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"])
def test_volatile_policies_take_only_keys_with_an_end(server: redis.Redis, policy: str) -> None:
    most = limit(server, policy)
    fill(server, 0, 500)
    fill(server, 1000, 1000 + KEYS, ends=True)
    assert used(server) <= most + 65536
    assert evicted(server) > 0
    assert server.exists(*(f"key:{i}" for i in range(500))) == 500
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        fill(server, 10_000, 10_000 + KEYS)
    assert server.exists(*(f"key:{i}" for i in range(500))) == 500


def test_keys_used_often_stay(server: redis.Redis) -> None:
    limit(server, "allkeys-lfu", maxmemory_samples=10, lfu_decay_time=0)
    hot = [f"hot:{i}" for i in range(50)]
    server.mset(dict.fromkeys(hot, VALUE))
    for start in range(0, KEYS, 100):
        fill(server, start, start + 100)
        server.mget(hot)
    assert evicted(server) > 1000
    assert server.exists(*hot) >= 45


def test_keys_used_lately_stay(server: redis.Redis) -> None:
    limit(server, "allkeys-lru", maxmemory_samples=10)
    hot = [f"hot:{i}" for i in range(50)]
    server.mset(dict.fromkeys(hot, VALUE))
    fill(server, 0, 1200)
    assert evicted(server) == 0
    time.sleep(1.1)  # recency is counted in seconds
    server.mget(hot)
    fill(server, KEYS, KEYS + 1000)
    assert evicted(server) > 200
    assert server.exists(*hot) >= 45


def test_without_a_policy_writes_are_refused_and_reads_are_not(server: redis.Redis) -> None:
    limit(server, "noeviction")
    with pytest.raises(redis.exceptions.OutOfMemoryError, match="command not allowed when used memory > 'maxmemory'"):
        fill(server, 0, KEYS)
    assert server.get("key:0") == VALUE
    assert evicted(server) == 0
    server.delete(*(f"key:{i}" for i in range(500)))
    server.set("again", "1")


def test_a_large_key_that_goes_is_freed_before_others_follow(server: redis.Redis) -> None:
    limit(server, "volatile-ttl")
    for start in range(0, 20_000, 1000):
        server.rpush("list", *(str(i) for i in range(start, start + 1000)))
    server.expire("list", 1000)
    fill(server, 0, 1000, ends=True)  # ends later
    fill(server, 2000, 3000)
    assert not server.exists("list")
    assert server.exists(*(f"key:{i}" for i in range(1000))) > 700


def test_an_argument_larger_than_all_memory_takes_no_key(server: redis.Redis) -> None:
    most = limit(server, "allkeys-lru")
    fill(server, 0, 100)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        server.set("large", b"x" * (most + 1))
    assert server.dbsize() == 100


def test_what_is_over_goes_when_the_limit_is_lowered(server: redis.Redis) -> None:
    fill(server, 0, 2000)
    before = used(server)
    server.config_set("maxmemory-policy", "allkeys-random")
    server.config_set("maxmemory", before - ROOM // 2)
    server.ping()
    while used(server) > before - ROOM // 2 + 65536:
        pass
    assert 0 < server.dbsize() < 2000


@pytest.mark.parametrize("changed_last", ["maxmemory", "maxmemory-policy"])
def test_keys_go_at_once_though_nobody_sends_a_command(server: redis.Redis, changed_last: str) -> None:
    server.config_set("notify-keyspace-events", "Ee")
    listener = server.pubsub(ignore_subscribe_messages=True)
    listener.subscribe("__keyevent@0__:evicted")
    assert listener.get_message(timeout=60) is None  # it listens
    fill(server, 0, 2000)
    settings = {"maxmemory": used(server) - ROOM // 2, "maxmemory-policy": "allkeys-random"}
    last = settings.pop(changed_last)
    for name, value in settings.items():
        server.config_set(name, value)
    assert server.dbsize() == 2000
    assert evicted(server) == 0
    server.config_set(changed_last, last)
    for _ in range(ROOM // 2 // 1600):  # of keys that take less than that each
        assert listener.get_message(timeout=60) is not None
    while used(server) > settings.get("maxmemory", last) + 65536:
        pass
    assert 0 < server.dbsize() < 2000


def test_keys_go_at_once_when_a_pause_ends(server: redis.Redis) -> None:
    server.config_set("notify-keyspace-events", "Ee")
    fill(server, 0, 2000)
    listener = server.pubsub(ignore_subscribe_messages=True)
    listener.subscribe("__keyevent@0__:evicted")
    assert listener.get_message(timeout=60) is None  # it listens
    server.config_set("maxmemory-policy", "allkeys-random")
    server.client_pause(100_000, all=False)
    server.config_set("maxmemory", used(server) - ROOM // 2)
    assert server.dbsize() == 2000
    assert evicted(server) == 0
    server.client_unpause()
    assert listener.get_message(timeout=60) is not None


def test_who_listens_is_told_of_keys_that_go(server: redis.Redis) -> None:
    server.config_set("notify-keyspace-events", "Ee")
    listener = server.pubsub(ignore_subscribe_messages=True)
    listener.subscribe("__keyevent@0__:evicted")
    assert listener.get_message(timeout=60) is None  # it listens
    limit(server, "allkeys-random")
    fill(server, 0, 4000)
    gone = set()
    while len(gone) < evicted(server):
        told = listener.get_message(timeout=60)
        assert told is not None, "of some that went nobody was told"
        gone.add(told["data"])
    assert 1000 < len(gone) <= evicted(server) < len(gone) + 50  # this reply takes memory, too
    assert not server.exists(*gone)
    listener.close()


def test_keys_that_went_do_not_come_back_with_the_append_only_file(tmp_path: Path) -> None:
    settings = {"appendonly": "yes", "appendfsync": "no"}
    with (
        replay_server.Server([], directory=str(tmp_path), config=settings) as started,
        redis.Redis.from_url(started.url) as client,
    ):
        limit(client, "allkeys-lru")
        fill(client, 0, KEYS)
        left = set(client.keys())
        assert 500 < len(left) < KEYS
    with (
        replay_server.Server([], directory=str(tmp_path), config=settings) as again,
        redis.Redis.from_url(again.url) as client,
    ):
        # A few more may have gone after we asked.
        assert set(client.keys()) <= left
        assert client.dbsize() > len(left) - 100


def test_no_key_goes_in_the_midst_of_a_script(server: redis.Redis) -> None:
    limit(server, "allkeys-random", busy_reply_threshold=1)
    fill(server, 0, KEYS)
    script = """
        local before = redis.call('DBSIZE')
        for i = 1, 1000 do redis.call('SET', 'script:' .. i, string.rep('x', 1000)) end
        local began = redis.call('TIME')
        repeat
            local now = redis.call('TIME')
        until (now[1] - began[1]) * 1000000 + now[2] - began[2] > 300000
        return redis.call('DBSIZE') - before
    """
    with redis.Redis(port=server.get_connection_kwargs()["port"]) as other:
        running = threading.Thread(target=lambda: added.append(server.eval(script, 0)))
        added: list[Any] = []
        running.start()
        busy = 0
        while running.is_alive():
            try:
                other.ping()
            except redis.exceptions.ResponseError as error:
                busy += str(error).startswith("BUSY")
        running.join()
    assert busy > 0, "nobody came while the script ran"
    assert added == [1000]
    gone = evicted(server)
    server.ping()
    assert gone > 0


def test_settings_are_read_and_refused_as_redis_does(pair: Pair) -> None:
    for name, values in {
        "maxmemory-policy": ["allkeys-LFU", "volatile-ttl", "lru", "", "noeviction"],
        "maxmemory-samples": ["10", "0", "-1", "x", "5"],
        "maxmemory-eviction-tenacity": ["0", "100", "101", "10"],
        "lfu-log-factor": ["0", "-1", "10"],
        "lfu-decay-time": ["0", "-1", "1"],
        "lazyfree-lazy-eviction": ["yes", "NO", "1", "maybe", "no"],
        "lazyfree-lazy-user-flush": ["yes", "no"],
    }.items():
        pair.words(f"CONFIG GET {name}")
        for value in values:
            pair.run((b"CONFIG", b"SET", name.encode(), value.encode()))
            pair.words(f"CONFIG GET {name}")
