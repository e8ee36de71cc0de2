"""Tasks of rollouts: columns that are added later, by tasks that work on each sample once, before the learner does."""

from __future__ import annotations

import itertools
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
from replay_server.tree import leaves_of, mapped

SIGNATURE = {
    "tokens": rs.Column("int32", (None,), max_length=100),
    "extra": {"reference": rs.Column("float32", (None,)), "reward": rs.Column("float32")},
    "advantage": rs.Column("float32"),
}
TASKS = {
    "reference": rs.Task(["tokens"], ["extra/reference"]),
    "reward": rs.Task(["tokens"], ["extra/reward"]),
    "advantage": rs.Task(["extra/reward"], ["advantage"], whole_groups=True),
    "critic": rs.Task(["extra", "advantage"]),
}


def sample(key: int) -> dict[str, Any]:
    return {"tokens": np.full(key % 5, key, np.int32)}


@pytest.fixture
def make(make_rollouts: Callable[..., rs.Rollouts]) -> Callable[..., rs.Rollouts]:
    """Rollouts of their own for each test, two groups of two samples a batch unless told otherwise."""
    return partial(make_rollouts, signature=SIGNATURE, group_size=2, groups_per_batch=2, tasks=TASKS)


def fill(rollouts: rs.Rollouts, count: int, version: int = 0) -> list[rs.Lease]:
    """Leases samples and submits those, each with its place as its key."""
    leases = rollouts.lease(count, version, timeout=0)
    rollouts.submit_samples(leases, {"tokens": [sample(lease.place)["tokens"] for lease in leases]})
    return leases


def made_by(batch: rs.TaskBatch) -> dict[str, Any]:
    """What each task writes, so that it follows from the samples."""
    if batch.task == "reference":
        return {"extra": {"reference": [rows.astype(np.float32) / 2 for rows in batch.data["tokens"]]}}
    if batch.task == "reward":
        return {"extra": {"reward": batch.data["tokens"].lengths.astype(np.float32)}}
    if batch.task == "advantage":
        rewards = batch.data["extra"]["reward"].reshape(-1, 2)
        return {"advantage": (rewards - rewards.mean(1, keepdims=True)).reshape(-1)}
    return {}


def do(rollouts: rs.Rollouts, task: str, count: int = 256) -> rs.TaskBatch:
    batch = rollouts.take_samples(task, count, timeout=0)
    rollouts.put_columns(batch, made_by(batch))
    return batch


def places(batch: rs.TaskBatch) -> list[int]:
    return [lease.place for lease in batch.leases]


# ---- readiness -------------------------------------------------------------------------------------------------------


def test_the_learner_gets_the_columns_of_all_tasks_once_each_of_them_is_done(make):
    rollouts = make()
    fill(rollouts, 4)
    for task, results in (("reference", 0), ("reward", 4), ("advantage", 8), ("critic", 12)):
        with pytest.raises(rs.Timeout, match=f"4 of the 4 samples of batch 0 are there, and {results} of the 16 resu"):
            rollouts.take(0, timeout=0)
        do(rollouts, task)
    batch = rollouts.take(0, timeout=0)
    assert [rows.tolist() for rows in batch.data["tokens"]] == [[key] * key for key in range(4)]
    assert [rows.tolist() for rows in batch.data["extra"]["reference"]] == [[key / 2] * key for key in range(4)]
    assert batch.data["extra"]["reward"].tolist() == [0, 1, 2, 3]
    assert batch.data["advantage"].tolist() == [-0.5, 0.5, -0.5, 0.5]
    assert batch.policy_versions.tolist() == [0] * 4


def test_the_learner_gets_the_columns_that_it_chose(make):
    rollouts = make()
    fill(rollouts, 4)
    for task in TASKS:
        do(rollouts, task)
    whole = rollouts.take(0, timeout=0)
    for columns, expected in (
        (["tokens"], {"tokens": None}),
        (["extra"], {"extra": {"reference": None, "reward": None}}),
        (["advantage", "extra/reward"], {"extra": {"reward": None}, "advantage": None}),
        ([], {}),
    ):
        batch = rollouts.take(0, timeout=0, columns=columns)
        assert mapped(batch.data, lambda column: None) == expected
        assert batch.groups.tolist() == whole.groups.tolist()
        assert batch.policy_versions.tolist() == whole.policy_versions.tolist()
        for path, column in leaves_of(batch.data).items():
            for row, other in zip(column, leaves_of(whole.data)[path], strict=True):
                assert row.tolist() == other.tolist()
    with pytest.raises(rs.SchemaError, match="no column 'reward': expected some of tokens, extra/reference"):
        rollouts.take(1, timeout=0, columns=["reward"])
    assert len(rollouts.take(0, timeout=0)) == 4, "the refused call did not ask for the next batch"


