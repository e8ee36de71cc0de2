"""Items that show any slice of their stream's steps, against a plain-Python model: in process, by every way to a
server, from the log, snapshots and replicas; and what a client of plain Redis sends and is told."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import struct
import time
from typing import Any

import msgpack
import numpy as np
import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from replica_tables import pair

import replay_server as rs

MOST = 40
SIGNATURE = {
    "frame": rs.Column("uint8", (16, 16), step_only=True),
    "action": rs.Column("int32"),
    "key": rs.Column("int64"),
    "frames": rs.Window("frame", max_length=MOST),
    "actions": rs.Window("action", max_length=7),
    "last": rs.Window("action"),
}
_numbers = itertools.count()


def frame(number: int) -> np.ndarray:
    return np.full((16, 16), number % 251, np.uint8)


def table(name: str, compression: str = "none", capacity: int = 24) -> rs.Table:
    return rs.Table(name, capacity, SIGNATURE, rs.Uniform(), compression=compression)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("windows")
    with rs.Server(directory=folder, unix=folder / "socket") as running:
        running.unix_url = f"unix://{folder / 'socket'}"
        yield running
        assert running.running, running.log()


def slices() -> Any:
    ends = st.one_of(st.none(), st.integers(-60, 60))
    return st.builds(slice, ends, ends)


class Machine(RuleBasedStateMachine):
    """`open_table` and `restored` are set where it is run."""

    open_table: Any
    restored = False
    compression = "none"

    def __init__(self) -> None:
        super().__init__()
        made = table(f"w{next(_numbers)}", self.compression)
        self.handle, self.close = type(self).open_table(made)
        self.live: dict[int, tuple[int, list[int], list[int], int]] = {}
        self.waiting: list[tuple[int, list[int], list[int], int]] = []
        self.keys = itertools.count()
        self.begin()

    def begin(self):
        self.writer = self.handle.writer(flush_steps=4, history=64)
        self.steps, self.episode, self.ended = 0, list[int](), False

    def teardown(self) -> None:
        self.writer.close()
        self.handle.reset()
        deadline = time.monotonic() + 60
        while self.handle.info()["steps"] and time.monotonic() < deadline:  # a closed stream gives them back in slices
            time.sleep(0.001)
        assert self.handle.info()["steps"] == self.handle.info()["bytes"] == 0
        self.close()

    @rule(count=st.integers(1, 30))
    def append(self, count):
        for _ in range(count):
            if self.ended:
                self.episode, self.ended = [], False
            self.writer.append({"frame": frame(self.steps), "action": self.steps})
            self.episode.append(self.steps)
            self.steps += 1

    @rule()
    def end_episode(self):
        self.writer.end_episode()
        self.ended = True

    @precondition(lambda self: self.steps)
    @rule(frames=slices(), actions=slices(), default=st.booleans())
    def create_item(self, frames, actions, default):
        given = {} if default else {"frames": frames, "actions": actions}
        shown = self.episode[-MOST:] if default else self.episode[frames]
        acted = self.episode[-7:] if default else self.episode[actions]
        too_far = [s for s in (shown, acted) if s and s[0] < self.steps - 64]
        key = next(self.keys)
        if len(shown) > MOST or len(acted) > 7 or too_far:
            with pytest.raises(rs.SchemaError, match=r"max_length|newest 64 steps"):
                self.writer.create_item(columns={**given, "key": key})
            return
        self.writer.create_item(columns={**given, "key": key})
        self.waiting.append((key, shown, acted, self.steps - 1))

    @rule()
    def flush(self):
        ids = self.writer.flush()
        assert len(ids) == len(self.waiting)
        self.live |= dict(zip(ids.tolist(), self.waiting, strict=True))
        self.waiting = []
        while len(self.live) > 24:
            del self.live[next(iter(self.live))]

    @precondition(lambda self: self.live and not self.waiting)
    @rule(count=st.integers(1, 40), columns=st.sampled_from([None, ["frames"], ["key", "actions", "last"]]))
    def sample(self, count, columns):
        self.compare(self.handle.sample(count, columns=columns))

    @precondition(lambda self: self.live and not self.waiting)
    @rule()
    def get(self):
        batch = self.handle.get(np.array(list(self.live), np.uint64))
        assert batch.ids.tolist() == list(self.live)
        self.compare(batch)

    def compare(self, batch):
        for place, item in enumerate(batch.ids.tolist()):
            key, shown, acted, at = self.live[item]
            if "key" in batch.data:
                assert batch.data["key"][place] == key
                assert batch.data["last"][place] == at
                assert batch.data["actions"][place].tolist() == acted
            if "frames" in batch.data:
                frames = batch.data["frames"][place]
                assert frames.shape == (len(shown), 16, 16)
                assert (frames == np.array([n % 251 for n in shown], np.uint8)[:, None, None]).all()

    @precondition(lambda self: self.live and not self.waiting)
    @rule(data=st.data())
    def delete(self, data):
        item = data.draw(st.sampled_from(list(self.live)))
        assert self.handle.delete(np.array([item], np.uint64)) == 1
        del self.live[item]

    @precondition(lambda self: self.restored and self.live and not self.waiting)
    @rule()
    def save_change_and_restore(self):
        self.handle._client.checkpoint("kept")
        self.handle.delete(np.array([next(iter(self.live))], np.uint64))
        self.handle._client.restore("kept")
        self.writer.close(flush=False)
        self.begin()
        self.compare(self.handle.get(np.array(list(self.live), np.uint64)))


def run(open_table, restored=False, compression="none", examples=10):
    members = {"open_table": staticmethod(open_table), "restored": restored, "compression": compression}
    made = type("Made", (Machine,), members)
    run_state_machine_as_test(made, settings=settings(max_examples=examples, stateful_step_count=30, deadline=None))


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_in_process_it_is_as_the_model_says(compression):
    run(lambda made: (rs.Buffer(made), lambda: None), compression=compression, examples=20)


@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize("way", ["tcp", "unix", "shared memory"])
def test_by_a_server_it_is_as_the_model_says(served, way, compression):
    url = served.url if way == "tcp" else served.unix_url
    with rs.Client(url, shared_memory=way == "shared memory") as client:

        def open_table(made: rs.Table) -> tuple[Any, Any]:
            client.create_table(made)
            return client[made.name], lambda: client.drop_table(made.name)

        run(open_table, way == "tcp", compression)


def write(client: Any, name: str, episodes: int, length: int) -> dict[int, tuple[int, int]]:
    """An item at the end of each episode that shows all of it; its first step and its length, by id."""
    expected, step = [], 0
    with client.writer(name, history=4 * length) as writer:
        for episode in range(episodes):
            steps = 1 + (episode * 7) % length
            for _ in range(steps):
                writer.append({"frame": frame(step), "action": step})
                step += 1
            writer.create_item(columns={"key": episode, "frames": slice(None), "actions": slice(-1, None)})
            writer.end_episode()
            expected.append((step - steps, steps))
        ids = writer.flush()
    return dict(zip(ids.tolist(), expected, strict=True))


def check(batch: rs.Batch, expected: dict[int, tuple[int, int]]) -> None:
    for place, item in enumerate(batch.ids.tolist()):
        first, steps = expected[item]
        numbers = np.arange(first, first + steps)
        assert batch.data["actions"][place].tolist() == [first + steps - 1]
        assert (batch.data["frames"][place] == (numbers % 251).astype(np.uint8)[:, None, None]).all()
        assert batch.data["frames"].lengths[place] == steps


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("coded", [None, True, False])
def test_large_batches_are_whole_and_padded_to_the_right(served, compression, coded):
    with rs.Client(served.url) as client:
        client.create_table(table("large", compression, 2000))
        expected = write(client, "large", 300, MOST)
        for count in (1, 64, 2048):  # 2048 items are about 10 MB of steps
            batch = client.sample("large", count, coded=coded)
            check(batch, expected)
            padded, mask = batch.data["frames"].padded(fill=7, length=MOST), batch.data["frames"].mask
            assert padded.shape == (count, MOST, 16, 16)
            assert (padded[:, : mask.shape[1]][~mask] == 7).all()
            assert mask.sum() == batch.data["frames"].lengths.sum()
        client.drop_table("large")


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_a_killed_server_has_them_in_its_log(tmp_path, compression):
    config = {"appendonly": "yes", "appendfsync": "always"}
    with rs.Server([table("t", compression, 500)], directory=str(tmp_path), config=config) as server:
        with rs.Client(server.url) as client:
            expected = write(client, "t", 100, MOST)
            client.redis.execute_command("BGREWRITEAOF")
            gone = list(expected)[:30]
            client.delete("t", np.array(gone, np.uint64))
        os.kill(server.pid, signal.SIGKILL)
        server.stop()
    with rs.Server(directory=str(tmp_path), config=config) as server, rs.Client(server.url) as client:
        left = np.array([item for item in expected if item not in gone], np.uint64)
        check(client.get("t", left), expected)
        assert client.info("t")["size"] == len(left)


def test_a_replica_has_them(tmp_path):
    with pair(tmp_path, table("t", "lz4", 500)) as (primary, replica, link):
        expected = write(primary.client, "t", 40, MOST)
        replica.follow(link.port)
        expected |= write(primary.client, "t", 40, MOST)
        assert primary.redis.wait(1, 60_000) == 1
        check(replica.client.get("t", np.array(list(expected), np.uint64)), expected)


def test_shards_give_one_sample_of_them():
    with rs.Cluster([table("t", "lz4", 500)], shards=2) as cluster, rs.Client(cluster.url) as client:
        expected: dict[int, tuple[int, int]] = {}
        for _ in range(4):
            expected |= write(client, "t", 20, MOST)
        check(client.sample("t", 100), expected)
        check(client.get("t", np.array(list(expected), np.uint64)), expected)


def test_many_environments_show_slices_of_their_own(served):
    async def talk(name: str) -> None:
        async with rs.aio.Client(served.url) as client:
            writer = await client.vector_writer(name, 3)
            for step in range(10):
                await writer.append(
                    {"frame": np.stack([frame(step)] * 3), "action": step * 10 + np.arange(3, dtype="i4")}
                )
            own = [slice(0, 2), slice(-1, None), slice(4, 4)]
            keys = np.arange(3)
            writer.create_items(columns={"key": keys, "frames": slice(2, 5), "actions": own}, mask=[True, True, False])
            writer.create_items(columns={"key": keys + 3, "frames": own, "actions": own}, mask=[False, False, True])
            await writer.close()
            batch = await client.sample(name, 3)
            assert [rows.tolist() for rows in batch.data["actions"]] == [[0, 10], [91], []]
            assert batch.data["frames"].lengths.tolist() == [3, 3, 0]
            assert batch.data["frames"].values[:, 0, 0].tolist() == [2, 3, 4, 2, 3, 4]

    with rs.Client(served.url) as client:
        client.create_table(rs.Table("many", 10, SIGNATURE, rs.Fifo()))
        asyncio.run(talk("many"))
        client.drop_table("many")


def test_what_a_masked_environment_is_given_is_not_looked_at():
    buffer = rs.Buffer(rs.Table("t", 10, SIGNATURE, rs.Fifo()))
    with buffer.vector_writer(2) as writer:
        for step in range(3):
            writer.append({"frame": np.stack([frame(step)] * 2), "action": np.array([step, 10 + step], np.int32)})
        own = [None, slice(-2, None)]
        writer.create_items(columns={"key": [0, 1], "frames": own, "actions": own}, mask=[False, True])
    assert buffer.sample(1).data["actions"][0].tolist() == [11, 12]


def test_a_window_that_is_not_given_shows_what_the_writer_keeps():
    buffer = rs.Buffer(table("t"))
    with buffer.writer(history=4) as writer:
        for step in range(20):
            writer.append({"frame": frame(step), "action": step})
        writer.create_item(columns={"key": 1})
    assert buffer.sample(1).data["actions"][0].tolist() == [16, 17, 18, 19]


@pytest.mark.parametrize("columns", [[("key", 1)], "key", 7, {"key"}])
@pytest.mark.parametrize("windows", [SIGNATURE, {name: SIGNATURE[name] for name in ("action", "key", "last")}])
def test_columns_that_are_no_dict_are_refused(windows, columns):
    buffer = rs.Buffer(rs.Table("t", 10, windows))
    with buffer.writer() as writer:
        writer.append({"action": 1} | ({"frame": frame(1)} if "frame" in windows else {}))
        with pytest.raises(rs.SchemaError, match="expected a dict of columns, got"):
            writer.create_item(columns=columns)


def test_windows_over_a_dict_take_one_slice_or_one_each():
    signature = {
        "seen": {"image": rs.Column("uint8", (2,), step_only=True), "speed": rs.Column("float32", step_only=True)},
        "obs": rs.Window("seen", max_length=5),
    }
    buffer = rs.Buffer(rs.Table("t", 10, signature, rs.Fifo()))
    with buffer.writer() as writer:
        for step in range(6):
            writer.append({"seen": {"image": np.full(2, step, np.uint8), "speed": float(step)}})
        writer.create_item(columns={"obs": slice(-3, None)})
        writer.create_item(columns={"obs": {"image": slice(0, 1), "speed": slice(-2, None)}})
    obs = buffer.sample(2).data["obs"]
    assert [rows.tolist() for rows in obs["speed"]] == [[3, 4, 5], [4, 5]]
    assert [rows[:, 0].tolist() for rows in obs["image"]] == [[3, 4, 5], [0]]
    assert obs["speed"].lengths.tolist() == [3, 2]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"frames": slice(0, None, 2)}, "a slice of consecutive steps, .* got slice"),
        ({"frames": np.zeros((3, 16, 16), np.uint8)}, "a slice of consecutive steps"),
        ({"frames": slice(0.5, None)}, "a slice of consecutive steps"),
        ({"actions": slice(None)}, "at most 7 steps .* got 20"),
        ({"frame": slice(None)}, "'frame' is not a column of items"),
        ({"nothing": slice(None)}, "'nothing' is not a column of items"),
    ],
)
def test_what_is_no_slice_of_the_episode_is_refused(columns, message):
    buffer = rs.Buffer(table("t"))
    with buffer.writer() as writer:
        for step in range(20):
            writer.append({"frame": frame(step), "action": step})
        with pytest.raises(rs.SchemaError, match=message):
            writer.create_item(columns={"key": 1, **columns})
        writer.create_item(columns={"key": 2})
        assert len(writer.flush()) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rs.Window("a", max_length=0), "max_length must be a whole number of at least 1"),
        (lambda: rs.Window("a", 3, max_length=2), "either a max_length, or a length and an offset"),
        (lambda: rs.Window("a", offset=1, max_length=2), "either a max_length, or a length and an offset"),
        (lambda: rs.Window("a", max_length=20_000), "at most 16384"),
        (
            lambda: rs.Table("t", 1, {"a": rs.Column("int8", (0,), step_only=True), "w": rs.Window("a", max_length=2)}),
            "sizes of at least 0, or None and sizes of at least 1",
        ),
    ],
)
def test_windows_that_cannot_be_are_refused(make, message):
    with pytest.raises(rs.SchemaError, match=message):
        make()


def test_max_bytes_must_have_room_for_the_steps_of_an_item_and_for_no_more():
    with pytest.raises(rs.SchemaError, match="room for the steps that one item sees"):
        rs.Buffer(rs.Table("t", 10, SIGNATURE, max_bytes=(MOST + 7 + 1) * 260 - 1))
    buffer = rs.Buffer(rs.Table("t", 10, SIGNATURE, max_bytes=(MOST + 7 + 1) * 260))
    with buffer.writer(history=48) as writer:
        writer.append({"frame": frame(1), "action": 1})
        writer.create_item(columns={"key": 1})
    assert buffer.info()["size"] == 1


def test_a_writer_of_n_steps_has_no_slices_to_take():
    signature = {
        "obs": rs.Column("float32", (2,)),
        "reward": rs.Column("float32"),
        "discount": rs.Column("float32"),
        "next_obs": rs.Window("obs", offset=3),
        "past": rs.Window("obs", max_length=4),
    }
    with pytest.raises(rs.SchemaError, match="'past' has a max_length"):
        rs.Buffer(rs.Table("t", 10, signature)).writer(n_step=3, discount=0.99)


# ---- as any client of Redis sends it --------------------------------------------------------------------------------

SPEC = {
    "capacity": 4,
    "sampler": "fifo",
    "signature": {"f": {"dtype": "uint8", "shape": [], "step_only": True}, "w": {"window": "f", "max_length": 3}},
}


@pytest.fixture
def plain(served):
    with redis.Redis.from_url(served.url) as connection:
        connection.execute_command("REPLAY.CREATE", "plain", msgpack.packb(SPEC))
        streams, flags = struct.pack("<5I", *[0] * 5), bytes([1, 0, 2, 1, 0])
        connection.execute_command("REPLAY.APPEND", "plain", 5, streams, flags, "COLUMNS", 1, "f", b"abcde")
        yield connection
        connection.execute_command("REPLAY.DROP", "plain")


def item(connection: Any, first: int, count: int, *, tail: bytes = b"") -> Any:
    spans = struct.pack("<2Q", first, count) + tail
    return connection.execute_command(
        "REPLAY.ITEM", "plain", 1, struct.pack("<I", 0), struct.pack("<Q", 4), b"", "COLUMNS", 1, "w", spans
    )


def test_steps_are_named_by_number_and_come_as_a_ragged_column(plain):
    for first, count in ((0, 3), (4, 1), (3, 0)):
        item(plain, first, count)
    assert plain.execute_command("REPLAY.SAMPLE", "plain", 3)[3:] == [b"w", struct.pack("<4q", 0, 3, 4, 4) + b"abce"]
    spec = msgpack.unpackb(plain.execute_command("REPLAY.SPEC", "plain"))
    assert spec["signature"]["w"] == {"window": "f", "max_length": 3}


@pytest.mark.parametrize(
    ("first", "count", "tail", "message"),
    [
        (0, 4, b"", "a ragged window shows at most 3 steps"),
        (2, 2, b"", "are of more than one episode"),
        (4, 2, b"", "2 steps from step 4 on are not there yet: their stream has 5 steps"),
        (5, 1, b"", "are not there yet"),
        (2**64 - 1, 2, b"", "are not there yet"),
        (0, 2**64 - 1, b"", "a ragged window shows at most 3 steps"),
        (
            0,
            1,
            b"x",
            "expected the first step and the number of steps of each as uint64, 16 bytes in all, got 17 bytes",
        ),
    ],
)
def test_steps_that_cannot_be_shown_are_refused_and_nothing_is_stored(served, plain, first, count, tail, message):
    with pytest.raises(redis.ResponseError, match=message):
        item(plain, first, count, tail=tail)
    with rs.Client(served.url) as client:
        info = client.info("plain")
    assert info["size"] == info["reserved_slots"] == 0


def test_an_item_must_say_what_its_ragged_windows_show(plain):
    head = ("REPLAY.ITEM", "plain", 1, struct.pack("<I", 0), struct.pack("<Q", 4), b"")
    with pytest.raises(redis.ResponseError, match=r"must give 1 columns \(w\), got 0"):
        plain.execute_command(*head, "COLUMNS", 0)
    with pytest.raises(redis.ResponseError, match=r"'w' is a ragged window: say which steps it shows with"):
        plain.execute_command(
            "REPLAY.APPEND", "plain", 1, struct.pack("<I", 0), b"", "COLUMNS", 1, "w", struct.pack("<2Q", 0, 1)
        )


@pytest.mark.parametrize(
    ("window", "message"),
    [
        ({"window": "f", "max_length": 0}, "column 'w': expected an integer from 1"),
        ({"window": "f", "max_length": 16385}, "a max_length of a window of at most 16384"),
        (
            {"window": "f", "max_length": 3, "length": 2},
            "max_length only with a shape .* or with a window without length",
        ),
        ({"window": "f", "max_length": 3, "dtype": "uint8"}, "max_length only with|got keys of both"),
        ({"window": "empty", "max_length": 3}, "the name of a column that has bytes"),
    ],
)
def test_a_spec_of_a_window_that_cannot_be_is_refused(served, window, message):
    signature = {
        "f": {"dtype": "uint8", "shape": []},
        "empty": {"dtype": "uint8", "shape": [0]},
        "w": window,
        "seen": {"window": "f", "length": 1, "offset": 0},
        "none": {"window": "empty", "length": 1, "offset": 0},
    }
    with redis.Redis.from_url(served.url) as connection, pytest.raises(redis.ResponseError, match=message):
        connection.execute_command("REPLAY.CREATE", "wrong", msgpack.packb({"capacity": 4, "signature": signature}))
