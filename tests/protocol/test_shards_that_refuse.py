"""What a client of many shards does if one of them refuses, holds back or stops: it says so, in time."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from shards import K, cluster, keys, servers, shards, start, url_of

import replay_server as rs

__all__ = ["cluster", "servers", "shards"]  # fixtures

MISSING_AFTER_S = 0.3


@contextlib.contextmanager
def in_background(work: Callable[[], Any]) -> Iterator[list[BaseException]]:
    """Does something in a thread meanwhile, and waits for its end."""
    errors: list[BaseException] = []

    def kept() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=kept)
    thread.start()
    yield errors
    thread.join(60)
    assert not thread.is_alive()
    assert errors == []


# ---- a rate limiter --------------------------------------------------------------------------------------------------


def ratio(least: int, buffer: float) -> rs.SampleToInsertRatio:
    return rs.SampleToInsertRatio(samples_per_insert=1, min_size_to_sample=least, error_buffer=buffer)


def test_adds_go_on_where_one_shard_has_priorities_of_zero_only(cluster):
    cluster.create_table(rs.Table("t", 4000, K, rate_limiter=ratio(20, 20)))
    ids = cluster.add("t", keys(0, 20), timeout=0)
    cluster.update_priorities("t", ids[ids >> np.uint64(56) == 0], np.zeros(10))

    sampled = threading.Event()

    def add() -> None:  # until all is sampled: the last samples may wait for an add to the shard that they need
        for key in itertools.count():
            if sampled.is_set():
                return
            with contextlib.suppress(rs.Timeout):
                cluster.add("t", keys(key, key + 1), priorities=np.full(1, float(key % 2)), timeout=0.1)

    with in_background(add):
        try:
            for _ in range(50):
                assert len(cluster.sample("t", 4, timeout=50)) == 4
        finally:
            sampled.set()
    assert cluster.info("t")["added"] >= 180


def test_a_lone_writer_gets_on_whose_shard_cannot_hold_the_minimum_of_the_whole(cluster):
    signature = {"frame": rs.Column("uint8", (4,), step_only=True), "obs": rs.Window("frame", length=2, offset=0)}
    cluster.create_table(rs.Table("w", 4000, signature, sampler=rs.Uniform(), rate_limiter=ratio(200, 40)))

    def write() -> None:
        with cluster.writer("w", timeout=50) as writer:
            for step in range(300):
                writer.append({"frame": np.full(4, step % 256, np.uint8)})
                writer.create_item(1.0)

    with in_background(write):
        for _ in range(25):
            assert len(cluster.sample("w", 8, timeout=50)) == 8


def test_adds_to_one_shard_alone_go_on_where_others_have_items_too(cluster, shards):
    cluster.create_table(rs.Table("t", 4000, K, sampler=rs.Uniform(), rate_limiter=ratio(40, 40)))
    for shard in shards:
        for low in (0, 15):
            shard.add("t", keys(low, low + 15), timeout=0)
    used = given_up = 0

    def add() -> None:
        for key in range(200):
            shards[0].add("t", keys(key, key + 1), timeout=50)

    with in_background(add) as errors:
        while cluster.info("t")["added"] < 260 and not errors:
            try:
                used += len(cluster.sample("t", 4, timeout=0.5))
            except rs.Timeout:
                given_up += 4  # of which shards may have drawn all
    info = cluster.info("t")
    assert info["sampled"] - info["unused"] >= 260 - 80
    assert used + given_up >= 260 - 80
    assert used <= info["added"] == 260
    assert used <= info["sampled"] - info["unused"] + 4


def test_the_minimum_of_the_whole_is_kept_where_nothing_is_held_back(cluster, shards):
    cluster.create_table(rs.Table("t", 4000, K, rate_limiter=ratio(200, 400)))
    shards[0].add("t", keys(0, 150))
    with pytest.raises(rs.Timeout, match="sampling waits for min_size_to_sample = 200"):
        cluster.sample("t", 8, timeout=0.05)


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_an_add_that_one_shard_refuses_says_what_became_of_the_rest(cluster, shards):
    cluster.create_table(rs.Table("t", 200, K))
    cluster.add("t", keys(0, 200))
    shards[1].close_table("t", "no more")
    with pytest.raises(
        rs.TableClosed,
        match=r"no more.*the 50 items of the batch that other shards had stored were removed again; what full shards "
        "had evicted for them is gone",
    ):
        cluster.add("t", keys(0, 100))
    assert cluster.info("t")["size"] == 150


def test_a_table_that_one_shard_refuses_is_made_on_none(cluster, shards):
    shards[1].create_table(rs.Table("t", 7, K))
    with pytest.raises(rs.SchemaError, match="shard 1 refused it, the others are as they were before"):
        cluster.create_table(rs.Table("t", 100, K))
    assert shards[0].tables() == []
    assert shards[1].table("t").capacity == 7
    shards[1].drop_table("t")
    cluster.create_table(rs.Table("t", 100, K))
    ids = cluster.add("t", keys(0, 80))
    with pytest.raises(rs.SchemaError):
        cluster.create_table(rs.Table("t", 200, K))
    assert len(cluster.get("t", ids)) == 80


# ---- a shard that stops ----------------------------------------------------------------------------------------------


@pytest.fixture
def stopping() -> Iterator[tuple[str, Callable[[], None]]]:
    """The URL of two shards with 40 items each of "t" and none of "limited", and what stops the second shard."""
    with contextlib.ExitStack() as stack:
        servers = start(stack, 2)
        with rs.Client(url_of(*servers)) as client:
            client.create_table(rs.Table("t", 4000, K))
            client.create_table(rs.Table("limited", 4000, K, rate_limiter=rs.Queue(400)))
            client.add("t", keys(0, 80))
        stack.callback(os.kill, servers[1].pid, signal.SIGCONT)
        yield url_of(*servers), lambda: os.kill(servers[1].pid, signal.SIGSTOP)


@pytest.mark.parametrize("missing", ["error", "leave_out"])
@pytest.mark.parametrize("name", ["t", "limited"])
def test_an_add_to_a_stopped_shard_ends(stopping, missing, name):
    url, stop = stopping
    with rs.Client(url, missing=missing, missing_after=MISSING_AFTER_S) as client:
        client.add(name, keys(0, 70))
        stop()
        began = time.monotonic()
        with pytest.raises(rs.ConnectionLost):
            client.add(name, keys(0, 70))
        assert time.monotonic() - began < 100 * MISSING_AFTER_S  # it ends, on a loaded machine too
        if missing == "leave_out":
            ids = client.add(name, keys(0, 70), timeout=50)
            assert set((ids >> np.uint64(56)).tolist()) == {0}


@pytest.mark.parametrize("missing", ["error", "leave_out"])
def test_an_add_that_a_limiter_holds_back_ends_when_its_shard_stops(stopping, missing):
    url, stop = stopping
    with rs.Client(url, missing=missing, missing_after=MISSING_AFTER_S) as client:
        client.add("limited", keys(0, 400))
        errors: list[BaseException] = []

        def add() -> None:
            try:
                client.add("limited", keys(0, 10))
            except rs.ReplayError as error:
                errors.append(error)

        thread = threading.Thread(target=add)
        thread.start()
        time.sleep(2 * MISSING_AFTER_S)
        stop()
        thread.join(100)
        assert [type(error) for error in errors] == [rs.ConnectionLost]


@pytest.mark.parametrize("missing", ["error", "leave_out"])
def test_a_client_that_begins_while_a_shard_is_stopped_says_why_it_cannot(stopping, missing):
    url, stop = stopping
    stop()
    with (
        rs.Client(url, missing=missing, missing_after=MISSING_AFTER_S) as client,
        pytest.raises(rs.ConnectionLost, match="all servers of the URL must answer when a client of them begins"),
    ):
        client.sample("t", 4)


def test_a_client_that_begins_while_a_shard_is_stopped_finds_the_others_by_their_topology():
    table = rs.Table("t", 200, K)
    with rs.Cluster([table], shards=2) as shards:
        with rs.Client(shards.url) as client:
            client.add("t", keys(0, 100))
        stopped = shards.servers[1].pid
        os.kill(stopped, signal.SIGSTOP)
        try:
            with rs.Client(shards.url, missing="leave_out", missing_after=MISSING_AFTER_S) as late:
                batch = late.sample("t", 8)
                assert batch.missing == (1,)
                assert set((batch.ids >> np.uint64(56)).tolist()) == {0}
            with (
                rs.Client(shards.url, missing="error", missing_after=MISSING_AFTER_S) as strict,
                pytest.raises(rs.ConnectionLost),
            ):
                strict.sample("t", 8)
        finally:
            os.kill(stopped, signal.SIGCONT)


def test_awaiting_items_ends_while_a_shard_is_stopped(stopping):
    url, stop = stopping
    with (
        rs.Client(url, missing="leave_out", missing_after=MISSING_AFTER_S) as left_out,
        rs.Client(url, missing="error", missing_after=MISSING_AFTER_S) as strict,
    ):
        for client in (left_out, strict):
            assert client.await_items("t", since=0) == (80, 80)
        stop()
        with pytest.raises(rs.ConnectionLost):
            strict.await_items("t", size=100)
        with pytest.raises(rs.Timeout, match="40 items, 100 are wanted"):
            left_out.await_items("t", size=100, timeout=2 * MISSING_AFTER_S)


def test_awaiting_items_of_a_closed_table_ends(cluster):
    cluster.create_table(rs.Table("t", 200, K))
    cluster.close_table("t", "no more")
    with pytest.raises(rs.TableClosed, match="no more"):
        cluster.await_items("t", size=1)
