"""Asynchronous learners on a simulated clock: by hand, equal to the plain algorithm, and the same every time."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from replay_server.actors.fragments import FragmentCollector  # noqa: E402
from replay_server.bench.papers.stellaris.recorded_delays import RecordedDelays  # noqa: E402
from replay_server.bench.papers.stellaris.simulated_learners import LearnerTimes, SimulatedLearners  # noqa: E402
from replay_server.learner.algorithms import make_learner  # noqa: E402
from replay_server.learner.impact import Impact, ImpactSettings  # noqa: E402
from replay_server.learner.ppo import Ppo, PpoSettings  # noqa: E402
from replay_server.rl.asynchronous_learning import AsynchronousLearning  # noqa: E402
from replay_server.rl.policy_spec import policy_spec  # noqa: E402

PPO = PpoSettings(env="CartPole-v1", steps=16, hidden=8, iterations=2, minibatch_size=32, seed=3)
IMPACT = ImpactSettings(env="CartPole-v1", steps=16, hidden=8, passes=2, target_update_every=2, minibatch_size=24)
SPEC = policy_spec(PPO)
EVEN = LearnerTimes(start_s=1.0, pull_s=0.1, gradient_s=2.0, push_s=0.2, step_s=0.5, spread=0.0)


def learner_of(settings):
    made = make_learner(settings, SPEC)
    assert isinstance(made, Ppo | Impact)
    return made


@pytest.fixture
def played():
    """Fragments of four environments, as a function of settings."""
    collectors = []

    def collect(settings, network):
        if not collectors:
            collectors.append(FragmentCollector(settings, SPEC, 4, [settings.seed, 0]))
        return collectors[0].collect(network, 0).fragments

    yield collect
    for each in collectors:
        each.close()


@pytest.mark.parametrize("settings", [PPO, IMPACT], ids=["ppo", "impact"])
def test_one_learner_is_the_plain_algorithm(played, settings):
    plain, learner = learner_of(settings), learner_of(settings)
    simulated = SimulatedLearners(learner, AsynchronousLearning(learners=1))
    for _ in range(3):
        fragments = played(settings, plain.network)
        for _ in range(settings.passes if isinstance(settings, ImpactSettings) else 1):
            plain.update(fragments)
        found = simulated.learn(fragments)
        assert found.statistics["gradient_staleness_max"] == 0
    expected = plain.network.state_dict()
    for name, tensor in learner.network.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-6)
    assert learner.kl_coefficient == pytest.approx(plain.kl_coefficient)


def test_the_clock_of_one_learner_by_hand(played):
    learner = learner_of(PPO)
    found = SimulatedLearners(learner, AsynchronousLearning(learners=1), EVEN).learn(played(PPO, learner.network))
    # 64 samples in minibatches of 32, two passes: four gradients of 0.1 + 2 + 0.2 s and a flush of 0.5 s each.
    assert found.learning_s == pytest.approx(1.0 + 4 * 2.8)
    assert found.busy_s == pytest.approx(4 * 2.3)
    assert found.learner_s == (pytest.approx(12.2),)
    assert found.statistics["learner_utilization"] == pytest.approx(9.2 / 12.2)
    assert learner.version == 5  # four flushes and the round's end


def test_the_policy_is_seen_as_it_was_at_a_moment(played):
    learner = learner_of(PPO)
    simulated = SimulatedLearners(learner, AsynchronousLearning(learners=1), EVEN)
    fragments = played(PPO, learner.network)
    # Flushes end at 3.8, 6.6, 9.4 and 12.2 s; the round's end makes version 5.
    for look_s, version in ((0.0, 0), (8.0, 5 + 2), (12.1, 10 + 3)):
        seen = simulated.learn(fragments, look_s).seen
        assert seen is not None
        assert seen[1] == version
    assert simulated.learn(fragments, 12.3).seen is None
    assert simulated.learn(fragments).seen is None


def test_the_events_of_two_learners_by_hand(played):
    """Each has 32 samples: a gradient a pass. Both pull at 1.0, push at 3.3; every gradient is a flush of its own."""
    learner = learner_of(PPO)
    learning = AsynchronousLearning(learners=2, flush="every", truncation=None)
    simulated = SimulatedLearners(learner, learning, EVEN)
    found = simulated.learn(played(PPO, learner.network))
    # Flushes end at 3.8 (version 1) and 4.3 (version 2). The first pulls 1 at 3.8, pushes at 6.1 where 2 is current;
    # the second pulls 2 at 4.3, pushes at 6.6, when the flush of the first has just made 3, and ends at 7.1.
    assert [found.statistics[f"staleness_{each}"] for each in range(3)] == [1, 3, 0]
    assert found.learning_s == pytest.approx(7.1)
    assert found.learner_s == (pytest.approx(6.6), pytest.approx(7.1))
    assert found.statistics["flushes"] == 4


def test_looking_at_the_others_policies_takes_its_time(played):
    """As above, but from the second gradient on each learner looks at the other's policy, which is not its own."""
    learner = learner_of(PPO)
    times = dataclasses.replace(EVEN, other_policy_s=0.7)
    found = SimulatedLearners(learner, AsynchronousLearning(learners=2, flush="every"), times).learn(
        played(PPO, learner.network)
    )
    # The first pulls 1 at 3.8 while the other has 0, and pushes at 6.8; the second pulls 2 at 4.3, and ends at 7.8.
    assert [found.statistics[f"staleness_{each}"] for each in range(3)] == [1, 3, 0]
    assert found.learner_s == (pytest.approx(7.3), pytest.approx(7.8))
    assert found.busy_s == pytest.approx(4 * 2.3 + 2 * 0.7)


