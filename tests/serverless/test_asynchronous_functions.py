"""Learner and parameter functions on a real server: equal to plain learners, and whole after every kind of loss."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from learner_job import CLIPPED, IMPACT, PPO, Job, Settings, raise_version, vector_of  # noqa: E402

from replay_server.learner import parameter_function  # noqa: E402
from replay_server.learner.aggregation import step  # noqa: E402
from replay_server.learner.algorithms import make_learner  # noqa: E402
from replay_server.learner.impact import ImpactSettings  # noqa: E402
from replay_server.learner.parameter_function import report  # noqa: E402
from replay_server.learner.published_state import (  # noqa: E402
    NOTE,
    Note,
    StateError,
    fetch_state,
    policy_arrays,
    read_note,
    state_arrays,
)
from replay_server.rl.function_contract import (  # noqa: E402
    decode_response,
    encode_request,
)
from replay_server.rl.gradient_queue import Gradient  # noqa: E402
from replay_server.serverless.function import handle  # noqa: E402


def plain(settings: Settings, spec: Any, rounds: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The tensors of a learner without functions after it learned from those fragments."""
    learner = make_learner(settings, spec)
    for fragments in rounds:
        for _ in range(settings.passes if isinstance(settings, ImpactSettings) else 1):
            learner.update(fragments)
    return tensors(state_arrays(learner, Note("", {}, spec, "")))


def tensors(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array for name, array in arrays.items() if name != NOTE}


# ---- the same as without ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [PPO, CLIPPED, IMPACT], ids=["ppo", "ppo-clipped", "impact"])
@pytest.mark.parametrize("aggregation", ["mean", "each"])
def test_one_learner_without_staleness_is_the_plain_algorithm(job, settings, aggregation):
    made = job(settings, aggregation=aggregation)
    rounds = []
    for _ in range(3):
        ids = made.act()
        data = made.client.get(made.names.fragments, ids).data
        # A plain learner's versions are its rounds: of the data they only order what is of one version here.
        rounds.append(data)
        _, result = made.play(ids)
        assert result["over"]
        assert result["statistics"]["gradient_staleness_max"] == 0
        made.client.delete(made.names.fragments, ids)
    expected, found = plain(settings, made.spec, rounds), tensors(made.state())
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-6, err_msg=name)
    start = plain(settings, made.spec, [])
    assert any(not np.array_equal(found[name], array) for name, array in start.items())


def test_the_kl_coefficient_and_the_moments_are_the_plain_learners(job):
    made = job(PPO)
    ids = made.act()
    data = made.client.get(made.names.fragments, ids).data
    answers, result = made.play(ids)
    learner = make_learner(PPO, made.spec)
    found = learner.update(data)
    assert result["statistics"]["kl"] == pytest.approx(found.kl, abs=1e-6)
    assert read_note(made.state()).counters["kl_coefficient"] == pytest.approx(learner.kl_coefficient)
    assert answers[0]["statistics"]["loss"] == pytest.approx(found.loss, abs=1e-6)
    assert answers[0]["gradients"] == found.optimizer_steps == result["statistics"]["gradients"]
    assert learner.network.moments.count == made.state()["network.moments_count"][0] == 4 * 32


@pytest.mark.parametrize("settings", [PPO, IMPACT], ids=["ppo", "impact"])
def test_four_learners_compute_all_gradients_and_each_counts_once(job, settings):
    made = job(settings, learners=4)
    for _ in range(2):
        ids = made.act()
        answers, result = made.play(ids)
        made.client.delete(made.names.fragments, ids)
        # Each has one fragment of 32 steps: one minibatch a pass.
        assert [answer["gradients"] for answer in answers] == [3, 3, 3, 3]
        assert result["statistics"]["gradients"] == 12
        assert sum(result["statistics"][f"staleness_{each}"] for each in range(10)) == 12
        arrays = made.state()
        if settings is IMPACT:  # Its target is renewed when the round is over, after all learners' gradients.
            renewed = {f"target.{name}": array for name, array in policy_arrays(arrays).items()}
            assert renewed
            same_tensors(renewed, arrays, "target.")
    assert made.queue.waiting() == []
    assert made.queue.held() == {}
    state = read_note(made.state()).asynchronous
    assert state["round"] == 2
    assert {entry[1] for entry in state["applied"].values()} == {3}


