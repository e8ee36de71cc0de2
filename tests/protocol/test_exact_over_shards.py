"""A sample over shards is one of the whole, whatever the client knows of the shards and whatever changes meanwhile.

Counts of draws are compared with a model in plain Python to which the same operations are applied: before every sample
it says how often each item is expected. χ² over all items, by its degrees of freedom, must lie within 3 standard
deviations of what it is on average. An exact sampler fails that in 3 of 1,000 runs; the seeds are fixed, so that a run
fails always or never. A sampler that takes a fixed share from each shard must fail it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import replay_server as rs

SHARDS = (1, 2, 4, 8)
ALPHA = 0.7
KEYS = 240


@pytest.fixture(scope="module")
def servers() -> Iterator[list[rs.Server]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(rs.Server(config={"shard": number})) for number in range(max(SHARDS))]


class Counted:
    """Draws of each key, beside what a model of the table expects of them."""

    def __init__(self, prioritized: bool) -> None:
        self.prioritized = prioritized
        self.priorities = np.zeros(KEYS)  # of the keys that are there; 0: it is not, or is never drawn
        self.there = np.zeros(KEYS, bool)
        self.ids = np.zeros(KEYS, np.uint64)
        self.drawn, self.expected, self.squares = np.zeros(KEYS), np.zeros(KEYS), np.zeros(KEYS)

    @property
    def probabilities(self) -> np.ndarray:
        weights = self.priorities**ALPHA * self.there if self.prioritized else self.there.astype(float)
        return weights / weights.sum()

    def count(self, keys: np.ndarray) -> None:
        p = self.probabilities
        self.drawn += np.bincount(keys, minlength=KEYS)
        self.expected += len(keys) * p
        self.squares += len(keys) * p**2

    def deviations(self) -> float:
        """Of χ² from its mean, in standard deviations. Each draw is one of another distribution, whose variances add
        up: the mean is Σ (E − Σ n p²) / E, which is keys − 1 where nothing changes."""
        known = self.expected > 0
        assert not self.drawn[~known].any()
        expected = self.expected[known]
        chi_squared = ((self.drawn[known] - expected) ** 2 / expected).sum()
        freedom = (1 - self.squares[known] / expected).sum()
        return (chi_squared - freedom) / np.sqrt(2 * freedom)


class Whole:
    """A table over some of the servers, filled unevenly, and its model."""

    def __init__(self, servers: list[rs.Server], sampler: rs.Prioritized | rs.Uniform, seed: int, shared: bool) -> None:
        self.servers = servers
        urls = ",".join(server.url.removeprefix("redis://") for server in servers)
        self.client: Any = rs.Client(f"redis+cluster://{urls}", shared_memory=shared or None)
        self.signature = {"k": rs.Column("int64"), **({"wide": rs.Column("int64", (1024,))} if shared else {})}
        self.client._turns = itertools.count()  # else its first add goes to any of them
        self.random = np.random.default_rng(seed)
        self.counted = Counted(isinstance(sampler, rs.Prioritized))
        self.client.create_table(rs.Table("t", 8 * KEYS, self.signature, sampler=sampler, seed=seed))
        shares = np.cumsum(3.0 ** -np.arange(len(servers)))  # each shard a third of the one before
        bounds = [0, *(0.8 * KEYS * shares / shares[-1]).astype(int)]
        for shard, server in enumerate(servers):
            with rs.Client(server.url) as one:
                keys = np.arange(bounds[shard], bounds[shard + 1])
                self.enter(one, keys, self.random.pareto(1.5, len(keys)) / (1 + shard))

    def enter(self, client: rs.Client, keys: np.ndarray, priorities: np.ndarray) -> None:
        columns = {"k": keys, "wide": np.repeat(keys[:, None], 1024, axis=1)}
        self.counted.ids[keys] = client.add("t", {name: columns[name] for name in self.signature}, priorities)
        self.counted.priorities[keys] = priorities
        self.counted.there[keys] = True

    def change(self) -> None:
        """Adds, updates and removes some."""
        counted, random = self.counted, self.random
        here, away = np.flatnonzero(counted.there), np.flatnonzero(~counted.there)
        changed = random.choice(here, 12, replace=False)
        counted.priorities[changed] = random.pareto(1.5, 12) * (random.random(12) > 0.1)
        assert self.client.update_priorities("t", counted.ids[changed], counted.priorities[changed]) == (12, 0)
        new = random.choice(away, 6, replace=False)
        self.enter(self.client, new, random.pareto(1.5, 6))
        gone = random.choice(here, 6, replace=False)
        assert self.client.delete("t", counted.ids[gone]) == 6
        counted.there[gone] = False

    def mistake_sums(self, factor: float) -> None:
        """What the client believes of each shard is off by up to that factor, either way."""
        for number in self.client._sums.get("t", {}):
            self.client._sums["t"][number] *= factor ** self.random.uniform(-1, 1)

    def sample(self, count: int) -> np.ndarray:
        data = self.client.sample("t", count).data
        if "wide" in data:
            assert (data["wide"] == data["k"][:, None]).all()
        return data["k"]

    def fixed_share(self, count: int) -> np.ndarray:
        """The control: as many of each shard."""
        drawn = []
        for server in self.servers:
            with rs.Client(server.url) as one, contextlib.suppress(rs.Timeout):  # it may have nothing left
                drawn.append(one.sample("t", count // len(self.servers), timeout=0).data["k"])
        return np.concatenate(drawn)

    def close(self) -> None:
        self.client.drop_table("t")
        self.client.close()


@pytest.fixture
def whole(servers) -> Iterator[Callable[..., Whole]]:
    made: list[Whole] = []

    def make(shards: int, prioritized: bool = True, seed: int = 1, shared: bool = False) -> Whole:
        sampler = rs.Prioritized(priority_exponent=ALPHA, stratified=False) if prioritized else rs.Uniform()
        made.append(Whole(servers[:shards], sampler, seed, shared))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("prioritized", [True, False], ids=["prioritized", "uniform"])
@pytest.mark.parametrize("shards", SHARDS)
def test_draws_are_those_of_the_whole_while_items_come_change_and_leave(whole, shards, prioritized):
    table = whole(shards, prioritized)
    for _ in range(80):
        table.change()
        table.mistake_sums(4)
        table.counted.count(table.sample(256))
    assert abs(table.counted.deviations()) < 3


@pytest.mark.parametrize("shards", [2, 4])
def test_draws_through_shared_memory_are_those_of_the_whole(whole, servers, shards):
    table = whole(shards, shared=True)
    for _ in range(80):
        table.change()
        table.mistake_sums(4)
        table.counted.count(table.sample(256))
    assert abs(table.counted.deviations()) < 3
    with rs.Client(servers[0].url) as first:
        assert first.redis.info("all")["shared_batches"] >= 80


@pytest.mark.parametrize("shards", SHARDS[1:])
def test_a_fixed_share_of_each_shard_is_found_out(whole, shards):
    table = whole(shards)
    for _ in range(80):
        table.change()
        table.counted.count(table.fixed_share(256))
    assert table.counted.deviations() > 20


@pytest.mark.parametrize("shards", SHARDS)
def test_without_replacement_every_item_of_a_uniform_table_is_as_likely(whole, shards):
    """Each item is in a batch with probability n / N: its count varies by 1 − n / N of what it does otherwise."""
    table = whole(shards, prioritized=False)
    rounds, count = 150, 48
    size = int(table.counted.there.sum())
    drawn = np.zeros(KEYS)
    for _ in range(rounds):
        table.mistake_sums(4)
        drawn[table.client.sample("t", count, replace=False).data["k"]] += 1
    expected = rounds * count / size
    chi_squared = ((drawn[:size] - expected) ** 2 / expected).sum() / (1 - count / size) * (size - 1) / size
    assert drawn.sum() == rounds * count
    assert abs(chi_squared - (size - 1)) / np.sqrt(2 * (size - 1)) < 3


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("shards", SHARDS)
def test_ten_million_draws_are_those_of_the_whole(whole, shards):
    table = whole(shards, seed=2)
    for turn in range(10_000_000 // 8192 + 1):
        if turn % 4 == 0:
            table.change()
        table.mistake_sums(4)
        table.counted.count(table.sample(8192))
    print(
        f"{shards} shards: {int(table.counted.drawn.sum())} draws, χ² {table.counted.deviations():+.2f} deviations off"
    )
    assert abs(table.counted.deviations()) < 3
