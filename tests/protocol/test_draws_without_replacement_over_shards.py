"""A prioritized sample without replacement over shards has the distribution that one server's has that is not
stratified: items are drawn one after another, each by p^α among those that are left (successive sampling).

Two comparisons, each for 1 server, which must pass as well, and for 2, 4 and 8 shards:
- Of 9 items, 4 at once: how often each of the 126 possible sets comes, by χ² against the exact probabilities. That is
  the whole distribution: inclusion of one item, of pairs, and so on. Between samples priorities change, and items come
  and leave, and what the client knows of the sums is wrong by up to 4 times.
- Of 240 items, 100 at once: the mean over batches of three sums over a batch, against those of the model in numpy.

Each is within 3 standard deviations, which a right sampler exceeds in 3 of 1,000 runs; with 4 numbers of shards and 4
figures each, 16 figures, some test would fail in 5 % of all seeds. The seeds are fixed, so a run fails always or never.
A sampler that takes a fixed share from each shard must fail both.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from shards import start, url_of

import replay_server as rs

SHARDS = (1, 2, 4, 8)
ALPHA = 0.7
FEW, OF_FEW, MANY, OF_MANY = 9, 4, 240, 100
Draw = Callable[[Any, int], np.ndarray]


def probabilities_of_sets(weights: np.ndarray, count: int) -> dict[frozenset[int], float]:
    """How probable each set of `count` items is, where items are drawn by weight among those that are left."""
    reached = {frozenset[int](): 1.0}
    for _ in range(count):
        further: dict[frozenset[int], float] = {}
        for drawn, probability in reached.items():
            left = [item for item in np.flatnonzero(weights).tolist() if item not in drawn]
            for item in left:
                key = drawn | {item}
                further[key] = further.get(key, 0.0) + probability * weights[item] / weights[left].sum()
        reached = further
    return reached


def test_the_reference_is_that_of_an_urn() -> None:
    """Of weights 1, 2 and 3, two at once: 1 and 2 come in either order, 1/6 · 2/5 + 2/6 · 1/4."""
    found = probabilities_of_sets(np.array([1.0, 2.0, 3.0]), 2)
    assert found[frozenset({0, 1})] == pytest.approx(1 / 15 + 1 / 12)
    assert sum(found.values()) == pytest.approx(1)


@pytest.fixture(scope="module")
def servers() -> Iterator[list[rs.Server]]:
    with contextlib.ExitStack() as stack:
        yield start(stack, max(SHARDS))


@pytest.fixture
def client(servers: list[rs.Server], shards: int) -> Iterator[Any]:
    with rs.Client(url_of(*servers[:shards])) as made:
        told: Any = made
        told._turns = itertools.count()  # else its first add goes to any of them
        made.create_table(
            rs.Table("t", 8 * MANY, {"k": rs.Column("int64")}, rs.Prioritized(ALPHA, stratified=False), seed=5)
        )
        yield made
        made.drop_table("t")


def unevenly(servers: list[rs.Server], priorities: np.ndarray) -> np.ndarray:
    """Adds items to the servers, half of what is left to each but the last; their ids."""
    ids, bounds = np.zeros(len(priorities), np.uint64), [0]
    for _ in servers[:-1]:
        bounds.append(bounds[-1] + (len(priorities) - bounds[-1]) // 2)
    for server, (low, high) in zip(servers, itertools.pairwise([*bounds, len(priorities)]), strict=True):
        if low < high:
            with rs.Client(server.url) as one:
                ids[low:high] = one.add("t", {"k": np.arange(low, high)}, priorities[low:high])
    return ids


def of_the_whole(servers: list[rs.Server], random: np.random.Generator) -> Draw:
    """The client's sample, with knowledge of the shards that is wrong."""

    def draw(client: Any, count: int) -> np.ndarray:
        for number in client._sums.get("t", {}):
            client._sums["t"][number] *= 4.0 ** random.uniform(-1, 1)
        return client.sample("t", count, replace=False).data["k"]

    return draw


