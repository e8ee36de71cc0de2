"""Asynchronous learners on every platform: their functions do there what they do in worker processes."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from lent import Lent
from places import PLACES

import replay_server as rs
from replay_server.rl.function_contract import Names
from replay_server.rl.run_directory import RunDirectory
from replay_server.serverless.backends.backend import Platform
from replay_server.serverless.invocation_log import read_invocations
from replay_server.serverless.orchestrator import Orchestrator
from replay_server.serverless.run_log import read_rounds
from replay_server.serverless.settings import TrainSettings

ROUNDS, ACTORS, STEPS = 2, 2, 16


def run(path: Path, platform: Platform, server: rs.Server, **learning: Any) -> dict[str, np.ndarray]:
    """A job of two rounds; the weights that it ends with."""
    settings = TrainSettings(
        env="CartPole-v1", steps=STEPS, actors=ACTORS, environments=2, rounds=ROUNDS, learners="async",
        learner_option=learning, setting={"hidden": 8, "iterations": 2, "minibatch_size": 24}, final_episodes=0,
        learner_threads=1, timeout_s=120.0, server=server.url, job=path.name, keep=True, logdir=str(path),
    )  # fmt: skip
    directory = RunDirectory(path)
    directory.create(settings)
    assert Orchestrator(settings, directory, platform=platform).run() == "rounds"
    with rs.Client(server.url) as client:
        found = client.fetch_weights(Names(path.name).policy)
    assert found is not None
    return found[1]


ALONE = {"learners": 1, "actors_ahead": 0}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, server: rs.Server) -> Iterator[dict[str, np.ndarray]]:
    """Weights of a job with one learner, in worker processes."""
    with PLACES["process"]() as platform:
        yield run(tmp_path_factory.mktemp("alone"), platform, server, **ALONE)


@pytest.mark.parametrize("name", sorted(set(PLACES) - {"process"}))
def test_gradient_and_parameter_functions_do_the_same_on_every_platform(tmp_path, server, expected, name):
    with contextlib.ExitStack() as stack:
        platform = Lent(stack.enter_context(PLACES[name]()))
        # One learner: what it learns does not depend on when things come.
        found = run(tmp_path / f"{name}-alone", platform, server, **ALONE)
        assert found.keys() == expected.keys()
        for column, array in expected.items():
            np.testing.assert_array_equal(found[column], array, err_msg=column)
        # Two: every gradient counts once.
        path = tmp_path / f"{name}-two"
        run(path, platform, server, learners=2)
    # A share is two fragments of 16 steps: two minibatches a pass, two passes, two learners.
    records = read_rounds(path)
    assert [record.statistics["gradients"] for record in records] == ROUNDS * [8]
    assert [record.statistics["gradients_duplicate"] for record in records] == ROUNDS * [0]
    assert records[-1].version == sum(record.statistics["flushes"] + 1 for record in records)
    invocations = read_invocations(path)
    assert {each.platform for each in invocations} == {name}
    assert {each.outcome for each in invocations} == {"ok"}
    kinds = Counter(each.kind for each in invocations)
    assert (kinds["gradient"], kinds["parameter"]) == (2 * ROUNDS, ROUNDS)
    assert all(each.bytes_in > 0 and each.measured is not None for each in invocations)
