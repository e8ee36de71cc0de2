"""Writers that send in the background: what `append` waits for, where failures are told, and how the thread ends."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from typing import Any

import numpy as np
import pytest
from test_writer import SIGNATURE, check, frame, write

import replay_server as rs
from replay_server import aio


def threads() -> int:
    return sum(thread.name == "replay-writer" for thread in threading.enumerate())


def queue_of(make_table: Any, size: int) -> str:
    return make_table(100, SIGNATURE, rate_limiter=rs.Queue(size), sampler=rs.Fifo(), max_times_sampled=1)


def flush_for_ever(writer: Any) -> None:
    while True:
        writer.flush(wait=False)


@pytest.mark.parametrize("in_flight", [1, 4])
@pytest.mark.parametrize("flush_steps", [1, 8])
def test_what_is_sampled_is_what_explicit_stacking_makes(client, make_table, in_flight, flush_steps):
    name = make_table(1000, SIGNATURE)
    with client.writer(name, flush_steps=flush_steps, in_flight=in_flight) as writer:
        write(writer, range(300), (40, 41, 199))
        ids = writer.flush()
        assert writer.waiting == 2, "two wait for steps"
        np.testing.assert_array_equal(client.get(name, ids).data["number"], np.arange(298))
    assert client.info(name)["size"] == 300
    assert client.info(name)["streams"] == 0
    check(client.sample(name, 1000), (40, 41, 199), total=300)
    assert threads() == 0


def test_append_waits_only_when_as_many_sends_are_due(client, make_table, eventually):
    name = queue_of(make_table, 1)
    with client.writer(name, flush_steps=1, in_flight=3, timeout=0.0) as writer:

        def append(t: int) -> None:
            writer.append({"frame": frame(t), "action": np.int64(t)}, final=True)
            writer.create_item(columns={"number": np.int64(t)})

        append(0)
        append(1)  # which has the first sent
        eventually(lambda: client.info(name)["size"] == 1, "the queue is full")
        for t in range(2, 5):
            append(t)
        with pytest.raises(rs.Timeout, match="has 3 sends due"):
            append(5)
        with pytest.raises(rs.Timeout):
            writer.flush(timeout=0.0)
        taken = [int(client.sample(name, 1, timeout=60.0).data["number"][0]) for _ in range(4)]
        assert taken == list(range(4)), "what was due went on by itself"
        assert len(writer.flush(timeout=60.0)) == 5
        writer.close(flush=False)


def test_a_flush_that_does_not_wait_tells_what_is_stored_and_later_ones_the_rest(client, make_table, eventually):
    name = queue_of(make_table, 1)
    with client.writer(name, flush_steps=100, in_flight=3, timeout=60.0) as writer:

        def send(t: int) -> list[int]:
            writer.append({"frame": frame(t), "action": np.int64(t)}, final=True)
            writer.create_item(columns={"number": np.int64(t)})
            return writer.flush(timeout=0.0, wait=False).tolist()

        told = send(0)
        eventually(lambda: client.info(name)["size"] == 1, "the queue is full")
        for t in range(1, 4):
            told += send(t)
        assert len(told) <= 1
        with pytest.raises(rs.Timeout, match="has 3 sends due"):
            send(4)
        ids = client.sample(name, 1, timeout=60.0).ids.tolist()
        told += writer.flush(timeout=60.0, wait=False).tolist()
        ids += [client.sample(name, 1, timeout=60.0).ids[0] for _ in range(4)]
        told += writer.flush().tolist()
        assert told == ids
        assert writer.flush(wait=False).tolist() == []


def test_a_flush_that_does_not_wait_tells_of_a_loss_and_the_next_one_sends_the_rest(client, make_table):
    name = make_table(1000, SIGNATURE)
    with rs.Client(client.url) as writing, writing.writer(name, flush_steps=100, in_flight=2) as writer:
        write(writer, range(4), (3,))
        assert len(writer.flush()) == 4
        for connection in client.redis.client_list():
            if "replay" in connection["cmd"]:
                client.redis.client_kill_filter(_id=connection["id"])
        write(writer, range(4, 8), (7,))
        assert writer.flush(wait=False).tolist() == []
        with pytest.raises(rs.ConnectionLost):
            flush_for_ever(writer)
        write(writer, range(8, 12), (11,))
        ids = np.concatenate([writer.flush(wait=False), writer.flush()])
        assert client.get(name, ids).data["number"].tolist() == list(range(4, 12)), "no item was on its way"


def test_a_loss_is_told_once_and_costs_only_what_was_on_its_way(client, make_table):
    name = make_table(1000, SIGNATURE)
    with rs.Client(client.url) as writing:
        writer = writing.writer(name, flush_steps=4, in_flight=2)
        write(writer, range(10), (6,))
        writer.flush()
        before = {connection["id"] for connection in client.redis.client_list() if "replay" in connection["cmd"]}
        for number in before:
            client.redis.client_kill_filter(_id=number)
        lost = 0
        for t in range(10, 40):
            while True:
                try:
                    writer.append({"frame": frame(t), "action": np.int64(t)}, final=t == 25)
                    break
                except rs.ConnectionLost:
                    lost += 1
            writer.create_item(columns={"number": np.int64(t)})
        try:
            writer.flush()
        except rs.ConnectionLost:
            lost += 1
        writer.close()
        assert lost == 1
        batch = client.sample(name, 2000)
        check(batch, (6, 25), total=40)
        missing = set(range(10, 40)) - set(batch.data["number"].tolist())
        assert len(missing) <= 12, "at most what three sends had"


def test_a_failure_that_nobody_was_told_of_is_raised_by_close_which_sends_the_rest(client, make_table, eventually):
    name = make_table(1000, SIGNATURE)
    writer = client.writer(name, flush_steps=1, in_flight=2)
    write(writer, range(2), (0, 1))
    writer.flush()
    for connection in client.redis.client_list():
        if "replay" in connection["cmd"]:
            client.redis.client_kill_filter(_id=connection["id"])
    write(writer, range(2, 4), (2, 3))
    with pytest.raises(rs.ConnectionLost):
        writer.close()
    assert 3 in client.sample(name, 200).data["number"]
    assert client.info(name)["streams"] == 0


def test_a_timeout_is_for_the_rate_limiter_alone(client, make_table):
    name = make_table(1000, SIGNATURE)
    with client.writer(name, flush_steps=1, in_flight=2, timeout=0.0) as writer:
        write(writer, range(8), (7,))
        assert len(writer.flush(timeout=0.0)) == 8
        write(writer, range(8, 16), (15,))
    assert client.info(name)["size"] == 16


@pytest.mark.parametrize("dropped", [False, True], ids=["closed", "dropped"])
def test_one_that_is_over_stores_nothing_in_a_server_that_comes_back(tmp_path, eventually, dropped):
    table = rs.Table("t", 100, SIGNATURE)
    with rs.Server([table], directory=tmp_path) as server:
        port = int(server.url.rpartition(":")[2])
        writing = rs.Client(server.url, reconnect_timeout=30.0)
        writer = writing.writer("t", flush_steps=1, in_flight=2)
        write(writer, range(2), (0, 1))
        writer.flush()
    write(writer, range(2, 4), (2, 3))
    if dropped:
        del writer
        gc.collect()
    else:
        writer.close(flush=False)
    with rs.Server([table], directory=tmp_path, port=port) as server, rs.Client(server.url) as client:
        eventually(lambda: threads() == 0, "the thread has ended")
        assert client.info("t")["size"] == 0
    writing.close()


def test_a_failure_that_was_told_keeps_no_writer_alive(client, make_table, eventually):
    name = make_table(1000, SIGNATURE)
    writer = client.writer(name, flush_steps=1, in_flight=2)
    write(writer, range(2), (0, 1))
    writer.flush()
    client.drop_table(name)
    write(writer, range(2, 3), (2,))
    with pytest.raises(rs.TableNotFound):
        writer.flush()
    del writer
    gc.collect()
    eventually(lambda: threads() == 0, "the thread has ended")


@pytest.mark.parametrize(
    "options",
    [{"in_flight": -1}, {"in_flight": "x"}, {"in_flight": 10_000}, {"flush_steps": "x"}, {"history": 0}],
    ids=str,
)
def test_numbers_that_cannot_be_are_refused(client, make_table, options):
    with pytest.raises(rs.SchemaError, match=next(iter(options))):
        client.writer(make_table(1000, SIGNATURE), **options)


def test_numbers_of_numpy_are_numbers(client, make_table):
    client.writer(make_table(1000, SIGNATURE), in_flight=np.int8(20), flush_steps=np.uint8(40)).close()


@pytest.mark.parametrize("end", ["client", "writer", "dropped"])
def test_a_thread_that_waits_ends_with_its_client_or_writer(client, make_table, eventually, end):
    name = queue_of(make_table, 1)
    with rs.Client(client.url) as writing:
        writer = writing.writer(name, flush_steps=1, in_flight=2)
        write(writer, range(3), (0, 1, 2))
        eventually(lambda: client.info(name)["waiting_add"] == 1, "the writer waits")
        if end == "client":
            writing.close()
            with pytest.raises(rs.ConnectionLost):
                writer.flush()
            writer.close(flush=False)
        elif end == "writer":
            writer.close(flush=False)
        else:
            del writer
            gc.collect()
        eventually(lambda: threads() == 0, "the thread has ended")
        eventually(lambda: client.info(name)["streams"] == 0, "its stream is closed")


def test_a_forked_child_is_refused_and_leaves_its_parents_alone(client, make_table):
    name = make_table(1000, SIGNATURE)
    with client.writer(name, flush_steps=1, in_flight=2) as writer:
        write(writer, range(4))
        writer.flush()
        child = os.fork()
        if child == 0:
            try:
                writer.flush(timeout=5.0)
            except rs.ReplayError as refusal:
                if "make another writer here" in str(refusal):
                    writer.close(flush=False)
                    os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        write(writer, range(4, 8), (7,))
        assert len(writer.flush()) == 6


def test_n_step_writers_have_it_too(client, make_table):
    signature = {
        "observation": rs.Column("float32", (2,), step_only=True),
        "action": rs.Column("int64"),
        "reward": rs.Column("float32"),
        "discount": rs.Column("float32"),
        "obs": rs.Window("observation", length=1),
        "next_obs": rs.Window("observation", length=1, offset=3),
    }
    found = []
    for in_flight in (0, 3):
        name = make_table(1000, signature)
        options = {"n_step": 3, "discount": 0.9, "flush_steps": 2, "in_flight": in_flight}
        with client.vector_writer(name, 2, **options) as writer:
            rng, ids = np.random.default_rng(3), []
            for t in range(60):
                step = {"observation": rng.random((2, 2), np.float32), "action": rng.integers(0, 4, 2)}
                writer.append(step | {"reward": rng.random(2)}, terminated=[t % 7 == 6, False])
                if t % 7 == 6:
                    writer.append({"observation": rng.random((2, 2), np.float32)}, mask=[True, False])
                if t % 10 == 9:
                    ids.append(writer.flush(wait=False))
            ids = np.concatenate([*ids, writer.flush()])
        found.append(client.get(name, ids).data)
    for column, values in found[0].items():
        np.testing.assert_array_equal(values, found[1][column], err_msg=column)


def test_an_asyncio_client_has_none(server, client, make_table):
    async def make() -> None:
        async with aio.Client(server.url) as own:
            with pytest.raises(rs.SchemaError, match="in_flight is for the blocking client"):
                await own.writer(queue_of(make_table, 1), in_flight=1)

    asyncio.run(make())
