"""Rollouts against a plain-Python model of them: calls in any order, late, repeated after lost replies; restarts."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
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
        self.given: list[rs.Lease] = []

    def start(self) -> None:
        config = {"appendonly": "yes", "appendfsync": "always"}
        self.server = rs.Server([], directory=str(self.folder), config=config)
        self.client = Repeating(self.server.url)
        self.rollouts = rs.Rollouts(
            self.client,
            "r",
            {"key": rs.Column("int64")},
            group_size=GROUP_SIZE,
            groups_per_batch=GROUPS,
            max_staleness=self.staleness,
            lease_s=LEASE_S,
        )

    @initialize(staleness=st.integers(0, 2))
    def create(self, staleness: int) -> None:
        self.staleness = staleness
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
        return (min(policy_version, self.version) + self.staleness + 1) * SAMPLES

    @rule(count=st.integers(1, 7), behind=st.integers(-2, 3), times=st.integers(1, 3))
    def lease(self, count: int, behind: int, times: int) -> None:
        policy_version = max(0, self.version - behind)
        leases = self.told(self.rollouts.lease, count, policy_version, 0, times=times)
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
        assert all(lease.batch - policy_version <= self.staleness for lease in leases)
        self.held.update({lease.place: lease for lease in leases})
        self.open -= set(places)
        self.fresh = max(self.fresh, places[-1] + 1)
        self.given += leases

    @precondition(lambda self: self.given)
    @rule(data=st.data(), times=st.integers(1, 2))
    def submit(self, data: st.DataObject, times: int) -> None:
        lease = data.draw(self.some_leases())
        self.keys += 1
        answer = self.told(self.rollouts.submit, lease, {"key": self.keys}, times=times)
        if self.held.get(lease.place) == lease:
            assert answer is None
            self.there[lease.place] = (lease, self.keys)
            del self.held[lease.place]
            self.open.discard(lease.place)
        elif lease.batch >= self.version and self.there.get(lease.place, (None, 0))[0] == lease:
            assert answer is None
        else:
            assert answer is rs.LeaseExpired

    @precondition(lambda self: self.held)
    @rule(times=st.integers(1, 2))
    def submit_all_that_are_held(self, times: int) -> None:
        for lease in list(self.held.values()):
            self.keys += 1
            assert self.told(self.rollouts.submit, lease, {"key": self.keys}, times=times) is None
            self.there[lease.place] = (self.held.pop(lease.place), self.keys)
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
            self.there = {place: filled for place, filled in self.there.items() if place >= self.version * SAMPLES}
        places = range(policy_version * SAMPLES, (policy_version + 1) * SAMPLES)
        if not set(places) <= self.there.keys():
            assert batch is rs.Timeout
            return
        self.taken = policy_version
        assert batch.data["key"].tolist() == [self.there[place][1] for place in places]
        assert batch.policy_versions.tolist() == [self.there[place][0].policy_version for place in places]
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
        assert self.rollouts.info() == {
            "policy_version": self.version,
            "begun": self.fresh - self.version * SAMPLES,
            "leased": len(self.held),
            "expired": len(self.open),
            "samples": [
                sum(place // SAMPLES == batch for place in self.there)
                for batch in range(self.version, self.version + self.staleness + 1)
            ],
        }
        # Nothing else is kept: calls are known until one of their leases is used, and no longer than they are held.
        calls = {lease.holder for lease in self.held.values()}
        assert set(self.client.client.command("HKEYS", "rollouts:{r}:calls")) <= calls
        assert self.client.client.command("XLEN", "rollouts:{r}:changes") <= 1

    def teardown(self) -> None:
        if hasattr(self, "client"):
            self.client.client.close()
            self.server.stop()
        shutil.rmtree(self.folder)


TestRolloutsThroughRestarts = RolloutsThroughRestarts.TestCase
TestRolloutsThroughRestarts.settings = hypothesis.settings(
    max_examples=30, stateful_step_count=50, deadline=None, derandomize=True
)