def test_a_sample_is_ready_for_a_task_when_all_columns_that_it_reads_are_there(make):
    rollouts = make()
    leases = rollouts.lease(4, 0)
    for task in TASKS:
        with pytest.raises(rs.Timeout, match=f"is ready for task '{task}', or all have been leased"):
            rollouts.take_samples(task, 1, timeout=0)
    for lease in (leases[1], leases[2], leases[3]):
        rollouts.submit(lease, sample(lease.place))
    batch = do(rollouts, "reward")
    assert places(batch) == [1, 2, 3]
    assert batch.groups.tolist() == [0, 1, 1]
    assert [(lease.group, lease.index, lease.batch) for lease in batch.leases] == [(0, 1, 0), (1, 0, 0), (1, 1, 0)]
    assert list(batch.data) == ["tokens"]  # and nothing that it did not ask for
    assert places(do(rollouts, "advantage")) == [2]  # the only group whose rewards are all there
    with pytest.raises(rs.Timeout, match="no group is ready for task 'advantage'"):
        rollouts.take_samples("advantage", 1, timeout=0)
    with pytest.raises(rs.Timeout):
        rollouts.take_samples("critic", 1, timeout=0)  # which waits for the reference model
    assert places(do(rollouts, "reference", 2)) == [1, 2]
    batch = rollouts.take_samples("critic", 9, timeout=0)
    assert places(batch) == [2]
    assert batch.data["advantage"].tolist() == [-0.5]
    assert batch.data["extra"]["reference"][0].tolist() == [1, 1]


def test_a_task_gets_samples_of_several_batches_with_the_versions_that_made_them(make):
    rollouts = make(tasks={"all": rs.Task(["tokens", "extra", "advantage"])}, max_staleness=2)

    def complete(lease: rs.Lease) -> None:
        extra = {"reference": [1.0] * lease.place, "reward": 1.0}
        rollouts.submit(lease, {**sample(lease.place), "extra": extra, "advantage": lease.place})

    for lease in rollouts.lease(4, 0):
        complete(lease)
    rollouts.put_columns(rollouts.take_samples("all", 4), {})
    rollouts.take(0)
    with pytest.raises(rs.Timeout, match=r"^take of batch 1 .* 0 of the 4 samples .* and 0 of the 4 results"):
        rollouts.take(1, timeout=0)
    for lease in [*rollouts.lease(3, 0), *rollouts.lease(9, 1)]:
        complete(lease)
    batch = rollouts.take_samples("all", 100, timeout=0)
    assert batch.data["advantage"].tolist() == list(range(4, 16))
    assert batch.policy_versions.tolist() == [0] * 3 + [1] * 9
    assert [lease.policy_version for lease in batch.leases] == [0] * 3 + [1] * 9


def test_a_task_that_waits_goes_on_when_a_sample_becomes_ready_and_the_learner_when_the_tasks_are_done(make):
    rollouts = make(max_staleness=0)
    other = rs.Rollouts(rollouts._client, rollouts.name, SIGNATURE, group_size=2, groups_per_batch=2, max_staleness=0,
                        tasks=TASKS)  # fmt: skip
    got: list[float] = []

    def work(task: str) -> None:
        for _ in range(3):
            done = 0
            while done < 4:
                batch = other.take_samples(task, 3, timeout=60)
                other.put_columns(batch, made_by(batch))
                done += len(batch)

    def learn() -> None:
        for version in range(3):
            got.append(float(other.take(version, timeout=60).data["extra"]["reward"].sum()))

    threads = [threading.Thread(target=work, args=(task,), daemon=True) for task in TASKS]
    threads.append(threading.Thread(target=learn, daemon=True))
    for thread in threads:
        thread.start()
    for version in range(3):
        for lease in rollouts.lease(4, version, timeout=60):
            rollouts.submit(lease, sample(lease.place))
    for thread in threads:
        thread.join(60)
    assert got == [6.0, 7.0, 8.0]


