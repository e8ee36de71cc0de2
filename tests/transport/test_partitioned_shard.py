"""Three shards, one of them 50 ms away over a line that loses, repeats and reorders frames, and is cut for a while.

Every batch that a client gets meanwhile is compared with a model: contents, ids and probabilities of each item, over
the shards that the batch says it is of. χ² of all draws must be within 6 standard deviations of its mean."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import replay_server as rs
from replay_server.bench.line import Line
from replay_server.bench.namespace import Namespace, NamespaceError, connect, is_real_root

NEAR, FAR = "10.88.0.2", "10.88.0.1"
KEYS, ALPHA, BATCH = 240, 0.7, 64
SHARD = np.uint64(56)


class Shards:
    """The client's host with two shards, the third one's host, and the line between them. The calling thread stands on
    the client's host."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        near, between, far = (stack.enter_context(Namespace(name)) for name in ("near", "between", "far"))
        for host, end, address in ((near, "client", NEAR), (far, "server", FAR)):
            connect(host, "eth0", between, end)
            host.set_up("eth0", f"{address}/24", offloads=False)
            between.set_up(end, offloads=False)
        self._relay_command = between.command
        self._lines = contextlib.ExitStack()
        stack.callback(self.cut)
        self.mend()
        with far.entered():
            servers = [stack.enter_context(rs.Server(host=FAR, password="secret", config={"shard": 2}))]
        stack.enter_context(near.entered())
        for number in (0, 1):
            servers.append(stack.enter_context(rs.Server(password="secret", config={"shard": number})))
        places = ",".join(server.url.rpartition("@")[2] for server in servers)
        self.url = f"redis+cluster://:secret@{places}"

    def mend(self) -> None:
        faults = "loss=0.01,duplicate=0.01,reorder=0.01,seed=1"
        self._lines.enter_context(Line(self._relay_command, delay_us=25_000, faults=faults))

    def cut(self) -> None:
        """Frames are lost from now on."""
        self._lines.close()


@pytest.fixture
def shards() -> Iterator[Shards]:
    if not is_real_root():
        pytest.skip("only the machine's root can stand in another network namespace")
    with contextlib.ExitStack() as stack:
        try:
            made = Shards(stack)
        except NamespaceError as error:
            pytest.skip(str(error))
        yield made


class Model:
    """What the shards hold, and how often each item was drawn and should have been."""

    def __init__(self, client: Any) -> None:
        self.client, self.random = client, np.random.default_rng(7)
        table = rs.Table(
            "t", 3 * KEYS, {"k": rs.Column("int64"), "wide": rs.Column("int64", (128,))},
            sampler=rs.Prioritized(priority_exponent=ALPHA, stratified=False), seed=7,
        )  # fmt: skip
        client.create_table(table)
        self.priorities = self.random.uniform(0.1, 2, KEYS)
        keys = np.arange(KEYS)
        self.ids = client.add("t", {"k": keys, "wide": np.repeat(keys[:, None], 128, 1)}, self.priorities)
        self.shards = (self.ids >> SHARD).astype(int)
        assert set(self.shards) == {0, 1, 2}
        self.drawn, self.expected, self.squares = np.zeros(KEYS), np.zeros(KEYS), np.zeros(KEYS)

    def update(self, shards: set[int]) -> None:
        """New priorities for some items of these shards."""
        chosen = self.random.choice(np.flatnonzero(np.isin(self.shards, list(shards))), 16, replace=False)
        self.priorities[chosen] = self.random.uniform(0.1, 2, 16)
        assert self.client.update_priorities("t", self.ids[chosen], self.priorities[chosen]) == (16, 0)

    def check(self, batch: rs.Batch) -> None:
        keys = batch.data["k"]
        assert len(keys) == BATCH
        np.testing.assert_array_equal(batch.data["wide"], np.repeat(keys[:, None], 128, 1))
        np.testing.assert_array_equal(batch.ids, self.ids[keys])
        there = ~np.isin(self.shards, batch.missing)
        powers = self.priorities**ALPHA * there
        chances = powers / powers.sum()
        np.testing.assert_allclose(batch.probabilities, chances[keys], rtol=1e-9)
        relative = there.sum() * chances[keys]
        np.testing.assert_allclose(batch.weights, (relative.min() / relative) ** 0.5, rtol=1e-5)
        self.drawn += np.bincount(keys, minlength=KEYS)
        self.expected += BATCH * chances
        self.squares += BATCH * chances**2

    def sample(self) -> tuple[int, ...]:
        """Checks a batch; which shards it lacks."""
        batch = self.client.sample("t", BATCH, beta=0.5)
        self.check(batch)
        return batch.missing

    def deviations(self) -> float:
        """Of χ² from its mean, in standard deviations; each draw has a distribution of its own."""
        chi_squared = ((self.drawn - self.expected) ** 2 / self.expected).sum()
        freedom = (1 - self.squares / self.expected).sum()
        return (chi_squared - freedom) / np.sqrt(2 * freedom)


def test_no_batch_is_wrong_while_a_shard_is_far_away_and_cut_off(shards: Shards, eventually: Callable[..., None]):
    # A connection whose first frame is lost is there after a second.
    with rs.Client(shards.url, missing="leave_out", missing_after=4.0) as client:
        model = Model(client)
        for _ in range(20):
            model.sample()
        shards.cut()
        for _ in range(40):
            model.update({0, 1})
            assert model.sample() == (2,)
        shards.mend()
        eventually(lambda: model.sample() == (), "the shard is asked again")
        for _ in range(20):
            model.sample()
        assert abs(model.deviations()) < 6


def test_a_sample_that_waits_for_a_shard_that_is_cut_off_is_of_all_shards(shards: Shards):
    with rs.Client(shards.url, reconnect_timeout=120) as client:
        model = Model(client)
        model.update({0, 1, 2})
        assert model.sample() == ()
        shards.cut()
        got: list[tuple[int, ...]] = []
        waiter = threading.Thread(target=lambda: got.append(model.sample()))
        waiter.start()
        waiter.join(1.5)
        assert waiter.is_alive()
        assert not got
        shards.mend()
        waiter.join(120)
        assert got == [()]
        model.update({0, 1, 2})
        assert model.sample() == ()
