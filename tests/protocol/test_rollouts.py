"""Rollouts: leased before they are made, in whole groups, each trained on once, and never by too old a policy."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from keyed_samples import SIGNATURE, columns_of, sample, settings_of

import replay_server as rs
from replay_server import aio


@pytest.fixture
def make(make_rollouts: Callable[..., rs.Rollouts]) -> Callable[..., rs.Rollouts]:
    """Rollouts of their own for each test, two groups of two samples a batch unless told otherwise."""
    return partial(make_rollouts, signature=SIGNATURE, group_size=2, groups_per_batch=2)


def fill(rollouts: rs.Rollouts, version: int, count: int) -> list[rs.Lease]:
    """Leases samples and submits those, each with its place as its key."""
    leases = rollouts.lease(count, version, timeout=0)
    for lease in leases:
        rollouts.submit(lease, sample(lease.place))
    return leases


# ---- groups ----------------------------------------------------------------------------------------------------------


def test_a_batch_has_its_groups_whole_and_in_order_whatever_the_order_of_submission(make):
    rollouts = make(group_size=3, groups_per_batch=2)
    leases = rollouts.lease(6, 0)
    assert [(lease.group, lease.index, lease.batch) for lease in leases] == [
        (0, 0, 0), (0, 1, 0), (0, 2, 0), (1, 0, 0), (1, 1, 0), (1, 2, 0),
    ]  # fmt: skip
    for lease in sorted(leases, key=lambda lease: (lease.index, -lease.group)):
        rollouts.submit(lease, sample(lease.place, length=lease.place))
    batch = rollouts.take(0)
    assert len(batch) == 6
    assert batch.policy_version == 0
    assert batch.groups.tolist() == [0, 0, 0, 1, 1, 1]
    assert batch.data["reward"].dtype == np.float32
    assert batch.data["reward"].reshape(-1, 3).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert [rows.tolist() for rows in batch.data["tokens"]] == [[key] * key for key in range(6)]
    assert batch.data["tokens"].padded(-1).shape == (6, 5)
    batch.data["reward"][0] = 7  # the arrays are the caller's


def test_a_batch_is_there_only_when_each_of_its_groups_is_complete(make):
    rollouts = make()
    leases = rollouts.lease(4, 0)
    for there, lease in enumerate(leases):
        with pytest.raises(rs.Timeout, match=f"{there} of the 4 samples of batch 0 are there") as waited:
            rollouts.take(0, timeout=0)
        assert waited.value.reason.startswith(str(there))
        rollouts.submit(lease, sample(1))
    assert len(rollouts.take(0, timeout=0)) == 4


def test_a_take_may_be_repeated_until_the_next_version_is_asked_for(make):
    rollouts = make()
    fill(rollouts, 0, 4)
    first, again = rollouts.take(0), rollouts.take(0)
    np.testing.assert_array_equal(first.data["reward"], again.data["reward"])
    with pytest.raises(rs.Timeout):
        rollouts.take(1, timeout=0)
    with pytest.raises(rs.StaleVersion, match="batch of policy version 0 has been trained on"):
        rollouts.take(0)


def test_no_batch_is_left_out(make):
    rollouts = make()
    fill(rollouts, 0, 8)
    for version in (1, 2):
        with pytest.raises(rs.BatchNotTaken, match=f"version 0 is next, got {version}"):
            rollouts.take(version)
    rollouts.take(0)
    with pytest.raises(rs.BatchNotTaken, match="version 1 is next, got 2"):
        rollouts.take(2)
    assert rollouts.take(1).groups.tolist() == [2, 2, 3, 3]


def test_nested_columns_of_every_kind_come_back_as_they_went(make):
    signature = {
        "text": {"tokens": rs.Column("int32", (None,)), "log_probs": rs.Column("float32", (None, 2))},
        "pair": (rs.Column("bool"), rs.Column("S4")),
        "empty": rs.Column("float64", (0, 3)),
        "image": rs.Column("uint8", (2, 2)),
        "half": rs.Column("bfloat16", (2,)),
    }
    rollouts = make(signature=signature, group_size=1)
    for lease in rollouts.lease(2, 0):
        given = {
            "text": {"tokens": [1, 2, 3][: lease.place + 1], "log_probs": np.zeros((0, 2), np.float32)},
            "pair": (lease.place == 1, b"abc"),
            "empty": np.zeros((0, 3)),
            "image": np.full((2, 2), lease.place, np.uint8),
            "half": [1.5, float(lease.place)],
        }
        rollouts.submit(lease, given)
    data = rollouts.take(0).data
    assert [rows.tolist() for rows in data["text"]["tokens"]] == [[1], [1, 2]]
    assert data["text"]["log_probs"].values.shape == (0, 2)
    assert data["pair"][0].tolist() == [False, True]
    assert data["pair"][1].tolist() == [b"abc", b"abc"]
    assert data["empty"].shape == (2, 0, 3)
    assert data["image"][1].tolist() == [[1, 1], [1, 1]]
    assert data["half"].dtype == signature["half"].numpy_dtype


def test_programs_may_name_the_columns_in_another_order(make, client):
    tokens, log_probs, text = rs.Column("int32", (None,)), rs.Column("float32", (None,)), rs.Column("S4")
    rollouts = make(signature={"tokens": tokens, "log_probs": log_probs, "text": {"b": text, "a": text}}, group_size=1)
    other = {"text": {"a": text, "b": text}, "log_probs": log_probs, "tokens": tokens}
    taker = rs.Rollouts(client, rollouts.name, **{**settings_of(rollouts), "signature": other})
    for lease in rollouts.lease(2, 0):
        given = {"tokens": [7, 8], "log_probs": [0.5, 1.5], "text": {"b": b"b", "a": b"a"}}
        rollouts.submit(lease, given)
    data = taker.take(0).data
    assert list(data) == ["text", "log_probs", "tokens"]
    assert [data[name][0].tolist() for name in ("tokens", "log_probs")] == [[7, 8], [0.5, 1.5]]
    assert [data["text"][name].tolist() for name in "ab"] == [[b"a"] * 2, [b"b"] * 2]


def test_a_sample_that_is_lost_while_its_batch_is_read_is_made_anew(make, client):
    """As a kill with `everysec`, or an eviction, may lose it between the script that takes and the reads."""
    rollouts = make()
    fill(rollouts, 0, 4)
    key = f"rollouts:{{{rollouts.name}}}:batch:0"
    real = rollouts._read
    lost = []

    def read(*arguments: Any) -> Any:
        if not lost:
            lost.append(client.redis.hmget(key, "2", "2h"))
            client.redis.hdel(key, "2", "2h")
        return real(*arguments)

    rollouts._read = read
    for told in ("batch 0 was complete, but data of it is gone", "3 of the 4 samples"):
        with pytest.raises(rs.Timeout, match=told):
            rollouts.take(0, timeout=0)
    client.redis.hset(key, mapping=dict(zip(("2", "2h"), lost[0], strict=True)))
    assert len(rollouts.take(0, timeout=0)) == 4


def test_a_take_whose_data_was_deleted_ends_with_its_timeout(make, client):
    """As an eviction may delete what the script that takes does not count."""
    rollouts = make(max_staleness=2, max_delay=1)
    fill(rollouts, 0, 4)
    client.redis.hdel(f"rollouts:{{{rollouts.name}}}:batch:0", "2")
    for timeout in (0, 0.1):
        with pytest.raises(rs.Timeout, match="batch 0 was complete, but data of it is gone"):
            rollouts.take(0, timeout=timeout)


# ---- the bound -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_leases_end_with_the_batch_that_the_policy_may_be_that_old_for(make, staleness: int):
    rollouts = make(max_staleness=staleness)
    leases = fill(rollouts, 0, 1000)
    assert [lease.batch for lease in leases] == [batch for batch in range(staleness + 1) for _ in range(4)]
    with pytest.raises(rs.Timeout, match=f"up to batch {staleness} is leased or there"):
        rollouts.lease(1, 0, timeout=0)
    with pytest.raises(rs.Timeout):
        rollouts.lease(1, 1, timeout=0)  # its weights are published, but the learner has not gone on yet
    for version in range(staleness + 1):
        assert rollouts.take(version).staleness == version
    following = staleness + 1
    with pytest.raises(rs.Timeout):
        rollouts.take(following, timeout=0)
    with pytest.raises(rs.StaleVersion, match=f"for batch {following}, which needs at least version 1;"):
        rollouts.lease(1, 0)
    assert rollouts.lease(1, 1, timeout=0)[0].batch == following


def test_a_policy_of_the_future_is_of_another_run(make):
    rollouts = make()
    with pytest.raises(rs.ServerError, match="is at policy version 0, so a worker may have 1 at most, got 2"):
        rollouts.lease(1, 2)


def test_versions_may_begin_anywhere(make):
    rollouts = make(first_version=7, max_staleness=0)
    assert [lease.group for lease in fill(rollouts, 7, 4)] == [14, 14, 15, 15]
    assert rollouts.take(7).policy_versions.tolist() == [7] * 4


def test_a_worker_that_waits_goes_on_when_the_learner_does_and_the_learner_when_a_batch_is_whole(make, client):
    rollouts = make(max_staleness=0)
    other = rs.Rollouts(client, rollouts.name, **settings_of(rollouts))
    taken: list[int] = []

    def learn() -> None:
        for version in range(4):
            taken.append(int(other.take(version).data["reward"].sum()))

    learner = threading.Thread(target=learn, daemon=True)
    learner.start()
    for version in range(4):
        for lease in rollouts.lease(4, version):
            rollouts.submit(lease, sample(version))
    learner.join(60)
    assert taken == [0, 4, 8, 12]


# ---- batches in order of completion ----------------------------------------------------------------------------------


def submit_groups(rollouts: rs.Rollouts, leases: list[rs.Lease], *groups: int) -> None:
    for group in groups:
        for lease in leases:
            if lease.group == group:
                rollouts.submit(lease, sample(lease.place))


def test_a_batch_has_the_groups_that_were_complete_first_and_none_is_late_by_more_than_max_delay(make):
    rollouts = make(max_staleness=2, max_delay=1)
    leases = rollouts.lease(100, 0)
    assert [lease.batch for lease in leases] == [0] * 4 + [1] * 4  # the delay takes its part of the staleness
    submit_groups(rollouts, leases, 3)
    with pytest.raises(rs.Timeout, match="groups complete: 1; a batch has 2"):
        rollouts.take(0, timeout=0)
    submit_groups(rollouts, leases, 1, 2)
    for _ in range(2):
        batch = rollouts.take(0, timeout=0)
        assert batch.groups.tolist() == [1, 1, 3, 3]
        assert batch.data["reward"].tolist() == [2, 3, 6, 7]
        submit_groups(rollouts, leases, 0)  # which comes too late for a batch that was taken
    rollouts.submit(leases[2], sample(2))  # a repeated call
    with pytest.raises(rs.Timeout, match="up to batch 1 is leased or there"):
        rollouts.lease(1, 0, timeout=0)
    assert rollouts.take(1, timeout=0).groups.tolist() == [0, 0, 2, 2]
    leases = rollouts.lease(100, 1)
    assert sorted({lease.group for lease in leases}) == [4, 5]
    submit_groups(rollouts, leases, 5)
    with pytest.raises(rs.StaleVersion):
        rollouts.take(0)
    with pytest.raises(rs.Timeout):
        rollouts.take(2, timeout=0)
    with pytest.raises(rs.StaleVersion, match="for batch 3, which needs at least version 2;"):
        rollouts.lease(1, 1)
    later = rollouts.lease(100, 2)
    assert sorted({lease.group for lease in later}) == [6, 7]
    submit_groups(rollouts, later, 7, 6)
    assert rollouts.take(2, timeout=0).groups.tolist() == [5, 5, 7, 7]
    with pytest.raises(rs.Timeout, match="groups complete: 1; a batch has 2; 0 of the 1 that batch 3 may not"):
        rollouts.take(3, timeout=0)
    last = rollouts.lease(100, 3)
    submit_groups(rollouts, last, 8, 9)
    with pytest.raises(rs.Timeout, match="groups complete: 3; a batch has 2; 0 of the 1 that batch 3 may not"):
        rollouts.take(3, timeout=0)  # it waits for group 4, which was leased with version 1
    submit_groups(rollouts, leases, 4)
    batch = rollouts.take(3, timeout=0)
    assert batch.groups.tolist() == [4, 4, 6, 6]
    assert batch.staleness == 2


def test_a_learner_that_waits_goes_on_when_enough_groups_are_complete(make, client):
    rollouts = make(max_staleness=2, max_delay=1)
    other = rs.Rollouts(client, rollouts.name, **settings_of(rollouts))
    got: list[list[int]] = []
    learner = threading.Thread(target=lambda: got.append(other.take(0, timeout=60).groups.tolist()), daemon=True)
    leases = rollouts.lease(8, 0)
    submit_groups(rollouts, leases, 2)
    learner.start()
    submit_groups(rollouts, leases, 1)
    learner.join(60)
    assert got == [[1, 1, 2, 2]]


# ---- leases ----------------------------------------------------------------------------------------------------------


def test_an_expired_lease_goes_to_another_worker_and_its_first_one_is_refused(make):
    rollouts = make()
    first = rollouts.lease(3, 0)
    assert rollouts.renew(first[:1], 0.0) == first[:1]
    (again,) = rollouts.lease(1, 0)
    assert (again.place, again.group, again.index) == (0, 0, 0)
    assert rollouts.lease(1, 0)[0].place == 3  # no other one was free
    before = rollouts.info()
    with pytest.raises(rs.LeaseExpired, match="drop this sample, and lease again"):
        rollouts.submit(first[0], sample(66))
    assert rollouts.renew(first) == first[1:]
    assert rollouts.info() == before
    rollouts.submit(again, sample(1))
    with pytest.raises(rs.LeaseExpired):
        rollouts.submit(first[0], sample(66))
    assert rollouts.info()["samples"] == [1, 0]


def test_an_expired_lease_that_nobody_else_has_is_still_good(make):
    rollouts = make()
    (lease,) = rollouts.lease(1, 0)
    rollouts.renew([lease], 0.0)
    rollouts.submit(lease, sample(1))
    assert rollouts.lease(1, 0)[0].place == 1


def test_a_lease_expires_by_the_clock_of_the_server_and_wakes_who_waits(make):
    rollouts = make(max_staleness=0, lease_s=0.3)
    kept = rollouts.lease(4, 0)
    assert sorted(lease.place for lease in rollouts.lease(4, 0, timeout=60)) == [lease.place for lease in kept]


def test_many_leases_that_expire_at_once_go_on_in_the_order_of_their_numbers(make):
    """More than one call of the script frees, and than one call of `lease` gets."""
    rollouts = make(group_size=50, groups_per_batch=15, max_staleness=0)
    leases: list[rs.Lease] = []
    while len(leases) < 750:
        leases += rollouts.lease(1000, 0, timeout=0)
    assert [lease.place for lease in leases] == list(range(750))
    for lease in reversed(leases):
        assert rollouts.renew([lease], 0.0) == [lease]  # the last ones expire first
    assert rollouts.info()["expired"] == 750
    assert [lease.place for lease in rollouts.lease(3, 0, timeout=0)] == [0, 1, 2]
    assert rollouts.info()["expired"] == 747
    assert rollouts.renew(leases) == leases[3:]
    rollouts.give_back(leases)
    assert [lease.place for lease in rollouts.lease(1000, 0, timeout=0)] == list(range(3, 259))


def test_leases_that_are_given_back_are_free_at_once_and_no_longer_good(make):
    rollouts = make()
    leases = rollouts.lease(8, 0)
    got: list[rs.Lease] = []
    waiter = threading.Thread(target=lambda: got.extend(rollouts.lease(8, 0, timeout=60)), daemon=True)
    waiter.start()
    rollouts.give_back([leases[5], leases[2]])
    rollouts.give_back([])
    waiter.join(60)
    assert [lease.place for lease in got] == [2, 5]
    with pytest.raises(rs.LeaseExpired):
        rollouts.submit(leases[2], sample(1))
    rollouts.give_back([leases[2]])  # which is another's now
    rollouts.submit(got[0], sample(1))


def test_a_sample_that_is_submitted_again_counts_once_and_the_first_counts(make):
    rollouts = make(max_staleness=0)
    lease, *others = rollouts.lease(4, 0)
    rollouts.submit(lease, sample(1))
    rollouts.submit(lease, sample(2))
    assert rollouts.renew([lease]) == []
    for other in others:
        rollouts.submit(other, sample(0))
    rollouts.submit(lease, sample(3))
    assert rollouts.take(0).data["reward"].tolist() == [1, 0, 0, 0]
    with pytest.raises(rs.Timeout):
        rollouts.take(1, timeout=0)
    with pytest.raises(rs.LeaseExpired, match="batch 0 has been trained on: if this call repeats one"):
        rollouts.submit(lease, sample(1))


def test_a_lease_is_used_by_another_process_than_leased_it(make):
    rollouts = make(group_size=1, groups_per_batch=1)
    sent = pickle.dumps(rollouts.lease(1, 0)[0])
    rollouts.submit(pickle.loads(sent), sample(5))  # noqa: S301
    assert rollouts.take(0).data["reward"].tolist() == [5]


def test_info_counts_what_is_begun_leased_expired_and_there(make):
    rollouts = make()
    assert rollouts.info() == {"policy_version": 0, "begun": 0, "leased": 0, "expired": 0, "samples": [0, 0]}
    fill(rollouts, 0, 5)
    leases = rollouts.lease(3, 0)
    rollouts.renew(leases[:1], 0.0)
    rollouts.give_back(leases[1:2])
    assert rollouts.info() == {"policy_version": 0, "begun": 8, "leased": 2, "expired": 2, "samples": [4, 1]}
    rollouts.take(0)
    with pytest.raises(rs.Timeout):
        rollouts.take(1, timeout=0)
    assert rollouts.info() == {"policy_version": 1, "begun": 4, "leased": 2, "expired": 2, "samples": [1, 0]}


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"tokens": [1]}, "missing: reward"),
        ({"tokens": [1], "reward": 1.0, "more": 1}, "unknown: more"),
        ({"tokens": np.zeros(101, np.int32), "reward": 1.0}, "at most 100 rows"),
        ({"tokens": np.zeros(1, np.int64), "reward": 1.0}, "expects dtype int32, got int64"),
        ({"tokens": [1], "reward": np.zeros(2, np.float32)}, r"expects shape \(N,\), got \(1, 2\)"),
        ([1], "expected a dict of columns"),
    ],
)
def test_a_sample_that_does_not_fit_is_refused_and_the_lease_stays(make, wrong: Any, told: str):
    rollouts = make()
    (lease,) = rollouts.lease(1, 0)
    with pytest.raises(rs.SchemaError, match=told):
        rollouts.submit(lease, wrong)
    assert rollouts.renew([lease]) == [lease]
    rollouts.submit(lease, sample(1))


def test_the_largest_samples_are_taken_one_after_another_and_larger_ones_refused(make):
    column = rs.Column("uint8", (None,), max_length=64 << 20)
    rollouts = make(signature={"image": column}, group_size=1, groups_per_batch=4, max_staleness=0)
    leases = rollouts.lease(4, 0)
    with pytest.raises(rs.LimitExceeded, match="at most 33554432 bytes, got 33554440"):
        rollouts.submit(leases[0], {"image": np.zeros((32 << 20) + 2, np.uint8)})
    for lease in leases:
        rollouts.submit(lease, {"image": np.zeros((32 << 20) - 6, np.uint8)})
        rollouts.submit(lease, {"image": np.zeros((32 << 20) - 6, np.uint8)})
    assert rollouts.take(0).data["image"].lengths.tolist() == [(32 << 20) - 6] * 4


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"group_size": 3}, "exist with another group_size: expected 2, got 3"),
        ({"max_staleness": 2}, "exist with another max_staleness: expected 1, got 2"),
        ({"first_version": 17}, "exist with another first_version: expected 0, got 17"),
        ({"signature": {"reward": rs.Column("float64")}}, "exist with another signature"),
    ],
)
def test_others_of_the_same_name_are_refused(make, client, changed: dict[str, Any], told: str):
    rollouts = make()
    rollouts.lease(1, 0)
    with pytest.raises(rs.SchemaError, match=told):
        rs.Rollouts(client, rollouts.name, **{**settings_of(rollouts), **changed}).lease(1, 0)
    assert rollouts.info()["begun"] == 1


def test_a_program_whose_rollouts_were_dropped_is_told_and_changes_nothing(make, client):
    rollouts = make()
    (lease,) = rollouts.lease(1, 0)
    other = rs.Rollouts(client, rollouts.name, **settings_of(rollouts))
    other.drop()
    for _ in range(2):
        with pytest.raises(rs.SchemaError, match="were dropped, or made anew"):
            rollouts.submit(lease, sample(1))
    assert other.lease(1, 0)[0].place == 0  # made anew
    with pytest.raises(rs.SchemaError, match="were dropped, or made anew"):
        rollouts.take(0)


@pytest.mark.parametrize(
    ("settings", "error", "told"),
    [
        ({"group_size": 0}, rs.SchemaError, "group_size must be a whole number of at least 1"),
        ({"groups_per_batch": 1 << 20}, rs.SchemaError, "at most 1048576 samples of a batch"),
        ({"max_staleness": -1}, rs.SchemaError, "max_staleness must be a whole number of at least 0"),
        ({"max_delay": 1}, rs.SchemaError, "max_delay, expected it below max_staleness, .* got 1, 1 and 2"),
        ({"lease_s": float("nan")}, rs.SchemaError, "lease_s must be from 0.001 to 2592000 seconds, got nan"),
        ({"signature": {"x": rs.Column("int8"), "w": rs.Window("x")}}, rs.SchemaError, "columns alone, got windows"),
    ],
)
def test_settings_out_of_range_are_refused(client, settings: dict[str, Any], error: type, told: str):
    with pytest.raises(error, match=told):
        rs.Rollouts(client, "r", **{"signature": SIGNATURE, "group_size": 2, "groups_per_batch": 2, **settings})


def test_a_cluster_is_refused():
    with rs.Client("redis+cluster://127.0.0.1:1") as client, pytest.raises(ValueError, match="lie on one server"):
        rs.Rollouts(client, "r", SIGNATURE, group_size=2, groups_per_batch=2)


@pytest.mark.parametrize("version", [-1, 1.5, True, 1 << 32])
def test_versions_that_are_none_are_refused(make, version: Any):
    for call in (lambda: make().lease(1, version), lambda: make().take(version)):
        with pytest.raises(ValueError, match="policy_version must"):
            call()


def test_a_full_server_refuses_samples_and_the_learner_makes_room(eventually):
    signature = {"image": rs.Column("uint8", (None,), max_length=4 << 20)}
    with rs.Server() as server, rs.Client(server.url) as client:
        rollouts = rs.Rollouts(client, "r", signature, group_size=1, groups_per_batch=4)
        *leases, last = rollouts.lease(5, 0)
        for lease in leases:
            rollouts.submit(lease, {"image": np.zeros(4 << 20, np.uint8)})

        def used_bytes() -> int:
            return client.redis.info("memory")["used_memory"]

        limit = used_bytes() - (8 << 20)  # half of the samples: a request's memory may be freed after its reply
        client.command("CONFIG", "SET", "maxmemory", limit)
        with pytest.raises(rs.LimitExceeded):
            rollouts.submit(last, {"image": [1]})
        with pytest.raises(rs.LimitExceeded):
            rollouts.submit_samples([last], {"image": [[1]]})
        assert rollouts.renew([last]) == [last]
        assert len(rollouts.take(0)) == 4
        with pytest.raises(rs.Timeout):
            rollouts.take(1, timeout=0)
        eventually(lambda: used_bytes() < limit, "the samples were freed")
        rollouts.submit(last, {"image": [1]})


# ---- asyncio ---------------------------------------------------------------------------------------------------------


def test_the_same_with_asyncio(make, server):
    rollouts = make()

    async def worker(shared: aio.AsyncRollouts) -> None:
        for lease in await shared.lease(1, 0):
            await shared.submit_samples([lease], columns_of([lease.place]))

    async def main() -> rs.RolloutBatch:
        async with aio.Client(server.url) as client:
            shared = aio.AsyncRollouts(client, rollouts.name, **settings_of(rollouts))
            taking = asyncio.create_task(shared.take(0))
            await asyncio.gather(*(worker(shared) for _ in range(8)))
            with pytest.raises(rs.Timeout):
                await shared.lease(1, 0, timeout=0)
            return await taking

    assert aio.run(main()).data["reward"].tolist() == [0, 1, 2, 3]
