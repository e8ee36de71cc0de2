"""Caches in client libraries: redis-py's and node-redis's keep copies of keys and drop them when others change them."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from redis.cache import CacheConfig, CacheKey
from redis.connection import CacheProxyConnection

import replay_server

NODE_REDIS = "redis@5"
KEYS = 200


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, "nothing happened within 60 s"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with replay_server.Server([]) as server:
        yield server.url


@pytest.fixture
def cached(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    # Its cache asks for a server that calls itself 7.4 or newer, though it uses nothing that is newer than 6.0.
    monkeypatch.setattr(CacheProxyConnection, "MIN_ALLOWED_VERSION", "7.0.0")
    client = redis.Redis.from_url(url, protocol=3, cache_config=CacheConfig(max_size=KEYS))
    yield client
    client.flushall()
    client.close()


def test_redis_py_reads_from_its_cache_until_a_key_changes(cached: redis.Redis, url: str) -> None:
    with redis.Redis.from_url(url) as other:
        other.mset({f"key:{i}": i for i in range(KEYS)})
        assert [cached.get(f"key:{i}") for i in range(KEYS)] == [b"%d" % i for i in range(KEYS)]
        cache = cached.get_cache()
        assert cache is not None
        assert len(cache.collection) == KEYS
        calls = other.info("commandstats")["cmdstat_get"]["calls"]
        assert [cached.get(f"key:{i}") for i in range(KEYS)] == [b"%d" % i for i in range(KEYS)]
        assert other.info("commandstats")["cmdstat_get"]["calls"] == calls
        for i in range(0, KEYS, 2):
            other.set(f"key:{i}", "new")
        assert [cached.get(f"key:{i}") for i in range(KEYS)] == [b"%d" % i if i % 2 else b"new" for i in range(KEYS)]
        assert other.info("commandstats")["cmdstat_get"]["calls"] == calls + KEYS // 2
        other.flushall()
        assert cached.get("key:1") is None


def test_redis_py_drops_what_expires(cached: redis.Redis, url: str) -> None:
    with redis.Redis.from_url(url) as other:
        other.set("short", "here", px=50)
        assert cached.get("short") == b"here"
        wait_until(lambda: cached.get("short") is None)
        cache = cached.get_cache()
        assert cache is not None
        held = cache.get(CacheKey(command="GET", redis_keys=("short",), redis_args=("GET", "short")))
        assert held is None or held.cache_value is None


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["default", "bcast"])
def test_node_redis(url: str, tmp_path: Path, mode: str) -> None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("needs node and npm: apt-get install nodejs npm")
    installed = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", NODE_REDIS],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if installed.returncode != 0:
        pytest.skip(f"npm install {NODE_REDIS} failed: {installed.stderr[-300:]}")
    program = Path(__file__).resolve().parent / "node_cache.mjs"
    copy = tmp_path / program.name  # where the package is found
    copy.write_text(program.read_text())
    result = subprocess.run([node, str(copy), url, mode], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    told = json.loads(result.stdout)
    assert told["first"] == told["again"] == [f"{i}" for i in range(KEYS)]
    assert told["gets"] == KEYS, "the second round came from the cache"
    assert told["changed"] == ["new"] * KEYS
    assert told["flushed"] is None
