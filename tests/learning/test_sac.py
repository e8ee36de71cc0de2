"""Soft actor-critic: its losses against NumPy, its update against plain torch, and that it learns."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import gymnasium
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from act_and_learn import act_and_learn  # noqa: E402

from replay_server.actors.evaluator import evaluate  # noqa: E402
from replay_server.learner import checkpoint as saving  # noqa: E402
from replay_server.learner.sac import (  # noqa: E402
    POLICY,
    TARGETS,
    Sac,
    critics_loss,
    policy_loss,
    soft_targets,
    temperature_loss,
)
from replay_server.rl.actions import Bounds  # noqa: E402
from replay_server.rl.distributions import SquashedGaussian  # noqa: E402
from replay_server.rl.environment_spec import EnvironmentSpec, environment_spec  # noqa: E402
from replay_server.rl.networks import make_critics, make_network  # noqa: E402
from replay_server.rl.observations import Leaf, columns, map_tree  # noqa: E402
from replay_server.rl.profiles import apply_profile  # noqa: E402
from replay_server.rl.settings import PROFILES, ApexSettings  # noqa: E402

CPU = torch.device("cpu")
BOUNDS = Bounds((2,), (-1.0, 0.0), (1.0, 4.0))
SPEC = EnvironmentSpec(Leaf((3,)), 0, bounds=BOUNDS)
IMAGES = EnvironmentSpec(Leaf((3, 16, 16), "uint8", is_image=True, scale=1 / 255), 0, bounds=BOUNDS)
TREE = EnvironmentSpec(
    {"eye": Leaf((8, 8, 3), "uint8", is_image=True, scale=1 / 255), "action": Leaf((2,))}, 0, bounds=BOUNDS
)
SETTINGS = ApexSettings(env="Pendulum-v1", hidden=8, optimizer="adam", learning_rate=1e-2, target_update_every=1,
                        target_mix=0.1, gradient_norm=1e6, optimizer_epsilon=1e-8, seed=3)  # fmt: skip


def make_learner(spec: EnvironmentSpec = SPEC, **changes: Any) -> Sac:
    return Sac(dataclasses.replace(SETTINGS, **changes), spec, CPU)


def random_batch(seed: int, size: int = 6, spec: EnvironmentSpec = SPEC) -> tuple[dict[str, np.ndarray], np.ndarray]:
    generator = np.random.default_rng(seed)

    def observations(name: str) -> dict[str, np.ndarray]:
        return columns(name, map_tree(lambda leaf: leaf.random(generator, size), spec.observation))

    data = {
        **observations("obs"),
        **observations("next_obs"),
        "action": spec.random_actions(generator, size),
        "reward": generator.normal(size=size).astype(np.float32),
        "discount": generator.choice(np.float32([0.0, 0.97, 0.97**2]), size),
    }
    return data, generator.uniform(0.2, 1.0, size).astype(np.float32)


# ---- losses ----------------------------------------------------------------------------------------------------------


def test_targets_are_soft_and_of_the_smaller_critic_and_end_with_the_episode() -> None:
    batch = {"reward": torch.tensor([1.0, -2.0]), "discount": torch.tensor([0.9, 0.0])}
    targets = soft_targets(batch, torch.tensor([[5.0, 3.0], [7.0, 8.0]]), torch.tensor([-1.5, 2.0]), torch.tensor(0.2))
    # 1 + 0.9·(3 + 0.2·1.5) = 3.97; the second episode has ended there.
    np.testing.assert_allclose(targets.numpy(), [3.97, -2.0], rtol=1e-6)


def test_loss_of_the_critics_is_both_ones_squared_error_weighted() -> None:
    q, targets = torch.tensor([[1.0, 4.0], [0.0, -1.0]]), torch.tensor([3.0, 1.0])
    loss = critics_loss(q, targets, torch.tensor([0.5, 1.0]))
    assert loss.total.item() == pytest.approx((0.5 * (0.5 * 4 + 0.5 * 1) + (0.5 * 1 + 0.5 * 4)) / 2)
    np.testing.assert_allclose(loss.td_error.numpy(), [1.5, 1.5])  # means of |2|, |−1| and |1|, |2|
    np.testing.assert_allclose(loss.q.numpy(), [2.5, -0.5])
    np.testing.assert_allclose(loss.rows.numpy(), [1.25, 2.5])
    huber = critics_loss(q, targets, torch.tensor([0.5, 1.0]), "huber")
    assert huber.total.item() == pytest.approx((0.5 * (1.5 + 0.5) + (0.5 + 1.5)) / 2)


def test_policy_is_paid_for_value_and_entropy() -> None:
    q, log_probability = torch.tensor([[1.0, 4.0], [0.0, -1.0]]), torch.tensor([-1.0, 2.0])
    loss = policy_loss(q, log_probability, torch.tensor(0.5), torch.tensor([0.5, 1.0]))
    assert loss.item() == pytest.approx((0.5 * (-0.5 - 1.0) + (1.0 + 1.0)) / 2)


def test_temperature_rises_while_the_entropy_is_below_its_target_and_falls_above() -> None:
    for log_probability, direction in (([3.0, 1.5], 1), ([1.5, 1.5], -1), ([2.0, 2.0], 0)):
        log_temperature = torch.tensor(-0.7, requires_grad=True)
        loss = temperature_loss(log_temperature, torch.tensor(log_probability), -2.0, torch.tensor([1.0, 0.5]))
        loss.backward()
        assert np.sign(-log_temperature.grad.item()) == direction
    expected = 0.7 * (1.0 * (3.0 - 2.0) + 0.5 * (1.5 - 2.0)) / 2
    log_probability = torch.tensor([3.0, 1.5])
    loss = temperature_loss(torch.tensor(-0.7), log_probability, -2.0, torch.tensor([1.0, 0.5]))
    assert loss.item() == pytest.approx(expected)


def test_density_of_squashed_actions_is_that_of_torch_and_stays_finite_at_the_bounds() -> None:
    parameters = torch.tensor([[0.3, -0.2, 0.1, -1.0], [-1.0, 0.5, -2.0, 0.0]])
    actions, log_probability = SquashedGaussian(2).sample(parameters, torch.Generator().manual_seed(1))
    mean, log_std = parameters.chunk(2, dim=1)
    reference = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean, log_std.exp()), torch.distributions.TanhTransform()
    )
    torch.testing.assert_close(log_probability, reference.log_prob(actions).sum(dim=1), rtol=1e-4, atol=1e-4)
    far, finite = SquashedGaussian(1).sample(torch.tensor([[40.0, -2.0], [-40.0, -2.0]]), torch.Generator())
    assert far.flatten().tolist() == [1.0, -1.0]
    assert torch.isfinite(finite).all()


# ---- the update ------------------------------------------------------------------------------------------------------


class PlainSac:
    """The same in plain torch: three optimizers, losses written out, nothing shared with what it is compared to."""

    def __init__(self, learner: Sac) -> None:
        self.policy, self.critics, self.target = map(
            copy.deepcopy, (learner.policy, learner.critics, learner.modules["target"])
        )
        self.log_alpha = torch.tensor(math.log(SETTINGS.initial_temperature), requires_grad=True)
        self.optimizers = [
            torch.optim.Adam(parameters, lr=SETTINGS.learning_rate)
            for parameters in (self.critics.parameters(), self.policy.parameters(), [self.log_alpha])
        ]
        self.step = 0

    def draw(self, observations: Any, stream: int) -> tuple[Any, Any]:
        mean, log_std = self.policy(observations).chunk(2, dim=1)
        seed = int(np.random.SeedSequence([SETTINGS.seed, stream, self.step]).generate_state(1)[0])
        raw = mean + log_std.exp() * torch.randn(mean.shape, generator=torch.Generator().manual_seed(seed))
        log_probability = torch.distributions.Normal(mean, log_std.exp()).log_prob(raw)
        return raw.tanh(), (log_probability - torch.log(1 - raw.tanh() ** 2)).sum(dim=1)

    def update(self, data: dict[str, np.ndarray], weights: np.ndarray) -> np.ndarray:
        obs, next_obs, reward, discount = (torch.from_numpy(data[n]) for n in ("obs", "next_obs", "reward", "discount"))
        weighted, alpha = torch.from_numpy(weights), self.log_alpha.exp().item()
        with torch.no_grad():
            actions, log_probability = self.draw(next_obs, TARGETS)
            y = reward + discount * (self.target(next_obs, actions).min(1).values - alpha * log_probability)
        taken = torch.from_numpy((data["action"] - [0.0, 2.0]) / [1.0, 2.0]).float()
        first, second = self.critics(obs, taken).unbind(1)
        critics = (weighted * 0.5 * ((first - y) ** 2 + (second - y) ** 2)).mean()
        actions, log_probability = self.draw(obs, POLICY)
        policy = (weighted * (alpha * log_probability - self.critics(obs, actions).min(1).values)).mean()
        temperature = -(weighted * self.log_alpha * (log_probability.detach() - 2.0)).mean()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        policy.backward()
        self.critics.zero_grad()  # the policy's loss is none of theirs
        critics.backward()
        temperature.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        with torch.no_grad():
            for old, new in zip(self.target.parameters(), self.critics.parameters(), strict=True):
                old.mul_(0.9).add_(0.1 * new)
        self.step += 1
        return ((first - y).abs() + (second - y).abs()).detach().numpy() / 2 + SETTINGS.priority_epsilon


def test_update_is_that_of_plain_torch() -> None:
    learner = make_learner()
    plain = PlainSac(learner)
    for number in range(5):
        data, weights = random_batch(number)
        update = learner.update(data, weights)
        np.testing.assert_allclose(update.priorities.numpy(), plain.update(data, weights), rtol=1e-4)
        assert learner.settle(update)
    for mine, theirs in (
        (learner.policy, plain.policy),
        (learner.critics, plain.critics),
        (learner.modules["target"], plain.target),
    ):
        torch.testing.assert_close(mine.state_dict(), theirs.state_dict(), rtol=1e-4, atol=1e-5)
    assert learner.temperature().item() == pytest.approx(plain.log_alpha.exp().item(), rel=1e-5)
    assert update.told["temperature"].item() != pytest.approx(learner.temperature().item(), rel=1e-6)  # of before


def test_gradients_of_critics_and_policy_are_clipped_by_themselves() -> None:
    learner = make_learner(gradient_norm=1e-3)
    update = learner.update(*random_batch(0))
    for group in learner.groups[:2]:
        norm = torch.stack([parameter.grad.norm() for parameter in group]).norm()
        assert norm.item() == pytest.approx(1e-3, rel=1e-2)
    assert update.gradient_norm.item() > 2e-3


@pytest.mark.parametrize("device_looks", [False, True])  # on the CPU, too, Adam's kernel can leave out a step
@pytest.mark.parametrize("bad", ["reward", "weight", "obs", "next_obs", "action"])
def test_update_that_is_not_finite_changes_nothing(device_looks: bool, bad: str) -> None:
    learner = make_learner()
    learner.device_looks = device_looks
    learner.settle(learner.update(*random_batch(0)))
    before = {name: copy.deepcopy(module.state_dict()) for name, module in learner.modules.items()}
    state = {name: tensor.clone() for name, tensor in saving.optimizer_tensors(learner.optimizer).items()}
    data, weights = random_batch(1)
    (weights if bad == "weight" else data[bad])[2] = np.nan
    update = learner.update(data, weights)
    assert not learner.settle(update)
    assert learner.step == 1
    for name, module in learner.modules.items():
        torch.testing.assert_close(module.state_dict(), before[name], rtol=0, atol=0)
    torch.testing.assert_close(saving.optimizer_tensors(learner.optimizer), state, rtol=0, atol=0)
    priorities = update.priorities.numpy()
    assert priorities[2] == np.float32(learner.settings.priority_epsilon)
    assert (np.delete(priorities, 2) > 1e-3).all()
    assert learner.settle(learner.update(*random_batch(2)))


def test_resumed_learner_goes_on_exactly_as_the_uninterrupted_one(tmp_path: Any) -> None:
    """Random numbers among it."""
    whole, first, second = make_learner(), make_learner(), make_learner(seed=9)
    for seed in range(3):
        whole.update(*random_batch(seed))
        first.update(*random_batch(seed))
    path = saving.write_checkpoint(tmp_path, first, {"version": 3})
    assert {file.name for file in path.glob("*.safetensors")} == {
        "network.safetensors", "critics.safetensors", "target.safetensors", "temperature.safetensors",
        "optimizer.safetensors",
    }  # fmt: skip
    second.settings = whole.settings
    assert saving.read_checkpoint(path, second)["step"] == 3
    for seed in range(3, 6):
        expected, got = whole.update(*random_batch(seed)), second.update(*random_batch(seed))
        torch.testing.assert_close(got.priorities, expected.priorities, rtol=0, atol=0)
    for name, module in whole.modules.items():
        torch.testing.assert_close(second.modules[name].state_dict(), module.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("spec", [SPEC, IMAGES, TREE], ids=["vector", "image", "tree"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_any_observation_is_learned_from(spec: EnvironmentSpec, precision: str) -> None:
    learner = Sac(dataclasses.replace(SETTINGS, hidden=32, learning_rate=3e-3), spec, CPU, precision)
    data, weights = random_batch(4, 6, spec)
    data["discount"][:] = 0.0
    errors = [learner.update(data, weights).td_error.item() for _ in range(60)]
    assert min(errors[-10:]) < 0.6 * errors[0], errors


def test_critics_see_the_action_and_begin_apart_from_the_policy_and_each_other() -> None:
    critics, policy = make_critics(SETTINGS, SPEC), make_network(SETTINGS, SPEC)
    observations = torch.randn(5, 3)
    q = critics(observations, torch.zeros(5, 2))
    assert q.shape == (5, 2)
    assert (critics(observations, torch.ones(5, 2)) != q).all()
    assert (q[:, 0] != q[:, 1]).all()
    first = [body.bodies[0][0].weight for body in critics.bodies]
    assert not torch.equal(first[0][:, :3], first[1][:, :3])
    assert not torch.equal(policy.body[0].weight.flatten()[:8], first[0].flatten()[:8])


def test_a_number_with_one_value_only_does_no_harm() -> None:
    learner = make_learner(EnvironmentSpec(Leaf((3,)), 0, bounds=Bounds((2,), (-1.0, 5.0), (1.0, 5.0))))
    data, weights = random_batch(0, spec=SPEC)
    data["action"][:, 1] = 5.0
    assert learner.settle(learner.update(data, weights))


# ---- in an environment -----------------------------------------------------------------------------------------------


class Echo(gymnasium.Env):
    """Shows a number, and pays for saying it back in a Box of uneven bounds. Four rounds; a dict of its own shape."""

    observation_space = gymnasium.spaces.Dict({"shown": gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)})
    action_space = gymnasium.spaces.Box(np.array([[0.0, -3.1]]), np.array([[10.0, -1.1]]), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 4
        return self._seen(), {}

    def step(self, action):
        assert action in self.action_space
        wanted = np.array([[5.0 + 4.0 * self.shown, -2.1 - 0.8 * self.shown]])
        reward = -float(np.abs((action - wanted) / [5.0, 1.0]).sum())
        self.left -= 1
        return self._seen(), reward, self.left == 0, False, {}

    def _seen(self):
        self.shown = float(self.np_random.uniform(-1.0, 1.0))
        return {"shown": np.array([self.shown])}


gymnasium.register("Echo-v0", Echo)


def test_an_environment_of_uneven_bounds_is_solved() -> None:
    """Uniform actions get −4.7 an episode of four rounds, the best ones 0."""
    settings = apply_profile(ApexSettings(env="Echo-v0", profile="sac"), set(), PROFILES)
    settings = dataclasses.replace(settings, batch_size=64, hidden=32, capacity=4_000, min_size_to_sample=1,
                                   samples_per_insert=None, learning_rate=3e-3, discount=0.0,
                                   initial_temperature=0.1)  # fmt: skip
    spec = environment_spec(settings)
    assert (spec.algorithm, spec.action_shape, spec.action_dtype) == ("sac", (1, 2), "float32")
    learner = Sac(settings, spec, CPU)
    assert np.mean(evaluate(learner.published, settings, 20, seed=1, epsilon=1.0)) < -3.0
    batch = act_and_learn(settings, spec, learner, turns=400, epsilon=0.0)
    assert batch.data["action"].shape == (64, 1, 2)
    assert np.mean(evaluate(learner.published, settings, 20, seed=1)) > -0.6