def test_one_step_for_each_gradient_takes_as_many_steps(played):
    learner = learner_of(PPO)
    learning = AsynchronousLearning(learners=2, flush="count", truncation=None, aggregation="each")
    found = SimulatedLearners(learner, learning, EVEN).learn(played(PPO, learner.network))
    # Both push at 3.3, two steps end at 4.3; both push again at 6.6, and two steps end at 7.6.
    assert found.learning_s == pytest.approx(7.6)


def test_how_far_a_round_moves_the_policy_is_told(played):
    learner = learner_of(PPO)
    before = copy.deepcopy(learner.network)
    fragments = played(PPO, learner.network)
    found = SimulatedLearners(learner, AsynchronousLearning(learners=2), EVEN).learn(fragments)
    observations = torch.from_numpy(fragments["observation"]).flatten(0, 1)
    with torch.no_grad():
        was, became = (
            torch.distributions.Categorical(logits=each(observations)[0]) for each in (before, learner.network)
        )
        expected = torch.distributions.kl_divergence(was, became).mean()
    assert found.statistics["kl_of_round"] == pytest.approx(float(expected), rel=0.02)
    assert expected > 0


def test_averaging_synchronously_has_no_staleness_and_one_flush_a_step(played):
    learner = learner_of(PPO)
    learning = AsynchronousLearning(learners=4, flush="count", truncation=None)
    found = SimulatedLearners(learner, learning, LearnerTimes(spread=1.0)).learn(played(PPO, learner.network))
    assert found.statistics["gradient_staleness_max"] == 0
    # 16 samples each: a gradient a pass.
    assert (found.statistics["gradients"], found.statistics["flushes"]) == (8, 2)


def test_half_of_the_gradients_are_enough_for_a_soft_flush(played):
    learner = learner_of(PPO)
    learning = AsynchronousLearning(learners=4, flush="count", flush_count=2, truncation=None)
    found = SimulatedLearners(learner, learning, EVEN).learn(played(PPO, learner.network))
    assert found.statistics["flushes"] > 2
    assert found.statistics["gradient_staleness_max"] > 0


@pytest.mark.parametrize("settings", [PPO, IMPACT], ids=["ppo", "impact"])
def test_the_same_seed_gives_the_same_numbers_and_another_spread_others(played, settings):
    fragments = played(settings, learner_of(settings).network)
    found = []
    for times in (LearnerTimes(spread=0.5), LearnerTimes(spread=0.5), LearnerTimes(spread=0.1)):
        learner = learner_of(settings)
        simulated = SimulatedLearners(learner, AsynchronousLearning(learners=3), times)
        rounds = [simulated.learn(fragments) for _ in range(2)]
        found.append((rounds, learner.network.policy_head.weight.detach().numpy().copy()))
    assert found[0][0] == found[1][0]
    np.testing.assert_array_equal(found[0][1], found[1][1])
    assert found[0][0][0].learning_s != found[2][0][0].learning_s
    assert found[0][0][1].statistics["truncated_fraction"] > 0