def test_configured_delays_make_the_staleness_that_they_say(job):
    made = job(PPO, learners=2, delay=3, flush="every", truncation=1.0)
    made.play(made.act())
    _, result = made.play(made.act())
    stalenesses = result["statistics"]
    assert stalenesses["gradient_staleness"] >= 2.5
    assert stalenesses["learning_rate_factor"] < 0.8


# ---- aggregation, by hand --------------------------------------------------------------------------------------------


def test_a_flush_takes_the_weighted_mean_at_the_modulated_rate(job):
    made = job(PPO, learners=2, truncation=None)
    learner = make_learner(PPO, made.spec)
    vectors = [vector_of(made, seed) for seed in range(3)]
    made.queue.push(Gradient(0, 1, "a", 0), vectors[0])
    made.queue.push(Gradient(0, 1, "b", 0), vectors[1])
    made.queue.end_round(1, report([]))
    made.apply(made.parameter_request())
    # Both fresh: a plain Adam step along their mean.
    step(learner.optimizer, learner.parameters, (vectors[0] + vectors[1]) / 2, 1.0)
    same_network(made, learner)
    # The version is 2 by now, of a flush and the end of the round: stalenesses 0 and 2.
    made.round = 2
    made.queue.push(Gradient(2, 2, "a2", 0), vectors[0])
    made.queue.push(Gradient(0, 2, "b2", 0), vectors[2])
    made.queue.end_round(2, report([]))
    found = made.apply(made.parameter_request())
    share = 2 ** (-1 / 3)
    step(learner.optimizer, learner.parameters, (vectors[0] + share * vectors[2]) / (1 + share), (1 + share) / 2)
    same_network(made, learner)
    assert found["statistics"]["learning_rate_factor"] == pytest.approx((1 + share) / 2)


def same_network(made: Job, learner: Any) -> None:
    state = made.state()
    for name, parameter in learner.network.named_parameters():
        np.testing.assert_allclose(state[f"network.{name}"], parameter.detach().numpy(), rtol=0, atol=1e-6)


# ---- losses ----------------------------------------------------------------------------------------------------------


def test_a_gradient_delivered_twice_counts_once(job):
    made = job(PPO)
    gradient, vector = Gradient(0, 1, "a", 0), vector_of(made, 1)
    assert made.queue.push(gradient, vector)
    assert not made.queue.push(gradient, vector * 100)
    assert made.apply(made.parameter_request(serve_s=0.3, suffix="-first"))["version"] == 1
    once = made.state()
    assert not made.queue.push(gradient, vector)  # It has been applied and has left the queue.
    made.queue.end_round(1, report([]))
    result = made.apply(made.parameter_request())
    assert result["statistics"]["gradients"] == 1
    assert result["statistics"]["gradients_duplicate"] == 2
    same_tensors(once, made.state(), "network.")
    made.round = 2
    made.queue.end_round(2, report([]))
    assert made.apply(made.parameter_request())["statistics"]["gradients_duplicate"] == 0


def same_tensors(one: dict[str, np.ndarray], other: dict[str, np.ndarray], prefix: str) -> None:
    for name, array in one.items():
        if name.startswith(prefix):
            np.testing.assert_array_equal(other[name], array, err_msg=name)


