"""Which shard a writer's streams are on: that with the fewest; and when they go to another one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from typing import Any

import numpy as np
import pytest
from shards import cluster, servers, shards, shards_of, url_of, wait_for

import replay_server as rs
from replay_server import aio, cluster_known, cluster_streams

__all__ = ["cluster", "servers", "shards"]
SHARDS = 3
SIGNATURE = {
    "frame": rs.Column("int64", (2,), step_only=True),
    "k": rs.Column("int64"),
    "obs": rs.Window("frame", length=3),
    "next_obs": rs.Window("frame", length=3, offset=1),
}


@pytest.fixture
def looks_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_streams, "MOVE_EVERY_S", 0.0)
    monkeypatch.setattr(cluster_streams, "MOVE_PATIENCE_S", 10.0)


def table(**parts: Any) -> rs.Table:
    return rs.Table("w", 3000, SIGNATURE, **parts)


def step(number: int) -> dict[str, Any]:
    return {"frame": [number, -number], "k": number}


def write(writer: rs.Writer, numbers: range, episode: int = 10) -> np.ndarray:
    """Appends steps and makes an item at each; ids."""
    for number in numbers:
        writer.append(step(number))
        writer.create_item(1.0)
        if (number + 1) % episode == 0:
            writer.end_episode()
    return writer.flush()


def streams(shards: list[rs.Client]) -> list[int]:
    return [client.info("w")["streams"] for client in shards]


def check_windows(client: rs.Client, ids: np.ndarray, numbers: range, episode: int = 10) -> None:
    batch = client.get("w", ids)
    assert batch.data["k"].tolist() == list(numbers)
    for row, number in enumerate(numbers):
        first, last = number - number % episode, number - number % episode + episode - 1
        ends = number, min(number + 1, last)
        obs, next_obs = ([max(end - back, first) for back in (2, 1, 0)] for end in ends)
        assert batch.data["obs"][row, :, 0].tolist() == obs
        assert batch.data["next_obs"][row, :, 1].tolist() == [-each for each in next_obs]


def test_a_new_writer_goes_where_the_fewest_streams_are(cluster, shards) -> None:
    cluster.create_table(table())
    with contextlib.ExitStack() as stack:
        many = stack.enter_context(cluster.vector_writer("w", 8, place=1))
        many.append({"frame": np.zeros((8, 2), int), "k": np.zeros(8, int)})
        many.flush()
        one = stack.enter_context(cluster.writer("w", place=0))
        write(one, range(3))
        assert streams(shards) == [1, 8, 0]
        for expected in ([1, 8, 1], [2, 8, 2], [4, 8, 4]):
            while streams(shards) != expected:
                before = sum(streams(shards))
                assert before < sum(expected)
                write(stack.enter_context(cluster.writer("w")), range(3))
                assert sum(streams(shards)) == before + 1


def test_of_a_lost_shard_none_is_chosen(servers) -> None:
    with rs.Server(config={"shard": 7}) as lost, rs.Client(url_of(*servers[:2], lost)) as client:
        client.create_table(table())
        lost.stop()
        for _ in range(6):
            with client.writer("w") as writer:
                assert shards_of(write(writer, range(5))) <= {0, 1}
        with contextlib.ExitStack() as stack:
            for server in servers[:2]:
                stack.enter_context(rs.Client(server.url)).drop_table("w")


def test_a_lone_writer_takes_turns_over_all_shards_and_loses_nothing(cluster, shards, looks_always) -> None:
    cluster.create_table(table())
    with cluster.writer("w", flush_steps=7) as writer:
        ids = np.concatenate([write(writer, range(low, low + 20)) for low in range(0, 400, 20)])
        check_windows(cluster, ids, range(400))
    sizes = [client.info("w")["size"] for client in shards]
    assert sum(sizes) == 400
    assert min(sizes) > 60
    assert streams(shards) == [0, 0, 0]


def test_also_in_the_middle_of_episodes_and_with_a_thread_of_its_own(cluster, shards, looks_always) -> None:
    cluster.create_table(table())
    with cluster.writer("w", flush_steps=3, in_flight=2) as writer:
        ids = write(writer, range(400), episode=1000)
        check_windows(cluster, ids, range(399), episode=1000)  # the last item waits for the next step
    assert min(client.info("w")["size"] for client in shards) > 60


def test_also_with_asyncio(cluster, shards, looks_always) -> None:
    cluster.create_table(table())

    async def run() -> np.ndarray:
        async with aio.Client(cluster.url) as client:
            writer = await client.writer("w", flush_steps=5)
            for number in range(200):
                await writer.append(step(number))
                writer.create_item(1.0)
                if number % 10 == 9:
                    writer.end_episode()
            ids = await writer.flush()
            await writer.close()
            return ids

    check_windows(cluster, asyncio.run(run()), range(200))
    assert min(client.info("w")["size"] for client in shards) > 20


def test_where_shards_have_as_many_streams_writers_stay(cluster, looks_always) -> None:
    cluster.create_table(table())
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(cluster.writer("w")) for _ in range(SHARDS)]
        ids: list[list[np.ndarray]] = [[] for _ in writers]
        for turn in range(10):
            for writer, own in zip(writers, ids, strict=True):
                own.append(write(writer, range(10 * turn, 10 * turn + 10)))
        homes = [shards_of(np.concatenate(own[1:])) for own in ids]
        assert sorted(map(tuple, homes)) == [(0,), (1,), (2,)]


@pytest.mark.parametrize(
    ("parts", "place"),
    [({}, 1), ({"sampler": rs.Fifo()}, None), ({"rate_limiter": rs.SampleToInsertRatio(1, 10, 3000)}, None)],
    ids=["named", "in order", "ratio"],
)
def test_some_writers_stay_where_they_are(cluster, looks_always, parts, place) -> None:
    cluster.create_table(table(**parts))
    with cluster.writer("w", place=place, flush_steps=7) as writer:
        ids = write(writer, range(200))
    assert len(shards_of(ids)) == 1
    assert place is None or shards_of(ids) == {place}


@pytest.mark.parametrize("at_once", [False, True])
def test_writers_that_are_made_before_they_first_send_are_spread(cluster, shards, at_once: bool) -> None:
    """Also where they never move. `at_once`: none has a stream open when the next one chooses."""
    cluster.create_table(table(rate_limiter=rs.SampleToInsertRatio(1, 1, 1e6)))
    with contextlib.ExitStack() as stack:
        first = [stack.enter_context(cluster.writer("w")) for _ in range(2)]
        for writer in first:
            write(writer, range(3))
        more = [stack.enter_context(cluster.writer("w")) for _ in range(10)]
        threads = [threading.Thread(target=write, args=(writer, range(3))) for writer in more]
        for thread in threads:
            thread.start()
            if not at_once:
                thread.join()
        for thread in threads:
            thread.join()
        counts = streams(shards)
        assert sum(counts) == 12
        assert max(counts) - min(counts) <= (0 if not at_once else 3)


def test_a_shard_that_does_not_answer_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_streams, "MOVE_EVERY_S", 0.0)
    monkeypatch.setattr(cluster_streams, "MOVE_PATIENCE_S", 1.0)
    asked: list[int] = []
    info = cluster_known.Shard.info

    def counted(self: Any, name: str) -> Any:
        asked.append(self.number)
        return info.written(self, name)

    with (
        rs.Cluster([table()], shards=SHARDS) as own,
        rs.Client(own.url) as client,
        client.writer("w", place=0) as placed,
        client.writer("w") as writer,
    ):
        write(placed, range(3))
        write(writer, range(3))

        def counts() -> list[int]:
            return [shard["streams"] for shard in client.info("w")["shards"].values()]

        wait_for(lambda: sorted(counts()) == [0, 1, 1])
        hung = counts().index(0)
        monkeypatch.setattr(cluster_known.Shard, "info", counted)
        os.kill(own.pids[hung], signal.SIGSTOP)
        try:
            for low in range(10, 60, 10):
                write(writer, range(low, low + 10))
            with client.writer("w") as another:
                assert hung not in shards_of(write(another, range(5)))
            assert len(asked) > 2
            assert asked.count(hung) <= 1
        finally:
            os.kill(own.pids[hung], signal.SIGCONT)
