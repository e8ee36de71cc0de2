"""The in-process buffer: its contract by example; test_buffer_model.py compares it with a model."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest

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
            seen.extend(queue.sample(3, timeout=60).data["k"].tolist())

    consumer = threading.Thread(target=consume)
    consumer.start()
    for start in range(0, 300, 2):
        queue.add(items(start, start + 1), timeout=60)
    consumer.join(60)
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
    out.data["x"] = out.data["x"].tolist()
    with pytest.raises(rs.SchemaError, match="must be an array, got list"):
        buffer.sample(4, out=out)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got -1"):
        buffer.sample(-1)
    with pytest.raises(rs.LimitExceeded, match="at least 1, got -1"):
        rs.SumTree(-1)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda batch: pickle.loads(pickle.dumps(batch))])  # noqa: S301
def test_a_batch_can_be_copied_and_sent_to_another_process(copied):
    buffer = make()
    buffer.add(items(1, 2, 3))
    batch = buffer.sample(4)
    other = copied(batch)
    for array, twin in zip(batch.arrays(), other.arrays(), strict=True):
        np.testing.assert_array_equal(array, twin)
        assert not np.shares_memory(array, twin)
    assert buffer.sample(4, out=other) is other


def test_weights_without_correction_are_one_even_where_a_probability_underflows():
    buffer = make(sampler=rs.Prioritized(priority_exponent=1.0))
    buffer.add(items(1, 2), priorities=[1e-300, 1e280])
    batch = buffer.sample(2, importance_sampling_exponent=0.0, replace=False)
    assert batch.probabilities.min() == 0
    np.testing.assert_array_equal(batch.weights, np.ones(2, np.float32))


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
        buffer.sample(1, timeout=60)
        woken.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    buffer.configure(rate_limiter=rs.MinSize(2))
    assert woken.wait(60)
    waiter.join()
    assert buffer.table.rate_limiter == rs.MinSize(2)


@pytest.mark.parametrize(("before", "after"), [(8.0, 2.0), (2.0, 8.0)])
def test_another_ratio_holds_from_when_it_is_given(before: float, after: float) -> None:
    """Nobody has to make up for the past: with a lead over the whole time, one side would wait for the other."""
    buffer = make(rate_limiter=rs.SampleToInsertRatio(before, 10, 16.0))
    buffer.add(items(*range(10)))

    def draw(samples: int) -> None:
        for _ in range(samples // 8):
            buffer.sample(8, timeout=0)

    def turns(ratio: float, samples: int) -> None:
        for _ in range(samples // 8):
            draw(8)
            buffer.add(items(*range(int(8 / ratio))), timeout=0)

    turns(before, 400)
    buffer.configure(rate_limiter=rs.SampleToInsertRatio(after, 10, 16.0))
    turns(after, 400)
    with pytest.raises(rs.Timeout):  # 40 samples are more than the band is wide
        draw(40)


def test_a_sampler_prefetches_and_its_batches_stay_as_they_were():
    buffer = make(sampler=rs.Uniform())
    buffer.add(items(*range(10)))
    kept, copies = [], []
    with buffer.sampler(32, prefetch=2) as batches:
        for batch, _ in zip(batches, range(50), strict=False):
            np.testing.assert_array_equal(batch.data["x"][:, 0], batch.data["k"])
            kept.append(batch.data["k"][::2])  # a view keeps its batch from being used again
            copies.append(batch.data["k"][::2].copy())
    for view, bytes_then in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(view, bytes_then)


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
    waiter.join(60)
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


def test_a_queue_and_a_stack_hand_out_every_item_once_in_their_order():
    queue = rs.Buffer(rs.Table.queue("q", SIGNATURE, 4))
    stack = rs.Buffer(rs.Table.stack("s", SIGNATURE, 4))
    for buffer, expected in ((queue, [1, 2, 3, 4]), (stack, [4, 3, 2, 1])):
        buffer.add(items(1, 2), timeout=0)
        buffer.add(items(3, 4), timeout=0)
        with pytest.raises(rs.Timeout, match="the queue holds 4 of 4"):
            buffer.add(items(5), timeout=0)
        drawn = [*buffer.sample(3, timeout=0).data["k"], *buffer.sample(1, timeout=0).data["k"]]
        assert drawn == expected
        assert len(buffer) == 0
    assert rs.Table.queue("q", SIGNATURE, 4, max_times_sampled=2).max_times_sampled == 2
    with pytest.raises(rs.SchemaError, match="size"):
        rs.Table.queue("q", SIGNATURE, 0)


def test_settings_with_which_both_sides_wait_for_ever_are_refused():
    ratio = rs.SampleToInsertRatio(samples_per_insert=4.0, min_size_to_sample=1, error_buffer=40.0)
    with pytest.raises(rs.SchemaError, match="both wait for ever"):
        make(rate_limiter=ratio, max_times_sampled=3)
    buffer = make(rate_limiter=ratio, max_times_sampled=4)
    with pytest.raises(rs.SchemaError, match="both wait for ever"):
        buffer.configure(max_times_sampled=1)
    assert buffer.table.max_times_sampled == 4


def test_a_learners_version_lets_old_items_go_without_the_column_it_is_refused():
    signature = {"k": rs.Column("int64"), "policy_version": rs.Column("int64")}
    buffer = rs.Buffer(rs.Table("t", 10, signature, sampler=rs.Lifo(), max_staleness=2))
    buffer.add({"k": np.arange(4), "policy_version": np.array([5, 3, 4, 5])})
    assert buffer.sample(4, policy_version=5).data["k"].tolist() == [3, 2, 1, 0]
    assert buffer.sample(3, policy_version=6).data["k"].tolist() == [3, 2, 0]
    with buffer.sampler(2) as batches:
        batches.policy_version = 7
        while buffer.info()["size"] > 2:
            next(batches)
    assert buffer.info()["stale_items"] == 2
    with pytest.raises(rs.SchemaError, match="policy_version"):
        make().sample(1, timeout=0, policy_version=1)
    for version in (1.5, True, 2**63):
        with pytest.raises(ValueError, match="policy_version"):
            buffer.sample(1, timeout=0, policy_version=version)
    with pytest.raises(rs.SchemaError, match="policy_version"):
        make(max_staleness=1)


def test_info_tells_how_priorities_are_spread():
    buffer = rs.Buffer(rs.Table("t", 4, {"k": rs.Column("int64")}, sampler=rs.Prioritized(1.0)))
    buffer.add({"k": np.arange(4)}, [0.0, 0.3, 1.0, 1.99])
    assert (buffer.info()["zero_priorities"], buffer.info()["priorities"]) == (1, {-2: 1, 0: 2})