# ---- once ------------------------------------------------------------------------------------------------------------


def test_each_task_gets_each_sample_once(make):
    rollouts = make()
    fill(rollouts, 8)
    for task in ("reference", "reward"):
        first, second = rollouts.take_samples(task, 3), rollouts.take_samples(task, 300)
        assert (places(first), places(second)) == ([0, 1, 2], [3, 4, 5, 6, 7])
        for batch in (second, first):
            rollouts.put_columns(batch, made_by(batch))
        with pytest.raises(rs.Timeout):
            rollouts.take_samples(task, 1, timeout=0)
    assert len(rollouts.take_samples("advantage", 3)) == 6  # groups
    assert rollouts.info()["tasks"] == {
        "advantage": {"ready": 1, "leased": 3},
        "critic": {"ready": 0, "leased": 0},
        "reference": {"ready": 0, "leased": 0},
        "reward": {"ready": 0, "leased": 0},
    }


def test_what_a_task_puts_first_counts_and_a_repeated_put_changes_nothing(make):
    rollouts = make(tasks={"reward": rs.Task(["tokens"], ["extra/reward"]), "advantage": TASKS["advantage"]},
                    signature={**SIGNATURE, "extra": {"reward": rs.Column("float32")}}, max_staleness=0)  # fmt: skip
    fill(rollouts, 4)
    batch = rollouts.take_samples("reward", 4)
    for value in (1, 2):
        rollouts.put_columns(batch, {"extra": {"reward": np.full(4, value, np.float32)}})
    groups = rollouts.take_samples("advantage", 2)
    assert groups.data["extra"]["reward"].tolist() == [1] * 4
    rollouts.put_columns(groups, {"advantage": np.arange(4, dtype=np.float32)})
    before = rollouts.info()
    rollouts.put_columns(groups, {"advantage": np.zeros(4, np.float32)})
    rollouts.put_columns(batch, {"extra": {"reward": np.zeros(4, np.float32)}})
    assert rollouts.info() == before
    taken = rollouts.take(0)
    assert taken.data["advantage"].tolist() == [0, 1, 2, 3]
    assert taken.data["extra"]["reward"].tolist() == [1] * 4
    with pytest.raises(rs.Timeout):
        rollouts.take(1, timeout=0)
    with pytest.raises(rs.LeaseExpired, match=r"4 of 4 leases had expired .* sample 0 of group 0"):
        rollouts.put_columns(batch, {"extra": {"reward": np.zeros(4, np.float32)}})


def test_a_lease_of_a_task_that_expires_goes_to_another_worker_and_the_first_one_is_told(make):
    rollouts = make()
    fill(rollouts, 4)
    first = rollouts.take_samples("reward", 4)
    assert rollouts.renew(first.leases[1:3], 0.0) == first.leases[1:3]
    again = rollouts.take_samples("reward", 1)
    assert places(again) == [1]
    with pytest.raises(rs.LeaseExpired, match=r"1 of 4 leases had expired .* sample 1 of group 0; the others ") as lost:
        rollouts.put_columns(first, {"extra": {"reward": np.full(4, 7, np.float32)}})
    assert lost.value.lost == first.leases[1:2]
    rollouts.put_columns(again, {"extra": {"reward": np.full(1, 9, np.float32)}})
    assert rollouts.take_samples("advantage", 2).data["extra"]["reward"].tolist() == [7, 9, 7, 7]


def test_an_expired_lease_of_a_task_that_nobody_else_has_is_still_good(make):
    rollouts = make()
    fill(rollouts, 4)
    first = rollouts.take_samples("reward", 3)
    rollouts.renew(first.leases, 0.0)
    assert places(rollouts.take_samples("reward", 1)) == [0]  # which frees the others as well
    with pytest.raises(rs.LeaseExpired, match="1 of 3"):
        rollouts.put_columns(first, made_by(first))
    last = rollouts.take_samples("reward", 9)
    assert places(last) == [3]
    rollouts.renew(last.leases, 0.0)
    rollouts.put_columns(last, made_by(last))
    with pytest.raises(rs.Timeout):
        rollouts.take_samples("reward", 1, timeout=0)
    assert rollouts.info()["tasks"]["reward"] == {"ready": 0, "leased": 1}


