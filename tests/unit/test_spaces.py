"""Signatures of Gymnasium's spaces: what an environment returns goes in as it is, and comes back the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import replay_server as rs
from replay_server.tree import leaves_of, tree_from

gymnasium = pytest.importorskip("gymnasium")
spaces = gymnasium.spaces

OBSERVATIONS = [
    spaces.Box(-1, 1, (3,), np.float32),
    spaces.Box(-1, 1, (), np.float64),
    spaces.Box(0, 255, (12, 9, 3), np.uint8),
    spaces.Discrete(5),
    spaces.MultiBinary(4),
    spaces.MultiBinary((2, 3)),
    spaces.MultiDiscrete([3, 4]),
    spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (8, 8, 3), np.uint8),
            "hand": spaces.Dict({"place": spaces.Box(-1, 1, (3,)), "holds": spaces.MultiBinary(2)}),
            "pair": spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (2, 2))]),
        }
    ),
    spaces.Tuple([spaces.Tuple([spaces.Discrete(2)]), spaces.MultiDiscrete([2, 2])]),
]
IDS = [str(space)[:40] for space in OBSERVATIONS]


class Meadow(gymnasium.Env):
    """Five steps of random observations."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        observation_space.seed(1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps == 5, False, {}


def same(left: Any, right: Any, row: int) -> bool:
    """Whether a row of a batch's tree is what an environment gave."""
    given = leaves_of(tree_from({"x": right}))
    return all(np.array_equal(array[row], given[path]) for path, array in leaves_of({"x": left}).items())


@pytest.mark.parametrize("space", OBSERVATIONS, ids=IDS)
def test_what_an_environment_returns_goes_through_a_writer_as_it_is(space):
    env = Meadow(space, spaces.Dict({"turn": spaces.Discrete(3), "push": spaces.Box(-1, 1, (2,))}))
    buffer = rs.Buffer(rs.Table("meadow", 100, rs.signature_of(env, n_step=1)))
    seen, actions = [env.reset()[0]], []
    with buffer.writer(n_step=1, discount=0.9) as writer:
        for _ in range(5):
            actions.append(env.action_space.sample())
            obs, reward, terminated, truncated, _ = env.step(actions[-1])
            step = {"obs": seen[-1], "action": actions[-1], "reward": reward}
            writer.append(step, terminated=terminated, truncated=truncated)
            seen.append(obs)
        writer.append({"obs": seen[-1]})
        data = buffer.get(writer.flush()).data
    for at in range(5):
        assert same(data["obs"], seen[at], at)
        assert same(data["next_obs"], seen[at + 1], at)
        assert same(data["action"], actions[at], at)
    np.testing.assert_allclose(data["discount"], [0.9, 0.9, 0.9, 0.9, 0.0])


def test_what_a_vector_environment_returns_is_added_as_it_is():
    envs = gymnasium.vector.SyncVectorEnv([lambda: Meadow(OBSERVATIONS[-2], spaces.Discrete(3)) for _ in range(4)])
    buffer = rs.Buffer(rs.Table("meadow", 100, rs.signature_of(envs)))
    obs, _ = envs.reset()
    actions = envs.action_space.sample()
    after, rewards, terminated, _, _ = envs.step(actions)
    transitions = {"obs": obs, "action": actions, "next_obs": after, "terminated": terminated}
    ids = buffer.add({**transitions, "reward": rewards.astype(np.float32)})
    data = buffer.get(ids).data
    np.testing.assert_array_equal(data["obs"]["hand"]["holds"], obs["hand"]["holds"])
    np.testing.assert_array_equal(data["next_obs"]["pair"][1], after["pair"][1])
    envs.close()


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Text(5), r"'obs': expected Box, .* got Text\(1, 5"),
        (spaces.Dict({"said": spaces.Text(5)}), "'obs/said': expected Box"),
        (spaces.Tuple([spaces.Discrete(2), spaces.Sequence(spaces.Discrete(2))]), "'obs/1': expected Box"),
        (spaces.Graph(spaces.Box(0, 1, (2,)), None), "'obs': expected Box"),
    ],
)
def test_spaces_without_one_shape_are_refused_by_their_path(space, words):
    with pytest.raises(rs.SchemaError, match=words):
        rs.signature_of(Meadow(space, spaces.Discrete(2)))


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Dict({"a/b": spaces.Discrete(2)}), "no slash, got 'a/b'"),
        (spaces.Dict({"a b": spaces.Discrete(2)}), "without blanks or control characters, got 'obs/a b'"),
        (spaces.Dict({"0": spaces.Discrete(2)}), "'obs' has the keys 0, which are places of a tuple"),
        (spaces.Dict({}), "expected columns in 'obs', got an empty dict"),
        (spaces.Tuple(()), "expected columns in 'obs', got an empty tuple"),
    ],
)
@pytest.mark.parametrize("n_step", [None, 1])
def test_keys_that_cannot_be_names_are_refused(space, words, n_step):
    with pytest.raises(rs.SchemaError, match=words):
        rs.signature_of(Meadow(space, spaces.Discrete(2)), n_step)


def test_what_is_no_environment_or_no_number_of_steps_is_refused():
    env = Meadow(spaces.Discrete(2), spaces.Discrete(2))
    for n_step in (0, -1, 1.5, "3"):
        with pytest.raises(rs.SchemaError, match=f"n_step must be a whole number of at least 1, got {n_step!r}"):
            rs.signature_of(env, n_step)
    with pytest.raises(rs.SchemaError, match="expected a Gymnasium environment"):
        rs.signature_of("CartPole-v1")  # type: ignore[arg-type]
