"""Redis's unmodified Sentinel fails over a pair with tables, while an actor and a learner work on them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import redis
from links import eventually, fail_over, sentinel_of
from replica_tables import assert_same, serve, settle

import replay_server as rs

TABLE = rs.Table(
    "t",
    100_000,
    {"x": rs.Column("int64", step_only=True), "seen": rs.Window("x", length=2), "key": rs.Column("int64")},
    rate_limiter=rs.MinSize(8),
    seed=7,
)


class Work:
    """An actor that adds what it sees, and a learner that draws it, by the URL of both servers, until `stop`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.stop = threading.Event()
        self.failures: list[BaseException] = []
        self.made = self.batches = 0
        self.acknowledged: list[int] = []
        """Ids that WAIT has told to be with the replica."""
        self._threads = [threading.Thread(target=self._run, args=(way,)) for way in (self._act, self._learn)]

    def __enter__(self) -> Work:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, way: Callable[[rs.Client], None]) -> None:
        try:
            with rs.Client(self.url, reconnect_timeout=60.0) as client:
                way(client)
        except BaseException as error:
            self.failures.append(error)

    def _act(self, client: rs.Client) -> None:
        with client.writer("t") as writer:
            while not self.stop.is_set():
                # Whether a primary that dies had them, nobody knows: they are not sent again.
                with contextlib.suppress(rs.ConnectionLost, redis.RedisError):
                    for _ in range(8):
                        writer.append({"x": self.made})
                        self.made += 1
                        writer.create_item(1.0, columns={"key": self.made - 1})
                    ids = writer.flush().tolist()
                    if client.redis.wait(1, 100) >= 1:
                        self.acknowledged += ids

    def _learn(self, client: rs.Client) -> None:
        with client.sampler("t", 8, prefetch=2) as batches:
            for batch in batches:
                seen, keys = batch.data["seen"], batch.data["key"]
                assert np.array_equal(seen[:, 1], keys)
                assert np.isin(keys - seen[:, 0], (0, 1)).all()
                client.update_priorities("t", batch.ids, np.ones(8))
                self.batches += 1
                if self.stop.is_set():
                    return


def test_an_actor_and_a_learner_go_on_when_sentinel_promotes_the_replica(tmp_path: Path) -> None:
    with serve(tmp_path / "a", TABLE) as first, serve(tmp_path / "b") as second:
        second.follow(first.port)
        url = f"redis://127.0.0.1:{first.port},127.0.0.1:{second.port}"
        with sentinel_of(first.port, tmp_path) as sentinel, Work(url) as work:
            eventually(lambda: sentinel.discover_slaves("mine"), "the discovery of the replica")
            eventually(lambda: len(work.acknowledged) > 100 and work.batches > 20, "some work")
            fail_over(sentinel, first.kill, second.port)
            made, batches = work.made, work.batches
            eventually(
                lambda: work.failures or (work.made > made + 100 and work.batches > batches + 20), "work on the replica"
            )
            work.stop.set()
        assert not work.failures
        items = second.client.get("t", work.acknowledged)  # an error where one is missing
        assert np.array_equal(items.data["seen"][:, 1], items.data["key"])
        keys = all_keys(second.client)
        assert len(keys) == len(set(keys)), "an item is there twice"
        with serve(tmp_path / "a2") as third:  # takes the place of the one that died
            third.follow(second.port)
            settle(second, third)
            assert_same(second, third, work.acknowledged[-50:])


def all_keys(client: rs.Client) -> list[int]:
    """Of all items, by draws without replacement."""
    return client.sample("t", client.info("t")["size"], replace=False, timeout=0).data["key"].tolist()