def test_a_gradient_a_hundred_versions_late_counts_little_and_training_goes_on(job):
    made = job(PPO)
    raise_version(made, 101)
    start, vector = made.state(), vector_of(made, 9)
    made.queue.push(Gradient(1, 1, "late", 0), vector)
    made.queue.end_round(1, report([]))
    statistics = made.apply(made.parameter_request())["statistics"]
    assert statistics["gradient_staleness_max"] == 100
    assert statistics["staleness_above_9"] == statistics["gradients"] == 1
    assert statistics["learning_rate_factor"] == pytest.approx(100 ** (-1 / 3))
    # Adam's first step: the learning rate in the direction of the gradient's sign.
    moved = [made.state()[name] - array for name, array in start.items() if name == "network.critic_head.bias"]
    assert abs(moved[0][0]) == pytest.approx(PPO.learning_rate * 100 ** (-1 / 3), rel=1e-2)
    made.round = 2
    _, after = made.play(made.act())
    assert after["statistics"]["gradients"] == 9  # 128 samples of 48 in three passes


def made_version(made: Job) -> int:
    return fetch_state(made.client, made.names)[0]


@pytest.mark.parametrize("aggregation", ["mean", "each"])
def test_gradients_that_cannot_be_applied_are_refused_and_counted(job, aggregation):
    made = job(PPO, max_staleness=2, aggregation=aggregation)
    raise_version(made, 5)
    start = made.state()
    bad = vector_of(made, 1)
    bad[3] = np.nan
    for gradient, vector in [
        (Gradient(5, 1, "nan", 0), bad),
        (Gradient(9, 1, "early", 0), vector_of(made, 3)),
        (Gradient(1, 1, "stale", 0), vector_of(made, 2)),
        (Gradient.named("nobody's", 5), vector_of(made, 4)),
    ]:
        assert made.queue.push(gradient, vector)
    made.queue.end_round(1, report([]))
    statistics = made.apply(made.parameter_request())["statistics"]
    assert statistics["gradients_refused"] == 3
    assert statistics["gradients_dropped"] == 1
    assert statistics["gradients"] == 0
    same_tensors(start, made.state(), "network.")
    assert made.queue.waiting() == []


def test_a_gradient_of_another_network_is_refused_and_those_of_this_one_go_on(job):
    made = job(PPO)
    made.queue.push(Gradient(0, 1, "short", 0), vector_of(made, 1)[:7])
    made.apply(made.parameter_request(serve_s=0.2, suffix="-first"))
    _, result = made.play(made.act())
    assert result["statistics"]["gradients"] == 9


def test_one_bad_gradient_does_not_take_good_ones_with_it(job):
    made = job(PPO, learners=3)
    bad = vector_of(made, 1)
    bad[0] = np.inf
    for learner, vector in (("a", vector_of(made, 2)), ("b", bad), ("c", vector_of(made, 3))):
        made.queue.push(Gradient(0, 1, learner, 0), vector)
    made.queue.end_round(1, report([]))
    statistics = made.apply(made.parameter_request())["statistics"]
    assert (statistics["gradients"], statistics["gradients_refused"]) == (2, 1)
    assert np.isfinite(made.state()["network.policy_head.weight"]).all()


def test_a_bad_gradient_does_not_take_those_before_it_of_its_learner_with_it(job):
    made = job(PPO, ahead=2)
    bad = vector_of(made, 1)
    bad[0] = np.inf
    for sequence, vector in enumerate((vector_of(made, 2), bad)):
        made.queue.push(Gradient(0, 1, "a", sequence), vector)
    made.queue.end_round(1, report([]))
    statistics = made.apply(made.parameter_request())["statistics"]
    found = [statistics[f"gradients{what}"] for what in ("", "_refused", "_duplicate")]
    assert found == [1, 1, 0]


def test_policies_that_somebody_else_publishes_end_the_parameter_function_with_an_error(job):
    made = job(PPO)
    found = made.client.fetch_weights(made.names.policy)
    assert found is not None
    made.client.publish_weights(made.names.policy, found[1], 50)
    made.queue.push(Gradient(0, 1, "a", 0), vector_of(made, 1))
    with pytest.raises(StateError, match="expected one parameter function"):
        made.apply(made.parameter_request())