def test_a_lease_of_a_task_expires_by_the_clock_of_the_server_and_wakes_who_waits(make):
    rollouts = make(lease_s=0.3)
    fill(rollouts, 4)
    kept = rollouts.take_samples("reward", 4)
    assert places(rollouts.take_samples("reward", 4, timeout=60)) == places(kept)


def test_leases_of_tasks_are_given_back_and_renewed_with_those_of_samples(make):
    rollouts = make()
    fill(rollouts, 4)
    do(rollouts, "reward")
    groups, (lease,) = rollouts.take_samples("advantage", 2), rollouts.lease(1, 0)
    assert rollouts.renew([groups.leases[1], lease]) == [groups.leases[1], lease]
    got: list[rs.TaskBatch] = []
    waiter = threading.Thread(target=lambda: got.append(rollouts.take_samples("advantage", 2, timeout=60)), daemon=True)
    waiter.start()
    rollouts.give_back([groups.leases[1], lease])
    waiter.join(60)
    assert places(got[0]) == [2]
    assert rollouts.lease(1, 0)[0].place == 4
    assert rollouts.renew([*groups.leases, lease]) == groups.leases[:1]


def test_a_put_of_many_samples_wakes_each_task_that_waits_for_them_and_the_learner_once(make, client):
    tasks = {"reward": rs.Task(["tokens"], ["extra", "advantage"], whole_groups=True), "log": rs.Task(["advantage"])}
    rollouts = make(tasks=tasks, max_staleness=2, max_delay=1)
    key = f"rollouts:{{{rollouts.name}}}"

    def wakes() -> list[int]:
        """Of the learner, and of the task `log`, which is the first one by name."""
        return [int(count or 0) for count in client.redis.hmget(key, "changes", "changes:1")]

    fill(rollouts, 4)
    samples = rollouts.take_samples("reward", 2)
    learner, log = wakes()
    extra = {"reference": [[1.0]] * 4, "reward": np.ones(4, np.float32)}
    rollouts.put_columns(samples, {"extra": extra, "advantage": np.zeros(4, np.float32)})
    assert wakes() == [learner, log + 1]
    rollouts.put_columns(rollouts.take_samples("log", 4, timeout=0), {})
    assert wakes() == [learner + 1, log + 1]  # both groups and all results are complete
    assert len(rollouts.take(0, timeout=0)) == 4


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tasks", "told"),
    [
        ({"a": rs.Task(["token"])}, "no column 'token'"),
        ({"a": rs.Task(["tokens"], ["extra/rewards"])}, "no column 'extra/rewards'"),
        ({"a": rs.Task([])}, "must read a list of at least one column"),
        ({"a": rs.Task("tokens")}, "must read a list of at least one column"),
        ({"a": rs.Task(["tokens"], ["advantage"]), "b": rs.Task(["tokens"], ["advantage"])}, "two tasks, 'a' and 'b'"),
        ({"a": rs.Task(["tokens"], ["tokens"])}, "tasks a wait for columns of each other or of their own"),
        (
            {"a": rs.Task(["advantage"], ["extra"]), "b": rs.Task(["extra/reward"], ["advantage"]),
             "c": rs.Task(["tokens"])},
            "tasks a, b wait for columns of each other",
        ),
        ({"a": rs.Task(["tokens"], ["tokens", "extra", "advantage"])}, "tasks write all columns"),
        ({"": rs.Task(["tokens"])}, "a task's name must be a string of 1 to 255 bytes, got ''"),
        ({"a": ["tokens"]}, "task 'a' must be an rs.Task, got list"),
        ([rs.Task(["tokens"])], "tasks must be a dict of at most 16, name → rs.Task, got list"),
        ({str(number): rs.Task(["tokens"]) for number in range(17)}, "at most 16, name → rs.Task, got 17"),
    ],
)  # fmt: skip
def test_tasks_that_cannot_be_are_refused(client, tasks: Any, told: str):
    with pytest.raises(rs.SchemaError, match=told):
        rs.Rollouts(client, "r", SIGNATURE, group_size=2, groups_per_batch=2, tasks=tasks)


