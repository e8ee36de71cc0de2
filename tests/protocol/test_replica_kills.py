"""Primaries killed at random moments, their replicas promoted, again and again: what WAIT has acknowledged is there."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from links import Link, eventually
from replica_tables import Member, serve

import replay_server as rs

COLUMNS = {"key": rs.Column("int64"), "rows": rs.Column("float32", (64,))}
TABLES = (
    rs.Table("t", 200_000, COLUMNS, seed=7),
    rs.Table("s", 200_000, {"x": rs.Column("int64", step_only=True), "seen": rs.Window("x", length=3)}, seed=3),
)
BATCH = 8
UNACKNOWLEDGED = 256
"""Batches that are added while nobody follows, so that more is missed than the backlog keeps."""


class Acknowledged:
    """What writers were told that a replica has. They write until the primary dies."""

    def __init__(self) -> None:
        self.items: dict[int, tuple[int, float]] = {}
        """By id: key, and priority."""
        self.deleted: set[int] = set()
        self.sent = 0
        """Items that were sent at most, in all."""
        self.seen: dict[int, list[int]] = {}
        """By id: the steps that the item sees."""
        self.version = 0
        self.failures: list[BaseException] = []

    def writing(self, url: str) -> list[threading.Thread]:
        threads = [threading.Thread(target=self._until_it_dies, args=(url, way)) for way in (self._items, self._steps)]
        for thread in threads:
            thread.start()
        return threads

    def _until_it_dies(self, url: str, way: Callable[[rs.Client], None]) -> None:
        try:
            with rs.Client(url, reconnect_timeout=0.0) as client:
                way(client)
        except (rs.ConnectionLost, redis.ConnectionError):
            return
        except BaseException as error:
            self.failures.append(error)

    def add(self, client: rs.Client) -> dict[int, tuple[int, float]]:
        keys = np.arange(self.sent, self.sent + BATCH)
        self.sent += BATCH
        rows = np.repeat(keys[:, None], 64, axis=1).astype(np.float32)
        ids = client.add("t", {"key": keys, "rows": rows}, np.ones(BATCH)).tolist()
        return dict(zip(ids, zip(keys.tolist(), [1.0] * BATCH, strict=True), strict=True))

    def _items(self, client: rs.Client) -> None:
        rng = np.random.default_rng(self.sent)
        while True:
            items = self.add(client)
            changed, gone = list(items)[:3], list(items)[-1]
            for item, priority in zip(changed, (rng.random(3) + 0.5).tolist(), strict=True):
                items[item] = items[item][0], priority
            client.update_priorities("t", changed, [items[item][1] for item in changed])
            client.delete("t", [gone])
            del items[gone]
            version = client.publish_weights("w", {"w": np.full(3, self.sent)})
            if client.redis.wait(1, 60_000) >= 1:
                self.items |= items
                self.deleted.add(gone)
                self.version = version

    def _steps(self, client: rs.Client) -> None:
        with client.writer("s") as writer:
            for first in range(0, 10**9, BATCH):
                for step in range(first, first + BATCH):
                    writer.append({"x": step})
                    writer.create_item(1.0)
                ids = writer.flush().tolist()
                if client.redis.wait(1, 60_000) >= 1:
                    seen = [[max(0, step - back) for back in (2, 1, 0)] for step in range(first, first + BATCH)]
                    self.seen |= dict(zip(ids, seen, strict=True))

    def check(self, there: Member) -> None:
        assert not self.failures
        client, ids = there.client, np.array(list(self.items), np.uint64)
        got = client.get("t", ids)  # an error where one is missing
        keys, priorities = (np.array(column) for column in zip(*self.items.values(), strict=True))
        assert np.array_equal(got.data["key"], keys)
        assert np.array_equal(got.data["rows"], np.repeat(keys[:, None], 64, axis=1))
        info = client.info("t")
        np.testing.assert_allclose(got.probabilities * info["total_priority"], priorities**0.6, rtol=1e-9)
        assert len(ids) <= info["size"] <= self.sent
        assert client.delete("t", list(self.deleted)) == 0
        if self.seen:
            assert client.get("s", list(self.seen)).data["seen"].tolist() == list(self.seen.values())
        fetched = client.fetch_weights("w")
        assert fetched is not None
        assert fetched[0] >= self.version


def killed_under_load(
    primary: Member, _link: Link, _replica: Member, told: Acknowledged, rng: np.random.Generator
) -> None:
    before = len(told.items)
    writing = told.writing(primary.server.url)
    eventually(lambda: len(told.items) > before or told.failures, "an acknowledged item")
    time.sleep(rng.uniform(0.0, 1.0))
    primary.kill()
    for thread in writing:
        thread.join()


def killed_while_it_sends_everything(
    primary: Member, link: Link, replica: Member, told: Acknowledged, rng: np.random.Generator
) -> None:
    """The replica has missed much. What it had before must stay until it has all that is sent."""
    link.cut(mend=False)
    for _ in range(UNACKNOWLEDGED):
        told.add(primary.client)
    full, _ = primary.stats()
    link.mend()
    eventually(lambda: primary.stats()[0] > full or replica.redis.info("replication")["master_sync_in_progress"], "it")
    time.sleep(rng.uniform(0.0, 0.1))
    primary.kill()


WAYS = (killed_under_load, killed_while_it_sends_everything)


@pytest.mark.parametrize(
    ("kills", "seed"), [(4, 1), pytest.param(60, 2, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]
)
def test_what_was_acknowledged_outlives_primaries_that_are_killed_at_random_moments(
    tmp_path: Path, kills: int, seed: int
) -> None:
    rng, told = np.random.default_rng(seed), Acknowledged()
    config: dict[str, Any] = {"repl_backlog_size": "65536"}
    with contextlib.ExitStack() as stack:
        primary = stack.enter_context(serve(tmp_path / "first", *TABLES, **config))
        for kill in range(kills):
            replica = stack.enter_context(serve(tmp_path / f"replica-{kill}", **config))
            link = stack.enter_context(contextlib.closing(Link(primary.port)))
            replica.follow(link.port)
            WAYS[kill % 2 if kill else 0](primary, link, replica, told, rng)
            replica.promote()
            told.check(replica)
            primary = replica
