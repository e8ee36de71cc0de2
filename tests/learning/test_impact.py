"""IMPACT's learner: the target policy, the clamp, the circular buffer, and that it goes on where it was saved."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from played_fragments import fragments_for, weights  # noqa: E402

import replay_server as rs  # noqa: E402
from replay_server.learner import impact  # noqa: E402
from replay_server.learner.circular_buffer import circular_buffer  # noqa: E402
from replay_server.learner.impact import PROFILES, Impact, ImpactSettings  # noqa: E402
from replay_server.learner.policy_checkpoint import read_policy_checkpoint, write_policy_checkpoint  # noqa: E402
from replay_server.rl.policy_spec import policy_spec  # noqa: E402
from replay_server.rl.profiles import apply_profile  # noqa: E402
from replay_server.rl.returns import v_trace  # noqa: E402

SETTINGS = ImpactSettings(env="CartPole-v1", steps=16, hidden=16, minibatch_size=24, seed=5, passes=3, buffer_batches=2)
SPEC = policy_spec(SETTINGS)


def make(**changes) -> Impact:
    return Impact(dataclasses.replace(SETTINGS, **changes), SPEC)


def test_the_paper_profile_is_the_papers():
    settings = apply_profile(ImpactSettings(profile="paper"), set(), PROFILES)
    assert (settings.learning_rate, settings.clip, settings.kl_coefficient, settings.kl_target) == (5e-4, 0.4, 1, 0.01)
    assert (settings.entropy_coefficient, settings.value_coefficient, settings.target_update_every) == (0.01, 1.0, 1)
    assert (settings.behaviour_clip, settings.ratio_clip, settings.trace_clip) == (2.0, 1.0, 1.0)


@pytest.mark.parametrize("excess", [-1.0, -0.1, 0.1, 1.0])
def test_the_ratio_is_to_the_target_policy_until_the_clamp_is_active(excess):
    pi, target = torch.tensor(-1.3), torch.tensor(-1.1)
    mu = target + math.log(2.0) + excess
    ratio = impact.truncated_ratio(pi, mu, target, 2.0)
    expected = math.exp(-1.3 + 1.1) if excess < 0 else 2.0 * math.exp(-1.3 - mu.item())
    assert ratio.item() == pytest.approx(expected, rel=1e-6)


def test_where_the_clamp_is_active_the_gradient_still_flows_to_the_policy():
    pi = torch.tensor(-1.0, requires_grad=True)
    ratio = impact.truncated_ratio(pi, torch.tensor(3.0), torch.tensor(-5.0), 2.0)
    ratio.backward()
    assert pi.grad is not None
    assert pi.grad.item() == pytest.approx(ratio.item())


def test_targets_are_v_trace_by_the_target_network_s_policy_and_values():
    learner = make(standardize_advantages=False)
    fragments = fragments_for(learner)
    fragments["truncated"][0, 5] = True
    fragments["final_step"][0, 1] = 5
    fragments["final_observation"][0, 1] = [1.0, -2.0, 3.0, -4.0]
    with torch.no_grad():
        for parameter in learner.target.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
        samples = impact.prepare(fragments, learner.target, learner.settings)
        columns = {name: torch.from_numpy(column) for name, column in fragments.items()}
        parameters, values = learner.target(columns["observation"])
        successors = torch.cat([values[:, 1:], learner.target(columns["final_observation"][:, :1])[1]], dim=1)
        # The slots of the last step are filled first; fragment 0 has a truncation, too.
        successors[0, 5] = learner.target(torch.tensor([[1.0, -2.0, 3.0, -4.0]]))[1]
    log_target = parameters.log_softmax(-1).gather(-1, columns["action"].unsqueeze(-1)).squeeze(-1)
    log_ratios = log_target - columns["behaviour_log_probability"]
    assert log_ratios.abs().max() > 0.05
    ends = (columns["reward"], values, successors, columns["terminated"], columns["truncated"])
    expected = v_trace(*ends, log_ratios, learner.settings.discount)
    torch.testing.assert_close(samples["value_target"], expected.targets.flatten(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(samples["advantage"], expected.advantages.flatten(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(samples["target_log_probability"], log_target.flatten())
    torch.testing.assert_close(samples["target_parameters"], parameters.flatten(0, 1))


def test_the_loss_counts_samples_whose_clamp_is_active():
    learner = make()
    samples = impact.prepare(fragments_for(learner), learner.target, learner.settings)
    found = impact.loss(learner.network, samples, learner.settings)
    assert (found.behaviour_clipped_fraction.item(), found.clipped_fraction.item()) == (0.0, 0.0)
    samples["behaviour_log_probability"][:12] += 1.0
    found = impact.loss(learner.network, samples, learner.settings)
    assert found.behaviour_clipped_fraction.item() == pytest.approx(12 / 48)


def test_the_kl_divergence_is_from_the_target_policy():
    learner = make()
    samples = impact.prepare(fragments_for(learner), learner.target, learner.settings)
    with torch.no_grad():
        learner.network.policy_head.bias += torch.tensor([0.5, -0.5])
    found = impact.loss(learner.network, samples, learner.settings)
    p = samples["target_parameters"].softmax(-1)
    q = learner.network(samples["observation"])[0].softmax(-1)
    assert found.kl.item() == pytest.approx((p * (p / q).log()).sum(-1).mean().item(), rel=1e-4)
    assert found.kl.item() > 0.01


@pytest.mark.parametrize("every", [1, 3])
def test_the_target_is_renewed_after_so_many_passes(every):
    learner = make(target_update_every=every)
    fragments, first = fragments_for(learner), weights(learner.target)
    for number in range(1, 4):
        learner.update(fragments)
        renewed = number % every == 0
        assert np.array_equal(weights(learner.target), weights(learner.network)) == renewed
        assert np.array_equal(weights(learner.target), first) == (number < every)


def test_moments_of_a_fragment_count_once_however_often_it_is_traversed():
    learner = make()
    fragments = fragments_for(learner)
    for _ in range(3):
        learner.update(fragments)
    assert learner.network.moments.count == 48
    later = {**fragments, "sequence": fragments["sequence"] + 1}
    learner.update(later)
    assert learner.network.moments.count == 96


def test_the_circular_buffer_hands_out_each_batch_k_times_oldest_first():
    learner = make()
    buffer = rs.Buffer(circular_buffer("impact", learner.settings, SPEC, 3))
    for sequence in range(2):
        fragments = fragments_for(learner)
        fragments["sequence"][:] = sequence
        buffer.add(fragments, timeout=0)
    with pytest.raises(rs.Timeout):
        buffer.add(fragments_for(learner), timeout=0)
    seen = []
    for _ in range(6):
        batch = buffer.sample(3, timeout=0)
        seen.append(set(batch.data["sequence"].tolist()))
        assert learner.update(batch.data).samples == 48
    assert seen == [{0}] * 3 + [{1}] * 3
    assert len(buffer) == 0


def test_stale_fragments_are_learned_from_and_their_staleness_is_told():
    learner = make()
    fragments = fragments_for(learner)
    found = [learner.update(fragments).staleness for _ in range(3)]
    assert found == [0.0, 1.0, 2.0]


def test_a_saved_learner_goes_on_as_it_would_have(tmp_path):
    learner = make(target_update_every=2)
    fragments = fragments_for(learner)
    learner.update(fragments)
    path = write_policy_checkpoint(tmp_path, learner)
    resumed = make(target_update_every=2)
    read_policy_checkpoint(path, resumed)
    for _ in range(2):
        assert learner.update(fragments) == resumed.update(fragments)
    np.testing.assert_array_equal(weights(learner.network), weights(resumed.network))
    assert resumed.network.moments.count == 48
