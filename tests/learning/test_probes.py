"""What learners measure for scalers: equal to values that are known, and without a trace in the learner."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from replay_server.actors.fragments import FragmentCollector  # noqa: E402
from replay_server.learner.algorithms import Learner, make_learner  # noqa: E402
from replay_server.learner.curvature import (  # noqa: E402
    CurvatureOptions,
    chosen_samples,
    hessian_product,
    objective_of,
    parameters_of,
    spectrum,
)
from replay_server.learner.gradient_noise import GradientNoiseOptions, measure_gradient_noise  # noqa: E402
from replay_server.learner.impact import ImpactSettings  # noqa: E402
from replay_server.learner.impala import ImpalaSettings  # noqa: E402
from replay_server.learner.lanczos import lanczos  # noqa: E402
from replay_server.learner.policy_probes import check_probes, measure  # noqa: E402
from replay_server.learner.ppo import PpoSettings  # noqa: E402
from replay_server.rl.policy_spec import policy_spec  # noqa: E402

ALL = [
    PpoSettings(env="CartPole-v1", steps=32, hidden=16, iterations=2, minibatch_size=24, seed=5),
    ImpactSettings(env="CartPole-v1", steps=32, hidden=16, minibatch_size=24, seed=5, target_update_every=2),
    ImpalaSettings(env="CartPole-v1", steps=32, hidden=16, minibatch_size=64, seed=5),
]
NAMES = ["ppo", "impact", "impala"]
ASKED: dict[str, dict[str, Any]] = {"curvature": {"samples": 40}, "gradient_noise": {"small_batch": 20}}


def trained(settings: Any, rounds: int = 1, environments: int = 4) -> tuple[Learner, dict[str, np.ndarray]]:
    """A learner after so many rounds, and the fragments of the last."""
    learner = make_learner(settings, policy_spec(settings))
    collector = FragmentCollector(settings, policy_spec(settings), environments, [settings.seed])
    fragments: dict[str, np.ndarray] = {}
    try:
        for _ in range(rounds):
            fragments = collector.collect(learner.network, learner.version).fragments
            learner.update(fragments)
    finally:
        collector.close()
    return learner, fragments


def whole_state(learner: Learner) -> list[Any]:
    tensors = [tensor.clone() for network in learner.networks().values() for tensor in network.state_dict().values()]
    state = learner.optimizer.state_dict()["state"]
    moments = [each[name].clone() for each in state.values() for name in sorted(each)]
    return [learner.counters(), *tensors, *moments]


@pytest.mark.parametrize("settings", ALL, ids=NAMES)
def test_measuring_leaves_no_trace_and_finds_the_same_again_in_any_order(settings):
    learner, fragments = trained(settings)
    before, drawn = whole_state(learner), torch.random.get_rng_state()
    first = measure(ASKED, learner, fragments)
    for one, other in zip(before, whole_state(learner), strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    assert torch.equal(drawn, torch.random.get_rng_state())
    assert measure(ASKED, learner, {name: column[::-1] for name, column in fragments.items()}) == first
    assert set(first) == {
        "curvature_max", "curvature_min", "curvature_steps",
        "noise_small_batch", "noise_big_batch", "noise_small_norm", "noise_big_norm",
    }  # fmt: skip
    assert all(np.isfinite(value) for value in first.values())
    learner.version += 1
    assert measure(ASKED, learner, fragments) != first


def test_unknown_probes_and_options_are_refused():
    check_probes(ASKED)
    with pytest.raises(ValueError, match="unknown probe 'hessian': expected one of curvature, gradient_noise"):
        check_probes({"hessian": {}})
    with pytest.raises(ValueError, match="probe curvature has no 'step'"):
        check_probes({"curvature": {"step": 3}})
    with pytest.raises(ValueError, match=r"probe curvature\.steps: expected int, got '3'"):
        check_probes({"curvature": {"steps": "3"}})
    with pytest.raises(ValueError, match=r"expected a subset in \(0, 1\]"):
        check_probes({"curvature": {"subset": 0.0}})
    with pytest.raises(ValueError, match="expected a small_batch of at least 1"):
        check_probes({"gradient_noise": {"small_batch": 0}})


# ---- curvature -------------------------------------------------------------------------------------------------------


def test_a_product_with_the_hessian_by_hand():
    # f = x²y + 3z: H = [[2y, 2x, 0], [2x, 0, 0], [0, 0, 0]].
    x, y, z = (torch.nn.Parameter(torch.tensor(value)) for value in (2.0, 5.0, 1.0))
    product = hessian_product(x.square() * y + 3.0 * z, [x, y, z])
    assert product(torch.tensor([1.0, 2.0, 7.0])).tolist() == [10.0 + 8.0, 4.0, 0.0]
    assert hessian_product(3.0 * z, [z])(torch.tensor([2.0])).tolist() == [0.0]


def test_samples_are_a_share_of_the_rounds_and_no_fewer_than_asked_for():
    learner, fragments = trained(ALL[0])  # 4 fragments of 32

    def drawn(**options: Any) -> dict[str, torch.Tensor]:
        return chosen_samples(learner, fragments, CurvatureOptions(**options), torch.Generator().manual_seed(1))

    assert len(drawn(subset=0.25, samples=10)["advantage"]) == 32
    assert len(drawn(subset=0.25, samples=50)["advantage"]) == 50
    assert len(drawn(subset=0.25, samples=500)["advantage"]) == 128
    assert drawn(subset=1.0)["advantage"].mean().item() == pytest.approx(0.0, abs=1e-6)
    assert abs(drawn(subset=0.25, samples=1)["advantage"].mean().item()) > 1e-3  # standardised with all the others


@pytest.mark.parametrize("settings", ALL, ids=NAMES)
def test_the_code_variant_is_of_the_total_loss_in_all_parameters(settings):
    learner, fragments = trained(settings)
    options = CurvatureOptions(variant="code", subset=1.0)
    samples = chosen_samples(learner, fragments, options, torch.Generator())
    assert objective_of(learner, samples, options).item() == -learner.loss(samples).total.item()
    assert parameters_of(learner, options) == list(learner.network.parameters())
    # The squared value error bends far more than the surrogate.
    of_policy = spectrum(learner, fragments, CurvatureOptions(subset=1.0))
    assert spectrum(learner, fragments, options).values[0] < 5.0 * of_policy.values[0] < 0.0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_extremes_are_those_of_the_exact_hessian_on_hopper(seed):
    settings = PpoSettings(env="Hopper-v5", hidden=32, steps=256, iterations=4, seed=seed)
    learner, fragments = trained(settings, rounds=2)
    options = CurvatureOptions(subset=1.0)
    exact = exact_eigenvalues(learner, fragments, options)
    assert len(exact) == 1542
    assert exact[0] < 0.0 < exact[-1]
    samples = chosen_samples(learner, fragments, options, torch.Generator())
    product = hessian_product(objective_of(learner, samples, options), parameters_of(learner, options))
    for draw in range(8):
        start = torch.randn(len(exact), generator=torch.Generator().manual_seed(draw))
        found = lanczos(product, start, options.steps, options.tolerance)
        assert found.steps <= 24
        assert found.values[0] == pytest.approx(exact[0], rel=0.01)
        assert found.values[-1] == pytest.approx(exact[-1], rel=0.01)


def exact_eigenvalues(learner: Learner, fragments: dict[str, np.ndarray], options: CurvatureOptions) -> np.ndarray:
    """Of the whole Hessian of PPO's surrogate in the policy's parameters, written out once more."""
    samples = chosen_samples(learner, fragments, options, torch.Generator())
    network, clip = learner.network, learner.settings.clip
    named = {name: each for name, each in network.named_parameters() if not name.startswith("critic_")}
    sizes = [each.numel() for each in named.values()]

    def objective(flat: torch.Tensor) -> torch.Tensor:
        parts = {
            name: part.reshape(each.shape) for (name, each), part in zip(named.items(), flat.split(sizes), strict=True)
        }
        parameters, _ = torch.func.functional_call(network, parts, (samples["observation"],))
        log_probability = network.distribution.log_probability(parameters, samples["action"])
        ratio = (log_probability - samples["behaviour_log_probability"]).exp()
        advantage = samples["advantage"]
        return torch.minimum(advantage * ratio, advantage * ratio.clamp(1.0 - clip, 1.0 + clip)).mean()

    flat = torch.cat([each.detach().reshape(-1) for each in named.values()])
    hessian = torch.func.hessian(objective)(flat)
    return torch.linalg.eigvalsh((0.5 * (hessian + hessian.T)).double()).numpy()


# ---- gradient noise --------------------------------------------------------------------------------------------------


class Line:
    """A learner of one parameter w and the loss mean(w · x): a batch's gradient is the mean of its x."""

    def __init__(self) -> None:
        self.settings = dataclasses.replace(ALL[0])
        self.device = torch.device("cpu")
        self.version = 0
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.parameters = [self.weight]

    def samples(self, fragments: Any) -> dict[str, torch.Tensor]:
        return {"advantage": torch.from_numpy(fragments["x"]).flatten()}

    def loss(self, minibatch: Any) -> Any:
        return dataclasses.make_dataclass("Loss", ["total"])((self.weight * minibatch["advantage"]).mean())


