"""Ragged columns as a state machine against a plain-Python model: in process, over TCP and unix sockets, through shared
memory, and through snapshots; and what a client of plain Redis sends and is told."""

from __future__ import annotations

import asyncio
import itertools
import re
import socket
import struct
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import replay_server as rs

SIGNATURE = {
    "tokens": rs.Column("int32", (None,), max_length=6000),
    "k": rs.Column("int64"),
    "points": rs.Column("float32", (None, 3)),
}
LENGTHS = st.one_of(st.integers(0, 5), st.integers(500, 520), st.integers(0, 6000))
_numbers = itertools.count()


@dataclass
class Served:
    url: str
    unix_url: str


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ragged")
    with rs.Server(directory=folder, unix=folder / "socket") as running:
        yield Served(running.url, f"unix://{folder / 'socket'}")
        assert running.running, running.log()


def value(key: int, lengths: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    tokens = (np.arange(lengths[0]) * 7 + key).astype(np.int32)
    return tokens, (np.arange(3 * lengths[1]) + key).astype(np.float32).reshape(-1, 3)


class Machine(RuleBasedStateMachine):
    """`open_table` and `restored` are set where it is run."""

    open_table: Any
    restored = False
    capacity = 24

    def __init__(self) -> None:
        super().__init__()
        self.handle, self.close = type(self).open_table(
            rs.Table(f"t{next(_numbers)}", self.capacity, SIGNATURE, rs.Uniform())
        )
        self.live: dict[int, tuple[int, np.ndarray, np.ndarray]] = {}
        self.gone: list[int] = []
        self.keys = itertools.count()
        self.out = None

    def teardown(self) -> None:
        self.close()

    @rule(lengths=st.lists(st.tuples(LENGTHS, st.integers(0, 700)), min_size=1, max_size=12), flat=st.booleans())
    def add(self, lengths, flat):
        keys = [next(self.keys) for _ in lengths]
        values = [value(key, length) for key, length in zip(keys, lengths, strict=True)]
        tokens = [each[0] for each in values]
        given = (np.concatenate(tokens), np.cumsum([0, *map(len, tokens)])) if flat else tokens
        ids = self.handle.add({"tokens": given, "k": np.array(keys), "points": [each[1] for each in values]})
        for item, key, (row, points) in zip(ids.tolist(), keys, values, strict=True):
            self.live[item] = (key, row, points)
        while len(self.live) > self.capacity:
            oldest = next(iter(self.live))
            del self.live[oldest]
            self.gone.append(oldest)

    @precondition(lambda self: self.live)
    @rule(count=st.integers(1, 40), again=st.booleans(), columns=st.sampled_from([None, ["tokens"], ["k", "points"]]))
    def sample(self, count, again, columns):
        try:
            batch = self.handle.sample(count, out=self.out if again else None, columns=columns)
        except rs.SchemaError:  # `out` is of another size, has other columns, or is read-only
            assert again
            return
        self.out = batch
        self.compare(batch)

    def compare(self, batch):
        for place, item in enumerate(batch.ids.tolist()):
            key, tokens, points = self.live[item]
            if "k" in batch.data:
                assert batch.data["k"][place] == key
            for name, expected in (("tokens", tokens), ("points", points)):
                if name in batch.data:
                    np.testing.assert_array_equal(batch.data[name][place], expected)
                    assert batch.data[name].values.dtype == expected.dtype

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def get(self, data):
        ids = data.draw(st.lists(st.sampled_from(list(self.live)), max_size=30))
        batch = self.handle.get(np.array(ids, np.uint64))
        assert batch.ids.tolist() == ids
        self.compare(batch)

    @rule(data=st.data())
    def delete(self, data):
        known = [*self.live, *self.gone[-5:]]
        ids = data.draw(st.lists(st.sampled_from(known), unique=True, max_size=4)) if known else []
        assert self.handle.delete(np.array(ids, np.uint64)) == len([item for item in ids if item in self.live])
        for item in ids:
            if self.live.pop(item, None):
                self.gone.append(item)

    @precondition(lambda self: self.live)
    @rule()
    def update(self):
        ids = np.array([*self.live, *self.gone[-2:]], np.uint64)
        assert self.handle.update_priorities(ids, np.ones(len(ids))) == (len(self.live), len(ids) - len(self.live))

    @precondition(lambda self: self.restored)
    @rule(lengths=st.lists(LENGTHS, max_size=3))
    def save_change_and_restore(self, lengths):
        before = self.handle.info()
        path = self.handle._client.checkpoint("kept")
        if lengths:
            values = [value(0, (length, 1)) for length in lengths]
            data = {"tokens": [each[0] for each in values], "points": [each[1] for each in values]}
            self.handle.add({**data, "k": np.zeros(len(lengths), np.int64)})
        if self.live:
            self.handle.delete(np.array([next(iter(self.live))], np.uint64))
        self.handle._client.restore("kept")
        assert path.endswith("kept.snapshot")
        assert self.handle.info()["bytes"] == before["bytes"]

    @rule()
    def reset(self):
        if len(self.gone) % 5 == 4:
            self.handle.reset()
            self.gone += self.live
            self.live.clear()

    @invariant()
    def bytes_are_those_of_the_values_and_little_more(self):
        info = self.handle.info()
        assert info["size"] == len(self.live)
        payload = sum(tokens.nbytes + points.nbytes + 8 for _, tokens, points in self.live.values())
        assert payload <= info["bytes"] <= payload * 1.002 + 250 * len(self.live)


def run(open_table, restored=False, examples=12):
    made = type("Made", (Machine,), {"open_table": staticmethod(open_table), "restored": restored})
    run_state_machine_as_test(made, settings=settings(max_examples=examples, stateful_step_count=25, deadline=None))


def test_in_process_it_is_as_the_model_says():
    run(lambda table: (rs.Buffer(table), lambda: None), examples=20)


@pytest.mark.parametrize("way", ["tcp", "unix", "shared memory"])
def test_by_a_server_it_is_as_the_model_says(served, way):
    url = served.url if way == "tcp" else served.unix_url
    with rs.Client(url, shared_memory=way == "shared memory") as client:

        def open_table(table: rs.Table) -> tuple[Any, Any]:
            client.create_table(table)
            return client[table.name], lambda: client.drop_table(table.name)

        run(open_table, restored=way == "tcp")


def test_large_batches_come_through_shared_memory_and_leave_with_their_arrays(served):
    with rs.Client(served.unix_url, shared_memory=True) as client:
        client.create_table(rs.Table("large", 300, SIGNATURE, rs.Fifo()))
        values = [value(key, (5000, 600)) for key in range(300)]
        data = {"tokens": [each[0] for each in values], "points": [each[1] for each in values]}
        client.add("large", {**data, "k": np.arange(300)})
        batch = client.sample("large", 300)
        assert batch.lease is not None
        for place in range(300):
            np.testing.assert_array_equal(batch.data["tokens"][place], values[place][0])
            np.testing.assert_array_equal(batch.data["points"][place], values[place][1])
        kept = batch.data["tokens"][7]
        batch.release()
        assert "tokens" not in batch.data
        assert len(kept) == 5000
        client.drop_table("large")


def test_a_sampler_uses_its_memory_again(served):
    with rs.Client(served.url) as client:
        client.create_table(rs.Table("many", 100, SIGNATURE, rs.Uniform()))
        values = [value(key, (key * 50, 1)) for key in range(100)]
        data = {"tokens": [each[0] for each in values], "points": [each[1] for each in values]}
        client.add("many", {**data, "k": np.arange(100)})
        memories = set()
        with client.sampler("many", 32, prefetch=2) as batches:
            for batch in itertools.islice(batches, 60):
                for place, key in enumerate(batch.data["k"].tolist()):
                    np.testing.assert_array_equal(batch.data["tokens"][place], values[key][0])
                memories.add(id(batch.data["tokens"].room))
        assert len(memories) <= 5
        client.drop_table("many")


def test_the_asyncio_twin_takes_and_gives_them(served):
    async def talk() -> None:
        async with rs.aio.Client(served.url) as client:
            await client.create_table(rs.Table("twin", 10, {"x": rs.Column("int16", (None,))}, rs.Fifo()))
            rows = [np.arange(n, dtype=np.int16) for n in (3, 0, 2000)]
            await client.add("twin", {"x": rows})
            batch = await client.sample("twin", 3)
            assert all(np.array_equal(got, row) for got, row in zip(batch.data["x"], rows, strict=True))
            await client.drop_table("twin")

    asyncio.run(talk())


# ---- as any client of Redis sends it --------------------------------------------------------------------------------


@pytest.fixture
def plain(served):
    with redis.Redis.from_url(served.url) as connection:
        spec = {
            "capacity": 4,
            "sampler": "fifo",
            "signature": {"t": {"dtype": "int16", "shape": [None], "max_length": 9}},
        }
        connection.execute_command("REPLAY.CREATE", "plain", msgpack.packb(spec))
        yield connection
        connection.execute_command("REPLAY.DROP", "plain")


def blob(offsets: list[int], *numbers: int) -> bytes:
    return struct.pack(f"<{len(offsets)}q{len(numbers)}h", *offsets, *numbers)


def test_a_blob_is_offsets_and_rows_both_ways(plain):
    given = blob([0, 2, 2, 3], 7, 8, 9)
    plain.execute_command("REPLAY.ADD", "plain", 3, b"", "COLUMNS", 1, "t", given)
    assert plain.execute_command("REPLAY.SAMPLE", "plain", 3)[3:] == [b"t", given]
    spec = msgpack.unpackb(plain.execute_command("REPLAY.SPEC", "plain"))
    assert spec["signature"] == {"t": {"dtype": "int16", "shape": [None], "max_length": 9}}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (blob([0, 2]), "expected 4 offsets as int64, 32 bytes, and rows of 2 bytes behind them, got 16 bytes"),
        (blob([0, 1, 2, 3], 1, 2, 3) + b"x", "got 39 bytes"),
        (blob([0, 1, 2, 4], 1, 2, 3), "end with the number of rows, 3, .* got 4 at index 3"),
        (blob([0, 2, 1, 3], 1, 2, 3), "got 1 at index 2"),
        (blob([0, -1, 1, 3], 1, 2, 3), "got -1 at index 1"),
        (blob([1, 1, 1, 3], 1, 2, 3), "got 1 at index 0"),
        (blob([0, 0, 0, 10], *range(10)), "ascend by at most max_length = 9, got 10 at index 3"),
        (b"", "got 0 bytes"),
    ],
)
def test_what_is_no_such_blob_is_refused_and_changes_nothing(served, plain, given, message):
    with pytest.raises(redis.ResponseError, match="BADSHAPE") as refused:
        plain.execute_command("REPLAY.ADD", "plain", 3, b"", "COLUMNS", 1, "t", given)
    assert re.search(message, str(refused.value)), refused.value
    with rs.Client(served.url) as client:
        info = client.info("plain")
    assert info["size"] == info["bytes"] == info["reserved_slots"] == 0