def of_each_shard(servers: list[rs.Server], random: np.random.Generator) -> Draw:
    """The control: as many of each shard that has as many, at random; the rest of the first."""
    ones = [rs.Client(server.url) for server in servers]

    def draw(client: Any, count: int) -> np.ndarray:
        drawn = []
        for one in ones[1:]:
            with contextlib.suppress(rs.Timeout, rs.ReplayError):  # it has fewer
                drawn.append(one.sample("t", count // len(ones), replace=False, timeout=0).data["k"])
        left = count - sum(map(len, drawn))
        return np.concatenate([*drawn, ones[0].sample("t", left, replace=False, timeout=0).data["k"]])

    return draw


def deviations_of_sets(client: Any, servers: list[rs.Server], draw: Draw, rounds: int) -> float:
    """Of χ² from its mean, in standard deviations. Sets that are expected less than 5 times count together."""
    random = np.random.default_rng(7)
    there = [random.pareto(1.5, FEW) + 0.05, random.pareto(1.5, FEW) + 0.05]
    there[1][2] = 0.0  # this one leaves, and comes back as another item
    ids = unevenly(servers, there[0])
    drawn, expected = Counter[tuple[int, frozenset[int]]](), {}
    for state, priorities in enumerate(there):
        for key, probability in probabilities_of_sets(priorities**ALPHA, OF_FEW).items():
            expected[state, key] = probability * rounds / 2
    for turn in range(rounds):
        state, after = turn // 5 % 2, there[(turn + 1) // 5 % 2]
        drawn[state, frozenset(draw(client, OF_FEW).tolist())] += 1
        if turn % 5 < 4:
            continue
        stay = np.delete(np.arange(FEW), 2)
        assert client.update_priorities("t", ids[stay], after[stay]) == (FEW - 1, 0)
        if after[2]:
            ids[2:3] = client.add("t", {"k": [2]}, after[2:3])
        else:
            assert client.delete("t", ids[2:3]) == 1
    assert set(drawn) <= set(expected)
    often = [key for key, count in expected.items() if count >= 5]
    counts = np.array([*(drawn[key] for key in often), sum(drawn.values()) - sum(drawn[key] for key in often)])
    means = np.array([expected[key] for key in often])
    means = np.append(means, rounds - means.sum())
    chi_squared = ((counts - means) ** 2 / means).sum()
    freedom = len(means) - 2  # one for each of the two states
    return float((chi_squared - freedom) / np.sqrt(2 * freedom))


@pytest.mark.parametrize("shards", SHARDS)
def test_every_set_of_few_items_is_as_probable_as_on_one_server(client, servers, shards) -> None:
    own = servers[:shards]
    draw = of_the_whole(own, np.random.default_rng(1))
    assert abs(deviations_of_sets(client, own, draw, 2000)) < 3


@pytest.mark.parametrize("shards", [2, 4])
def test_sets_of_a_fixed_share_of_each_shard_are_found_out(client, servers, shards) -> None:
    own = servers[:shards]
    assert deviations_of_sets(client, own, of_each_shard(own, np.random.default_rng(1)), 500) > 10


def sums_of_batches(batches: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Of each batch, (n, 3): its weights, their squares, and how many of the first shard's items are in it."""
    chosen = weights[batches]
    return np.stack([chosen.sum(1), (chosen**2).sum(1), (batches < MANY // 2).sum(1)], 1)


def deviations_of_sums(client: Any, servers: list[rs.Server], draw: Draw, rounds: int) -> np.ndarray:
    """Of the mean over batches, from that of the model, in standard deviations, (3,)."""
    random = np.random.default_rng(11)
    priorities = random.pareto(1.5, MANY) + 0.05
    unevenly(servers, priorities)
    weights = priorities**ALPHA
    # The first to arrive of Poisson processes (Efraimidis and Spirakis 2006), which is drawing one after another.
    times = random.exponential(size=(20_000, MANY)) / weights
    model = sums_of_batches(np.argpartition(times, OF_MANY)[:, :OF_MANY], weights)
    found = sums_of_batches(np.array([draw(client, OF_MANY) for _ in range(rounds)]), weights)
    spread = np.sqrt(found.var(0) / len(found) + model.var(0) / len(model))
    return (found.mean(0) - model.mean(0)) / spread


@pytest.mark.parametrize("shards", SHARDS)
def test_sums_over_large_batches_are_those_of_the_model(client, servers, shards) -> None:
    own = servers[:shards]
    found = deviations_of_sums(client, own, of_the_whole(own, np.random.default_rng(2)), 300)
    assert np.abs(found).max() < 3, found


@pytest.mark.parametrize("shards", [2, 4, 8])
def test_sums_of_a_fixed_share_of_each_shard_are_found_out(client, servers, shards) -> None:
    own = servers[:shards]
    found = deviations_of_sums(client, own, of_each_shard(own, np.random.default_rng(2)), 100)
    assert np.abs(found).max() > 10, found
