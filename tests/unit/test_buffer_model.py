"""The in-process buffer as a state machine against a plain-Python model: every sampler with every remover, limiters,
caps, staleness, and all of them changed on a live table."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import replay_server as rs

SIGNATURE = {"x": rs.Column("float32", (2,)), "k": rs.Column("int64"), "policy_version": rs.Column("int64")}
ITEM_BYTES = 24

SELECTORS = st.one_of(
    st.builds(rs.Prioritized, st.sampled_from([0.0, 0.5, 0.6, 1.0, 2.0])),
    st.sampled_from([rs.Uniform(), rs.Fifo(), rs.Lifo(), rs.MaxHeap(), rs.MinHeap()]),
)
LIMITERS = st.one_of(
    st.just(rs.MinSize(1)),
    st.builds(rs.MinSize, st.integers(1, 6)),
    st.builds(rs.SampleToInsertRatio, st.sampled_from([0.5, 1.0, 2.0]), st.integers(1, 4), st.sampled_from([4.0, 9.5])),
    st.builds(rs.Queue, st.integers(1, 8)),
)
PRIORITIES = st.sampled_from([0.0, 0.1, 1.0, 7.5])
VERSIONS = st.integers(-3, 30)


@dataclass
class Item:
    key: int
    priority: float
    version: int
    times: int = 0


class Model:
    """Live items by id, oldest first, and the settings, with the documented rules written down plainly."""

    def __init__(self, table: rs.Table) -> None:
        self.table = table
        self.live: dict[int, Item] = {}
        self.gone: list[int] = []
        self.newest: int | None = None
        self.added = self.sampled = self.inserts = self.samples = 0
        self.times = table.max_times_sampled or int(isinstance(table.rate_limiter, rs.Queue))

    @property
    def capacity(self) -> int:
        table = self.table
        return min(table.capacity, table.max_bytes // ITEM_BYTES) if table.max_bytes else table.capacity

    def weight(self, item: Item) -> float:
        if not isinstance(self.table.sampler, rs.Prioritized):
            return 1.0
        return item.priority**self.table.sampler.priority_exponent if item.priority > 0 else 0.0

    def order(self, selector: object) -> list[int] | None:
        """Ids in the order of a selector; None for one that draws at random."""
        ids = list(self.live)
        if isinstance(selector, rs.Fifo):
            return ids
        if isinstance(selector, rs.Lifo):
            return ids[::-1]
        if isinstance(selector, rs.MaxHeap | rs.MinHeap):
            sign = -1 if isinstance(selector, rs.MaxHeap) else 1
            return sorted(ids, key=lambda item: sign * self.live[item].priority)  # stable: equal ones by age
        return None

    def leave(self, item: int) -> None:
        del self.live[item]
        self.gone.append(item)

    def stale(self) -> list[int]:
        most = self.table.max_staleness
        if most is None or self.newest is None:
            return []
        return [item for item, entry in self.live.items() if self.newest - entry.version > most]

    def see(self, version: int) -> None:
        self.newest = version if self.newest is None else max(self.newest, version)

    # ---- limiters ----------------------------------------------------------------------------------------------------

    def refuses_add(self, n: int) -> type[Exception] | None:
        limiter, size = self.table.rate_limiter, len(self.live)
        if n > self.capacity:
            return rs.LimitExceeded
        if isinstance(limiter, rs.Queue):
            return rs.LimitExceeded if n > limiter.size else rs.Timeout if size + n > limiter.size else None
        if isinstance(limiter, rs.SampleToInsertRatio):
            worth = n * limiter.samples_per_insert
            lead = self.inserts * limiter.samples_per_insert - self.samples
            target = limiter.samples_per_insert * limiter.min_size_to_sample
            if size + n <= limiter.min_size_to_sample or lead + worth <= target + limiter.error_buffer:
                return None
            if worth > 2 * limiter.error_buffer:
                return rs.LimitExceeded
            return None if size < limiter.min_size_to_sample else rs.Timeout
        return None

    def worth(self, limiter) -> float:
        """Samples that the inserts are worth since there are min_size_to_sample of them."""
        if not isinstance(limiter, rs.SampleToInsertRatio):
            return self.samples
        return max(0, self.inserts - limiter.min_size_to_sample) * limiter.samples_per_insert

    def change_limiter(self, limiter) -> None:
        """A ratio begins where the one before it was: neither side makes up for the past."""
        if isinstance(limiter, rs.SampleToInsertRatio):
            samples = self.samples - self.worth(self.table.rate_limiter) + self.worth(limiter)
            self.samples = max(0, math.floor(samples + 0.5))

    def limiter_refuses_sample(self, n: int) -> type[Exception] | None:
        limiter, size = self.table.rate_limiter, len(self.live)
        if isinstance(limiter, rs.Queue):
            return rs.LimitExceeded if n > limiter.size else rs.Timeout if n > size else None
        allowed = True
        if isinstance(limiter, rs.SampleToInsertRatio):
            lead = self.inserts * limiter.samples_per_insert - self.samples
            target = limiter.samples_per_insert * limiter.min_size_to_sample
            allowed = lead - n >= target - limiter.error_buffer
            if n > 2 * limiter.error_buffer and not allowed:
                return rs.LimitExceeded
        return None if allowed and size >= limiter.min_size_to_sample else rs.Timeout

    def refuses_sample(self, n: int, replace: bool) -> type[Exception] | None:
        ordered = self.order(self.table.sampler) is not None
        if (ordered and n > self.capacity) or (self.times and n > self.capacity * self.times):
            return rs.LimitExceeded
        if refusal := self.limiter_refuses_sample(n):
            return refusal
        drawable = [item for item in self.live.values() if self.weight(item) > 0]
        if not drawable or (ordered and n > len(self.live)):
            return rs.Timeout
        if self.times and n > sum(self.times - item.times for item in drawable):
            return rs.Timeout
        if replace or ordered:
            return None
        return rs.LimitExceeded if n > self.capacity else rs.Timeout if n > len(drawable) else None

    def valid(self, table: rs.Table) -> bool:
        """Whether a live table may have these settings."""
        if table.max_bytes and table.max_bytes < ITEM_BYTES:
            return False
        limiter = table.rate_limiter
        capacity = min(table.capacity, table.max_bytes // ITEM_BYTES) if table.max_bytes else table.capacity
        needed = limiter.size if isinstance(limiter, rs.Queue) else limiter.min_size_to_sample
        ratio = limiter.samples_per_insert if isinstance(limiter, rs.SampleToInsertRatio) else 0
        return needed <= capacity and not 0 < table.max_times_sampled < ratio


class BufferMachine(RuleBasedStateMachine):
    @initialize(
        capacity=st.one_of(st.integers(1, 12), st.just(3_000_000)),
        sampler=SELECTORS,
        remover=SELECTORS,
        limiter=LIMITERS,
        times=st.sampled_from([0, 0, 1, 3]),
        staleness=st.sampled_from([None, None, 0, 5]),
    )
    def start(self, capacity, sampler, remover, limiter, times, staleness):
        parts = {"sampler": sampler, "remover": remover, "max_times_sampled": times, "max_staleness": staleness}
        table = rs.Table("t", capacity, SIGNATURE, rate_limiter=limiter, seed=1, **parts)
        self.model = Model(table)
        if not self.model.valid(table):
            with pytest.raises(rs.SchemaError):
                rs.Buffer(table)
            table = rs.Table("t", capacity, SIGNATURE, seed=1, **parts)
            self.model = Model(table)
        self.buffer = rs.Buffer(table)
        self.key = 0

    def is_live(self, item: int) -> bool:
        try:
            self.buffer.get([item])
        except rs.ServerError:
            return False
        return True

    def settle(self, excess: int, before: set[int]) -> None:
        """Items that were there `before` leave: `excess` of them by the remover's choice, and all that are stale."""
        order = self.model.order(self.model.table.remover)
        if order is None:
            missing = {item for item in before if not self.is_live(item)}
            stale = set(self.model.stale())
            assert stale & before <= missing
            assert len(missing - stale) <= excess
            assert len(missing) >= excess
            order = [item for item in self.model.live if item in missing and item not in stale]
            excess = len(order)
        else:
            order = [item for item in order if item in before]
        for item in order[:excess]:
            self.model.leave(item)
        for item in self.model.stale():
            self.model.leave(item)

    @rule(n=st.integers(1, 6), version=VERSIONS, data=st.data())
    def add(self, n, version, data):
        model = self.model
        keys = np.arange(self.key, self.key + n)
        versions = np.array([version - i % 3 for i in range(n)])
        priorities = data.draw(st.none() | st.lists(PRIORITIES, min_size=n, max_size=n))
        columns = {"x": np.stack([keys, -keys], axis=1).astype(np.float32), "k": keys, "policy_version": versions}
        if refusal := model.refuses_add(n):
            with pytest.raises(refusal):
                self.buffer.add(columns, priorities, timeout=0)
            return
        ids = self.buffer.add(columns, priorities, timeout=0)
        assert not {*ids.tolist()} & {*model.live, *model.gone}
        default = max((item.priority for item in model.live.values()), default=1.0)
        before = set(model.live)
        for i, item in enumerate(ids.tolist()):
            given = default if priorities is None else priorities[i]
            model.live[item] = Item(int(keys[i]), given, int(versions[i]))
        model.see(int(versions.max()))
        self.settle(max(0, len(before) + n - model.capacity), before)
        self.key += n
        model.added += n
        model.inserts += n

    @rule(
        n=st.integers(1, 8),
        beta=st.sampled_from([0.0, 0.4, 1.0]),
        replace=st.booleans(),
        version=st.none() | VERSIONS,
    )
    def sample(self, n, beta, replace, version):
        model = self.model
        if version is not None:
            model.see(version)
            for item in model.stale():
                model.leave(item)
        arguments = {"timeout": 0, "replace": replace, "policy_version": version}
        if refusal := model.refuses_sample(n, replace):
            with pytest.raises(refusal):
                self.buffer.sample(n, beta, **arguments)
            return
        order = model.order(model.table.sampler)
        batch = self.buffer.sample(n, beta, **arguments)
        ids = batch.ids.tolist()
        assert replace or len(set(ids)) == n
        assert order is None or ids == order[:n]
        for item, x, k, probability in zip(ids, batch.data["x"], batch.data["k"], batch.probabilities, strict=True):
            entry = model.live[item]
            assert entry.key == k == x[0] == -x[1]
            total = sum(model.weight(other) for other in model.live.values())
            expected = model.weight(entry) / total if order is None else 1.0
            assert expected > 0
            if replace:
                assert probability == pytest.approx(expected)
            entry.times += 1
            if model.times and entry.times == model.times:
                model.leave(item)
        exponent = beta if isinstance(model.table.sampler, rs.Prioritized) else 0
        np.testing.assert_allclose(batch.weights, (batch.probabilities.min() / batch.probabilities) ** exponent, 1e-6)
        model.sampled += n
        model.samples += n

    @precondition(lambda self: self.model.live or self.model.gone)
    @rule(data=st.data(), priority=st.sampled_from([0.0, 0.5, 3.0, 1e6]))
    def update(self, data, priority):
        model = self.model
        ids = data.draw(st.lists(st.sampled_from([*model.live, *model.gone]), max_size=5))
        live = sum(item in model.live for item in ids)
        priorities = [priority + i for i in range(len(ids))]
        assert self.buffer.update_priorities(ids, priorities) == (live, len(ids) - live)
        for item, value in zip(ids, priorities, strict=True):
            if item in model.live:
                model.live[item].priority = value

    @precondition(lambda self: self.model.live or self.model.gone)
    @rule(data=st.data())
    def delete(self, data):
        model = self.model
        ids = data.draw(st.lists(st.sampled_from([*model.live, *model.gone]), max_size=3, unique=True))
        assert self.buffer.delete(ids) == sum(item in model.live for item in ids)
        for item in ids:
            if item in model.live:
                model.leave(item)

    @rule()
    def get(self):
        batch = self.buffer.get(list(self.model.live))
        assert batch.data["k"].tolist() == [item.key for item in self.model.live.values()]
        if self.model.gone:
            with pytest.raises(rs.ServerError, match="is not in table"):
                self.buffer.get([*self.model.live, self.model.gone[-1]])

    @rule()
    def reset(self):
        self.buffer.reset()
        self.model.newest = None
        for item in list(self.model.live):
            self.model.leave(item)
        self.model.inserts = self.model.samples = 0

    def change(self, **changes):
        """Configures; what the new limits do to live items is `settle`'s business."""
        model = self.model
        values = {**vars(model.table), "max_times_sampled": model.times, **changes}
        fields = {name: values[name] for name in rs.Table.__dataclass_fields__}
        table = rs.Table(**fields)
        if not model.valid(table):
            before = self.buffer.info()
            with pytest.raises(rs.SchemaError):
                self.buffer.configure(**changes)
            assert self.buffer.info() == before
            return
        self.buffer.configure(**changes)
        limit = table.max_times_sampled or int(isinstance(table.rate_limiter, rs.Queue))
        for item, entry in list(model.live.items()):
            if limit and (model.times == 0 or limit < model.times) and entry.times >= limit:
                model.leave(item)
        model.change_limiter(table.rate_limiter)
        model.table, model.times = table, limit
        self.settle(max(0, len(model.live) - model.capacity), set(model.live))

    @rule(sampler=SELECTORS)
    def change_sampler(self, sampler):
        self.change(sampler=sampler)

    @rule(remover=SELECTORS)
    def change_remover(self, remover):
        self.change(remover=remover)

    @rule(limiter=LIMITERS)
    def change_limiter(self, limiter):
        self.change(rate_limiter=limiter)

    @rule(times=st.integers(0, 3))
    def change_times(self, times):
        self.change(max_times_sampled=times)

    @rule(items=st.sampled_from([0.5, 1, 2.5, 5, 8, 100]))
    def change_bytes(self, items):
        self.change(max_bytes=int(items * ITEM_BYTES))

    @rule(staleness=st.integers(-1, 8))
    def change_staleness(self, staleness):
        self.change(max_staleness=staleness)

    @invariant()
    def counts(self):
        if not hasattr(self, "buffer"):
            return
        model, info = self.model, self.buffer.info()
        assert info["size"] == len(model.live)
        assert info["bytes"] == ITEM_BYTES * len(model.live)
        assert (info["added"], info["sampled"], info["removed"]) == (model.added, model.sampled, len(model.gone))
        assert info["max_priority"] == max((item.priority for item in model.live.values()), default=0)
        assert info["policy_version"] == model.newest
        assert bool(info["reason"]) == (model.refuses_sample(1, True) is not None)
        assert bool(info["reason_add"]) == (model.refuses_add(1) is not None)
        if isinstance(model.table.sampler, rs.Prioritized):
            expected = math.fsum(model.weight(item) for item in model.live.values())
            assert info["total_priority"] == pytest.approx(expected)
        assert info["pinned_slots"] == info["reserved_slots"] == 0


BufferMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
TestBufferAgainstModel = BufferMachine.TestCase