def test_other_tasks_of_the_same_name_are_refused(make, client):
    rollouts = make()
    rollouts.info()
    for tasks in (None, {**TASKS, "critic": rs.Task(["advantage"])}):
        other = rs.Rollouts(client, rollouts.name, SIGNATURE, group_size=2, groups_per_batch=2, tasks=tasks)
        with pytest.raises(rs.SchemaError, match="exist with other tasks: expected"):
            other.info()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"tokens": [1], "advantage": 1.0}, "unknown: advantage"),
        ({}, "missing: tokens"),
    ],
)
def test_a_sample_is_submitted_without_what_tasks_write(make, wrong: Any, told: str):
    rollouts = make()
    (lease,) = rollouts.lease(1, 0)
    with pytest.raises(rs.SchemaError, match=told):
        rollouts.submit(lease, wrong)
    assert rollouts.renew([lease]) == [lease]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"extra": {"reward": np.zeros(3, np.float32)}}, "columns of 2 samples for task 'reward', got 3"),
        ({"extra": {"reward": np.zeros(2, np.float64)}}, "expects dtype float32, got float64"),
        ({"advantage": np.zeros(2, np.float32)}, "missing: extra/reward; unknown: advantage"),
        ([1, 2], "expected a dict of the columns of task 'reward', got list"),
    ],
)
def test_columns_that_do_not_fit_are_refused_and_the_leases_stay(make, wrong: Any, told: str):
    rollouts = make()
    fill(rollouts, 2)
    batch = rollouts.take_samples("reward", 2)
    before = rollouts.info()
    with pytest.raises(rs.SchemaError, match=told):
        rollouts.put_columns(batch, wrong)
    assert rollouts.info() == before
    rollouts.put_columns(batch, made_by(batch))


def test_a_task_that_writes_nothing_takes_no_columns(make):
    rollouts = make(tasks={"log": rs.Task(["tokens"])}, signature={"tokens": SIGNATURE["tokens"]})
    fill(rollouts, 1)
    batch = rollouts.take_samples("log", 1)
    with pytest.raises(rs.SchemaError, match="task 'log' writes no columns, got tokens"):
        rollouts.put_columns(batch, {"tokens": [[1]]})
    rollouts.put_columns(batch, {})


def test_calls_of_tasks_name_one_that_there_is(make):
    rollouts = make()
    with pytest.raises(
        rs.SchemaError, match="have no task 'actor': expected one of reference, reward, advantage, crit"
    ):
        rollouts.take_samples("actor", 1)
    fill(rollouts, 2)
    batch = rollouts.take_samples("reward", 1)
    with pytest.raises(TypeError, match="got one of task 'reward'"):
        rollouts.submit(batch.leases[0], sample(1))
    with pytest.raises(TypeError, match="expected a TaskBatch"):
        rollouts.put_columns(batch.leases, made_by(batch))  # type: ignore[arg-type]


def test_what_a_task_writes_of_a_sample_has_a_limit_and_many_samples_go_in_several_parts(make):
    signature = {"key": rs.Column("int64"), "image": rs.Column("uint8", (None,), max_length=64 << 20)}
    tasks = {"image": rs.Task(["key"], ["image"])}
    rollouts = make(signature=signature, tasks=tasks, group_size=150, groups_per_batch=1, max_staleness=0)
    for lease in rollouts.lease(150, 0):
        rollouts.submit(lease, {"key": lease.place})
    batch = rollouts.take_samples("image", 256)
    assert batch.data["key"].tolist() == list(range(150))
    images = [np.full(3, place, np.uint8) for place in range(150)]
    images[7] = np.zeros((32 << 20) + 2, np.uint8)
    with pytest.raises(rs.LimitExceeded, match="at most 33554432 bytes of columns of a sample, got 33554440"):
        rollouts.put_columns(batch, {"image": images})
    assert rollouts.info()["tasks"]["image"] == {"ready": 0, "leased": 150}
    images[7] = np.full((32 << 20) - 6, 7, np.uint8)
    rollouts.put_columns(batch, {"image": images})
    taken = rollouts.take(0, timeout=0)
    assert [int(rows[-1]) for rows in taken.data["image"]] == list(range(150))


