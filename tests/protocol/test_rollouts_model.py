"""Rollouts against a plain-Python model of them: calls in any order, late, repeated after lost replies; restarts."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import replay_server as rs
from replay_server.commands import Command
from replay_server.driver import Operation

GROUP_SIZE, GROUPS, LEASE_S = 2, 2, 10_000.0
SAMPLES = GROUP_SIZE * GROUPS
UNITS = {"mark": 1, "sum": GROUP_SIZE}
"""Task → how many samples it gets at once: `mark` reads what was submitted, and `sum` what `mark` wrote."""
TASKS = {"mark": rs.Task(["key"], ["mark"]), "sum": rs.Task(["mark"], ["sum"], whole_groups=True)}


class Repeating:
    """A client whose replies are lost, so that it sends each repeatable command so many times, as `lost_calls` does."""

    def __init__(self, url: str) -> None:
        self.client, self.url, self.times = rs.Client(url), url, 1

    def _answer(self, command: Command[Any]) -> Operation[Any]:
        for _ in range(self.times - 1):
            if command.repeatable:
                yield from self.client._answer(command)
        return (yield from self.client._answer(command))


class RolloutsThroughRestarts(RuleBasedStateMachine):
    """What the server should know. With `always` a kill takes nothing of it away."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.version, self.taken, self.fresh, self.keys = 0, -1, 0, 0
        self.held: dict[int, rs.Lease] = {}
        self.open: set[int] = set()  # expired, or given back
        self.there: dict[int, tuple[rs.Lease, int]] = {}  # place → the lease that filled it, and its key
        self.segments: dict[int, list[tuple[int, int]]] = {}  # place → the version and the token of each segment
        self.given: list[rs.Lease] = []
        self.works: dict[str, dict[int, rs.Lease]] = {}  # task → unit → the lease that a worker has
        self.free: dict[str, set[int]] = {}  # task → units whose leases expired or were given back
        self.results: dict[str, dict[int, tuple[rs.Lease, list[int]]]] = {}  # task → unit → by whom, and the values
        self.batches: list[rs.TaskBatch] = []
        self.trained: set[int] = set()
        self.completed: list[int] = []  # groups, in that order, that were not trained on
        self.chosen: list[int] = []  # groups of the batch that was taken

    def start(self) -> None:
        config = {"appendonly": "yes", "appendfsync": "always"}
        self.server = rs.Server([], directory=str(self.folder), config=config)
        self.client = Repeating(self.server.url)
        self.rollouts = rs.Rollouts(
            self.client,
            "r",
            {"tokens": rs.Column("int64", (None,)), **{name: rs.Column("int64") for name in ("key", *self.tasks)}},
            group_size=GROUP_SIZE,
            groups_per_batch=GROUPS,
            max_staleness=self.staleness,
            lease_s=LEASE_S,
            tasks=self.tasks,
            max_delay=self.delay,
        )

    @initialize(staleness=st.integers(0, 3), delay=st.integers(0, 2), tasks=st.booleans())
    def create(self, staleness: int, delay: int, tasks: bool) -> None:
        self.delay = delay if delay < staleness else 0
        self.staleness, self.tasks = staleness, TASKS if tasks else {}
        self.works, self.free = {task: {} for task in self.tasks}, {task: set() for task in self.tasks}
        self.results = {task: {} for task in self.tasks}
        self.start()

    def told(self, call: Any, *arguments: Any, times: int) -> Any:
        """What a call returns, or the error that it raises."""
        self.client.times = times
        try:
            return call(*arguments)
        except rs.ReplayError as error:
            return type(error)
        finally:
            self.client.times = 1

    def some_leases(self) -> st.SearchStrategy[rs.Lease]:
        """Half of them held, the others late, among the last that were given."""
        late = st.sampled_from(self.given[-3 * SAMPLES :])
        return st.one_of(st.sampled_from(list(self.held.values())), late) if self.held else late

    def bound(self, policy_version: int) -> int:
        return (min(policy_version, self.version) + self.staleness - self.delay + 1) * SAMPLES

    def note(self, place: int) -> None:
        """A part of that sample is there."""
        group = place // GROUP_SIZE
        if self.parts(group) == GROUP_SIZE * (1 + len(self.tasks)):
            self.completed.append(group)

    def parts(self, group: int) -> int:
        """How many parts of a group there are."""
        places = range(group * GROUP_SIZE, (group + 1) * GROUP_SIZE)
        results = (self.results[task] for task in self.tasks)
        return sum(place in self.there for place in places) + sum(
            place // UNITS[task] in some for task, some in zip(self.tasks, results, strict=True) for place in places
        )

    @rule(count=st.integers(1, 7), behind=st.integers(-2, 3), drops=st.booleans(), times=st.integers(1, 3))
    def lease(self, count: int, behind: int, drops: bool, times: int) -> None:
        policy_version = max(0, self.version - behind)
        leases = self.told(self.rollouts.lease, count, policy_version, 0, drops, times=times)
        if policy_version > self.version + 1:
            assert leases is rs.ServerError
            return
        free = sorted(self.open) + list(range(self.fresh, self.bound(self.version)))
        places = [place for place in free if place < self.bound(policy_version)][:count]
        if not places:
            assert leases is (rs.StaleVersion if free else rs.Timeout)
            return
        assert [lease.place for lease in leases] == places
        assert all(lease.policy_version == policy_version for lease in leases)
        assert all(lease.batch + self.delay - policy_version <= self.staleness for lease in leases)
        if drops:
            self.segments = {place: some for place, some in self.segments.items() if place not in places}
        for lease in leases:
            there = self.segments.get(lease.place, [])
            assert lease.segments == len(there)
            found = [(each.policy_version, *each.data["tokens"].tolist()) for each in self.rollouts.segments(lease)]
            assert found == there
        self.held.update({lease.place: lease for lease in leases})
        self.open -= set(places)
        self.fresh = max(self.fresh, places[-1] + 1)
        self.given += leases

    @precondition(lambda self: self.given)
    @rule(data=st.data(), behind=st.integers(-2, 3), ahead=st.integers(-1, 1), times=st.integers(1, 2))
    def append(self, data: st.DataObject, behind: int, ahead: int, times: int) -> None:
        self.grow(data.draw(self.some_leases()), behind, ahead, times)

    def grow(self, lease: rs.Lease, behind: int, ahead: int, times: int) -> None:
        there = self.segments.get(lease.place, [])
        number, version = max(lease.segments, len(there) + ahead), max(0, self.version - behind)
        self.keys += 1
        answer = self.told(self.rollouts.append, lease, number, {"tokens": [self.keys]}, version, times=times)
        if self.held.get(lease.place) != lease:
            assert answer is rs.LeaseExpired
        elif number < len(there):
            assert answer is None
        elif version > self.version + 1:
            assert answer is rs.ServerError
        elif version < lease.batch + self.delay - self.staleness:
            assert answer is rs.StaleVersion
        elif number > len(there):
            assert answer is rs.SchemaError
        else:
            assert answer is None
            self.segments[lease.place] = [*there, (version, self.keys)]

    def submitted(self, lease: rs.Lease) -> dict[str, Any]:
        """A sample, whose tokens are its segments' where there are some."""
        return {"key": self.keys, **({} if self.segments.get(lease.place) else {"tokens": [self.keys]})}

    @precondition(lambda self: self.given)
    @rule(data=st.data(), off=st.sampled_from([0, 0, 0, -1, 1]), times=st.integers(1, 2))
    def submit(self, data: st.DataObject, off: int, times: int) -> None:
        lease = data.draw(self.some_leases())
        self.keys += 1
        there = len(self.segments.get(lease.place, []))
        segments = max(0, there + off)
        answer = self.told(self.rollouts.submit, lease, self.submitted(lease), segments, times=times)
        if self.held.get(lease.place) == lease and segments != there:
            assert answer is rs.SchemaError
        elif self.held.get(lease.place) == lease:
            assert answer is None
            self.there[lease.place] = (lease, self.keys)
            self.note(lease.place)
            del self.held[lease.place]
            self.open.discard(lease.place)
        elif lease.batch >= self.version - self.delay and self.there.get(lease.place, (None, 0))[0] == lease:
            assert answer is None
        else:
            assert answer is rs.LeaseExpired

    @precondition(lambda self: self.given)
    @rule(data=st.data(), off=st.sampled_from([0, 0, 0, -1, 1]), times=st.integers(1, 2))
    def submit_samples(self, data: st.DataObject, off: int, times: int) -> None:
        named = st.lists(self.some_leases(), unique_by=lambda lease: (lease.place, lease.holder), max_size=6)
        self.submit_at_once(data.draw(named), off, times)

    def submit_at_once(self, leases: list[rs.Lease], off: int, times: int) -> None:
        """With another number of segments for the last one, if it is told so."""
        keys = list(range(self.keys + 1, self.keys + 1 + len(leases)))
        self.keys += len(leases)
        there = [self.segments.get(lease.place, []) for lease in leases]
        segments = [len(some) for some in there]
        if leases:
            segments[-1] = max(0, segments[-1] + off)
        tokens = [[] if some else [key] for some, key in zip(there, keys, strict=True)]
        held = [self.held.get(lease.place) == lease for lease in leases]
        given = {"key": keys, "tokens": tokens}
        self.client.times = times
        lost: list[rs.Lease] = []
        try:
            self.rollouts.submit_samples(leases, given, segments)
            refused = False
        except rs.SchemaError:
            refused = True
        except rs.LeaseExpired as error:
            lost, refused = error.lost, False
        finally:
            self.client.times = 1
        assert refused == any(
            has and len(some) != count for has, some, count in zip(held, there, segments, strict=True)
        )
        if refused:
            return
        assert lost == [
            lease
            for lease, has in zip(leases, held, strict=True)
            if not has
            and (lease.batch < self.version - self.delay or self.there.get(lease.place, (None, 0))[0] != lease)
        ]
        for lease, key, has in zip(leases, keys, held, strict=True):
            if has:
                self.there[lease.place] = (self.held.pop(lease.place), key)
                self.note(lease.place)
                self.open.discard(lease.place)

    @precondition(lambda self: self.held)
    @rule(slow=st.integers(0, 1), at_once=st.booleans(), times=st.integers(1, 2))
    def submit_what_is_held(self, slow: int, at_once: bool, times: int) -> None:
        """All but the first ones, which are slow."""
        leases = list(self.held.values())[slow:]
        if at_once:
            self.submit_at_once(leases, 0, times)
            return
        for lease in leases:
            self.keys += 1
            segments = len(self.segments.get(lease.place, []))
            assert self.told(self.rollouts.submit, lease, self.submitted(lease), segments, times=times) is None
            self.there[lease.place] = (self.held.pop(lease.place), self.keys)
            self.note(lease.place)
            self.open.discard(lease.place)

    @precondition(lambda self: self.given)
    @rule(data=st.data(), seconds=st.sampled_from([0.0, None]), times=st.integers(1, 2))
    def renew(self, data: st.DataObject, seconds: float | None, times: int) -> None:
        leases = data.draw(st.lists(self.some_leases(), unique=True, max_size=4))
        held = [lease for lease in leases if self.held.get(lease.place) == lease]
        assert self.told(self.rollouts.renew, leases, seconds, times=times) == held
        places = {lease.place for lease in held}
        self.open = self.open - places if seconds is None else self.open | places

    @precondition(lambda self: self.held)
    @rule(count=st.integers(1, 4))
    def expire(self, count: int) -> None:
        leases = list(self.held.values())[:count]
        assert self.rollouts.renew(leases, 0.0) == leases
        self.open |= {lease.place for lease in leases}

    @precondition(lambda self: self.given)
    @rule(data=st.data(), times=st.integers(1, 2))
    def give_back(self, data: st.DataObject, times: int) -> None:
        lease = data.draw(self.some_leases())
        assert self.told(self.rollouts.give_back, [lease], times=times) is None
        if self.held.get(lease.place) == lease:
            self.open.add(lease.place)
            del self.held[lease.place]

    def ordered(self, places: Iterable[int]) -> list[tuple[int, tuple[rs.Lease, int]]]:
        return [(place, self.there[place]) for place in places]

    def ready(self, task: str) -> list[int]:
        """The units that a worker of the task would get, in order."""
        before = self.there if task == "mark" else self.results["mark"]
        unit = UNITS[task]
        whole = [
            place // unit for place in before if place % unit == 0 and set(range(place, place + unit)) <= before.keys()
        ]
        return sorted({each for each in whole if each not in self.works[task] and each not in self.results[task]}
                      | self.free[task])  # fmt: skip

    @precondition(lambda self: self.tasks)
    @rule(task=st.sampled_from(list(UNITS)), count=st.integers(1, 5), times=st.integers(1, 3))
    def take_samples(self, task: str, count: int, times: int) -> None:
        units, unit = self.ready(task)[:count], UNITS[task]
        batch = self.told(self.rollouts.take_samples, task, count, 0, times=times)
        if not units:
            assert batch is rs.Timeout
            return
        assert [lease.place for lease in batch.leases] == [each * unit for each in units]
        places = [place for each in units for place in range(each * unit, (each + 1) * unit)]
        read = [self.there[place][1] if task == "mark" else self.results["mark"][place][1][0] for place in places]
        assert batch.data["key" if task == "mark" else "mark"].tolist() == read
        made = [self.segments.get(place, [(lease.policy_version, key)]) for place, (lease, key) in self.ordered(places)]
        assert batch.policy_versions.tolist() == [min(some)[0] for some in made]
        self.works[task].update(zip(units, batch.leases, strict=True))
        self.free[task] -= set(units)
        self.batches.append(batch)

    def put(self, batch: rs.TaskBatch, times: int) -> None:
        unit = UNITS[batch.task]
        self.keys += len(batch)
        values = list(range(self.keys - len(batch), self.keys))
        lost = False
        for at, lease in enumerate(batch.leases):
            each = lease.place // unit
            if self.works[batch.task].get(each) == lease:
                self.results[batch.task][each] = (lease, values[at * unit : (at + 1) * unit])
                self.note(lease.place)
                del self.works[batch.task][each]
                self.free[batch.task].discard(each)
            elif self.results[batch.task].get(each, (None, []))[0] != lease:
                lost = True
        told = self.told(self.rollouts.put_columns, batch, {batch.task: values}, times=times)
        assert told is (rs.LeaseExpired if lost else None)

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), times=st.integers(1, 2))
    def put_columns(self, data: st.DataObject, times: int) -> None:
        self.put(data.draw(st.sampled_from(self.batches[-6:])), times)

    @precondition(lambda self: self.tasks)
    @rule(times=st.integers(1, 2))
    def do_all_that_is_ready(self, times: int) -> None:
        for task in self.tasks:
            self.take_samples(task, 256, times)
        for batch in self.batches[-2:]:
            self.put(batch, times)

    @rule(
        behind=st.lists(st.integers(-1, 2), max_size=3),
        slow=st.integers(0, 1),
        at_once=st.booleans(),
        rounds=st.integers(1, 3),
        times=st.integers(1, 2),
    )
    def go_on_to_further_batches(self, behind: list[int], slow: int, at_once: bool, rounds: int, times: int) -> None:
        for _ in range(rounds):
            self.lease(7, 0, False, times)
            for lease in list(self.held.values())[slow:]:
                for each in behind:
                    self.grow(lease, each, 0, times)
            if self.held:
                self.submit_what_is_held(slow, at_once, times)
            if self.tasks:
                self.do_all_that_is_ready(times)
                self.do_all_that_is_ready(times)
            self.take(0, times)
            self.take(1, times)

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), back=st.booleans(), times=st.integers(1, 2))
    def leave_work(self, data: st.DataObject, back: bool, times: int) -> None:
        """Expires, or gives back, leases of a task, and one of a sample beside them."""
        batch = data.draw(st.sampled_from(self.batches[-6:]))
        held = self.works[batch.task]
        mine = [lease for lease in batch.leases if held.get(lease.place // UNITS[batch.task]) == lease]
        call, *seconds = (self.rollouts.give_back,) if back else (self.rollouts.renew, 0.0)
        assert self.told(call, batch.leases, *seconds, times=times) == (None if back else mine)
        units = {lease.place // UNITS[batch.task] for lease in mine}
        self.free[batch.task] |= units
        for each in units if back else ():
            del held[each]

    @rule(ahead=st.integers(-1, 2), times=st.integers(1, 2))
    def take(self, ahead: int, times: int) -> None:
        policy_version = max(0, self.version + ahead)
        batch = self.told(self.rollouts.take, policy_version, 0, times=times)
        if policy_version < self.version:
            assert batch is rs.StaleVersion
            return
        if policy_version > self.version + (self.taken == self.version):
            assert batch is rs.BatchNotTaken
            return
        if policy_version > self.version:
            self.version = policy_version
            oldest = (self.version - self.delay) * SAMPLES
            self.completed = [group for group in self.completed if group not in self.chosen]
            self.trained |= set(self.chosen)
            self.chosen = []
            self.there = {place: filled for place, filled in self.there.items() if place >= oldest}
            self.segments = {place: some for place, some in self.segments.items() if place >= oldest}
            for task, unit in UNITS.items() if self.tasks else ():
                done = self.results[task].items()
                self.results[task] = {each: result for each, result in done if each * unit >= oldest}
        done = {
            task: {
                each * UNITS[task] + at: value for each, (_, some) in results.items() for at, value in enumerate(some)
            }
            for task, results in self.results.items()
        }
        last = range((policy_version - self.delay) * GROUPS, (policy_version - self.delay + 1) * GROUPS)
        due = [group for group in last if group >= 0 and group not in self.trained]
        if not self.chosen:
            if len(self.completed) < GROUPS or not set(due) <= set(self.completed):
                assert batch is rs.Timeout
                return
            self.chosen = [*due, *(group for group in self.completed if group not in due)][:GROUPS]
        places = [group * GROUP_SIZE + index for group in sorted(self.chosen) for index in range(GROUP_SIZE)]
        self.taken = policy_version
        assert batch.data["key"].tolist() == [self.there[place][1] for place in places]
        for task, values in done.items():
            assert batch.data[task].tolist() == [values[place] for place in places]
        made = [self.segments.get(place, [(lease.policy_version, key)]) for place, (lease, key) in self.ordered(places)]
        assert [tokens.tolist() for tokens in batch.data["tokens"]] == [[key for _, key in some] for some in made]
        assert batch.policy_versions.tolist() == [min(some)[0] for some in made]
        assert batch.newest_versions.tolist() == [max(some)[0] for some in made]
        assert batch.staleness <= self.staleness

    @rule(kills=st.booleans())
    def restart(self, kills: bool) -> None:
        self.client.client.close()
        if kills:
            os.kill(self.server.pid, signal.SIGKILL)
        self.server.stop()
        self.start()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "client"):
            return
        info = self.rollouts.info()
        assert info.pop("tasks", {}) == {
            task: {"ready": len(self.ready(task)), "leased": len(self.works[task])} for task in self.tasks
        }
        assert info == {
            "policy_version": self.version,
            "begun": self.fresh - self.version * SAMPLES,
            "leased": len(self.held),
            "expired": len(self.open),
            "samples": [
                sum(place // SAMPLES == batch for place in self.there)
                for batch in range(self.version - self.delay, self.version - self.delay + self.staleness + 1)
            ],
        }
        # Nothing else is kept: calls are known until one of their leases is used, and no longer than they are held.
        calls = {lease.holder for lease in self.held.values()}
        assert set(self.client.client.command("HKEYS", "rollouts:{r}:calls")) <= calls
        assert self.client.client.command("XLEN", "rollouts:{r}:changes") <= 1
        for number, task in enumerate(self.tasks, 1):
            calls = {lease.holder for lease in self.works[task].values()}
            assert set(self.client.client.command("HKEYS", f"rollouts:{{r}}:task:{number}:calls")) <= calls
        batches = [int(key.rpartition(b":")[2]) for kind in ("batch", "results", "segments")
                   for key in self.client.client.command("KEYS", f"rollouts:{{r}}:{kind}:*")]  # fmt: skip
        assert all(0 <= batch - self.version + self.delay <= self.staleness for batch in batches)
        marked = [place // GROUP_SIZE for place in self.results.get("mark", {})]
        partly = {group for group in marked if marked.count(group) < GROUP_SIZE}
        delayed = [int(batch) for batch in self.client.client.command("HKEYS", "rollouts:{r}:trained")]
        assert all(batch >= self.version - self.delay for batch in delayed)
        groups = {place // GROUP_SIZE for place in self.there} if self.delay else set()
        begun = {group for group in groups if self.parts(group) < GROUP_SIZE * (1 + len(self.tasks))}
        assert self.client.client.command("HLEN", "rollouts:{r}:there") == len(partly) + len(begun)

    def teardown(self) -> None:
        if hasattr(self, "client"):
            self.client.client.close()
            self.server.stop()
        shutil.rmtree(self.folder)


TestRolloutsThroughRestarts = RolloutsThroughRestarts.TestCase
TestRolloutsThroughRestarts.settings = hypothesis.settings(
    max_examples=30, stateful_step_count=50, deadline=None, derandomize=True
)
