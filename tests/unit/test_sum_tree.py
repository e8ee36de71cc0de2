"""`SumTree` against plain NumPy: sums, draws, refusals, the same on every path of vector instructions."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import replay_server as rs

BATCH = 512


def compare(tree: rs.SumTree, values: np.ndarray, generator: np.random.Generator) -> None:
    """The tree holds what the model holds."""
    some = generator.integers(0, len(values), 4096)
    np.testing.assert_array_equal(tree.get(some), values[some])
    assert tree.total == pytest.approx(values.sum(), rel=1e-12)


def churn(capacity: int, operations: int, seed: int) -> None:
    """Writes and draws in batches of 512, `operations` leaves each, over twelve orders of magnitude with zeros between;
    every 10⁶ the whole is compared with the model, every draw is where the model has a value."""
    generator = np.random.default_rng(seed)
    tree, values = rs.SumTree(capacity, seed=seed), np.zeros(capacity)
    out = np.empty(BATCH, np.int64), np.empty(BATCH)
    for batch in range(operations // BATCH):
        indices = generator.integers(0, capacity, BATCH)
        written = np.where(generator.random(BATCH) < 0.2, 0.0, 10.0 ** (12 * generator.random(BATCH) - 6))
        tree.update(indices, written)
        values[indices] = written
        drawn, probabilities = tree.sample(BATCH, stratified=batch % 2 == 0, out=out)
        held = values[drawn]
        assert held.min() > 0
        np.testing.assert_allclose(probabilities, held / tree.total, rtol=1e-14)
        if batch % (1_000_000 // BATCH) == 0:
            compare(tree, values, generator)
    compare(tree, values, generator)
    np.testing.assert_array_equal(tree.get(np.arange(capacity)), values)


def test_ten_million_writes_and_draws_do_not_drift():
    churn(1_000_003, 10_000_000, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_thousand_million_writes_and_draws_do_not_drift():
    churn(10_000_019, 1_000_000_000, seed=2)


@pytest.mark.parametrize("stratified", [True, False])
def test_draws_follow_the_values(stratified):
    values = np.random.default_rng(3).gamma(0.5, 2.0, 1000)
    tree = rs.SumTree(1000, seed=4)
    tree.update(np.arange(1000), values)
    counts = np.zeros(1000)
    for _ in range(400):
        counts += np.bincount(tree.sample(1000, stratified)[0], minlength=1000)
    expected = values / values.sum() * counts.sum()
    keep = expected > 5
    statistic = ((counts - expected)[keep] ** 2 / expected[keep]).sum()
    degrees = keep.sum() - 1
    # Exceeded by independent draws with probability 10⁻⁶ (Wilson and Hilferty 1931); by stratified ones more rarely.
    spread = 2 / (9 * degrees)
    assert statistic < degrees * (1 - spread + 4.753 * spread**0.5) ** 3


def test_the_last_of_equal_indices_counts():
    tree = rs.SumTree(10)
    tree.update([3, 3, 4, 3], [1.0, 2.0, 5.0, 7.0])
    np.testing.assert_array_equal(tree.get([3, 4, 5]), [7.0, 5.0, 0.0])
    assert tree.total == 12.0
    assert len(tree) == 10
    assert set(tree.sample(1000)[0]) == {3, 4}


def test_arrays_of_other_kinds_are_converted():
    tree = rs.SumTree(100)
    tree.update(np.arange(100, dtype=np.uint16)[::2], np.ones(50, np.float32))
    tree.update(np.array([1], np.uint64), [3])
    tree.update([], [])
    assert tree.total == 53.0


@pytest.mark.parametrize(
    ("indices", "values", "kind", "said"),
    [
        ([0, 10], [1.0, 1.0], rs.SchemaError, "from 0 to 9, got 10 at position 1"),
        ([-1], [1.0], rs.SchemaError, "got -1 at position 0"),
        (np.array([2**63], np.uint64), [1.0], rs.SchemaError, "9223372036854775808"),
        ([0.5], [1.0], rs.SchemaError, "indices"),
        ([0, 1], [1.0], rs.SchemaError, "1 for 2"),
        ([[0]], [1.0], rs.SchemaError, "shape"),
        ([0], ["one"], rs.SchemaError, "values"),
        ([0, 1], [1.0, np.nan], rs.PriorityError, "nan at position 1"),
        ([0, 1], [np.inf, 1.0], rs.PriorityError, "inf at position 0"),
        ([0, 1], [1.0, -1e-300], rs.PriorityError, "-1e-300"),
    ],
)
def test_a_bad_update_is_refused_whole(indices, values, kind, said):
    tree = rs.SumTree(10)
    tree.update([0, 1], [2.0, 3.0])
    with pytest.raises(kind, match=said):
        tree.update(indices, values)
    np.testing.assert_array_equal(tree.get(np.arange(10)), [2.0, 3.0, *[0.0] * 8])
    assert tree.total == 5.0


def test_other_refusals():
    tree = rs.SumTree(10)
    with pytest.raises(rs.PriorityError, match="all values are zero"):
        tree.sample(1)
    tree.update([1], [1.0])
    with pytest.raises(rs.LimitExceeded, match="at most 1048576"):
        tree.sample((1 << 20) + 1)
    with pytest.raises(rs.SchemaError, match="got 10"):
        tree.get([10])
    for capacity in (0, 2**31 + 1):
        with pytest.raises(rs.LimitExceeded, match=f"got {capacity}"):
            rs.SumTree(capacity)
    read_only = np.empty(4)
    read_only.flags.writeable = False
    good = np.empty(4, np.int64)
    for out in ((good, np.empty(5)), (good, np.empty(4, np.float32)), (good, read_only), (good, np.empty(8)[::2])):
        with pytest.raises(rs.SchemaError, match="out must be"):
            tree.sample(4, out=out)
    assert tree.sample(4, out=(good, np.empty(4)))[0] is good


def test_threads_share_a_tree():
    tree = rs.SumTree(10_000, seed=5)

    def work(part: int) -> None:
        own = np.arange(part * 2500, (part + 1) * 2500)
        for value in range(1, 60):
            tree.update(own, np.full(2500, float(value)))
            tree.sample(256)

    threads = [threading.Thread(target=work, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tree.total == 59 * 10_000


def test_every_path_draws_the_same():
    program = (
        "import numpy as np, replay_server as rs\n"
        "g = np.random.default_rng(6); t = rs.SumTree(100_000, seed=7)\n"
        "b = rs.Buffer(rs.Table('t', 5000, {'i': rs.Column('int64')}, sampler=rs.Prioritized(0.6), seed=8))\n"
        "b.add({'i': np.arange(5000)}, 10.0 ** (12 * g.random(5000) - 6))\n"
        "for _ in range(50):\n"
        "    t.update(g.integers(0, 100_000, 1000), 10.0 ** (12 * g.random(1000) - 6))\n"
        "    i, p = t.sample(1000); s = b.sample(100)\n"
        "    print(i.tolist(), p.tobytes().hex(), s.data['i'].tolist(), s.weights.tobytes().hex())\n"
    )
    outputs = set()
    for path in ("scalar", "neon", "avx2", "avx512"):
        # A path that this processor lacks is replaced by its best one, and says so.
        environment = {**os.environ, "REPLAY_SIMD": path}
        run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        outputs.add(run.stdout)
    assert len(outputs) == 1
