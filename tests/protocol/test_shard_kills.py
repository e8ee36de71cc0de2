"""Shards killed under load at random moments: clients go on, other shards lose nothing, and nothing is there twice."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from redis.cluster import RedisCluster
from shards import SHARD, wait_for

import replay_server as rs
from replay_server.cluster_moves import MoveRefused

SHARDS, KILLS, BATCH = 3, 20, 120
KEYS = 5000
"""So many that a walk over a shard's keys takes several requests: shards die between them, too."""
TABLE = rs.Table("t", 900_000, {"k": rs.Column("int64")}, seed=7)


class Load:
    """Clients at work, each in a thread of its own, and what they were told.

    Attributes:
        stored: item → key, where the add has returned.
        unknown: keys of adds that were lost: whether they are there is not known.
        names: item → key, of all that was ever told of an item.
        values: what may be under each key of the store; None: nothing.
        done: how often each client has succeeded.
        losses: what a client was told that does not wait for a shard.
    """

    def __init__(self, cluster: rs.Cluster, log: bool) -> None:
        self.cluster, self.log = cluster, log
        self.stored: dict[int, int] = {}
        self.unknown: set[int] = set()
        self.names: dict[int, int] = {}
        first = {f"key:{number}": b"-" for number in range(KEYS)}
        with RedisCluster(host="127.0.0.1", port=cluster.topology.shards[0].port) as client:
            client.mset_nonatomic(first)
        self.values: dict[str, set[bytes | None]] = {key: {b"-"} if log else {None, b"-"} for key in first}
        self.losses: list[str] = []
        self.failures: list[BaseException] = []
        self._ending, self._lock = threading.Event(), threading.Lock()
        ways = (self.add, self.sample, self.does_not_wait, self.set_keys, self.move, self.checkpoint)
        self.done = dict.fromkeys((way.__name__ for way in ways), 0)
        self._threads = [threading.Thread(target=self._work, args=(way.__name__, way())) for way in ways]
        for thread in self._threads:
            thread.start()

    def _work(self, name: str, steps: Iterator[bool]) -> None:
        try:
            while not self._ending.is_set():
                self.done[name] += next(steps)
        except BaseException as failure:
            self.failures.append(failure)

    def end(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def waits_for_all(self) -> dict[str, float]:
        """Until every client has succeeded once more; seconds that each took."""
        began, before, took = time.monotonic(), dict(self.done), dict[str, float]()

        def all_went_on() -> bool:
            if self.failures:
                raise self.failures[0]
            for name, count in self.done.items():
                if count > before[name]:
                    took.setdefault(name, time.monotonic() - began)
            return len(took) == len(before)

        wait_for(all_went_on, 120)
        return took

    def note(self, ids: np.ndarray, keys: np.ndarray) -> None:
        """An id names one item, whatever was lost meanwhile."""
        with self._lock:
            for item, key in zip(ids.tolist(), keys.tolist(), strict=True):
                assert self.names.setdefault(item, key) == key

    def client(self, **options: Any) -> rs.Client:
        return rs.Client(self.cluster.url, reconnect_timeout=60, **options)

    # ---- what they do: each step tells whether it succeeded ----------------------------------------------------------

    def add(self) -> Iterator[bool]:
        with self.client() as client:
            for first in itertools.count(0, BATCH):
                keys = np.arange(first, first + BATCH)
                try:
                    ids = client.add("t", {"k": keys}, np.ones(BATCH))
                except rs.ConnectionLost:
                    self.unknown |= set(keys.tolist())
                    yield False
                    continue
                self.note(ids, keys)
                self.stored |= dict(zip(ids.tolist(), keys.tolist(), strict=True))
                time.sleep(0.02)
                yield True

    def sample(self) -> Iterator[bool]:
        with self.client() as client:
            while True:
                batch = client.sample("t", 64)
                self.note(batch.ids, batch.data["k"])
                assert sum(client.update_priorities("t", batch.ids, np.ones(64))) == 64
                yield True

    def does_not_wait(self) -> Iterator[bool]:
        with self.client(missing="error", missing_after=30.0) as client:
            while True:
                try:
                    client.sample("t", 8)
                    yield True
                except rs.ConnectionLost as error:
                    self.losses.append(str(error))
                    yield False
                time.sleep(0.02)

    def set_keys(self) -> Iterator[bool]:
        some = random.Random(1)
        client = RedisCluster(host="127.0.0.1", port=self.cluster.topology.shards[0].port)
        for value in itertools.count():
            key, said = f"key:{some.randrange(KEYS)}", b"%d" % value
            may_be = self.values[key]
            try:
                assert client.get(key) in may_be
                may_be.add(said)
                client.set(key, said)
                if self.log:
                    self.values[key] = {said}
                yield True
            except (redis.RedisError, redis.exceptions.RedisClusterException):
                yield False

    def move(self) -> Iterator[bool]:
        some = random.Random(2)
        while True:
            try:
                self.cluster.move("0-1500,6000-7000,12000-13000", some.randrange(SHARDS))
                yield True
            except (MoveRefused, redis.RedisError):
                yield False
            time.sleep(0.1)

    def checkpoint(self) -> Iterator[bool]:
        while True:
            try:
                self.cluster.checkpoint()
                yield True
            except rs.ReplayError:
                yield False
            time.sleep(0.05)


def check_items(load: Load, client: rs.Client, victim: int | None = None, before: int = 0) -> set[int]:
    """Every item that was stored is there. The victim goes on from a snapshot, and has lost the newest of those that
    were stored before: their keys."""
    told = dict(load.stored)
    lost = set[int]()
    for number in range(SHARDS):
        ids = np.array([item for item in told if item >> int(SHARD) == number], np.uint64)
        if number == victim:
            own = np.array([item for item in itertools.islice(told, before) if item >> int(SHARD) == number], np.uint64)
            gone = own[how_many_are_there(client, own) :]
            lost |= {load.stored.pop(item) for item in gone.tolist()}
            ids = ids[~np.isin(ids, gone)]
        if len(ids):  # an error where one is missing
            assert client.get("t", ids).data["k"].tolist() == [told[item] for item in ids.tolist()]
    return lost


def how_many_are_there(client: rs.Client, ids: np.ndarray) -> int:
    """Of these, as many of the first."""
    there = 0
    for many in (2**power for power in reversed(range(24))):
        if there + many <= len(ids):
            try:
                client.get("t", ids[there : there + many])
                there += many
            except rs.ServerError:
                continue
    return there


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("log", [True, False], ids=["append_only_file", "snapshots_alone"])
def test_clients_go_on_after_each_of_twenty_kills_and_only_the_shard_that_died_loses_anything(
    tmp_path: Path, log: bool
) -> None:
    some = random.Random(11)
    config = {"appendonly": "yes", "appendfsync": "always"} if log else {}
    with rs.Cluster([TABLE], shards=SHARDS, directory=tmp_path, config=config) as cluster:
        load, lost = Load(cluster, log), set[int]()
        client = load.client()
        try:
            load.waits_for_all()
            for kill in range(KILLS):
                time.sleep(some.uniform(0.0, 1.0))
                victim, told = some.randrange(SHARDS), len(load.losses)
                os.kill(cluster.pids[victim], signal.SIGKILL)
                wait_for(lambda: not cluster.running)
                before = len(load.stored) + BATCH  # an add may just be noting what it was told
                wait_for(lambda kills=kill: cluster.restarts > kills and cluster.running)
                took = load.waits_for_all()
                print(f"kill {kill}, shard {victim}: went on after", {name: round(s, 2) for name, s in took.items()})
                place = f"127.0.0.1:{cluster.topology.shard(victim).port}"
                assert [text for text in load.losses[told:] if place not in text] == []
                lost |= check_items(load, client, None if log else victim, before)
            load.waits_for_all()
        finally:
            load.end()
        assert not load.failures
        with RedisCluster(host="127.0.0.1", port=cluster.topology.shards[0].port) as store:
            assert [key for key, may_be in load.values.items() if store.get(key) not in may_be] == []
        assert len(load.losses) >= KILLS // 2
        check_items(load, client)
        batch = client.sample("t", client.info("t")["size"], replace=False)
        client.close()
        load.note(batch.ids, batch.data["k"])
        keys = batch.data["k"].tolist()
        assert len(set(keys)) == len(keys), "an item is there twice"
        assert set(load.stored.values()) <= set(keys) <= set(load.stored.values()) | load.unknown | lost
