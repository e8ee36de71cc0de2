"""A table through restarts out of the append-only file, against a plain-Python model of it."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import replay_server as rs

CAPACITY = 12
PRIORITIES = st.floats(0, 4)


class TableThroughRestarts(RuleBasedStateMachine):
    """Items in the order in which they leave: id → (key, priority). With `always` a kill takes nothing away."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.items: dict[int, tuple[int, float]] = {}
        self.given: set[int] = set()
        self.added = self.sampled = self.applied = self.keys = 0

    def start(self) -> None:
        config = {"appendonly": "yes", "appendfsync": "always"}
        self.server = rs.Server([self.table], directory=str(self.folder), config=config)
        self.client = rs.Client(self.server.url)

    @initialize(ragged=st.booleans())
    def create(self, ragged: bool) -> None:
        rows = {"rows": rs.Column("int32", (None,), max_length=64)} if ragged else {}
        signature = {"key": rs.Column("int64", ()), **rows}
        self.table = rs.Table("t", CAPACITY, signature, sampler=rs.Prioritized(1.0))
        self.start()

    @rule(priorities=st.lists(PRIORITIES, min_size=1, max_size=7))
    def add(self, priorities: list[float]) -> None:
        keys = np.arange(self.keys, self.keys + len(priorities))
        data = {"key": keys}
        if "rows" in self.table.signature:
            data["rows"] = [np.full(key % 60, key, np.int32) for key in keys]
        ids = self.client.add("t", data, priorities=np.array(priorities)).tolist()
        assert not self.given & set(ids)
        self.given |= set(ids)
        self.keys += len(ids)
        self.added += len(ids)
        self.items.update(zip(ids, zip(keys.tolist(), priorities, strict=True), strict=True))
        while len(self.items) > CAPACITY:
            del self.items[next(iter(self.items))]

    @precondition(lambda self: any(priority > 0 for _, priority in self.items.values()))
    @rule(n=st.integers(1, 5))
    def sample(self, n: int) -> None:
        drawn = self.client.sample("t", n)
        self.sampled += n
        total = sum(priority for _, priority in self.items.values())
        for item, key, probability in zip(drawn.ids.tolist(), drawn.data["key"], drawn.probabilities, strict=True):
            assert self.items[item][0] == key
            np.testing.assert_allclose(probability, self.items[item][1] / total, rtol=1e-12)

    @precondition(lambda self: self.given)
    @rule(data=st.data(), priority=PRIORITIES)
    def update(self, data: st.DataObject, priority: float) -> None:
        item = data.draw(st.sampled_from(sorted(self.given)))
        applied, _ = self.client.update_priorities("t", np.array([item], np.uint64), np.array([priority]))
        assert applied == (item in self.items)
        self.applied += applied
        if applied:
            self.items[item] = (self.items[item][0], priority)

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(sorted(self.given)))
        assert self.client.delete("t", np.array([item], np.uint64)) == (item in self.items)
        self.items.pop(item, None)

    @rule()
    def reset(self) -> None:
        self.client.reset("t")
        self.items.clear()

    @rule()
    def rewrite(self) -> None:
        count = self.client.redis.info("persistence")["aof_rewrites"]
        self.client.redis.execute_command("BGREWRITEAOF")
        while self.client.redis.info("persistence")["aof_rewrites"] == count:
            time.sleep(0.001)

    @rule(kills=st.booleans())
    def restart(self, kills: bool) -> None:
        self.client.close()
        if kills:
            os.kill(self.server.pid, signal.SIGKILL)
        self.server.stop()
        self.start()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "client"):
            return
        info = self.client.info("t")
        assert (info["size"], info["added"], info["sampled"]) == (len(self.items), self.added, self.sampled)
        assert info["updates_applied"] == self.applied
        assert info["max_priority"] == max((priority for _, priority in self.items.values()), default=0)
        if self.items:
            got = self.client.get("t", np.array(list(self.items), np.uint64))
            assert got.data["key"].tolist() == [key for key, _ in self.items.values()]
            if "rows" in self.table.signature:
                for row, key in enumerate(got.data["key"]):
                    begin, end = got.data["rows"].offsets[row : row + 2]
                    assert got.data["rows"].values[begin:end].tolist() == [key] * (key % 60)

    def teardown(self) -> None:
        if hasattr(self, "client"):
            self.client.close()
            self.server.stop()
        shutil.rmtree(self.folder)


TestTableThroughRestarts = TableThroughRestarts.TestCase
TestTableThroughRestarts.settings = settings(max_examples=12, stateful_step_count=30, deadline=None)