# ---- asyncio, and a server that is killed ----------------------------------------------------------------------------


def test_the_same_with_asyncio(make, server):
    rollouts = make()
    fill(rollouts, 4)

    async def main() -> rs.RolloutBatch:
        async with aio.Client(server.url) as client:
            shared = aio.AsyncRollouts(client, rollouts.name, SIGNATURE, group_size=2, groups_per_batch=2, tasks=TASKS)
            for task in TASKS:
                batch = await shared.take_samples(task, 4)
                await shared.put_columns(batch, made_by(batch))
            return await shared.take(0)

    assert aio.run(main()).data["extra"]["reward"].tolist() == [0, 1, 2, 3]


UPDATES = 30


def test_each_task_works_on_each_sample_once_through_kills_of_the_server(tmp_path: Path, free_port: int, eventually):
    """What was answered is what the learner gets: no result is lost, none is replaced, and none is another's."""
    config = {"appendonly": "yes", "appendfsync": "always"}
    over, failures, trained = threading.Event(), [], []
    stored: dict[str, list[tuple[int, float]]] = {"mark": [], "group": []}
    signature = {"key": rs.Column("int64"), "mark": rs.Column("float64"), "group": rs.Column("float64")}
    tasks = {"mark": rs.Task(["key"], ["mark"]), "group": rs.Task(["key", "mark"], ["group"], whole_groups=True)}

    def serve() -> rs.Server:
        return rs.Server([], port=free_port, directory=str(tmp_path), config=config)

    def run(what: Callable[..., None], *arguments: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                with rs.Client(server.url, reconnect_timeout=60) as client:
                    settings = {"group_size": 3, "groups_per_batch": 2, "lease_s": 0.2, "tasks": tasks}
                    what(client, rs.Rollouts(client, "r", signature, **settings), *arguments)
            except BaseException as error:
                failures.append(error)
                raise

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    def work(client: rs.Client, rollouts: rs.Rollouts) -> None:
        while not over.is_set():
            try:
                leases = rollouts.lease(3, rollouts.info()["policy_version"], timeout=0.2)
                for lease in leases:
                    rollouts.submit(lease, {"key": lease.place})
            except (rs.Timeout, rs.StaleVersion, rs.LeaseExpired):
                continue

    def task(client: rs.Client, rollouts: rs.Rollouts, name: str, seed: int) -> None:
        chance, lines = random.Random(seed), itertools.count(seed, 2)
        while not over.is_set():
            try:
                batch = rollouts.take_samples(name, chance.randint(1, 3), timeout=0.2)
            except rs.Timeout:
                continue
            fate = chance.random()
            if fate < 0.05:
                continue  # as a worker that died
            if fate < 0.1:
                over.wait(0.3)  # longer than the lease
            values = np.array([next(lines) for _ in range(len(batch))], np.float64)
            try:
                rollouts.put_columns(batch, {name: values})
            except rs.LeaseExpired:
                continue  # some of them are stored
            stored[name] += zip(batch.data["key"].tolist(), values.tolist(), strict=True)
            if fate > 0.8:
                try:
                    rollouts.put_columns(batch, {name: values})
                except rs.LeaseExpired:
                    continue  # trained on meanwhile

    def learn(client: rs.Client, rollouts: rs.Rollouts) -> None:
        for version in range(UPDATES):
            trained.append(rollouts.take(version).data)
        over.set()

    server = serve()
    try:
        threads = [run(task, name, seed) for name in tasks for seed in range(2)]
        threads += [run(work), run(work), run(learn)]
        for share in (0.2, 0.5, 0.8):
            eventually(lambda share=share: len(trained) >= share * UPDATES or failures, "the learner went on")
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
    assert [key for data in trained for key in data["key"].tolist()] == list(range(6 * UPDATES))
    for name in tasks:
        values = dict(enumerate(value for data in trained for value in data[name].tolist()))
        assert len(set(values.values())) == len(values), "a result is there twice"
        told = [(key, value) for key, value in stored[name] if key < 6 * UPDATES]
        assert len(told) > 3 * UPDATES
        assert [pair for pair in told if values[pair[0]] != pair[1]] == []
