"""Many samples that are submitted at once: all are checked first, and lost leases do not stop the others."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from keyed_samples import SIGNATURE, columns_of, sample, settings_of

import replay_server as rs


@pytest.fixture
def make(make_rollouts: Callable[..., rs.Rollouts]) -> Callable[..., rs.Rollouts]:
    """Rollouts of their own for each test, two groups of two samples a batch unless told otherwise."""
    return partial(make_rollouts, signature=SIGNATURE, group_size=2, groups_per_batch=2)


def keys_on_the_server(client: rs.Client, rollouts: rs.Rollouts) -> dict[Any, Any]:
    """Each key of theirs, dumped."""
    return {key: client.redis.dump(key) for key in client.redis.keys(f"rollouts:{{{rollouts.name}}}*")}


def test_samples_of_several_groups_and_batches_are_submitted_at_once(make):
    rollouts = make()
    leases = rollouts.lease(8, 0)
    rollouts.submit_samples(leases[5:1:-1], columns_of([5, 4, 3, 2]))  # in the order of the leases
    assert rollouts.info()["samples"] == [2, 2]
    rollouts.submit_samples([leases[at] for at in (0, 1, 7, 6)], columns_of([0, 1, 7, 6]))
    assert rollouts.info() == {"policy_version": 0, "begun": 8, "leased": 0, "expired": 0, "samples": [4, 4]}
    for version in (0, 1):
        batch = rollouts.take(version, timeout=0)
        keys = list(range(4 * version, 4 * version + 4))
        assert batch.data["reward"].tolist() == keys
        assert [rows.tolist() for rows in batch.data["tokens"]] == [[key] * 3 for key in keys]


def test_a_learner_that_waits_goes_on_when_the_last_samples_come_at_once(make, client):
    rollouts = make()
    other = rs.Rollouts(client, rollouts.name, **settings_of(rollouts))
    got: list[list[int]] = []
    learner = threading.Thread(target=lambda: got.append(other.take(0, timeout=60).groups.tolist()), daemon=True)
    learner.start()
    rollouts.submit_samples(rollouts.lease(4, 0), columns_of([0, 1, 2, 3]))
    learner.join(60)
    assert got == [[0, 0, 1, 1]]


def test_no_samples_may_be_submitted_as_when_all_leases_were_lost(make):
    rollouts = make()
    before = rollouts.info()
    rollouts.submit_samples([], {"tokens": [], "reward": []})
    assert rollouts.info() == before
    with pytest.raises(rs.SchemaError, match="expected the columns of 0 samples, got 1"):
        rollouts.submit_samples([], columns_of([1]))


def test_of_samples_that_are_submitted_again_the_first_ones_count(make):
    rollouts = make(max_staleness=0)
    leases = rollouts.lease(4, 0)
    rollouts.submit(leases[1], sample(9))
    rollouts.submit_samples(leases[:3], columns_of([0, 1, 2]))
    rollouts.submit_samples(leases, columns_of([5, 6, 7, 3]))
    assert rollouts.take(0, timeout=0).data["reward"].tolist() == [0, 9, 2, 3]
    with pytest.raises(rs.Timeout):
        rollouts.take(1, timeout=0)
    with pytest.raises(rs.LeaseExpired, match=r"4 of 4 leases .* their batches have been trained on") as lost:
        rollouts.submit_samples(leases, columns_of([0, 1, 2, 3]))
    assert lost.value.lost == leases


def test_leases_that_were_lost_are_told_and_the_other_samples_stored(make):
    rollouts = make(max_staleness=0)
    leases = rollouts.lease(4, 0)
    rollouts.renew([leases[1], leases[3]], 0.0)
    (again,) = rollouts.lease(1, 0)
    assert again.place == 1  # and the last one is expired, and nobody else's
    rollouts.give_back([leases[2]])
    with pytest.raises(rs.LeaseExpired, match=r"2 of 4 leases .* sample 1 of group 0; the others are stored") as lost:
        rollouts.submit_samples(leases, columns_of([0, 1, 2, 3]))
    assert lost.value.lost == leases[1:3]
    assert lost.value.code == "LEASEEXPIRED"
    assert pickle.loads(pickle.dumps(lost.value)).lost == leases[1:3]  # noqa: S301
    assert rollouts.info() == {"policy_version": 0, "begun": 4, "leased": 1, "expired": 1, "samples": [2]}
    (free,) = rollouts.lease(4, 0)
    with pytest.raises(rs.LeaseExpired) as lost:
        rollouts.submit_samples([leases[1], again], columns_of([66, 11]))  # both of one place
    assert lost.value.lost == [leases[1]]
    rollouts.submit_samples([free], columns_of([22]))
    assert rollouts.take(0, timeout=0).data["reward"].tolist() == [0, 11, 22, 3]
    with pytest.raises(rs.Timeout):
        rollouts.take(1, timeout=0)
    with pytest.raises(rs.LeaseExpired) as alone:
        rollouts.submit(free, sample(1))
    assert alone.value.lost == [free]


@pytest.mark.parametrize(
    ("count", "columns", "told"),
    [
        (3, {"tokens": [[1], [2]], "reward": [1.0, 2.0]}, "expected the columns of 3 samples, got 2"),
        (2, {"tokens": [[1], [2], [3]], "reward": [1.0, 2.0]}, "'reward' has 2 items where .* have 3"),
        (2, {"tokens": [[1], np.zeros(101, np.int32)], "reward": [1.0, 2.0]}, "at most 100 rows .* at index 1"),
        (2, {"tokens": [[1], [2]]}, "missing: reward"),
        (2, {"tokens": [[1], [2]], "reward": [1.0, 2.0], "more": [1, 2]}, "unknown: more"),
        (2, {"tokens": [[1], [1.5]], "reward": [1.0, 2.0]}, "item 1 of a ragged column"),
        (2, {"reward": [1.0, 2.0]}, "sample 0 of group 0 .* no segment has this column; missing: tokens"),
        (2, [sample(0), sample(1)], "expected a dict of columns .* got list"),
    ],
)
def test_when_one_sample_does_not_fit_none_is_stored(make, client, count: int, columns: Any, told: str):
    rollouts = make()
    leases = rollouts.lease(count, 0)
    before = keys_on_the_server(client, rollouts)
    with pytest.raises(rs.SchemaError, match=told):
        rollouts.submit_samples(leases, columns)
    assert keys_on_the_server(client, rollouts) == before
    assert rollouts.renew(leases) == leases


def test_a_lease_that_is_named_twice_and_what_is_none_are_refused_and_nothing_is_stored(make, client):
    rollouts = make()
    first, second = rollouts.lease(2, 0)
    before = keys_on_the_server(client, rollouts)
    copied = pickle.loads(pickle.dumps(first))  # noqa: S301
    with pytest.raises(rs.SchemaError, match="each lease once, got that of sample 0 of group 0 twice; nothing was"):
        rollouts.submit_samples([first, second, copied], columns_of([0, 1, 2]))
    with pytest.raises(TypeError, match=r"expected a Lease, .* got int"):
        rollouts.submit_samples([first, 1], columns_of([0, 1]))  # type: ignore[list-item]
    assert keys_on_the_server(client, rollouts) == before
    rollouts.submit_samples([first, second], columns_of([0, 1]))


def test_a_call_takes_as_many_samples_as_are_leased_at_once_and_32_mib_of_them(make):
    column = rs.Column("uint8", (None,), max_length=64 << 20)
    rollouts = make(signature={"image": column}, group_size=257, groups_per_batch=1, max_staleness=0)
    leases = rollouts.lease(256, 0)
    leases += rollouts.lease(256, 0)
    assert len(leases) == 257
    with pytest.raises(rs.LimitExceeded, match="at most 256 leases in a call, got 257; nothing was stored"):
        rollouts.submit_samples(leases, {"image": [[1]] * 257})
    part = (32 << 20) // 256
    with pytest.raises(rs.LimitExceeded, match="expected samples of at most 33554432 bytes, got 33556224"):
        rollouts.submit_samples(leases[1:], {"image": np.zeros((256, part + 1), np.uint8)})
    assert rollouts.info()["samples"] == [0]
    images = np.zeros((256, part - 6), np.uint8)
    images[:, -1] = np.arange(256)
    rollouts.submit_samples(leases[1:], {"image": images})
    rollouts.submit_samples(leases[:1], {"image": [[7]]})
    taken = rollouts.take(0, timeout=0).data["image"]
    assert [int(rows[-1]) for rows in taken] == [7, *range(256)]
