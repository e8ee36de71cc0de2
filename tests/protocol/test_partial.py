"""PARTIAL: the first items enter as far as the rate limiter admits them, and the answer says which."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import redis

import replay_server as rs


def add(client: rs.Client, name: str, values: range, *options: object) -> list[int]:
    """REPLAY.ADD ... PARTIAL by plain redis-py, of a table with a column k."""
    blob = np.array(values, np.int64).tobytes()
    words = (name, len(values), b"", *options, "COLUMNS", 1, "k", blob)
    return np.frombuffer(client.redis.execute_command("REPLAY.ADD", *words), np.uint64).tolist()


@pytest.fixture
def queue(client):
    name = "partial-queue"
    k = {"k": rs.Column("int64")}
    client.create_table(rs.Table(name, 100, k, sampler=rs.Fifo(), rate_limiter=rs.Queue(4), max_times_sampled=1))
    yield name
    client.drop_table(name)


def taken(client: rs.Client, name: str, count: int) -> list[int]:
    return client.sample(name, count, timeout=0).data["k"].tolist()


def test_the_first_that_are_admitted_enter_and_nothing_of_the_rest_stays(client, queue):
    ids = add(client, queue, range(10), "PARTIAL")
    assert len(ids) == len(set(ids)) == 4
    info = client.info(queue)
    assert (info["size"], info["added"], info["reserved_slots"]) == (4, 4, 0)
    assert taken(client, queue, 3) == [0, 1, 2]
    assert len(add(client, queue, range(4, 6), "partial", "BLOCK", 60_000)) == 2
    assert taken(client, queue, 3) == [3, 4, 5]


def test_where_none_is_admitted_it_waits_or_says_why(client, queue, eventually):
    add(client, queue, range(4), "PARTIAL")
    with pytest.raises(redis.ResponseError, match="adding 1 items waits for room: the queue holds 4 of 4"):
        add(client, queue, range(4, 9), "PARTIAL")
    with pytest.raises(redis.ResponseError, match="the queue holds 4 of 4"):
        add(client, queue, range(4, 9), "PARTIAL", "BLOCK", 1)
    assert client.info(queue)["reserved_slots"] == 0
    entered: list[int] = []
    waiter = threading.Thread(target=lambda: entered.extend(add(client, queue, range(4, 9), "BLOCK", 0, "PARTIAL")))
    waiter.start()
    eventually(lambda: client.info(queue)["waiting_add"] == 1, "the add waits")
    assert taken(client, queue, 2) == [0, 1]
    waiter.join(60)
    assert len(entered) == 2
    assert taken(client, queue, 4) == [2, 3, 4, 5]


def test_without_it_a_batch_is_taken_whole_or_not_at_all(client, queue):
    with pytest.raises(redis.ResponseError, match="10 items at once never fit a queue of 4"):
        add(client, queue, range(10))
    assert client.info(queue)["added"] == 0


def test_bad_input_stays_bad_input_also_behind_what_would_be_admitted(client, queue):
    priorities = np.ones(10)
    priorities[9] = np.nan
    words = (queue, 10, priorities.tobytes(), "PARTIAL", "COLUMNS", 1, "k", np.zeros(10, np.int64).tobytes())
    with pytest.raises(redis.ResponseError, match=r"BADPRIORITY.*at index 9"):
        client.redis.execute_command("REPLAY.ADD", *words)
    assert client.info(queue)["added"] == 0


def test_a_writer_at_a_limiter_asks_once_for_each_time_that_it_may_go_on():
    signature = {"frame": rs.Column("int64", step_only=True), "obs": rs.Window("frame", 1, 0)}
    limiter = rs.SampleToInsertRatio(2.0, 16, 32.0)
    with (
        rs.Server([rs.Table("t", 1000, signature, rate_limiter=limiter)]) as server,
        rs.Client(server.url) as learner,
        rs.Client(server.url) as acting,
        acting.writer("t", flush_steps=200, history=200) as writer,
    ):
        for value in range(160):
            writer.append({"frame": value})
            writer.create_item()
        made: list[np.ndarray] = []
        flushing = threading.Thread(target=lambda: made.append(writer.flush(timeout=60)))
        flushing.start()
        sampled = 0
        while flushing.is_alive():
            try:
                learner.sample("t", 32, timeout=0.1)
                sampled += 1
            except rs.Timeout:
                continue
        assert len(made[0]) == 160
        asked = learner.redis.info("commandstats")["cmdstat_replay.item"]
        assert asked["failed_calls"] == 0
        assert asked["calls"] <= sampled + 2
        assert learner.info("t")["added"] == 160
