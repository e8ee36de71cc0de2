"""Programs written for Redis work with our server as they are: redis-py, redis-cli, redis-benchmark."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import redis
import redis.asyncio


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def client(our_peer: Any, request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=str(our_peer.unix_path), protocol=request.param) as connected:
        connected.flushall()
        yield connected


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}: apt-get install redis-tools")
    return found


# ---- redis-py ---------------------------------------------------------------------------------------------------


def test_redis_py_strings_lists_and_hashes(client: redis.Redis) -> None:
    assert client.ping() is True
    assert client.set("k", "v", ex=100) is True
    assert client.get("k") == b"v"
    assert 0 < client.ttl("k") <= 100
    assert client.set("k", "w", nx=True) is None
    assert client.set("k", "w", get=True) == b"v"
    assert client.mset({"a": 1, "b": 2})
    assert client.mget("a", "b", "missing") == [b"1", b"2", None]
    assert client.incr("a") == 2
    assert client.incrby("a", 40) == 42
    assert client.incrbyfloat("a", 0.5) == 42.5
    assert client.rpush("l", "x", "y", "z") == 3
    assert client.lrange("l", 0, -1) == [b"x", b"y", b"z"]
    assert client.lpop("l", 2) == [b"x", b"y"]
    assert client.llen("l") == 1
    assert client.hset("h", mapping={"f": "v", "g": 1}) == 2
    assert client.hgetall("h") == {b"f": b"v", b"g": b"1"}
    assert client.hincrby("h", "g", 4) == 5
    assert client.type("h") == b"hash"
    assert client.dbsize() == 5
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        client.get("h")


def test_redis_py_sends_a_pipeline_of_many_megabytes_before_it_reads(client: redis.Redis) -> None:
    """It hung where replies of a megabyte that nobody reads yet stopped the server from reading on."""
    values = [bytes([i]) * 300_000 for i in range(60)]
    pipeline = client.pipeline(transaction=False)
    for i, value in enumerate(values):
        pipeline.set(f"k{i}", value).get(f"k{i}")
    replies = pipeline.execute()
    assert replies[0::2] == [True] * len(values)
    assert replies[1::2] == values


def test_redis_py_iterates_over_keys_and_fields(client: redis.Redis) -> None:
    client.mset({f"key:{i}": i for i in range(1000)})
    client.hset("h", mapping={f"f{i}": i for i in range(1000)})
    assert {int(name[4:]) for name in client.scan_iter("key:*")} == set(range(1000))
    assert len(dict(client.hscan_iter("h"))) == 1000
    assert client.delete(*client.keys("key:*")) == 1000


def test_redis_py_pipelines_without_transactions(client: redis.Redis) -> None:
    pipeline = client.pipeline(transaction=False)
    for i in range(1000):
        pipeline.rpush("l", i)
    pipeline.lrange("l", 0, -1).ltrim("l", -1, 0).exists("l")
    *lengths, everything, trimmed, there = pipeline.execute()
    assert lengths == list(range(1, 1001))
    assert len(everything) == 1000
    assert trimmed
    assert there == 0


def test_redis_py_asyncio(our_peer: Any) -> None:
    async def use() -> None:
        async with redis.asyncio.Redis(unix_socket_path=str(our_peer.unix_path)) as connected:
            await connected.flushall()
            await asyncio.gather(*(connected.set(f"k{i}", i) for i in range(50)))
            assert await connected.mget("k0", "k49") == [b"0", b"49"]

    asyncio.run(use())


def test_weights_and_trajectories_as_the_source_systems_keep_them(client: redis.Redis) -> None:
    weights = np.random.default_rng(0).standard_normal(3_292_837).astype(np.float32).tobytes()
    client.set("model_weights", weights)
    assert client.get("model_weights") == weights
    batch = {str(i): weights[i * 1000 : (i + 30) * 1000] for i in range(32)}
    client.hset("sample_batch", mapping=batch)
    assert client.hlen("sample_batch") == 32
    assert client.exists("sample_batch") == 1
    assert client.hgetall("sample_batch") == {name.encode(): blob for name, blob in batch.items()}
    for i in range(8):
        client.lpush("sample_queue_0", weights[i * 100_000 : (i + 1) * 100_000])
    assert client.rpop("sample_queue_0") == weights[:100_000]
    assert client.llen("sample_queue_0") == 7
    assert client.rpop("sample_queue_0", 100) is not None
    assert client.exists("sample_queue_0") == 0
    client.flushall()
    assert client.dbsize() == 0


# ---- redis-cli --------------------------------------------------------------------------------------------------


def cli(our_peer: Any, *arguments: str, stdin: str | None = None) -> str:
    command = [program("redis-cli"), "-s", str(our_peer.unix_path), *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_redis_cli_runs_commands(our_peer: Any, client: redis.Redis) -> None:
    assert cli(our_peer, "SET", "k", "v") == "OK\n"
    assert cli(our_peer, "-3", "HSET", "h", "f", "v") == "1\n"
    assert cli(our_peer, stdin="GET k\nLPUSH l a b\nLRANGE l 0 -1\nNOSUCH x\n").splitlines()[:4] == ["v", "2", "b", "a"]
    assert "redis_version:7" in cli(our_peer, "INFO", "server")
    assert "db0:keys=3,expires=0" in cli(our_peer, "INFO", "keyspace")


def test_redis_cli_scans(our_peer: Any, client: redis.Redis) -> None:
    client.mset({f"key:{i}": "x" * i for i in range(300)})
    client.rpush("list", *range(100))
    assert len(cli(our_peer, "--scan", "--pattern", "key:*").split()) == 300
    assert "Biggest   list found" in cli(our_peer, "--bigkeys")


def test_redis_cli_pipes_many_commands(our_peer: Any, client: redis.Redis) -> None:
    commands = "".join(f"SET key:{i} {i}\r\n" for i in range(20_000))
    assert "errors: 0, replies: 20000" in cli(our_peer, "--pipe", stdin=commands)
    assert client.dbsize() == 20_000


# ---- redis-benchmark --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pipeline", ["1", "16"])
def test_redis_benchmark_runs(our_peer: Any, client: redis.Redis, pipeline: str) -> None:
    tests = "ping,set,get,incr,lpush,rpush,lpop,rpop,hset,lrange_100,mset"
    command = [
        program("redis-benchmark"),
        "-s",
        str(our_peer.unix_path),
        "-t",
        tests,
        "-n",
        "2000",
        "-P",
        pipeline,
        "--csv",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    names = [line.split(",")[0].strip('"').split(" ")[0] for line in done.stdout.splitlines()]
    for name in ["PING_INLINE", "SET", "GET", "INCR", "LPUSH", "RPOP", "HSET", "LRANGE_100", "MSET"]:
        assert name in names, done.stdout
    assert "rror" not in done.stdout + done.stderr