def test_gradient_norms_of_small_batches_and_of_all_of_them_by_hand():
    none = np.zeros(1, np.int64)
    fragments = {"x": np.array([[1.0, 2.0, 4.0, 9.0]]), "environment": none, "sequence": none, "policy_version": none}
    found = measure_gradient_noise(Line(), fragments, GradientNoiseOptions(small_batch=1))  # type: ignore[arg-type]
    assert found == {
        "noise_small_batch": 1.0,
        "noise_big_batch": 4.0,
        "noise_small_norm": (1.0 + 4.0 + 16.0 + 81.0) / 4.0,
        "noise_big_norm": 16.0,  # (16 / 4)²
    }
    # G² = (4·16 − 25.5)/3 = 12.8333 and S = (25.5 − 16)/(1 − 1/4) = 12.6667 = the variance 9.5 · 4/3, without bias.
    found = measure_gradient_noise(Line(), fragments, GradientNoiseOptions(small_batch=3))  # type: ignore[arg-type]
    assert (found["noise_small_batch"], found["noise_big_batch"]) == (3.0, 3.0)
    assert found["noise_small_norm"] == found["noise_big_norm"]


def test_gradient_noise_is_of_the_total_loss_in_all_parameters():
    learner, fragments = trained(ALL[0])
    found = measure_gradient_noise(learner, fragments, GradientNoiseOptions(small_batch=64))
    samples = learner.samples(fragments)
    learner.optimizer.zero_grad()
    learner.loss(samples).total.backward()
    whole = sum(float(each.grad.square().sum()) for each in learner.parameters if each.grad is not None)
    assert (found["noise_small_batch"], found["noise_big_batch"]) == (64.0, 128.0)
    assert found["noise_big_norm"] == pytest.approx(whole, rel=1e-3)
    assert found["noise_small_norm"] > found["noise_big_norm"]
