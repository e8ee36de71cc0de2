"""Rollouts that grow: segments appended until a sample is submitted, and continued by the next holder of its lease."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replay_server as rs
from replay_server import aio

SIGNATURE = {
    "text": {"tokens": rs.Column("int32", (None,), max_length=20), "pairs": rs.Column("float32", (None, 2))},
    "reward": rs.Column("float32"),
}


def rows(*tokens: int) -> dict[str, Any]:
    """Tokens, and pairs that follow from them."""
    return {"text": {"tokens": list(tokens), "pairs": [[token, -token] for token in tokens]}} if tokens else {}


@pytest.fixture
def make(make_rollouts: Callable[..., rs.Rollouts]) -> Callable[..., rs.Rollouts]:
    """Rollouts of their own for each test, two samples a batch unless told otherwise."""
    return partial(make_rollouts, signature=SIGNATURE, group_size=2, groups_per_batch=1)


def tokens_of(batch: rs.RolloutBatch) -> list[list[int]]:
    """The tokens of each sample, with which its pairs agree."""
    tokens = [each.tolist() for each in batch.data["text"]["tokens"]]
    pairs = [each.tolist() for each in batch.data["text"]["pairs"]]
    assert pairs == [[[token, -token] for token in some] for some in tokens]
    return tokens


# ---- growing ---------------------------------------------------------------------------------------------------------


def test_segments_come_one_after_another_and_what_is_submitted_behind_them(make):
    rollouts = make(group_size=4, max_staleness=0)
    closed, open_end, whole, empty = rollouts.lease(4, 0)
    for lease in (closed, open_end):
        assert lease.segments == 0
        rollouts.append(lease, 0, rows(1, 2), 0)
        rollouts.append(lease, 1, rows(3), 0)
    rollouts.submit(closed, {"reward": 1}, segments=2)
    rollouts.submit(open_end, {**rows(4), "reward": 2}, segments=2)
    rollouts.submit(whole, {**rows(5, 6), "reward": 3})
    rollouts.append(empty, 0, {"text": {"tokens": [], "pairs": np.zeros((0, 2), np.float32)}}, 0)
    with pytest.raises(rs.Timeout, match="3 of the 4 samples"):
        rollouts.take(0, timeout=0)  # the last one grows, and is not closed
    rollouts.submit(empty, {"reward": 4}, segments=1)
    batch = rollouts.take(0, timeout=0)
    assert tokens_of(batch) == [[1, 2, 3], [1, 2, 3, 4], [5, 6], []]
    assert batch.data["reward"].tolist() == [1, 2, 3, 4]


def test_columns_may_grow_in_turn(make):
    rollouts = make(group_size=1)
    (lease,) = rollouts.lease(1, 0)
    rollouts.append(lease, 0, {"text": {"tokens": [1]}}, 0)
    rollouts.append(lease, 1, {"text": {"pairs": [[1, -1], [2, -2]]}}, 0)
    rollouts.submit(lease, {"text": {"tokens": [2]}, "reward": 0}, segments=2)
    assert tokens_of(rollouts.take(0)) == [[1, 2]]


def test_the_smallest_and_the_largest_version_of_a_sample_are_known(make):
    rollouts = make(group_size=3, max_staleness=1)
    for lease in rollouts.lease(3, 0):
        rollouts.submit(lease, {**rows(0), "reward": 0})
    later = rollouts.lease(3, 0)
    rollouts.append(later[0], 0, rows(1), 0)
    rollouts.take(0)
    with pytest.raises(rs.Timeout):
        rollouts.take(1, timeout=0)
    rollouts.append(later[0], 1, rows(2), 2)
    rollouts.append(later[0], 2, rows(3), 1)
    rollouts.append(later[1], 0, rows(1), 1)
    rollouts.append(later[1], 1, rows(2), 0)
    rollouts.append(later[2], 0, rows(2), 1)
    rollouts.submit(later[0], {"reward": 0}, segments=3)
    rollouts.submit(later[1], {"reward": 0}, segments=2)
    rollouts.submit(later[2], {**rows(3), "reward": 0}, segments=1)  # rows of the version that leased it
    batch = rollouts.take(1)
    assert batch.policy_versions.tolist() == [0, 0, 0]
    assert batch.newest_versions.tolist() == [2, 1, 1]
    assert batch.staleness == 1
    assert batch.policy_versions.dtype == batch.newest_versions.dtype == np.int64


def test_a_task_reads_whole_samples_that_grew(make):
    tasks = {"reward": rs.Task(["text"], ["reward"])}
    rollouts = make(tasks=tasks)
    first, second = rollouts.lease(2, 0)
    rollouts.append(first, 0, rows(1, 2), 0)
    with pytest.raises(rs.Timeout):
        rollouts.take_samples("reward", 2, timeout=0)
    rollouts.submit(first, rows(3), segments=1)
    rollouts.submit(second, rows(9))
    samples = rollouts.take_samples("reward", 2)
    assert [each.tolist() for each in samples.data["text"]["tokens"]] == [[1, 2, 3], [9]]
    rollouts.put_columns(samples, {"reward": samples.data["text"]["tokens"].lengths.astype(np.float32)})
    batch = rollouts.take(0)
    assert tokens_of(batch) == [[1, 2, 3], [9]]
    assert batch.data["reward"].tolist() == [3, 1]


def test_many_samples_that_grew_are_closed_at_once(make):
    rollouts = make(group_size=4, max_staleness=1)
    leases = rollouts.lease(4, 0)
    for lease in leases:
        rollouts.append(lease, 0, rows(lease.index), 0)
    rollouts.append(leases[2], 1, rows(7, 8), 1)
    rollouts.submit_samples(leases[:2], {"reward": [0, 1]}, segments=[1, 1])
    tokens, pairs = [[9], []], [np.array([[9, -9]], np.float32), np.zeros((0, 2), np.float32)]
    given = {"text": {"tokens": tokens, "pairs": pairs}, "reward": [2, 3]}
    rollouts.submit_samples(leases[2:], given, segments=np.array([2, 1]))
    batch = rollouts.take(0, timeout=0)
    assert tokens_of(batch) == [[0], [1], [2, 7, 8, 9], [3]]
    assert batch.data["reward"].tolist() == [0, 1, 2, 3]
    assert (batch.policy_versions.tolist(), batch.newest_versions.tolist()) == ([0] * 4, [0, 0, 1, 0])


@pytest.mark.parametrize(
    ("second", "segments", "told"),
    [
        ({"reward": [0, 1]}, [1, 1], "sample 1 of group 0 .* expected segments=2, as many as .*, got 1: .* nothing"),
        ({"reward": [0, 1]}, [1], r"expected the number of segments of each of 2 samples, got \[1\]"),
        ({"reward": [0, 1]}, 2, "expected the number of segments of each of 2 samples, got 2"),
        ({"reward": [0, 1]}, [1, -2], "segments must be a whole number of at least 0, got -2"),
        (
            {"text": {"tokens": [[1], [1] * 18], "pairs": np.zeros((2, 0, 2), np.float32)}, "reward": [0, 1]},
            [1, 2],
            r"sample 1 of group 0 .* 'text/tokens' holds items of at most 20 rows .*, got 21 with",
        ),
    ],
)
def test_when_the_segments_of_one_sample_do_not_fit_none_is_closed(
    make, second: dict[str, Any], segments: Any, told: str
):
    rollouts = make()
    leases = rollouts.lease(2, 0)
    rollouts.append(leases[0], 0, rows(1), 0)
    rollouts.append(leases[1], 0, rows(1, 2), 0)
    rollouts.append(leases[1], 1, rows(3), 0)
    with pytest.raises(rs.SchemaError, match=told):
        rollouts.submit_samples(leases, second, segments)
    assert rollouts.info()["samples"] == [0, 0]
    assert rollouts.renew(leases) == leases
    rollouts.submit_samples(leases, {"reward": [0, 1]}, [1, 2])
    assert tokens_of(rollouts.take(0, timeout=0)) == [[1], [1, 2, 3]]


def test_samples_that_grew_are_read_many_in_a_round_trip(make, client):
    """Of two batches, so that a task reads of both; some samples have no segments, and some more than others."""
    signature = {"tokens": rs.Column("int32", (None,)), "reward": rs.Column("float32")}
    rollouts = make(signature=signature, group_size=20, tasks={"reward": rs.Task(["tokens"], ["reward"])})
    counts = [0, 50, 1, 2, *[30] * 16] * 2
    leases = rollouts.lease(40, 0)
    for lease, count in zip(leases, counts, strict=True):
        for number in range(count):
            rollouts.append(lease, number, {"tokens": [lease.place] * (number % 3)}, 0)
    rollouts.submit_samples(leases, {"tokens": [[lease.place] for lease in leases]}, counts)
    expected = [[place] * (1 + sum(number % 3 for number in range(count))) for place, count in enumerate(counts)]

    def reads(call: Callable[[], Any]) -> tuple[Any, int]:
        client.redis.config_resetstat()
        return call(), client.redis.info("commandstats")["cmdstat_hmget"]["calls"] - 1  # one is of the script

    samples, commands = reads(lambda: rollouts.take_samples("reward", 40))
    assert [rows.tolist() for rows in samples.data["tokens"]] == expected
    assert commands == 2 * (2 + 3), "16 samples a command, and 256 segments"
    rollouts.put_columns(samples, {"reward": np.zeros(40, np.float32)})
    batch, commands = reads(lambda: rollouts.take(0))
    assert [rows.tolist() for rows in batch.data["tokens"]] == expected[:20]
    assert commands == 2 + 2 + 3, "the results of the task are read beside the samples"
    batch, commands = reads(lambda: rollouts.take(0, columns=["reward"]))
    assert (list(batch.data), commands) == (["reward"], 2 + 2), "no segments are read for a column of the task"


# ---- the next holder -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gives_back", [True, False])
def test_the_next_holder_gets_what_is_there_and_continues_it(make, gives_back: bool):
    rollouts = make(max_staleness=1)
    first, _ = rollouts.lease(2, 0)
    rollouts.append(first, 0, rows(1, 2), 0)
    rollouts.append(first, 1, {"text": {"tokens": [3]}}, 1)
    rollouts.give_back([first]) if gives_back else rollouts.renew([first], 0.0)
    (again,) = rollouts.lease(1, 1)
    assert (again.place, again.segments) == (first.place, 2)
    segments = rollouts.segments(again)
    assert [segment.policy_version for segment in segments] == [0, 1]
    assert segments[0].data["text"]["tokens"].tolist() == [1, 2]
    assert segments[0].data["text"]["pairs"].tolist() == [[1, -1], [2, -2]]
    assert segments[1].data == {"text": {"tokens": np.array([3], np.int32)}}
    with pytest.raises(rs.LeaseExpired, match="drop this sample"):
        rollouts.append(first, 2, rows(7), 1)
    rollouts.append(again, 2, {"text": {"pairs": [[3, -3]]}}, 1)
    rollouts.submit(again, {**rows(4), "reward": 0}, segments=3)
    (other,) = [lease for lease in rollouts.lease(9, 1) if lease.place == 2]
    assert other.segments == 0
    rollouts.submit(_, {**rows(9), "reward": 0})
    batch = rollouts.take(0)
    assert tokens_of(batch) == [[1, 2, 3, 4], [9]]
    assert (batch.policy_versions.tolist(), batch.newest_versions.tolist()) == ([0, 0], [1, 0])


def test_the_next_holder_may_drop_what_is_there(make):
    rollouts = make(group_size=1)
    (first,) = rollouts.lease(1, 0)
    rollouts.append(first, 0, rows(1, 2), 0)
    rollouts.append(first, 1, rows(3), 0)
    rollouts.renew([first], 0.0)
    (again,) = rollouts.lease(1, 1, drop_segments=True)
    assert (again.place, again.segments) == (first.place, 0)
    assert rollouts.segments(again) == []
    with pytest.raises(rs.SchemaError, match="no segment has this column; missing: text/pairs"):
        rollouts.submit(again, {"reward": 0})
    rollouts.append(again, 0, rows(5), 1)
    rollouts.submit(again, {"reward": 0}, segments=1)
    batch = rollouts.take(0)
    assert tokens_of(batch) == [[5]]
    assert batch.policy_versions.tolist() == [1]


def test_many_segments_are_dropped_by_several_calls_and_each_lease_is_whole(make):
    signature = {"tokens": rs.Column("int32", (None,), max_length=1000)}
    rollouts = make(signature=signature, group_size=4, max_staleness=0)
    leases = rollouts.lease(4, 0)
    for lease, count in zip(leases, (0, 200, 100, 3), strict=True):
        for number in range(count):
            rollouts.append(lease, number, {"tokens": [number]}, 0)
    rollouts.renew(leases, 0.0)
    first = rollouts.lease(9, 0, drop_segments=True)
    assert [(lease.place, lease.segments) for lease in first] == [(0, 0), (1, 0)]
    second = rollouts.lease(9, 0)
    assert [(lease.place, lease.segments) for lease in second] == [(2, 100), (3, 3)]
    for lease in [*first, *second]:
        rollouts.submit(lease, {"tokens": [lease.place]}, segments=lease.segments)
    lengths = rollouts.take(0).data["tokens"].lengths
    assert lengths.tolist() == [1, 1, 101, 4]


def test_a_worker_that_knows_of_no_segments_does_not_join_its_sample_to_them(make):
    rollouts = make(group_size=1)
    (first,) = rollouts.lease(1, 0)
    rollouts.append(first, 0, rows(1, 2), 0)
    rollouts.give_back([first])
    (again,) = rollouts.lease(1, 0)
    with pytest.raises(rs.SchemaError, match=r"expected segments=1, .* got 0: .* nothing was stored"):
        rollouts.submit(again, {**rows(7, 8), "reward": 0})
    rollouts.give_back([again])
    (again,) = rollouts.lease(1, 0, drop_segments=True)
    rollouts.submit(again, {**rows(7, 8), "reward": 0})
    assert tokens_of(rollouts.take(0)) == [[7, 8]]


def test_a_sample_whose_segments_were_lost_is_not_stored_until_they_are_there_again(make, client):
    """As a kill with `everysec`, or a replica that takes over, may lose the last ones."""
    rollouts = make(group_size=1)
    (lease,) = rollouts.lease(1, 0)
    key = f"rollouts:{{{rollouts.name}}}:segments:0"
    rollouts.append(lease, 0, rows(1), 0)
    before = client.redis.hgetall(key)
    rollouts.append(lease, 1, rows(2), 0)
    client.redis.delete(key)
    client.redis.hset(key, mapping=before)
    state = rollouts.info()
    with pytest.raises(rs.SchemaError, match=r"expected segments=1, .* got 2: append those that are lost,"):
        rollouts.submit(lease, {**rows(3), "reward": 0}, segments=2)
    assert (rollouts.info(), client.redis.hgetall(key)) == (state, before)
    rollouts.append(lease, 1, rows(2), 0)
    rollouts.submit(lease, {**rows(3), "reward": 0}, segments=2)
    assert tokens_of(rollouts.take(0)) == [[1, 2, 3]]


def test_a_take_whose_segments_were_deleted_ends_with_its_timeout(make, client):
    rollouts = make(group_size=1)
    (lease,) = rollouts.lease(1, 0)
    rollouts.append(lease, 0, rows(1), 0)
    rollouts.submit(lease, {"reward": 0}, segments=1)
    client.redis.delete(f"rollouts:{{{rollouts.name}}}:segments:0")
    for timeout in (0, 0.1):
        with pytest.raises(rs.Timeout, match="batch 0 was complete, but data of it is gone"):
            rollouts.take(0, timeout=timeout)


def test_segments_that_are_gone_are_told(make):
    rollouts = make(group_size=1)
    (first,) = rollouts.lease(1, 0)
    rollouts.append(first, 0, rows(1), 0)
    rollouts.give_back([first])
    (again,) = rollouts.lease(1, 0)
    rollouts.give_back([again])
    rollouts.lease(1, 0, drop_segments=True)
    with pytest.raises(rs.LeaseExpired, match=r"segments of sample 0 of group 0 .* are gone"):
        rollouts.segments(again)


# ---- once ------------------------------------------------------------------------------------------------------------


def test_the_first_segment_of_a_number_counts(make):
    rollouts = make(group_size=1)
    (lease,) = rollouts.lease(1, 0)
    rollouts.append(lease, 0, rows(1), 0)
    rollouts.append(lease, 0, rows(2, 2), 1)
    rollouts.append(lease, 1, rows(3), 0)
    rollouts.append(lease, 0, rows(4), 0)
    with pytest.raises(rs.SchemaError, match="segment 2 is next, got number 3; nothing was stored"):
        rollouts.append(lease, 3, rows(5), 0)
    rollouts.submit(lease, {"reward": 0}, segments=2)
    rollouts.submit(lease, {**rows(6), "reward": 1}, segments=2)
    rollouts.submit(lease, {**rows(6), "reward": 1})
    with pytest.raises(rs.LeaseExpired):
        rollouts.append(lease, 2, rows(5), 0)
    batch = rollouts.take(0)
    assert tokens_of(batch) == [[1, 3]]
    assert batch.newest_versions.tolist() == [0]


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_versions_that_are_too_old_or_of_another_run_are_refused(make):
    rollouts = make(group_size=1, max_staleness=1)
    first, second = rollouts.lease(2, 0)
    rollouts.submit(first, {**rows(0), "reward": 0})
    rollouts.take(0)
    with pytest.raises(rs.Timeout):
        rollouts.take(1, timeout=0)
    (third,) = rollouts.lease(1, 1)
    assert (second.batch, third.batch) == (1, 2)
    with pytest.raises(rs.StaleVersion, match="version 0 is too old for batch 2: expected at least 1; nothing"):
        rollouts.append(third, 0, rows(1), 0)
    with pytest.raises(rs.ServerError, match="at policy version 1, so a worker may have 2 at most, got 3"):
        rollouts.append(third, 0, rows(1), 3)
    rollouts.append(third, 0, rows(1), 2)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({}, r"some of the columns that grow, text/pairs, text/tokens; got \{\}"),
        ({"reward": 1.0}, "columns that grow, text/pairs, text/tokens; got reward"),
        ({"text": {"token": [1]}}, "got text/token"),
        ([1], "got list"),
        ({"text": {"tokens": [1.5]}}, "expects int32, got a list of float64"),
        ({"text": {"tokens": [1] * 21}}, "at most 20 rows"),
        (
            {"text": {"tokens": [1] * 18}},
            r"text/tokens' holds items of at most 20 rows \(its max_length\), got 21 with",
        ),
    ],
)
def test_segments_that_do_not_fit_are_refused_and_nothing_is_changed(make, wrong: Any, told: str):
    rollouts = make(group_size=1)
    (lease,) = rollouts.lease(1, 0)
    rollouts.append(lease, 0, rows(1, 2, 3), 0)
    with pytest.raises(rs.SchemaError, match=told):
        rollouts.append(lease, 1, wrong, 0)
    with pytest.raises(rs.SchemaError, match="at most 20 rows"):
        rollouts.submit(lease, {**rows(*range(18)), "reward": 0}, segments=1)
    with pytest.raises(rs.SchemaError, match="missing: reward"):
        rollouts.submit(lease, rows(4), segments=1)
    rollouts.append(lease, 1, rows(4), 0)
    rollouts.submit(lease, {"reward": 0}, segments=2)
    assert tokens_of(rollouts.take(0)) == [[1, 2, 3, 4]]


def test_numbers_before_what_the_lease_says_and_leases_of_tasks_are_refused(make):
    rollouts = make(tasks={"log": rs.Task(["reward"])})
    first, _ = rollouts.lease(2, 0)
    rollouts.append(first, 0, rows(1), 0)
    rollouts.give_back([first])
    (again,) = rollouts.lease(1, 0)
    with pytest.raises(rs.SchemaError, match="number must be a whole number of at least 1, got 0"):
        rollouts.append(again, 0, rows(1), 0)
    with pytest.raises(rs.SchemaError, match="segments must be a whole number of at least 0, got -1"):
        rollouts.submit(again, {"reward": 0}, segments=-1)
    rollouts.submit(again, {"reward": 0}, segments=1)
    (lease,) = rollouts.take_samples("log", 1).leases
    for call in (lambda: rollouts.append(lease, 0, rows(1), 0), lambda: rollouts.segments(lease)):
        with pytest.raises(TypeError, match="got one of task 'log'"):
            call()


def test_a_sample_with_its_segments_has_a_limit(make):
    signature = {"image": rs.Column("uint8", (None,), max_length=64 << 20), "tokens": rs.Column("int32", (None,))}
    rollouts = make(signature=signature, group_size=1)
    first, second = rollouts.lease(2, 0)
    half = {"image": np.zeros(16 << 20, np.uint8)}
    rollouts.append(first, 0, half, 0)
    with pytest.raises(rs.LimitExceeded, match="at most 33554432 bytes with its segments, got 335"):
        rollouts.append(first, 1, half, 0)
    with pytest.raises(rs.LimitExceeded, match="at most 33554432 bytes with its segments, got 335"):
        rollouts.submit(first, {**half, "tokens": []}, segments=1)
    with pytest.raises(rs.LimitExceeded, match=r"sample 0 of group 0 .* bytes with its segments, got 335"):
        rollouts.submit_samples([second, first], {"image": [[], half["image"]], "tokens": [[], []]}, segments=[0, 1])
    for number in range(256):
        rollouts.append(second, number, {"tokens": [number]}, 0)
    with pytest.raises(rs.LimitExceeded, match="expected at most 256 segments of a sample"):
        rollouts.append(second, 256, {"tokens": [256]}, 0)
    rollouts.submit(first, {"tokens": []}, segments=1)
    assert rollouts.take(0).data["image"].lengths.tolist() == [16 << 20]


# ---- asyncio, and a server that is killed ----------------------------------------------------------------------------


def test_the_same_with_asyncio(make, server):
    rollouts = make(group_size=1)

    async def main() -> rs.RolloutBatch:
        async with aio.Client(server.url) as client:
            shared = aio.AsyncRollouts(client, rollouts.name, SIGNATURE, group_size=1, groups_per_batch=1)
            (lease,) = await shared.lease(1, 0)
            await shared.append(lease, 0, rows(1), 0)
            await shared.give_back([lease])
            (lease,) = await shared.lease(1, 0)
            (segment,) = await shared.segments(lease)
            assert segment.policy_version == 0
            await shared.submit(lease, {**rows(2), "reward": 0}, segments=1)
            return await shared.take(0)

    assert tokens_of(aio.run(main())) == [[1, 2]]


UPDATES, LENGTH = 20, 6


def test_a_sample_is_continued_where_it_was_through_kills_of_the_server_and_deaths_of_workers(
    tmp_path: Path, free_port: int, eventually
):
    """Each token is its place in the sample, so a segment that is lost, or is there twice, shows."""
    config = {"appendonly": "yes", "appendfsync": "always"}
    signature = {"tokens": rs.Column("int32", (None,)), "versions": rs.Column("int64", (None,))}
    over, failures, batches, continued = threading.Event(), [], [], []

    def serve() -> rs.Server:
        return rs.Server([], port=free_port, directory=str(tmp_path), config=config)

    def run(what: Callable[..., None], *arguments: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                with rs.Client(server.url, reconnect_timeout=60) as client:
                    settings = {"group_size": 2, "groups_per_batch": 2, "max_staleness": 2, "lease_s": 0.2}
                    what(rs.Rollouts(client, "r", signature, **settings), *arguments)
            except BaseException as error:
                failures.append(error)
                raise

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    def work(rollouts: rs.Rollouts, seed: int) -> None:
        chance = random.Random(seed)
        while not over.is_set():
            try:
                for lease in rollouts.lease(2, rollouts.info()["policy_version"], timeout=0.2):
                    grow(rollouts, lease, chance)
            except (rs.Timeout, rs.StaleVersion, rs.LeaseExpired):
                continue

    def grow(rollouts: rs.Rollouts, lease: rs.Lease, chance: random.Random) -> None:
        tokens = [token for segment in rollouts.segments(lease) for token in segment.data["tokens"].tolist()]
        assert tokens == list(range(len(tokens)))
        continued.append(len(tokens))
        number, there = lease.segments, len(tokens)
        while there < LENGTH:
            if chance.random() < 0.15:
                return  # as a worker that died
            count, version = min(chance.randint(1, 3), LENGTH - there), rollouts.info()["policy_version"]
            new = {"tokens": list(range(there, there + count)), "versions": [version] * count}
            for _ in range(chance.randint(1, 2)):
                rollouts.append(lease, number, new, version)
            number, there = number + 1, there + count
        rollouts.submit(lease, {}, segments=number)

    def learn(rollouts: rs.Rollouts) -> None:
        batches.extend(rollouts.take(version) for version in range(UPDATES))
        over.set()

    server = serve()
    try:
        threads = [run(work, seed) for seed in range(3)] + [run(learn)]
        for share in (0.25, 0.6):
            eventually(lambda share=share: len(batches) >= share * UPDATES or failures, "the learner went on")
            os.kill(server.pid, signal.SIGKILL)
            server.stop()
            server = serve()
        for thread in threads:
            thread.join(100)
            assert not thread.is_alive()
    finally:
        over.set()
        server.stop()
    assert not failures
    assert any(0 < there < LENGTH for there in continued), "no sample was continued: the test shows less than it says"
    for version, batch in enumerate(batches):
        for row in range(4):
            assert batch.data["tokens"][row].tolist() == list(range(LENGTH))
            versions = batch.data["versions"][row]
            assert (versions.min(), versions.max()) == (batch.policy_versions[row], batch.newest_versions[row])
        assert batch.staleness <= 2
        assert batch.policy_version == version