def test_gradients_may_travel_in_half_the_bytes(job):
    made, full = job(PPO, gradient_dtype="bfloat16"), job(PPO)
    for each in (made, full):
        each.play(each.act())
    moved = (
        full.state()["network.policy_head.weight"]
        - make_learner(PPO, made.spec).network.state_dict()["policy_head.weight"].numpy()
    )
    apart = np.abs(made.state()["network.policy_head.weight"] - full.state()["network.policy_head.weight"])
    assert 0 < apart.max() < 0.2 * np.abs(moved).max()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_parameter_function_killed_around_its_commit_loses_nothing_and_applies_nothing_twice(job, when, monkeypatch):
    class Killed(BaseException):
        pass

    made, twin = job(PPO), job(PPO)
    gradients = [(Gradient(0, 1, "a", 0), vector_of(made, 1)), (Gradient(0, 1, "b", 0), vector_of(made, 2))]
    for each in (made, twin):
        for gradient, vector in gradients:
            each.queue.push(gradient, vector)
    if when == "before":
        monkeypatch.setattr(parameter_function._Parameters, "_commit", kill(Killed))
    else:
        monkeypatch.setattr(parameter_function, "token_line", kill(Killed))
    with pytest.raises(Killed):
        made.apply(made.parameter_request())
    assert made_version(made) == (0 if when == "before" else 1)
    monkeypatch.undo()
    results = []
    for each in (made, twin):
        each.queue.end_round(1, report([]))
        results.append(each.apply(each.parameter_request()))
    assert [result["statistics"]["gradients"] for result in results] == [2, 2]
    same_tensors(made.state(), twin.state(), "network.")
    same_tensors(made.state(), twin.state(), "optimizer.")
    found = made.client.fetch_weights(made.names.policy)
    assert found is not None
    assert found[0] == 2


def kill(error: type[BaseException]) -> Callable[..., None]:
    def killed(*arguments: Any) -> None:
        raise error

    return killed


def test_a_parameter_function_killed_by_the_system_in_mid_round_changes_nothing_of_the_result(job):
    """One learner, so that the result is known to the bit: the same as of a round of which nothing was killed."""
    made, twin = job(PPO), job(PPO)
    ids, twins = made.act(), twin.act()
    with ThreadPoolExecutor(1) as pool:
        learning = pool.submit(made.compute, made.gradient_request(ids))
        for version in (2, 5):
            doomed = started(encode_request(made.parameter_request()))
            give_up = time.monotonic() + 60
            while made_version(made) < version:
                assert time.monotonic() < give_up
                time.sleep(0.002)
            end(doomed)
        serving = threading.Thread(target=lambda: made.apply(made.parameter_request(serve_s=60)))
        serving.start()
        answer = learning.result()
        made.queue.end_round(1, report([answer]))
        serving.join()
    _, expected = twin.play(twins)
    assert made.apply(made.parameter_request())["statistics"]["gradients"] == expected["statistics"]["gradients"] == 9
    for prefix in ("network.", "optimizer."):
        same_tensors(twin.state(), made.state(), prefix)


def test_a_closed_round_is_answered_again_and_not_closed_twice(job):
    made = job(PPO)
    ids = made.act()
    _, first = made.play(ids)
    made.round = 1
    version = made_version(made)
    assert made.apply(made.parameter_request()) == first
    assert made_version(made) == version
    with pytest.raises(StateError, match=r"expected job .* after round 0, its state is after 1"):
        made.apply(made.parameter_request(suffix="-other"))