def test_more_items_than_may_be_pinned_are_refused_clearly(served):
    with rs.Client(served.url) as client:
        client.create_table(rs.Table("crowd", 10, {"x": rs.Column("int16", (None,))}, rs.Uniform()))
        client.add("crowd", {"x": [np.zeros(3, np.int16)]})
        with pytest.raises(rs.LimitExceeded, match="expected at most 8192 items at once"):
            client.sample("crowd", 10000)
        assert len(client.sample("crowd", 8192).data["x"]) == 8192
        client.drop_table("crowd")


def test_a_client_that_goes_amid_its_rows_leaves_nothing(served, plain, eventually):
    host, port = served.url.removeprefix("redis://").split(":")
    given = blob([0, 9], *range(9))
    with rs.Client(served.url) as client, socket.create_connection((host, int(port))) as raw:
        raw.sendall(
            b"*7\r\n$10\r\nREPLAY.ADD\r\n$5\r\nplain\r\n$1\r\n1\r\n$0\r\n\r\n$7\r\nCOLUMNS\r\n$1\r\n1\r\n$1\r\nt\r\n"
        )
        raw.sendall(b"$%d\r\n%b" % (len(given), given[:-1]))
        raw.close()
        eventually(lambda: client.info("plain")["reserved_slots"] == 0, "the reservation is given back")
        assert client.info("plain")["added"] == client.info("plain")["bytes"] == 0
