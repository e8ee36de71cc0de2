"""Writers over the wire: what is sampled is explicit stacking, and what a lost connection, table or wait costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import replay_server as rs
from replay_server import aio

SIGNATURE = {
    "frame": rs.Column("uint8", (5, 5), step_only=True),
    "action": rs.Column("int64"),
    "number": rs.Column("int64"),
    "obs": rs.Window("frame", length=3),
    "next_obs": rs.Window("frame", length=3, offset=2),
    "before": rs.Window("action", offset=-1),
}


def frame(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (5, 5), np.uint8)


def expected(numbers: np.ndarray, first: Callable[[int], int], last: Callable[[int], int]) -> dict[str, np.ndarray]:
    """What items at steps of one stream show whose step t holds frame(t) and action t."""

    def stack(ends: list[int], start: list[int]) -> np.ndarray:
        return np.stack([[frame(max(e - k, s)) for k in (2, 1, 0)] for e, s in zip(ends, start, strict=True)])

    starts = [first(t) for t in numbers]
    return {
        "action": numbers,
        "number": numbers,
        "obs": stack(list(numbers), starts),
        "next_obs": stack([min(t + 2, last(t)) for t in numbers], starts),
        "before": np.array([max(t - 1, s) for t, s in zip(numbers, starts, strict=True)]),
    }


def write(writer: Any, steps: range, ends: tuple[int, ...] = ()) -> None:
    for t in steps:
        writer.append({"frame": frame(t), "action": np.int64(t)}, final=t in ends)
        writer.create_item(columns={"number": np.int64(t)})


def check(batch: rs.Batch, ends: tuple[int, ...] = (), total: int = 10**9) -> None:
    bounds = [-1, *ends, total - 1]

    def episode(t: int) -> int:
        return next(i for i, end in enumerate(bounds[1:]) if t <= end)

    shown = expected(batch.data["number"], lambda t: bounds[episode(t)] + 1, lambda t: bounds[episode(t) + 1])
    for name, array in shown.items():
        np.testing.assert_array_equal(batch.data[name], array, err_msg=name)


@pytest.fixture
def name(make_table: Callable[..., str]) -> str:
    return make_table(1000, SIGNATURE, sampler=rs.Uniform())


@pytest.fixture
def own_server() -> Iterator[rs.Server]:
    with rs.Server([rs.Table("w", 1000, SIGNATURE, sampler=rs.Uniform())]) as server:
        yield server


@pytest.mark.parametrize("coded", [None, False, True])
def test_what_is_sampled_is_what_explicit_stacking_makes(client, name, coded):
    ends = (3, 4, 20, 22)
    with client.writer(name) as writer:
        write(writer, range(50), ends)
        ids = writer.flush()
    assert client.info(name)["size"] == 50
    assert len(ids) == 48, "the last two wait for steps that close() makes needless"
    batch = client.sample(name, 2000, coded=coded)
    check(batch, ends, total=50)
    assert set(batch.data["number"].tolist()) == set(range(50))
    out = client.sample(name, 2000, coded=coded, out=batch)
    check(out, ends, total=50)
    check(client.get(name, ids), ends, total=50)


def test_coded_columns_may_be_chosen(client, name):
    with client.writer(name) as writer:
        write(writer, range(20))
    for columns in (["next_obs"], ["before", "number"], ["before", "obs", "next_obs"], ["number"]):
        batch = client.sample(name, 10, columns=columns, coded=True)
        assert list(batch.data) == columns
    batch = client.sample(name, 64, columns=["number", "next_obs", "before", "action", "obs"], coded=True)
    check(batch, total=20)


def test_a_sampler_may_receive_coded_batches(client, name):
    with client.writer(name) as writer:
        write(writer, range(30), (9,))
    with client.sampler(name, 32, coded=True) as batches:
        for _ in range(5):
            check(next(batches), (9,), total=30)


def test_windows_that_show_too_much_are_not_coded(client, make_table):
    name = make_table(10, {"x": rs.Column("uint8", step_only=True), "w": rs.Window("x", 3000)}, sampler=rs.Uniform())
    with client.writer(name) as writer:
        writer.append({"x": np.uint8(7)})
        writer.create_item()
    batch = client.sample(name, 200, coded=True)
    assert (batch.data["w"] == 7).all()


def test_many_environments_are_written_with_one_command_each(client, name, raw):
    def calls(command: str) -> int:
        line = client.redis.info("commandstats").get(f"cmdstat_replay.{command}", {"calls": 0})
        return int(line["calls"])

    with client.vector_writer(name, 16, flush_steps=4) as writer:
        appends, items = calls("append"), calls("item")
        for t in range(8):
            writer.append({"frame": np.stack([frame(t)] * 16), "action": np.full(16, t)})
            writer.create_items(columns={"number": np.full(16, t)})
        assert len(writer.flush()) == 96
        assert (calls("append") - appends, calls("item") - items) == (2, 2)
    check(client.sample(name, 200), total=8)


def test_a_connection_that_breaks_costs_only_what_was_on_its_way(client, own_server):
    with rs.Client(own_server.url) as writing, rs.Client(own_server.url) as other:
        writer = writing.writer("w", flush_steps=4)
        write(writer, range(10), (6,))
        first = writer.flush()
        for connection in other.redis.client_list():
            if "replay" in connection["cmd"]:
                other.redis.client_kill_filter(_id=connection["id"])
        lost = 0
        for t in range(10, 40):
            while True:
                try:
                    writer.append({"frame": frame(t), "action": np.int64(t)}, final=t == 25)
                    break
                except rs.ConnectionLost:
                    lost += 1
            writer.create_item(columns={"number": np.int64(t)})
        assert lost == 1
        writer.close()
        batch = other.sample("w", 2000)
        check(batch, (6, 25), total=40)
        assert set(range(10, 40)) <= set(batch.data["number"].tolist())
        assert len(first) == 8


def test_a_table_made_anew_is_written_to_again(client, make_table):
    name = make_table(1000, SIGNATURE, sampler=rs.Uniform())
    writer = client.writer(name, flush_steps=1)
    write(writer, range(10))
    writer.flush()
    table = client.table(name)
    with rs.Client(client.url) as other:
        other.drop_table(name)
        with pytest.raises(rs.TableNotFound):
            write(writer, range(10, 14))
        other.create_table(table)
    writer.flush()
    write(writer, range(20, 30))
    writer.close()
    numbers = set(client.sample(name, 300).data["number"].tolist())
    assert set(range(20, 30)) <= numbers


def test_an_end_of_an_episode_that_finds_the_table_made_anew_says_so(client, make_table):
    name = make_table(1000, SIGNATURE, sampler=rs.Uniform())
    table = client.table(name)
    with client.writer(name) as writer:
        write(writer, range(3))
        writer.flush()
        with rs.Client(client.url) as other:
            other.drop_table(name)
            other.create_table(table)
        writer.end_episode()
        with pytest.raises(rs.ConnectionLost, match="was created again, and its streams are gone"):
            writer.flush()
    assert client.info(name)["steps"] == 3


def test_a_table_with_another_signature_is_not_written_to(client, make_table):
    name = make_table(1000, SIGNATURE, sampler=rs.Uniform())
    writer = client.writer(name, flush_steps=1)
    write(writer, range(5))
    writer.flush()
    other = {**SIGNATURE, "obs": rs.Window("frame", length=4)}
    client.drop_table(name)
    client.create_table(rs.Table(name, 1000, other, sampler=rs.Uniform()))
    write(writer, range(5, 6))
    with pytest.raises(rs.ConnectionLost):
        writer.flush()
    with pytest.raises(rs.SchemaError, match="another signature"):
        writer.flush()
    writer.close(flush=False)


def test_items_that_a_limiter_holds_back_wait_in_the_writer(client, make_table):
    name = make_table(100, SIGNATURE, rate_limiter=rs.Queue(4), sampler=rs.Fifo(), max_times_sampled=1)
    writer = client.writer(name, flush_steps=16)
    write(writer, range(10))
    with pytest.raises(rs.Timeout):
        writer.flush(timeout=0)
    waiting = writer.waiting
    taken = []
    for _ in range(20):
        while client.info(name)["size"]:
            taken += client.sample(name, 1).data["number"].tolist()
        try:
            writer.flush(timeout=0)
            if not client.info(name)["size"]:
                break
        except rs.Timeout:
            pass
    assert waiting == 6, "four went, as many as the queue takes; two wait for steps"
    assert sorted(taken) == list(range(8))
    writer.close(flush=False)


def test_closing_the_client_ends_a_writer_that_waits(client, make_table, eventually):
    import threading

    name = make_table(100, SIGNATURE, rate_limiter=rs.Queue(1), sampler=rs.Fifo(), max_times_sampled=1)
    with rs.Client(client.url) as writing:
        writer = writing.writer(name)
        write(writer, range(1), (0,))
        writer.flush()
        write(writer, range(1, 2), (1,))
        raised: list[BaseException] = []

        def flush() -> None:
            try:
                writer.flush()
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=flush)
        thread.start()
        eventually(lambda: client.info(name)["waiting_add"] == 1, "the writer waits")
        writing.close()
        thread.join(60)
        assert isinstance(raised[0], rs.ConnectionLost)
    eventually(lambda: client.info(name)["streams"] == 0, "its stream is closed")


def test_the_end_of_an_episode_that_was_sent_is_told(client, name):
    writer = client.writer(name, flush_steps=1)
    write(writer, range(6))
    assert len(writer.flush()) == 4
    writer.end_episode()
    assert len(writer.flush()) == 2, "what they see ends with the episode"
    write(writer, range(6, 9))
    writer.close()
    check(client.sample(name, 100), (5,), total=9)


def test_a_table_without_windows_has_no_writers(client, table):
    with pytest.raises(rs.SchemaError, match="use add"):
        client.writer(table)


def test_the_asyncio_twin_writes_too(server, client, name):
    async def play() -> None:
        async with aio.Client(server.url) as twin:
            async with await twin.writer(name) as writer:
                for t in range(20):
                    await writer.append({"frame": frame(t), "action": np.int64(t)}, final=t == 7)
                    writer.create_item(columns={"number": np.int64(t)})
                assert len(await writer.flush()) == 18
            check(await twin.sample(name, 100), (7,), total=20)
            check(await twin.sample(name, 100, coded=True), (7,), total=20)
            async with await twin.vector_writer(name, 3) as vector:
                await vector.append({"frame": np.zeros((3, 5, 5), np.uint8), "action": np.zeros(3, np.int64)})
                vector.create_items(columns={"number": np.zeros(3, np.int64)})
                vector.end_episode()
                assert len(await vector.flush()) == 3

    aio.run(play())
    assert client.info(name)["size"] == 23


def test_an_item_made_while_a_flush_is_under_way_is_refused_and_not_lost(server, client, make_table):
    name = make_table(100, SIGNATURE, rate_limiter=rs.Queue(1), sampler=rs.Fifo(), max_times_sampled=1)

    async def play() -> None:
        async with aio.Client(server.url) as twin:
            writer = await twin.writer(name)
            for t in range(2):
                await writer.append({"frame": frame(t), "action": np.int64(t)}, final=True)
                writer.create_item(columns={"number": np.int64(t)})
            flush = asyncio.create_task(writer.flush())
            await asyncio.sleep(0.2)
            with pytest.raises(rs.ReplayError, match="await it first"):
                writer.create_item(columns={"number": np.int64(9)})
            with pytest.raises(rs.ReplayError, match="await it first"):
                writer.end_episode()
            await twin.sample(name, 1)
            assert len(await flush) == 2
            assert writer.waiting == 0
            await writer.close()

    aio.run(play())


def test_a_cancelled_write_ends(server, client, make_table):
    name = make_table(100, SIGNATURE, rate_limiter=rs.Queue(1), sampler=rs.Fifo(), max_times_sampled=1)

    async def play() -> None:
        async with aio.Client(server.url) as twin:
            writer = await twin.writer(name)
            for t in range(2):
                await writer.append({"frame": frame(t), "action": np.int64(t)}, final=True)
                writer.create_item(columns={"number": np.int64(t)})
            with pytest.raises(asyncio.TimeoutError):  # it would wait for ever
                await asyncio.wait_for(writer.flush(), 0.2)

    aio.run(play())


@pytest.mark.parametrize(
    ("game", "compression"), [("ALE/Breakout-v5", "none"), ("ALE/Breakout-v5", "lz4"), ("ALE/Pong-v5", "zstd")]
)
def test_real_games_are_sampled_as_explicit_stacking_shows_them(client, make_table, game, compression):
    """Frames of two games each, with short episodes; windows against what stacking by hand made at the time."""
    gymnasium = pytest.importorskip("gymnasium")
    ale_py = pytest.importorskip("ale_py")
    gymnasium.register_envs(ale_py)
    environments, length, ahead = 2, 4, 3
    signature = {
        "frame": rs.Column("uint8", (84, 84), step_only=True),
        "number": rs.Column("int64", (2,)),
        "obs": rs.Window("frame", length=length),
        "next_obs": rs.Window("frame", length=length, offset=ahead),
    }
    name = make_table(1000, signature, sampler=rs.Uniform(), compression=compression)
    random = np.random.default_rng(5)
    # One frame at a time: stacking is the table's business.
    games = gymnasium.make_vec(
        game, num_envs=environments, vectorization_mode="vector_entry_point", stack_num=1, img_height=84, img_width=84,
        noop_max=0, max_num_frames_per_episode=200, num_threads=1,
    )  # fmt: skip
    observations, _ = games.reset(seed=np.arange(environments))
    episodes: list[list[list[np.ndarray]]] = [[[]] for _ in range(environments)]
    with client.vector_writer(name, environments) as writer:
        for _ in range(150):
            frames = observations[:, 0].copy()
            ends = random.random(environments) < 0.05
            for e in range(environments):
                episodes[e][-1].append(frames[e])
            writer.append({"frame": frames}, final=ends)
            numbers = [(len(episodes[e]) - 1, len(episodes[e][-1]) - 1) for e in range(environments)]
            writer.create_items(columns={"number": np.array([[e * 1000 + n[0], n[1]] for e, n in enumerate(numbers)])})
            for e in np.flatnonzero(ends):
                episodes[e].append([])
            observations, *_ = games.step(random.integers(0, 3, environments))
    games.close()
    assert sum(map(len, episodes)) > 6
    for coded in (None, False, True):
        batch = client.sample(name, 256, coded=coded)
        for row in range(256):
            code, t = batch.data["number"][row]
            episode = episodes[code // 1000][code % 1000]
            for column, end in (("obs", t), ("next_obs", min(t + ahead, len(episode) - 1))):
                stack = np.stack([episode[max(end - k, 0)] for k in reversed(range(length))])
                assert (batch.data[column][row] == stack).all(), (column, code, t)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_compressed_table_is_sent_blocks(client, make_table, compression):
    """What went over the line is what the blocks take, not what the frames do."""
    signature = {"frame": rs.Column("uint8", (84, 84), step_only=True), "obs": rs.Window("frame", length=4)}
    name = make_table(1000, signature, sampler=rs.Uniform(), compression=compression)
    frames = np.zeros((200, 84, 84), np.uint8)
    frames[:, :20, :20] = np.random.default_rng(0).integers(0, 256, (200, 20, 20), np.uint8)
    before = int(client.redis.info("stats")["total_net_input_bytes"])
    with client.writer(name) as writer:
        for t in range(200):
            writer.append({"frame": frames[t]})
            writer.create_item()
    assert int(client.redis.info("stats")["total_net_input_bytes"]) - before < 200 * 700
    ids = client.sample(name, 64, coded=True)
    assert all(any((window == frames[t]).all() for t in range(200)) for window in ids.data["obs"][:, 3])
    assert client.info(name)["step_bytes"] < 200 * 700


def test_a_writer_without_the_native_core_sends_steps_as_they_are(client, make_table, monkeypatch):
    monkeypatch.setattr("replay_server.client_streams.encoder_for", lambda table: None)
    signature = {"frame": rs.Column("uint8", (84, 84), step_only=True), "obs": rs.Window("frame", length=2)}
    name = make_table(100, signature, sampler=rs.Uniform(), compression="lz4")
    frames = np.random.default_rng(0).integers(0, 3, (20, 84, 84), np.uint8)
    with client.writer(name) as writer:
        for t in range(20):
            writer.append({"frame": frames[t]})
            writer.create_item()
    shown = client.sample(name, 32).data["obs"][:, 1]
    assert all(any((window == frame).all() for frame in frames) for window in shown)
