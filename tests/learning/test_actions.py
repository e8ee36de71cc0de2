"""Discrete actions of several numbers: how they are chosen, taken and learned."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from gymnasium.spaces import Dict as DictSpace

torch = pytest.importorskip("torch")

from act_and_learn import act_and_learn  # noqa: E402

from replay_server.actors.evaluator import evaluate  # noqa: E402
from replay_server.learner.dqn import Dqn, double_dqn_loss  # noqa: E402
from replay_server.rl.actions import action_branches, action_values, as_taken, greedy  # noqa: E402
from replay_server.rl.environment_spec import environment_spec  # noqa: E402
from replay_server.rl.exploration import epsilon_greedy  # noqa: E402
from replay_server.rl.networks import DuelingNetwork, make_network  # noqa: E402
from replay_server.rl.observations import Leaf  # noqa: E402
from replay_server.rl.profiles import apply_profile  # noqa: E402
from replay_server.rl.settings import PROFILES, ApexSettings  # noqa: E402

SPACES: list[tuple[Space[Any], int, tuple[int, ...]]] = [
    (Discrete(3), 3, ()),
    (Discrete(3, start=-1), 3, ()),
    (MultiDiscrete([4]), 4, (4,)),
    (MultiDiscrete([2, 3]), 5, (2, 3)),
    (MultiDiscrete([[2, 3], [4, 2]], start=np.array([[1, 0], [5, 5]])), 11, (2, 3, 4, 2)),
    (MultiBinary(3), 6, (2, 2, 2)),
    (DictSpace({"move": Discrete(3, start=1), "tools": Tuple([MultiBinary(2), Discrete(2)])}), 9, (3, 2, 2, 2)),
]


@pytest.mark.parametrize(("space", "values", "branches"), SPACES, ids=[str(space) for space, _, _ in SPACES])
def test_every_choice_is_one_of_the_space_and_each_is_another_one(
    space: Space[Any], values: int, branches: tuple[int, ...]
) -> None:
    assert action_branches(space) == (values, branches)
    taken = []
    for choice in np.ndindex(*(branches or (values,))):
        action = as_taken(space, np.array(choice) if branches else np.int64(choice[0]))
        assert action in space
        taken.append(str(action))
    assert len(set(taken)) == len(taken) == np.prod(branches or (values,))


@pytest.mark.parametrize("space", [Box(-1, 1, (2,)), Tuple([Discrete(2), Box(-1, 1, (2,))]), Tuple([])])
def test_other_actions_have_no_branches(space: Space[Any]) -> None:
    assert action_branches(space) is None


def test_each_branch_is_chosen_and_valued_by_its_own() -> None:
    q_values = np.array([[1.0, 5.0, 2.0, 8.0, 3.0], [4.0, 0.0, 9.0, 1.0, 2.0]])
    assert greedy(q_values, (2, 3)).tolist() == [[1, 1], [0, 0]]
    taken, best = action_values(q_values, np.array([[0, 2], [1, 0]]), (2, 3))
    assert taken.tolist() == [(1.0 + 3.0) / 2, (0.0 + 9.0) / 2]
    assert best.tolist() == [(5.0 + 8.0) / 2, (4.0 + 9.0) / 2]


def test_each_branch_is_greedy_or_uniform_by_itself() -> None:
    q_values = np.tile([0.0, 1.0, 0.0, 0.0, 1.0], (6_000, 1))
    actions = epsilon_greedy(q_values, np.repeat([0.0, 0.5, 1.0], 2_000), np.random.default_rng(0), (2, 3))
    assert actions.shape == (6_000, 2)
    assert (actions[:2_000] == [1, 2]).all()
    for choice in np.ndindex(2, 3):  # 333 expected of each; fewer than 230 by chance: below 1e-8
        assert (actions[4_000:] == choice).all(axis=1).sum() > 230
    # With ε = 0.5 the first is greedy in 3/4 of all, and of those where the second is not: 500 expected, 4.5 σ = 50.
    other = actions[2_000:4_000][actions[2_000:4_000, 1] != 2]
    assert abs((other[:, 0] == 1).mean() - 0.75) < 0.075


class Rows(torch.nn.Module):
    """Q values looked up by the only number of an observation."""

    def __init__(self, values: list[list[float]]) -> None:
        super().__init__()
        self.values = torch.nn.Parameter(torch.tensor(values))

    def forward(self, observations):
        return self.values[observations[:, 0].long()]


def test_loss_of_branches_is_the_mean_against_one_target() -> None:
    online = Rows([[1.0, 2.0, 3.0, 4.0, 5.0], [7.0, 6.0, 0.0, 2.0, 1.0]])
    target = Rows([[0.0, 0.0, 0.0, 0.0, 0.0], [10.0, 20.0, 30.0, 50.0, 70.0]])
    batch = {
        "obs": torch.tensor([[0.0]]),
        "next_obs": torch.tensor([[1.0]]),
        "action": torch.tensor([[1, 2]]),
        "reward": torch.tensor([1.0]),
        "discount": torch.tensor([0.5]),
    }
    loss = double_dqn_loss(online, target, batch, torch.tensor([2.0]), branches=(2, 3))
    # The online network prefers 0 and 1 there, worth 10 and 50: 1 + 0.5·30 = 16. Q of 1 and 2: 2 and 5; δ: 14 and 11.
    assert loss.q.tolist() == [3.5]
    assert loss.td_error.tolist() == [12.5]
    assert loss.total.item() == pytest.approx(2.0 * 0.5 * (14.0**2 + 11.0**2) / 2)
    loss.total.backward()
    np.testing.assert_allclose(online.values.grad[0].numpy(), [0.0, -14.0, 0.0, 0.0, -11.0])
    huber = double_dqn_loss(online, target, batch, torch.tensor([2.0]), "huber", branches=(2, 3))
    assert huber.total.item() == pytest.approx(2.0 * (13.5 + 10.5) / 2)


def test_branches_share_a_value_and_each_has_its_own_mean() -> None:
    network = DuelingNetwork(Leaf((4,)), 5, hidden=8, branches=(2, 3))
    observations = torch.randn(6, 4)
    value = network.value(network.body(observations))
    first, second = network(observations).split((2, 3), dim=1)
    torch.testing.assert_close(first.mean(1, keepdim=True), value, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(second.mean(1, keepdim=True), value, rtol=1e-4, atol=1e-5)


class Locks(gymnasium.Env):
    """Shows a number; each of three locks has one setting that opens it then. Pays the share of open locks, 5 times."""

    observation_space = Discrete(4)
    action_space = MultiDiscrete([3, 4, 2], start=[0, 1, 0])
    KEYS = ((0, 3, 1), (2, 1, 0), (1, 2, 1), (2, 4, 0))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        self.shown = int(self.np_random.integers(4))
        return self.shown, {}

    def step(self, action):
        assert action in self.action_space
        reward = float(np.mean(np.asarray(action) == self.KEYS[self.shown]))
        self.left -= 1
        self.shown = int(self.np_random.integers(4))
        return self.shown, reward, self.left == 0, False, {}


gymnasium.register("Locks-v0", Locks)


def test_an_environment_of_branches_is_solved() -> None:
    """24 joint actions in each of 4 states; random play opens 36 % of the locks, the right settings 100 %."""
    settings = ApexSettings(env="Locks-v0", profile="cartpole", envs_per_actor=4)
    settings = apply_profile(settings, {"envs_per_actor"}, PROFILES)
    settings = dataclasses.replace(settings, n_step=1, discount=0.5, hidden=32, capacity=5_000, min_size_to_sample=1)
    settings = dataclasses.replace(settings, batch_size=64, samples_per_insert=None)
    spec = environment_spec(settings)
    assert (spec.num_actions, spec.branches) == (9, (3, 4, 2))
    learner = Dqn(settings, lambda: make_network(settings, spec), torch.device("cpu"), branches=spec.branches)
    batch = act_and_learn(settings, spec, learner, turns=500, epsilon=0.4)
    assert batch.data["action"].shape == (64, 3)
    assert np.mean(evaluate(learner.online, settings, 20, seed=1)) == 5.0
