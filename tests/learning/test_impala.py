"""IMPALA's learner: V-trace by the newest policy, whole fragments in minibatches, and that it goes on where it was."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from played_fragments import fragments_for, weights  # noqa: E402

from replay_server.learner import impala  # noqa: E402
from replay_server.learner.impala import Impala, ImpalaSettings, minibatches  # noqa: E402
from replay_server.learner.policy_checkpoint import read_policy_checkpoint, write_policy_checkpoint  # noqa: E402
from replay_server.rl.policy_spec import policy_spec  # noqa: E402

SETTINGS = ImpalaSettings(
    env="CartPole-v1", steps=16, hidden=16, minibatch_size=32, seed=5, standardize_advantages=False
)
SPEC = policy_spec(SETTINGS)


def make(**changes) -> Impala:
    return Impala(dataclasses.replace(SETTINGS, **changes), SPEC)


def set_outputs(learner: Impala, right: float, value: float) -> None:
    """π(1) = right and V = value everywhere."""
    with torch.no_grad():
        learner.network.policy_head.weight.zero_()
        learner.network.policy_head.bias.copy_(torch.tensor([math.log(1 - right), math.log(right)]))
        learner.network.critic_head.weight.zero_()
        learner.network.critic_head.bias.fill_(value)


def two_steps(learner: Impala) -> dict[str, np.ndarray]:
    """A fragment of two steps, rewards 1 and 2, actions 1 and 0, that μ took with 0.25 and 0.8; then it is cut."""
    fragments = fragments_for(learner, environments=1)
    fragments["reward"][:] = [[1.0, 2.0]]
    fragments["action"][:] = [[1, 0]]
    fragments["behaviour_log_probability"][:] = np.log([[0.25, 0.8]])
    fragments["behaviour_parameters"][:] = np.log([[[0.75, 0.25], [0.8, 0.2]]])
    fragments["terminated"][:] = fragments["truncated"][:] = False
    return fragments


def test_two_steps_by_hand():
    learner = make(steps=2, discount=0.5, entropy_coefficient=0.1, value_coefficient=0.5)
    set_outputs(learner, right=0.6, value=4.0)
    samples = learner.samples(two_steps(learner))
    # π/μ = 0.6/0.25 = 2.4 → 1, and 0.4/0.8 = 0.5. δ_2 = 0.5 (2 + 0.5·4 − 4) = 0; δ_1 = 1 + 0.5·4 − 4 = −1.
    # v_2 = 4; v_1 = 4 − 1 + 0.5 · 1 · 0 = 3. Advantages: 1 (1 + 0.5·4 − 4) = −1 and 0.5 (2 + 0.5·4 − 4) = 0.
    assert samples["ratio"].tolist() == pytest.approx([2.4, 0.5])
    assert samples["value_target"].tolist() == pytest.approx([3.0, 4.0])
    assert samples["advantage"].tolist() == pytest.approx([-1.0, 0.0])
    found = learner.loss(samples)
    entropy = -0.6 * math.log(0.6) - 0.4 * math.log(0.4)
    assert found.surrogate.item() == pytest.approx(-math.log(0.6) / 2)
    assert found.value_error.item() == pytest.approx(0.5)
    assert found.entropy.item() == pytest.approx(entropy)
    assert found.clipped_fraction.item() == 0.5
    assert found.total.item() == pytest.approx(math.log(0.6) / 2 + 0.5 * 0.5 - 0.1 * entropy)
    kls = [0.75 * math.log(0.75 / 0.4) + 0.25 * math.log(0.25 / 0.6), 0.8 * math.log(2.0) + 0.2 * math.log(0.2 / 0.6)]
    assert found.kl.item() == pytest.approx(sum(kls) / 2)


def test_an_advantage_that_is_not_zero_at_the_second_step_is_traced_back():
    learner = make(steps=2, discount=0.5)
    set_outputs(learner, right=0.6, value=2.0)
    samples = learner.samples(two_steps(learner))
    # δ_2 = 0.5 (2 + 1 − 2) = 0.5, v_2 = 2.5; δ_1 = 1 + 1 − 2 = 0, v_1 = 2 + 0 + 0.5 · 1 · 0.5 = 2.25.
    assert samples["value_target"].tolist() == pytest.approx([2.25, 2.5])
    assert samples["advantage"].tolist() == pytest.approx([1.0 + 0.5 * 2.5 - 2.0, 0.5])


def test_a_fragment_that_terminates_has_no_successor():
    learner = make(steps=2, discount=0.5)
    set_outputs(learner, right=0.6, value=2.0)
    fragments = two_steps(learner)
    fragments["terminated"][0, 1] = True
    # δ_2 = 0.5 (2 − 2) = 0.
    assert learner.samples(fragments)["value_target"].tolist() == pytest.approx([2.0, 2.0])


def test_no_gradient_flows_through_weights_targets_or_advantages():
    learner = make()
    samples = learner.samples(fragments_for(learner))
    assert not any(column.requires_grad for column in samples.values())
    found = learner.loss(samples)
    (gradient,) = torch.autograd.grad(found.surrogate, [learner.network.policy_head.bias], retain_graph=True)
    pi = learner.network(samples["observation"])[0].softmax(-1)
    one_hot = torch.nn.functional.one_hot(samples["action"], 2)
    expected = (samples["advantage"][:, None] * (one_hot - pi)).mean(0)  # A ∇ log π
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)


def test_the_loss_is_on_policy_actor_critic_where_the_policy_acted_itself():
    learner = make()
    samples = learner.samples(fragments_for(learner))
    torch.testing.assert_close(samples["ratio"], torch.ones(48), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(samples["advantage"], samples["value_target"] - samples["value"], rtol=1e-3, atol=1e-3)
    assert learner.loss(samples).kl.item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(("samples", "sizes"), [(32, [2, 2, 1]), (1, [1] * 5), (None, [5]), (47, [2, 2, 1])])
def test_minibatches_are_of_whole_fragments(samples, sizes):
    learner = make()
    fragments = fragments_for(learner, environments=5)
    parts = list(minibatches(fragments, samples, torch.Generator().manual_seed(1)))
    assert [len(part["reward"]) for part in parts] == sizes
    assert sorted(np.concatenate([part["environment"] for part in parts])) == sorted(fragments["environment"])


def test_each_minibatch_is_corrected_by_the_policy_that_the_one_before_has_made(monkeypatch):
    learner = make(minibatch_size=16, learning_rate=0.05)
    acted, ratios = fragments_for(learner), []
    prepare = impala.prepare
    monkeypatch.setattr(impala, "prepare", lambda *given: ratios.append(prepare(*given)["ratio"]) or prepare(*given))
    learner.update(acted)
    drifts = [float((ratio - 1.0).abs().max()) for ratio in ratios]
    assert drifts[0] < 1e-4
    assert all(drift > 1e-2 for drift in drifts[1:])


def test_advantages_are_standardised_over_each_minibatch_where_that_is_set():
    learner = make(standardize_advantages=True)
    fragments = fragments_for(learner, environments=2)
    advantages = learner.samples(fragments)["advantage"]
    assert advantages.mean().item() == pytest.approx(0.0, abs=1e-5)
    assert advantages.std(correction=0).item() == pytest.approx(1.0, abs=1e-4)


def test_one_pass_learns_and_tells_what_it_did():
    learner = make()
    fragments, first = fragments_for(learner), weights(learner.network)
    found = learner.update(fragments)
    assert (found.samples, found.optimizer_steps, found.staleness) == (48, 2, 0.0)
    assert all(math.isfinite(value) for value in dataclasses.astuple(found))
    assert found.kl > 0
    assert not np.array_equal(first, weights(learner.network))
    assert learner.update(fragments).staleness == 1.0
    assert learner.network.moments.count == 48  # Of a fragment that comes again they count once.


def test_the_order_in_which_fragments_come_does_not_matter():
    one, other = make(), make()
    fragments = fragments_for(one)
    reversed_fragments = {name: column[::-1].copy() for name, column in fragments.items()}
    assert one.update(fragments) == other.update(reversed_fragments)
    np.testing.assert_array_equal(weights(one.network), weights(other.network))


def test_a_saved_learner_goes_on_as_it_would_have(tmp_path):
    learner = make()
    fragments = fragments_for(learner)
    learner.update(fragments)
    path = write_policy_checkpoint(tmp_path, learner)
    resumed = make()
    read_policy_checkpoint(path, resumed)
    for _ in range(2):
        assert learner.update(fragments) == resumed.update(fragments)
    np.testing.assert_array_equal(weights(learner.network), weights(resumed.network))
