"""The benchmark of the store beside Redis: what it measures and how it is written down. No timings."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from replay_server.bench import store
from replay_server.bench.main import main as bench

pytestmark = [
    pytest.mark.skipif(shutil.which("redis-benchmark") is None, reason="needs redis-server: apt-get install redis"),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors"),
]


def test_both_sides_are_measured_by_the_same_load_and_set_in_proportion(tmp_path: Path) -> None:
    file = tmp_path / "store.json"
    argv = ["--tests", "get", "lpop", "lrange_100", "get_1mb", "--rounds", "2", "--scale", "0.01", "--keys", "20000"]
    assert bench(["store", *argv, "--json", str(file)]) == 0
    content = json.loads(file.read_text())
    assert len(content["rounds"]) == 2
    for name in ("get.P1", "get.P16", "lpop.P16", "lrange_100.P1", "get_1mb.P1"):
        for what in ("requests_per_s", "requests_per_cpu_s", "latency_us_p99"):
            ours, theirs = (content["median"][f"{name}.{side}.{what}"] for side in (store.OURS, store.REDIS))
            assert ours > 0
            assert theirs > 0
            assert content["ratio"][f"{name}.{what}"] > 0
    assert "get_1mb.P16.replay.requests_per_s" not in content["median"]
    means = {name for name in content["median"] if name.startswith("geometric_mean")}
    assert "geometric_mean.P16.requests_per_s_ratio" in means
    assert "geometric_mean.light.P1.requests_per_cpu_s_ratio" in means
    for name in store.VALUES:
        assert content["median"][f"memory_{name}.replay.bytes_per_key"] > 20
    assert content["median"]["memory_stream.replay.bytes_per_entry"] > 13


def test_every_test_of_redis_benchmark_is_there() -> None:
    names = "ping_inline ping_mbulk set get incr lpush rpush lpop rpop sadd hset spop zadd zpopmin mset"
    assert set(names.split()) <= set(store.BY_NAME)
    assert {f"lrange_{items}" for items in (100, 300, 500, 600)} <= set(store.BY_NAME)


def test_the_mean_of_ratios_is_geometric() -> None:
    assert store.geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert store.geometric_mean([4.0, 1.0]) == pytest.approx(2.0)