@pytest.mark.parametrize("delay", [1, 3, 8])
def test_configured_delays_are_the_least_staleness_once_there_are_so_many_versions(played, delay):
    learner = learner_of(PPO)
    learning = AsynchronousLearning(learners=1, delay=delay)
    simulated = SimulatedLearners(learner, learning, EVEN)
    for _ in range(3):
        found = simulated.learn(played(PPO, learner.network))
    assert found.statistics[f"staleness_{delay}"] == found.statistics["gradients"] == 4


def test_recorded_delays_are_those_of_their_rounds_and_begin_again(played):
    learner = learner_of(PPO)
    recorded = RecordedDelays(((4,), (0, 0, 0, 1), (0, 3, 0, 1)))
    simulated = SimulatedLearners(learner, AsynchronousLearning(learners=1), EVEN, delays=recorded)
    shares = []
    for _ in range(6):
        found = simulated.learn(played(PPO, learner.network)).statistics
        shares.append([found[f"staleness_{each}"] / found["gradients"] for each in range(5)])
    assert shares[0] == shares[3] == [1, 0, 0, 0, 0]
    assert shares[1] == shares[4] == [0, 0, 0, 1, 0]
    for each in (shares[2], shares[5]):
        assert each[1] + each[3] == 1
    # of 2,000 draws, 3 of 4 are 1: five standard deviations of the binomial, a false alarm in two million
    random = np.random.default_rng(7)
    ones = sum(recorded.draw(3, random) == 1 for _ in range(2000))
    assert abs(ones - 1500) < 5 * (2000 * 0.75 * 0.25) ** 0.5


def test_gradients_that_are_too_stale_are_dropped_and_learners_go_on(played):
    learner = learner_of(PPO)
    learning = AsynchronousLearning(learners=2, flush="every", max_staleness=0)
    found = SimulatedLearners(learner, learning, EVEN).learn(played(PPO, learner.network))
    assert found.statistics["gradients_dropped"] > 0
    assert found.statistics["gradients"] + found.statistics["gradients_dropped"] == 4


def test_a_learner_that_may_be_ahead_waits_less(played):
    busy = []
    for ahead in (1, 3):
        learner = learner_of(dataclasses.replace(PPO, iterations=6))
        learning = AsynchronousLearning(learners=2, ahead=ahead)
        times = dataclasses.replace(EVEN, step_s=2.0)
        found = SimulatedLearners(learner, learning, times).learn(played(PPO, learner.network))
        assert found.statistics["gradients"] == 12
        busy.append(found.statistics["learner_utilization"])
    assert busy[1] > busy[0]


def test_no_learner_is_further_ahead_of_the_slowest_than_the_slack(played):
    """The first learner's gradients take a twelfth of the second's: what it may do beforehand is counted."""
    learner = learner_of(dataclasses.replace(PPO, iterations=6))
    fragments = played(PPO, learner.network)
    ended = []
    for slack in (None, 0, 2):
        learning = AsynchronousLearning(learners=2, flush="every", truncation=None, slack=slack)
        simulated = SimulatedLearners(learner, learning, EVEN)
        takes = iter([0.1, 12.0] if slack == 0 else [])
        order: list[float] = []

        def gradient_s(share, takes=takes, order=order, slack=slack):
            order.append(share)
            return next(takes, 1.0) if slack == 0 else (0.1 if len(order) != 2 else 12.0)

        simulated.gradient_s = gradient_s
        found = simulated.learn(fragments)
        assert found.statistics["gradients"] == 12
        ended.append(found.learner_s)
    # Both start at 1.0. Without slack the first is done before the second has sent anything (13.3 s); with it, after.
    assert ended[0][0] < 13.0 < min(ended[1][0], ended[2][0])


def test_slack_is_of_gradients_that_are_applied_as_they_come():
    with pytest.raises(ValueError, match="slack"):
        AsynchronousLearning(slack=2)
    with pytest.raises(ValueError, match="slack"):
        AsynchronousLearning(flush="every", slack=-1)
