"""The in-process buffer: its contract by example, and as a state machine against a plain-Python model."""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import replay_server as rs

SIGNATURE = {"x": rs.Column("float32", (2,)), "k": rs.Column("int64")}


def make(capacity: int = 10, **parts) -> rs.Buffer:
    return rs.Buffer(rs.Table("t", capacity, SIGNATURE, **{"seed": 1, **parts}))


def items(*keys: int) -> dict[str, np.ndarray]:
    k = np.array(keys, np.int64)
    return {"x": np.stack([k, -k], axis=1).astype(np.float32), "k": k}


def test_what_is_added_is_what_is_sampled():
    buffer = make()
    ids = buffer.add(items(1, 2, 3), priorities=[1.0, 2.0, 3.0])
    assert ids.dtype == np.uint64
    assert len(set(ids.tolist())) == 3
    batch = buffer.sample(64, importance_sampling_exponent=0.5)
    assert batch.data["x"].shape == (64, 2)
    assert len(batch) == 64
    np.testing.assert_array_equal(batch.data["x"][:, 0], batch.data["k"])
    np.testing.assert_array_equal(ids[batch.data["k"] - 1], batch.ids)


def test_samples_without_priorities_use_the_maximum():
    buffer = make(sampler=rs.Prioritized(1.0))
    first = buffer.add(items(1))
    assert buffer.info()["max_priority"] == 1.0
    buffer.update_priorities(first, [5.0])
    buffer.add(items(2))
    assert buffer.info()["total_priority"] == 10.0


def test_an_update_to_an_item_that_was_replaced_is_stale_and_changes_nothing():
    buffer = make(capacity=2)
    old = buffer.add(items(1, 2), priorities=[1.0, 1.0])
    new = buffer.add(items(3, 4), priorities=[1.0, 1.0])
    before = buffer.get(new)
    assert buffer.update_priorities(old, [100.0, 100.0]) == (0, 2)
    np.testing.assert_array_equal(buffer.get(new).probabilities, before.probabilities)
    info = buffer.info()
    assert (info["stale_updates"], info["max_priority"], info["removed"]) == (2, 1.0, 2)


def test_a_refused_add_changes_nothing():
    buffer = make()
    buffer.add(items(1))
    before = buffer.info()
    for data, priorities, kind in [
        ({"x": np.zeros((2, 2), np.float32)}, None, rs.SchemaError),
        ({**items(1, 2), "x": np.zeros((2, 3), np.float32)}, None, rs.SchemaError),
        ({**items(1, 2), "x": np.zeros((2, 2))}, None, rs.SchemaError),
        (items(1, 2), [1.0, float("nan")], rs.PriorityError),
        (items(1, 2), [1.0, -1.0], rs.PriorityError),
        (items(1, 2), [1.0, 1e308], rs.PriorityError),
        (items(1, 2), [1.0], rs.PriorityError),
        (items(*range(11)), None, rs.LimitExceeded),
    ]:
        with pytest.raises(kind):
            buffer.add(data, priorities)
        assert buffer.info() == before


def test_a_refused_update_changes_nothing():
    buffer = make()
    ids = buffer.add(items(1, 2), priorities=[1.0, 2.0])
    before = buffer.info()
    with pytest.raises(rs.PriorityError):
        buffer.update_priorities(ids, [7.0, float("inf")])
    assert buffer.info() == before


def test_nothing_to_add_adds_nothing():
    assert len(make().add(items())) == 0


@pytest.mark.parametrize(
    ("parts", "before", "wanted", "reason"),
    [
        ({}, [], 1, "too few items"),
        ({"rate_limiter": rs.MinSize(3)}, [1, 2], 1, "min_size_to_sample = 3"),
        ({"sampler": rs.Fifo()}, [1, 2], 3, "too few items"),
        ({"rate_limiter": rs.SampleToInsertRatio(1.0, 2, 2.0)}, [1, 2], 3, "rate limiter"),
    ],
)
def test_a_sample_that_must_wait_says_why(parts, before, wanted, reason):
    buffer = make(**parts)
    buffer.add(items(*before))
    for timeout in (0, 0.02):
        with pytest.raises(rs.Timeout, match=reason) as caught:
            buffer.sample(wanted, timeout=timeout)
        assert reason in caught.value.reason
        assert f"sample of {wanted} from 't'" in str(caught.value)