def started(payload: bytes) -> subprocess.Popen[bytes]:
    """The handler in a process of its own, at work on a request."""
    code = "import sys; from replay_server.serverless.function import handle; handle(sys.stdin.buffer.read())"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    assert process.stdin is not None
    with process.stdin:
        process.stdin.write(payload)
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    """By the system, at once."""
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def test_a_learner_killed_in_mid_gradient_leaves_the_rest_to_its_next_attempt(job):
    """A process of its own, killed by the system; the round equals one of which nothing was killed."""
    made, twin = job(PPO), job(PPO)
    ids, twins = made.act(), twin.act()
    doomed = started(encode_request(made.gradient_request(ids)))
    give_up = time.monotonic() + 60
    while not made.queue.waiting():  # Its first gradient; nobody applies it, so it is in the middle of the second.
        assert time.monotonic() < give_up
        time.sleep(0.01)
    end(doomed)
    assert made.queue.held() == {0: 0}  # It could not say that it runs no more.
    answers, result = made.play(ids)
    _, expected = twin.play(twins)
    assert answers[0]["again"] == 1
    assert result["statistics"]["gradients"] == expected["statistics"]["gradients"] == 9
    same_tensors(made.state(), twin.state(), "network.")
    assert made.queue.held() == {}


def test_queued_gradients_do_not_wait_for_ever_for_a_learner_that_is_lost(job):
    made = job(PPO, learners=4, flush="count", patience_s=0.2)
    made.queue.hold(0, 0)
    made.queue.hold(1, 0)  # It was killed.
    made.queue.push(Gradient(0, 1, "a", 0), vector_of(made, 1))
    began = time.monotonic()
    served = threading.Thread(target=made.apply, args=(made.parameter_request(serve_s=1.5, suffix="-first"),))
    served.start()
    assert made.queue.await_applied([Gradient(0, 1, "a", 0)], 0, timeout_s=60)
    assert time.monotonic() - began >= 0.2
    served.join()
    made.queue.end_round(1, report([]))
    assert made.apply(made.parameter_request())["statistics"]["flushes_of_patience"] == 1


def test_a_learner_waits_for_one_that_is_further_behind_than_the_slack(job):
    made = job(PPO, learners=2, flush="every", slack=1, truncation=None)
    ids = made.act()
    made.queue.hold(1, 0, 0)  # Another learner runs, and has pushed nothing yet.
    with ThreadPoolExecutor(2) as pool:
        serving = pool.submit(made.apply, made.parameter_request(serve_s=60))
        ahead = pool.submit(made.compute, made.gradient_request(ids))
        planned = [Gradient(0, 1, "r1-learner-0", sequence) for sequence in range(9)]
        give_up = time.monotonic() + 60
        while made.queue.progress() != {0: 2, 1: 0}:
            assert time.monotonic() < give_up
            time.sleep(0.01)
        assert made.queue.pushed(planned) == 2
        assert not ahead.done()
        made.queue.hold(1, 0, 3)
        while made.queue.pushed(planned) < 5:
            assert time.monotonic() < give_up
            time.sleep(0.01)
        made.queue.release(1)
        answer = ahead.result(60)
        assert answer["gradients"] == 9
        made.queue.end_round(1, report([answer]))
        assert serving.result(60)["statistics"]["gradients"] == 9


def test_a_parameter_function_ends_before_a_deadline_that_its_platform_sets(job):
    made = job(PPO)
    request = dataclasses.replace(made.parameter_request(serve_s=3600), deadline=time.time() + 1.0)
    result = made.apply(request)
    assert not result["over"]
    assert time.time() < request.deadline + 100  # It was not served for the hour.
    made.queue.end_round(1, report([]))
    assert made.apply(made.parameter_request(suffix="-2"))["over"]


def test_both_run_as_functions_by_the_handler(job):
    made = job(PPO)
    ids = made.act()
    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(made.apply, made.parameter_request(serve_s=30, suffix="-aside"))
        response = decode_response(handle(encode_request(made.gradient_request(ids))))
        assert response.failure is None, response.failure.traceback
        assert response.result is not None
        made.queue.end_round(1, report([response.result]))
        assert serving.result()["over"]
    made.round = 2
    made.queue.end_round(2, report([]))
    response = decode_response(handle(encode_request(made.parameter_request())))
    assert response.failure is None, response.failure.traceback
    assert response.result is not None
    assert response.result["over"]
    assert {"fetch_state", "publish"} <= response.measured.phases.keys()
