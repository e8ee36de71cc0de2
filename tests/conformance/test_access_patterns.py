"""How the systems that keep experience, gradients and weights in Redis use it: the same calls of redis-py have the same
results with our server as with the real one."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

WEIGHTS = os.urandom(3_000_000)
TRAJECTORY = os.urandom(60_000)


@pytest.fixture(params=["ours", "redis"])
def client(request: pytest.FixtureRequest, our_peer: Any, redis_peer: Any) -> Iterator[redis.Redis]:
    peer = our_peer if request.param == "ours" else redis_peer
    with redis.Redis(unix_socket_path=str(peer.unix_path)) as connected:
        connected.flushall()
        yield connected


def test_weights_are_one_value_that_is_read_by_many(client: redis.Redis) -> None:
    assert client.get("model_weights") is None
    assert client.set("model_weights", WEIGHTS)
    path = client.connection_pool.connection_kwargs["path"]
    read: list[bool] = []

    def reader() -> None:
        with redis.Redis(unix_socket_path=path) as own:
            read.append(own.get("model_weights") == WEIGHTS)

    readers = [threading.Thread(target=reader) for _ in range(8)]
    for thread in readers:
        thread.start()
    for thread in readers:
        thread.join(60)
    assert read == [True] * 8


def test_trajectories_are_fields_of_a_hash_that_is_read_whole_and_emptied(client: redis.Redis) -> None:
    for actor in range(4):
        assert client.hset("sample_batch", str(actor), TRAJECTORY[actor:]) == 1
    assert client.hlen("sample_batch") == 4
    assert client.exists("sample_batch") == 1
    assert client.hgetall("sample_batch") == {str(actor).encode(): TRAJECTORY[actor:] for actor in range(4)}
    client.delete("sample_batch")
    assert client.hgetall("sample_batch") == {}


def test_queues_are_lists_that_are_pushed_left_and_popped_right(client: redis.Redis) -> None:
    for number in range(5):
        assert client.lpush("sample_queue_0", b"%d" % number + TRAJECTORY) == number + 1
        client.lpush("grad_queue", b"gradient %d" % number)
    assert client.llen("sample_queue_0") == 5
    assert client.rpop("sample_queue_0") == b"0" + TRAJECTORY
    assert client.rpop("grad_queue", 3) == [b"gradient 0", b"gradient 1", b"gradient 2"]
    assert client.rpop("grad_queue", 9) == [b"gradient 3", b"gradient 4"]
    assert client.rpop("grad_queue", 9) is None


def test_many_values_are_set_and_read_at_once(client: redis.Redis) -> None:
    values = {f"param:{number}": os.urandom(20_000) for number in range(30)}
    assert client.mset(values)
    assert client.mget([*values, "missing"]) == [*values.values(), None]


def test_a_learner_drains_a_list_in_a_transaction(client: redis.Redis) -> None:
    pushed = [b"%d" % number + TRAJECTORY for number in range(20)]
    with client.pipeline() as pipeline:  # MULTI … EXEC, as redis-py does it by default
        for transition in pushed:
            pipeline.rpush("experience", transition)
        assert pipeline.execute() == list(range(1, 21))
    with client.pipeline() as pipeline:
        pipeline.lrange("experience", 0, -1)
        pipeline.ltrim("experience", -1, 0)
        assert pipeline.execute() == [pushed, True]
    assert client.exists("experience") == 0


def test_no_push_is_lost_between_the_two_halves_of_a_drain(client: redis.Redis) -> None:
    """Some come twice, in Redis too: LTRIM -1 0 leaves a list of one element as it is."""
    path = client.connection_pool.connection_kwargs["path"]
    pushes = 400
    drained: set[bytes] = set()

    def actor(name: int) -> None:
        with redis.Redis(unix_socket_path=path) as own:
            for number in range(pushes):
                own.rpush("experience", f"{name}:{number}")

    def drain() -> None:
        with client.pipeline() as pipeline:
            pipeline.lrange("experience", 0, -1)
            pipeline.ltrim("experience", -1, 0)
            drained.update(pipeline.execute()[0])

    actors = [threading.Thread(target=actor, args=(name,)) for name in range(3)]
    for thread in actors:
        thread.start()
    while any(thread.is_alive() for thread in actors):
        drain()
    drain()
    assert drained == {f"{name}:{number}".encode() for name in range(3) for number in range(pushes)}


def test_everything_goes_before_the_next_run(client: redis.Redis) -> None:
    client.mset({"a": 1, "b": 2})
    client.select(3)
    client.set("c", 3)
    client.select(0)
    assert client.flushall()
    assert client.info("keyspace") == {}