def test_all_priorities_zero_is_a_reason_to_wait_in_error_and_info():
    buffer = make()
    ids = buffer.add(items(1, 2), priorities=[0.0, 0.0])
    with pytest.raises(rs.Timeout, match="all priorities are zero"):
        buffer.sample(1, timeout=0)
    assert "all priorities are zero" in buffer.info()["reason"]
    buffer.update_priorities(ids[:1], [1.0])
    assert buffer.info()["reason"] == ""
    assert set(buffer.sample(100).data["k"]) == {1}


def test_a_batch_that_could_never_pass_is_refused_at_once():
    with pytest.raises(rs.LimitExceeded):
        make(rate_limiter=rs.SampleToInsertRatio(1.0, 1, 2.0)).sample(9)
    with pytest.raises(rs.LimitExceeded):
        make(rate_limiter=rs.Queue(2), sampler=rs.Fifo()).add(items(1, 2, 3))


def test_a_waiting_sample_is_woken_by_an_add_and_a_waiting_add_by_a_sample():
    queue = make(sampler=rs.Fifo(), rate_limiter=rs.Queue(4), max_times_sampled=1)
    seen: list[int] = []

    def consume() -> None:
        while len(seen) < 300:
            seen.extend(queue.sample(3, timeout=30).data["k"].tolist())

    consumer = threading.Thread(target=consume)
    consumer.start()
    for start in range(0, 300, 2):
        queue.add(items(start, start + 1), timeout=30)
    consumer.join(30)
    assert seen == list(range(300))
    assert queue.info()["size"] == 0


def test_an_add_that_must_wait_says_why():
    queue = make(sampler=rs.Fifo(), rate_limiter=rs.Queue(2), max_times_sampled=1)
    queue.add(items(1, 2))
    with pytest.raises(rs.Timeout, match="the queue holds 2 of 2"):
        queue.add(items(3), timeout=0)


def test_an_item_leaves_after_max_times_sampled():
    buffer = make(sampler=rs.Uniform(), max_times_sampled=2)
    ids = buffer.add(items(1, 2))
    assert sorted(buffer.sample(4).data["k"]) == [1, 1, 2, 2]
    assert buffer.info()["size"] == 0
    with pytest.raises(rs.ServerError, match="is not in table"):
        buffer.get(ids)


def test_out_reuses_its_arrays():
    buffer = make()
    buffer.add(items(1, 2, 3))
    out = buffer.sample(4)
    addresses = [array.ctypes.data for array in out.arrays()]
    assert buffer.sample(4, out=out) is out
    assert [array.ctypes.data for array in out.arrays()] == addresses
    with pytest.raises(rs.SchemaError, match="of shape"):
        buffer.sample(5, out=out)
    out.data["x"].flags.writeable = False
    with pytest.raises(rs.SchemaError, match="read-only"):
        buffer.sample(4, out=out)


def test_some_columns_may_be_asked_for():
    buffer = make()
    buffer.add(items(1, 2, 3))
    assert list(buffer.sample(4, columns=["k"]).data) == ["k"]
    with pytest.raises(rs.SchemaError, match="no column 'z'"):
        buffer.sample(4, columns=["z"])


def test_delete_counts_the_live():
    buffer = make()
    ids = buffer.add(items(1, 2, 3))
    assert buffer.delete(ids[:2]) == 2
    assert buffer.delete(ids) == 1
    assert buffer.info()["size"] == 0


def test_reset_keeps_ids_unique():
    buffer = make()
    old = buffer.add(items(1, 2, 3))
    buffer.reset()
    assert buffer.info()["size"] == 0
    assert not set(old.tolist()) & set(buffer.add(items(1, 2, 3)).tolist())


def test_configure_changes_the_limiter_of_a_live_buffer():
    buffer = make(rate_limiter=rs.MinSize(5))
    buffer.add(items(1, 2))
    woken = threading.Event()

    def wait() -> None:
        buffer.sample(1, timeout=30)
        woken.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    buffer.configure(rate_limiter=rs.MinSize(2))
    assert woken.wait(30)
    waiter.join()
    assert buffer.table.rate_limiter == rs.MinSize(2)


