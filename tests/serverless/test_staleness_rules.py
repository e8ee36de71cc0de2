"""The rules of staleness at work, in functions and by the clock: what waits, what is applied, what others cut."""

from __future__ import annotations

import contextlib
import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from learner_job import PPO, raise_version, vector_of  # noqa: E402

from replay_server.actors.fragments import FragmentCollector  # noqa: E402
from replay_server.bench.papers.stellaris.simulated_learners import LearnerTimes, SimulatedLearners  # noqa: E402
from replay_server.learner.algorithms import make_learner  # noqa: E402
from replay_server.learner.gradients import all_minibatches, gradient  # noqa: E402
from replay_server.learner.parameter_function import report  # noqa: E402
from replay_server.learner.ppo import Ppo  # noqa: E402
from replay_server.learner.published_state import fetch_state, policy_arrays, read_note, restored_learner  # noqa: E402
from replay_server.learner.truncation import LIMIT  # noqa: E402
from replay_server.rl.asynchronous_learning import AsynchronousLearning  # noqa: E402
from replay_server.rl.fragments import in_order  # noqa: E402
from replay_server.rl.gradient_queue import Gradient  # noqa: E402
from replay_server.rl.policy_spec import policy_spec  # noqa: E402
from replay_server.rl.weights import module_arrays  # noqa: E402


@pytest.mark.parametrize(
    ("number", "beta", "stalenesses"),
    [(1, 3, [3]), (1, 3, [5, 1]), (1, 3, [7, 1, 1]), (8, 2, [2]), (8, 2, [3, 2, 1])],
    ids=lambda value: str(value).replace(" ", ""),
)
def test_queued_gradients_wait_until_their_mean_staleness_is_within_the_rounds_threshold(
    job, number, beta, stalenesses
):
    """M = 3: β_1 = 3, β_8 = ⌊3 · 0.9^7⌋ + 1 = 2. Four learners run: three of their gradients are not all."""
    made = job(PPO, learners=4, truncation=None, patience_s=60.0)
    raise_version(made, 10, round=number - 1, bound=3)
    made.round = number
    for learner in range(4):
        made.queue.hold(learner, 10)
    for count, stale in enumerate(stalenesses, 1):
        made.queue.push(Gradient(10 - stale, number, f"learner-{count}", 0), vector_of(made, count))
        found = made.apply(made.parameter_request(serve_s=0.3, suffix=f"-{count}"))
        let_in = count == len(stalenesses)
        assert (sum(stalenesses[:count]) / count <= beta) == let_in
        assert found["version"] == (11 if let_in else 10)
        assert len(made.queue.waiting()) == (0 if let_in else count)
    made.queue.end_round(number, report([]))
    statistics = made.apply(made.parameter_request())["statistics"]
    assert statistics["staleness_threshold"] == beta
    assert statistics["flushes"] == 1
    assert statistics["flushes_of_patience"] == 0


def test_as_many_gradients_as_learners_run_are_applied_however_stale_they_are(job):
    made = job(PPO, learners=4, truncation=None, patience_s=60.0)
    raise_version(made, 10, round=0, bound=1)
    for learner in range(2):  # the two others have ended
        made.queue.hold(learner, 10)
    made.queue.push(Gradient(1, 1, "a", 0), vector_of(made, 1))
    assert made.apply(made.parameter_request(serve_s=0.3, suffix="-one"))["version"] == 10
    made.queue.push(Gradient(2, 1, "b", 0), vector_of(made, 2))
    assert made.apply(made.parameter_request(serve_s=0.3, suffix="-two"))["version"] == 11


def test_a_learners_ratios_are_cut_by_the_policy_that_another_has(job):
    """The other has the policy that acted: its ratios are 1, so that with ρ = 1 no ratio of this one is above 1."""
    settings = dataclasses.replace(PPO, iterations=1, minibatch_size=None)
    made = job(settings, learners=2)
    ids = made.act()
    before = fetch_state(made.client, made.names)[1]
    made.client.publish_weights(made.names.history(0), policy_arrays(before), 0)
    learner = restored_learner(settings, before, read_note(before))
    assert isinstance(learner, Ppo)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in learner.parameters:
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    made.client.publish_weights(made.names.policy, module_arrays(learner.network), 1)
    made.queue.hold(1, 0)
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(made.compute, made.gradient_request(ids))
        made.queue.await_rule(1, None, 20.0)
        (found,) = made.queue.waiting()
        (vector,) = made.queue.vectors([found])
        made.queue.drop([found])
        answer = working.result(60)
    assert found.version == 1
    samples = learner.samples(in_order(made.client.get(made.names.fragments, ids).data))
    (minibatch,) = all_minibatches(learner, samples, 1, 0)
    expected, _ = gradient(learner, {**minibatch, LIMIT: torch.zeros(len(minibatch["advantage"]))})
    np.testing.assert_allclose(vector, expected, rtol=1e-4, atol=1e-6)
    whole, _ = gradient(learner, minibatch)
    assert np.abs(whole - expected).max() > 1e-3
    assert 0.05 < answer["statistics"]["truncated_fraction"] < 0.95


class Noting(SimulatedLearners):
    """Notes how stale the gradients of each flush were."""

    def step(self, vectors: list[np.ndarray], stalenesses: list[int]) -> None:
        self.flushed = [*getattr(self, "flushed", []), stalenesses]
        super().step(vectors, stalenesses)


@pytest.mark.parametrize("bound", [None, 1, 2])
def test_flushes_of_the_simulated_clock_keep_the_rule(bound):
    """In the first round β = M. A flush that is staler in the mean has a gradient of every learner that runs."""
    settings = dataclasses.replace(PPO, minibatch_size=8)
    spec = policy_spec(settings)
    learner = make_learner(settings, spec)
    assert isinstance(learner, Ppo)
    learning = AsynchronousLearning(learners=4, truncation=None)
    simulated = Noting(learner, learning, LearnerTimes(step_s=0.001, spread=0.8))
    simulated.state.bound = bound
    with contextlib.closing(FragmentCollector(settings, spec, 4, [1, 0])) as collector:
        simulated.learn(collector.collect(learner.network, 0).fragments)
    beyond = [len(each) for each in simulated.flushed if np.mean(each) > (bound or 2)]
    if bound is None:
        assert min(beyond) == 1  # what a threshold of 2 holds back
    else:
        assert beyond == sorted(beyond, reverse=True)
        assert beyond[:1] in ([4], [])
        assert any(len(each) < 4 for each in simulated.flushed)
    assert bound != 1 or beyond
