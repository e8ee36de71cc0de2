"""PPO's learner: what its loss is a function of, what a round does, and that it goes on where it was saved."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from played_fragments import fragments_for, weights  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from replay_server.learner import ppo  # noqa: E402
from replay_server.learner.checkpoint import newest_checkpoint  # noqa: E402
from replay_server.learner.finite_checks import Diverged  # noqa: E402
from replay_server.learner.policy_checkpoint import read_policy_checkpoint, write_policy_checkpoint  # noqa: E402
from replay_server.learner.ppo import PROFILES, Ppo, PpoSettings  # noqa: E402
from replay_server.rl.policy_spec import policy_spec  # noqa: E402
from replay_server.rl.profiles import apply_profile  # noqa: E402
from replay_server.rl.weights import module_arrays  # noqa: E402

SETTINGS = PpoSettings(env="CartPole-v1", steps=32, hidden=16, iterations=2, minibatch_size=24, seed=5)
SPEC = policy_spec(SETTINGS)


def make(**changes) -> Ppo:
    return Ppo(dataclasses.replace(SETTINGS, **changes), SPEC)


# ---- profiles --------------------------------------------------------------------------------------------------------


def test_profiles_are_those_of_the_papers_their_code_and_ours():
    def profile(name):
        return apply_profile(PpoSettings(profile=name), set(), PROFILES)

    paper, code, default = profile("paper"), profile("code"), profile("default")
    assert (paper.learning_rate, paper.discount, paper.clip, paper.kl_coefficient) == (5e-5, 0.99, 0.3, 0.2)
    assert (paper.kl_target, paper.entropy_coefficient, paper.value_coefficient) == (0.01, 0.0, 1.0)
    assert (paper.value_clip, paper.gae_lambda, paper.iterations) == (10.0, 1.0, 30)
    assert (code.clip, code.kl_coefficient, code.entropy_coefficient) == (0.2, 0.0, 0.01)
    assert (code.value_clip, code.iterations) == (100.0, 32)
    assert (default.value_clip, default.gae_lambda, default.learning_rate) == (None, 0.95, 3e-4)
    assert (default.iterations, default.normalize_observations, paper.normalize_observations) == (10, True, False)
    with pytest.raises(ValueError, match="unknown profile 'papers': expected one of default, paper, code"):
        profile("papers")


def test_fields_given_explicitly_win_over_a_profile():
    settings = apply_profile(PpoSettings(profile="paper", iterations=3), {"iterations"}, PROFILES)
    assert (settings.iterations, settings.value_clip) == (3, 10.0)


# ---- the loss --------------------------------------------------------------------------------------------------------


def test_the_loss_is_a_function_of_its_arguments_alone():
    learner = make()
    samples = ppo.prepare(fragments_for(learner), learner.settings)
    first = ppo.loss(learner.network, samples, learner.settings)
    second = ppo.loss(learner.network, samples, learner.settings)
    assert first.total.item() == second.total.item()
    assert all(parameter.grad is None for parameter in learner.network.parameters())


def test_on_policy_the_ratio_is_one_and_nothing_has_diverged():
    learner = make(entropy_coefficient=0.0, kl_coefficient=0.2)
    samples = ppo.prepare(fragments_for(learner), learner.settings)
    found = ppo.loss(learner.network, samples, learner.settings)
    assert found.kl.item() == pytest.approx(0.0, abs=1e-6)
    assert found.clipped_fraction.item() == 0.0
    assert found.surrogate.item() == pytest.approx(samples["advantage"].mean().item(), abs=1e-6)


def test_the_surrogate_can_be_differentiated_twice_in_the_policy_parameters():
    learner = make()
    samples = ppo.prepare(fragments_for(learner), learner.settings)
    parameters = list(learner.network.policy_parameters())
    objective = ppo.loss(learner.network, samples, learner.settings).surrogate
    gradient = torch.autograd.grad(objective, parameters, create_graph=True)
    direction = [torch.ones_like(parameter) for parameter in parameters]
    product = torch.autograd.grad(sum((g * d).sum() for g, d in zip(gradient, direction)), parameters)

    def gradient_at(step: float) -> list[torch.Tensor]:
        network = make().network.double()
        with torch.no_grad():
            for parameter, d in zip(network.policy_parameters(), direction):
                parameter.add_(step * d.double())
        exact = {k: v.double() if v.is_floating_point() else v for k, v in samples.items()}
        found = ppo.loss(network, exact, learner.settings).surrogate
        return list(torch.autograd.grad(found, list(network.policy_parameters())))

    for hessian, above, below in zip(product, gradient_at(1e-5), gradient_at(-1e-5)):
        difference = ((above - below) / 2e-5).float()
        torch.testing.assert_close(hessian, difference, rtol=2e-2, atol=2e-4)


def test_policy_parameters_are_those_that_the_surrogate_depends_on():
    learner = make()
    samples = ppo.prepare(fragments_for(learner), learner.settings)
    objective = ppo.loss(learner.network, samples, learner.settings).surrogate
    everything = dict(learner.network.named_parameters())
    gradients = torch.autograd.grad(objective, list(everything.values()), allow_unused=True)
    reached = {name for name, gradient in zip(everything, gradients) if gradient is not None}
    of_policy = {id(parameter) for parameter in learner.network.policy_parameters()}
    assert reached == {name for name, parameter in everything.items() if id(parameter) in of_policy}
    assert reached < set(everything)


def test_value_errors_beyond_the_clip_teach_nothing_and_are_counted():
    learner = make(value_clip=0.25)
    samples = ppo.prepare(fragments_for(learner), learner.settings)
    _, values = learner.network(samples["observation"])
    offsets = torch.where(torch.arange(len(values)) % 4 == 0, 0.1, 3.0)
    samples["value_target"] = (values + offsets).detach()
    found = ppo.loss(learner.network, samples, learner.settings)
    assert found.value_clipped_fraction.item() == pytest.approx(0.75)
    beyond = {name: column[offsets > 1.0] for name, column in samples.items()}
    gradients = torch.autograd.grad(
        ppo.loss(learner.network, beyond, learner.settings).value_error,
        [p for name, p in learner.network.named_parameters() if name.startswith("critic_")],
    )
    assert all(gradient.abs().max() == 0 for gradient in gradients)


def test_the_penalty_is_by_the_coefficient_as_it_has_become():
    learner = make(kl_coefficient=0.2)
    samples = ppo.prepare(fragments_for(learner), learner.settings)
    samples["behaviour_parameters"] = samples["behaviour_parameters"] + torch.tensor([0.5, -0.5])

    def total(coefficient: float | None) -> float:
        return ppo.loss(learner.network, samples, learner.settings, coefficient).total.item()

    kl = ppo.loss(learner.network, samples, learner.settings).kl.item()
    assert kl > 0.05
    assert total(5.0) - total(0.0) == pytest.approx(5.0 * kl, rel=1e-4)
    assert total(None) == pytest.approx(total(0.2))


@pytest.mark.parametrize("how", ["batch", "minibatch", "none"])
def test_advantages_are_standardised_over_what_the_settings_say(how):
    learner = make(standardize_advantages=how)
    samples = ppo.prepare(fragments_for(learner), learner.settings)
    expected = samples["value_target"] - samples["value"]
    if how == "batch":
        expected = (expected - expected.mean()) / expected.std(correction=0)
    torch.testing.assert_close(samples["advantage"], expected, rtol=1e-4, atol=1e-4)


def test_value_targets_bootstrap_from_the_true_successors():
    learner = make(gae_lambda=0.0, steps=8)
    fragments = fragments_for(learner)
    fragments["truncated"][0, 3], fragments["terminated"][1, 5] = True, True
    fragments["final_step"][0, 1], fragments["final_value"][0, 1] = 3, 50.0
    targets = ppo.prepare(fragments, learner.settings)["value_target"].reshape(3, 8)
    for row, step, successor in [
        (0, 2, fragments["value"][0, 3]),
        (0, 3, 50.0),
        (1, 5, 0.0),
        (2, 7, fragments["final_value"][2, 0]),
    ]:
        assert targets[row, step].item() == pytest.approx(1.0 + 0.99 * successor, rel=1e-5), (row, step)


def test_a_kl_coefficient_of_zero_stays_zero():
    learner = make(kl_coefficient=0.0, kl_target=1e-9)
    assert learner.update(fragments_for(learner)).kl > 0
    assert learner.kl_coefficient == 0.0


# ---- a round ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kl_target", "factor"), [(1e-9, 1.5), (1e3, 0.5)])
def test_a_round_adapts_the_kl_coefficient(kl_target, factor):
    learner = make(kl_target=kl_target, kl_coefficient=0.2)
    statistics = learner.update(fragments_for(learner))
    assert statistics.kl_coefficient == 0.2
    assert learner.kl_coefficient == pytest.approx(0.2 * factor)


def test_a_round_is_penalised_by_the_coefficient_that_earlier_rounds_left():
    gentle, strict = make(), make()
    strict.kl_coefficient = 1e4
    fragments = fragments_for(gentle)
    assert strict.update(fragments).kl < 0.1 * gentle.update(fragments).kl


def test_a_round_takes_as_many_steps_as_its_passes_have_minibatches():
    learner = make()
    statistics = learner.update(fragments_for(learner))
    # 3 fragments of 32 steps in minibatches of 24, twice.
    assert (statistics.samples, statistics.optimizer_steps, learner.version) == (96, 8, 1)
    whole = make(minibatch_size=None)
    assert whole.update(fragments_for(whole)).optimizer_steps == 2


def test_the_order_in_which_fragments_arrive_does_not_matter():
    one, other = make(), make()
    fragments = fragments_for(one, environments=4)
    shuffled = {name: column[[2, 0, 3, 1]] for name, column in fragments.items()}
    assert one.update(fragments) == other.update(shuffled)
    np.testing.assert_array_equal(weights(one.network), weights(other.network))


def test_moments_are_merged_after_the_passes_and_published_with_the_weights():
    learner = make()
    fragments = fragments_for(learner)
    assert learner.network.moments.count == 0
    learner.update(fragments)
    assert learner.network.moments.count == 96
    np.testing.assert_allclose(
        learner.network.moments.mean, fragments["observation"].reshape(-1, 4).mean(axis=0), rtol=1e-5, atol=1e-7
    )
    published = module_arrays(learner.network)
    np.testing.assert_array_equal(published["moments_mean"], learner.network.moments.mean)
    assert published["moments_mean"].dtype == np.float64
    learner.update(fragments_for(learner))
    assert learner.network.moments.count == 192


@pytest.mark.parametrize("steps", [1, 2])
def test_fragments_of_one_step_are_learned_from(steps):
    learner = make(steps=steps)
    statistics = learner.update(fragments_for(learner, environments=4))
    assert statistics.samples == 4 * steps
    assert np.isfinite([statistics.loss, statistics.kl, statistics.gradient_norm]).all()


def test_the_gradient_is_scaled_down_to_its_norm():
    # Steps of plain gradient descent are as long as the gradient: the learner's optimiser is exchanged for it.
    learner = make(gradient_norm=1e-3, minibatch_size=None, iterations=1)
    learner.optimizer = torch.optim.SGD(learner.parameters, lr=1.0)  # pyright: ignore[reportAttributeAccessIssue]
    before = [parameter.detach().clone() for parameter in learner.parameters]
    statistics = learner.update(fragments_for(learner))
    moved = torch.cat([(p - b).flatten() for p, b in zip(learner.parameters, before)]).norm()
    assert statistics.gradient_norm > 1e-2
    assert moved.item() == pytest.approx(1e-3, rel=1e-3)


# ---- determinism and checkpoints -------------------------------------------------------------------------------------


def test_the_same_seed_learns_the_same_weights_bit_by_bit():
    one, other, another = make(), make(), make(seed=6)
    for learner in (one, other, another):
        for _ in range(2):
            learner.update(fragments_for(learner))
    np.testing.assert_array_equal(weights(one.network), weights(other.network))
    assert not torch.equal(one.network.policy_head.weight, another.network.policy_head.weight)


def test_a_saved_learner_goes_on_as_it_would_have(tmp_path):
    learner = make()
    learner.update(fragments_for(learner))
    path = write_policy_checkpoint(tmp_path, learner, {"note": "kept"})
    resumed = make()
    assert read_policy_checkpoint(path, resumed)["note"] == "kept"
    np.testing.assert_array_equal(weights(learner.network), weights(resumed.network))
    assert learner.update(fragments_for(learner)) == resumed.update(fragments_for(resumed))
    np.testing.assert_array_equal(weights(learner.network), weights(resumed.network))


def test_a_learner_that_is_not_finite_is_not_saved_and_one_that_was_is_passed_over(tmp_path):
    learner, said = make(), []
    learner.update(fragments_for(learner))
    path = write_policy_checkpoint(tmp_path, learner)
    later = tmp_path / "step_7"  # of a version that did not look
    shutil.copytree(path, later)
    tensors = load_file(later / "optimizer.safetensors")
    tensors["0.exp_avg"].view(-1)[0] = float("inf")
    save_file(tensors, later / "optimizer.safetensors")
    assert newest_checkpoint(tmp_path, said.append) == path
    assert said == [f"{later} is passed over: 0.exp_avg in optimizer.safetensors is not finite"]
    with torch.no_grad():
        learner.network.policy_head.weight[0, 0] = float("nan")
    learner.version += 1
    with pytest.raises(Diverged, match=r"policy_head\.weight is not finite"):
        write_policy_checkpoint(tmp_path, learner)
    assert sorted(each.name for each in tmp_path.iterdir()) == [path.name, later.name]


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
    learner = make()
    learner.update(fragments_for(learner))
    path = write_policy_checkpoint(tmp_path, learner)
    with pytest.raises(ValueError, match="use the env and hidden it was written with"):
        read_policy_checkpoint(path, make(hidden=8))
