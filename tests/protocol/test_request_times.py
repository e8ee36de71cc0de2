"""What a dashboard asks for at every second: how long requests take, and how priorities are spread."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import replay_server as rs


def test_priorities_are_counted_by_order_of_magnitude(client, make_table, items):
    name = make_table(capacity=8, sampler=rs.Prioritized(1.0))
    ids = client.add(name, items(1, 2, 3, 4, 5, 6), [0.0, 0.3, 1.0, 1.99, 2.0, 1e200])
    info = client.info(name)
    assert info["zero_priorities"] == 1
    assert info["priorities"] == {-2: 1, 0: 2, 1: 1, 31: 1}
    client.update_priorities(name, ids[:2], [1e-300, 0.0])
    client.delete(name, ids[-1:])
    info = client.info(name)
    assert info["zero_priorities"] == 1
    assert info["priorities"] == {-32: 1, 0: 2, 1: 1}
    client.update_priorities(name, ids[:2], [-0.0, 5e-324])
    info = client.info(name)
    assert (info["zero_priorities"], info["priorities"][-32]) == (1, 1)


def test_counts_of_priorities_stay_true_through_a_life(client, make_table, items):
    name = make_table(capacity=50, sampler=rs.Prioritized(0.6))
    random = np.random.default_rng(0)
    alive: dict[int, float] = {}
    for _ in range(40):
        priorities = random.lognormal(0, 4, 7) * (random.random(7) > 0.2)
        for key, priority in zip(client.add(name, items(*range(7)), priorities).tolist(), priorities, strict=True):
            alive[key] = priority
        while len(alive) > 50:
            del alive[next(iter(alive))]
        some = random.choice(list(alive), 5, replace=False)
        changed = random.lognormal(0, 4, 5)
        assert client.update_priorities(name, some.astype(np.uint64), changed) == (5, 0)
        alive.update(zip(some.tolist(), changed, strict=True))
    info = client.info(name)
    positive = np.array([priority for priority in alive.values() if priority > 0])
    exponents = np.clip(np.frexp(positive)[1] - 1, -32, 31)
    assert info["zero_priorities"] == len(alive) - len(positive)
    assert info["priorities"] == {
        int(e): int(n) for e, n in zip(*np.unique(exponents, return_counts=True), strict=True)
    }
    client.reset(name)
    assert (client.info(name)["zero_priorities"], client.info(name)["priorities"]) == (0, {})


def test_priorities_are_counted_after_a_restore(items, tmp_path):
    table = rs.Table("t", 10, {"x": rs.Column("float32", (2,)), "k": rs.Column("int64")}, sampler=rs.Prioritized(1.0))
    with rs.Server([table], directory=str(tmp_path)) as server, rs.Client(server.url) as client:
        client.add("t", items(1, 2, 3), [0.0, 4.0, 5.0])
        client.checkpoint("kept")
        client.reset("t")
        client.restore("kept")
        info = client.info("t")
    assert (info["zero_priorities"], info["priorities"]) == (1, {2: 2})


@pytest.fixture
def requests(redis_server):
    """The section as a map of maps, by the command's name."""
    url = redis_server.url

    def read() -> dict[str, dict[str, float]]:
        with rs.Client(url) as client:
            section = client.redis.info("requests")
        return {name.removeprefix("request_"): fields for name, fields in section.items()}

    return read


@pytest.fixture
def redis_server():
    table = rs.Table("t", 100, {"x": rs.Column("float32", (2,)), "k": rs.Column("int64")}, sampler=rs.Prioritized(1.0))
    with rs.Server([table]) as server:
        yield server


def test_requests_are_timed_by_command(redis_server, requests, items):
    with rs.Client(redis_server.url) as client:
        ids = client.add("t", items(1, 2, 3))
        for _ in range(50):
            client.sample("t", 8)
        client.update_priorities("t", ids, [1.0, 2.0, 3.0])
    seen = requests()
    assert {"replay.add", "replay.sample", "replay.update"} <= set(seen)
    sample = seen["replay.sample"]
    assert (sample["calls"], sample["answers"]) == (50, 50)
    assert 0 < sample["handler_us_p50"] <= sample["handler_us_p90"] <= sample["handler_us_p99"]
    assert sample["handler_us_p99"] <= sample["handler_us_max"] <= sample["answer_us_max"]
    assert 0 < sample["seconds"] <= 20
    with rs.Client(redis_server.url) as client:
        client.redis.config_resetstat()
    assert requests() == {}


def test_waiting_is_in_the_answer_and_not_in_the_handler(redis_server, requests, items):
    waited_s = 0.3
    with rs.Client(redis_server.url) as sampler, rs.Client(redis_server.url) as actor:
        thread = threading.Thread(target=sampler.sample, args=("t", 4), kwargs={"timeout": 60})
        thread.start()
        deadline = time.monotonic() + 60
        while actor.info("t")["waiting_sample"] == 0:
            assert time.monotonic() < deadline
        began = time.monotonic()
        while time.monotonic() < began + waited_s:
            actor.info("t")
        actor.add("t", items(1, 2))
        thread.join()
    sample = requests()["replay.sample"]
    assert sample["answer_us_max"] >= waited_s * 1e6
    assert sample["handler_us_max"] < sample["answer_us_max"]


def test_requests_sent_ahead_are_answered_and_timed(redis_server, requests, items):
    with rs.Client(redis_server.url) as client:
        client.add("t", items(1, 2))
        pipeline = client.redis.pipeline(transaction=False)
        for _ in range(100):
            pipeline.execute_command("REPLAY.SAMPLE", "t", 4)
        assert len(pipeline.execute()) == 100
    sample = requests()["replay.sample"]
    assert sample["calls"] == 100
    assert 1 <= sample["answers"] <= 100