def test_a_sampler_prefetches_and_its_batches_stay_as_they_were():
    buffer = make(sampler=rs.Uniform())
    buffer.add(items(*range(10)))
    kept, copies = [], []
    with buffer.sampler(32, prefetch=2) as batches:
        for batch, _ in zip(batches, range(50), strict=False):
            np.testing.assert_array_equal(batch.data["x"][:, 0], batch.data["k"])
            kept.append(batch.data["k"][::2])  # a view keeps its batch from being used again
            copies.append(batch.data["k"][::2].copy())
    for view, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(view, copy)


def test_a_sampler_uses_dropped_batches_again():
    buffer = make()
    buffer.add(items(1))
    seen = set()
    with buffer.sampler(1024, prefetch=1) as batches:
        for _ in range(50):
            batch = next(batches)
            seen.add(batch.data["x"].ctypes.data)
            del batch
    assert len(seen) <= 8


def test_closing_a_sampler_ends_a_wait_from_another_thread():
    batches = make().sampler(1)
    outcome: list[list[object]] = []
    waiter = threading.Thread(target=lambda: outcome.append(list(batches)))
    waiter.start()
    batches.close()
    waiter.join(30)
    assert outcome == [[]]
    assert list(batches) == []


def test_a_timeout_is_understood_as_the_client_does():
    buffer = make()
    for timeout in (-1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            buffer.add(items(1), timeout=timeout)
        with pytest.raises(ValueError, match="timeout"):
            buffer.sample(1, timeout=timeout)
    assert len(buffer) == 0
    later = threading.Timer(0.05, lambda: buffer.add(items(1)))
    later.start()
    assert len(buffer.sample(1, timeout=float("inf"))) == 1
    later.join()


def test_a_sampler_raises_its_timeout_and_ends():
    batches = make().sampler(1, timeout=0.01)
    with pytest.raises(rs.Timeout, match="too few items"):
        next(batches)
    assert list(batches) == []
    batches.close()


def test_many_threads_share_a_buffer():
    buffer = make(capacity=5000, sampler=rs.Prioritized(0.6))
    buffer.add(items(0))
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for i in range(100):
                ids = buffer.add(items(*range(i, i + 5)), priorities=np.full(5, 1.0 + thread))
                batch = buffer.sample(16)
                np.testing.assert_array_equal(batch.data["x"][:, 0], batch.data["k"])
                buffer.update_priorities(np.concatenate([ids, batch.ids]), np.ones(21))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    info = buffer.info()
    assert (info["added"], info["sampled"], info["size"]) == (2001, 6400, 2001)
    assert info["total_priority"] == pytest.approx(2001)


class BufferMachine(RuleBasedStateMachine):
    """Items are (key, priority, times sampled) in order of age; ids that left are kept to be tried again."""

    @initialize(
        capacity=st.integers(1, 12),
        sampler=st.sampled_from(["prioritized", "uniform", "fifo"]),
        exponent=st.sampled_from([0.0, 0.5, 0.6, 1.0, 2.0]),
        max_times_sampled=st.sampled_from([0, 0, 1, 3]),
    )
    def start(self, capacity, sampler, exponent, max_times_sampled):
        made = {"prioritized": rs.Prioritized(exponent), "uniform": rs.Uniform(), "fifo": rs.Fifo()}[sampler]
        self.kind, self.exponent, self.times = sampler, exponent, max_times_sampled
        self.capacity = capacity
        self.buffer = make(capacity, sampler=made, max_times_sampled=max_times_sampled)
        self.live: OrderedDict[int, list] = OrderedDict()
        self.gone: list[int] = []
        self.key = 0
        self.added = self.sampled = self.stale = 0

    def weight(self, priority: float) -> float:
        if self.kind != "prioritized":
            return 1.0
        return priority**self.exponent if priority > 0 else 0.0

    def leave(self, item: int) -> None:
        del self.live[item]
        self.gone.append(item)

    @rule(n=st.integers(1, 6), data=st.data())
    def add(self, n, data):
        keys = [self.key + i for i in range(n)]
        priorities = data.draw(st.none() | st.lists(st.sampled_from([0.0, 0.1, 1.0, 7.5]), min_size=n, max_size=n))
        if n > self.capacity:
            with pytest.raises(rs.LimitExceeded):
                self.buffer.add(items(*keys), priorities, timeout=0)
            return
        ids = self.buffer.add(items(*keys), priorities, timeout=0)
        default = max((entry[1] for entry in self.live.values()), default=1.0)
        for _ in range(max(0, len(self.live) + n - self.capacity)):
            self.leave(next(iter(self.live)))
        for i, item in enumerate(ids.tolist()):
            assert item not in self.live
            assert item not in self.gone
            self.live[item] = [keys[i], default if priorities is None else priorities[i], 0]
        self.key += n
        self.added += n

    @rule(n=st.integers(1, 8), beta=st.sampled_from([0.0, 0.4, 1.0]))
    def sample(self, n, beta):
        drawable = {item: entry for item, entry in self.live.items() if self.weight(entry[1]) > 0}
        left = sum(self.times - entry[2] for entry in drawable.values()) if self.times else n
        possible = drawable and left >= n and not (self.kind == "fifo" and n > len(self.live))
        if not possible:
            with pytest.raises((rs.Timeout, rs.LimitExceeded)):
                self.buffer.sample(n, beta, timeout=0)
            return
        batch = self.buffer.sample(n, beta, timeout=0)
        if self.kind == "fifo":
            assert batch.ids.tolist() == list(self.live)[:n]
        for item, x, k, probability in zip(
            batch.ids.tolist(), batch.data["x"], batch.data["k"], batch.probabilities, strict=True
        ):
            entry = self.live[item]
            assert entry[0] == k == x[0] == -x[1]
            if self.kind == "fifo":
                expected = 1.0
            else:
                expected = self.weight(entry[1]) / sum(self.weight(other[1]) for other in self.live.values())
            assert expected > 0
            assert probability == pytest.approx(expected)
            entry[2] += 1
            if self.times and entry[2] == self.times:
                self.leave(item)
        ratio = (batch.probabilities.min() / batch.probabilities) ** (beta if self.kind == "prioritized" else 0)
        np.testing.assert_allclose(batch.weights, ratio, rtol=1e-6)
        self.sampled += n

    @precondition(lambda self: self.live or self.gone)
    @rule(data=st.data(), priority=st.sampled_from([0.0, 0.5, 3.0, 1e6]))
    def update(self, data, priority):
        ids = data.draw(st.lists(st.sampled_from([*self.live, *self.gone]), max_size=5))
        priorities = [priority + i for i in range(len(ids))]
        live = sum(item in self.live for item in ids)
        assert self.buffer.update_priorities(ids, priorities) == (live, len(ids) - live)
        self.stale += len(ids) - live
        for item, value in zip(ids, priorities, strict=True):
            if item in self.live:
                self.live[item][1] = value

    @precondition(lambda self: self.live or self.gone)
    @rule(data=st.data())
    def delete(self, data):
        ids = data.draw(st.lists(st.sampled_from([*self.live, *self.gone]), max_size=3, unique=True))
        assert self.buffer.delete(ids) == sum(item in self.live for item in ids)
        for item in ids:
            if item in self.live:
                self.leave(item)

    @rule()
    def get(self):
        batch = self.buffer.get(list(self.live))
        assert batch.data["k"].tolist() == [entry[0] for entry in self.live.values()]
        if self.gone:
            with pytest.raises(rs.ServerError, match="is not in table"):
                self.buffer.get([*self.live, self.gone[-1]])

    @rule()
    def reset(self):
        self.buffer.reset()
        for item in list(self.live):
            self.leave(item)

    @invariant()
    def counts(self):
        if not hasattr(self, "buffer"):
            return
        info = self.buffer.info()
        assert info["size"] == len(self.live)
        assert info["bytes"] == 16 * len(self.live)
        assert (info["added"], info["sampled"], info["stale_updates"]) == (self.added, self.sampled, self.stale)
        assert info["removed"] == len(self.gone)
        assert info["max_priority"] == max((entry[1] for entry in self.live.values()), default=0)
        if self.kind == "prioritized":
            expected = sum(self.weight(entry[1]) for entry in self.live.values())
            assert info["total_priority"] == pytest.approx(expected)
        assert info["pinned_slots"] == info["reserved_slots"] == 0


BufferMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBufferAgainstModel = BufferMachine.TestCase
