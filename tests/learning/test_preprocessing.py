"""What reaches network and table: screens, rewards, ends, lost lives, resets."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Sequence, Space, Tuple
from gymnasium.spaces import Dict as DictSpace

from replay_server import Column
from replay_server.actors.envs import EpisodeScores, make_environments
from replay_server.rl.actions import action_bounds, as_taken
from replay_server.rl.environment_spec import environment_spec
from replay_server.rl.observations import Leaf
from replay_server.rl.policy_settings import PolicySettings
from replay_server.rl.policy_spec import policy_spec
from replay_server.rl.preprocessing import clip_rewards
from replay_server.rl.settings import ApexSettings
from replay_server.rl.tables import apex_table

BREAKOUT = ApexSettings(env="ALE/Breakout-v5")


def seed(value: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(value)


def test_rewards_are_clipped_for_the_learner_only_where_asked() -> None:
    rewards = np.array([-7.0, 0.5, 4.0])
    assert clip_rewards(rewards, 1.0).tolist() == [-1.0, 0.5, 1.0]
    assert clip_rewards(rewards, None).tolist() == [-7.0, 0.5, 4.0]


def test_atari_spec_is_stacked_bytes_and_the_minimal_action_set() -> None:
    spec = environment_spec(BREAKOUT)
    assert spec.observation == Leaf((4, 84, 84), "uint8", is_image=True, is_stack=True, scale=1.0 / 255.0)
    assert (spec.num_actions, spec.frames_per_step, spec.branches) == (4, 4, ())


def test_vector_spec_is_float32() -> None:
    spec = environment_spec(ApexSettings(env="CartPole-v1"))
    assert spec.observation == Leaf((4,), "float32")
    assert (spec.num_actions, spec.frames_per_step, spec.branches) == (2, 1, ())


class Spaces(gymnasium.Env):
    """An environment that is nothing but its spaces."""

    def __init__(self, observation: gymnasium.Space, action: gymnasium.Space) -> None:
        self.observation_space, self.action_space = observation, action


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    def make(observation: gymnasium.Space, action: gymnasium.Space) -> str:
        made = lambda **_: Spaces(observation, action)  # noqa: E731
        spec = gymnasium.envs.registration.EnvSpec("Spaces-v0", made, disable_env_checker=True)
        monkeypatch.setitem(gymnasium.registry, "Spaces-v0", spec)
        return "Spaces-v0"

    return make


VECTOR, IMAGE = Box(-1, 1, (3,)), Box(0, 255, (32, 32, 3), np.uint8)


@pytest.mark.parametrize(
    "space",
    [
        Sequence(Discrete(3)), Tuple([Discrete(3), Box(-1, 1, (2,))]), DictSpace({}), Box(0, 9, (2, 2), np.int64),
        Box(-1, 1, (2, 0)),
    ],
)  # fmt: skip
def test_actions_that_no_command_takes_are_pointed_at_none(register: Callable[..., str], space: Space) -> None:
    env = register(VECTOR, space)
    for refuse in (lambda: environment_spec(ApexSettings(env=env)), lambda: policy_spec(PolicySettings(env=env))):
        with pytest.raises(ValueError, match="ActionWrapper") as refused:
            refuse()
        assert "replay-server train" not in str(refused.value)


@pytest.mark.parametrize(
    ("space", "algorithm", "dtype", "shape"),
    [
        (Discrete(3), "dqn", "int64", ()),
        (MultiDiscrete([2, 3]), "dqn", "int64", (2,)),
        (Box(-2, 2, (1,)), "sac", "float32", (1,)),
        (Box(0, 1, (2, 3), np.float64), "sac", "float32", (2, 3)),
        (Box(-1, 1, ()), "sac", "float32", ()),
    ],
)
def test_actions_say_what_learns_them(
    register: Callable[..., str], space: Space, algorithm: str, dtype: str, shape: tuple[int, ...]
) -> None:
    env = register(VECTOR, space)
    for algo in ("auto", algorithm):
        spec = environment_spec(ApexSettings(env=env, algo=algo))
        assert (spec.algorithm, spec.action_dtype, spec.action_shape) == (algorithm, dtype, shape)
    settings = ApexSettings(env=env, envs_per_actor=5)
    assert apex_table(settings, spec).signature["action"] == Column(dtype, shape)
    actions = spec.random_actions(np.random.default_rng(0), 5)
    assert (actions.shape, actions.dtype) == ((5, *shape), dtype)
    assert all(as_taken(space, action) in space for action in actions)
    other = {"dqn": "sac", "sac": "dqn"}[algorithm]
    with pytest.raises(ValueError, match=rf"--algo {other}: expected .*, Spaces-v0 has .*; leave --algo out"):
        environment_spec(ApexSettings(env=env, algo=other))


@pytest.mark.parametrize(
    "space", [Box(-np.inf, np.inf, (2,)), Box(np.float32([-1, 0]), np.float32([1, np.inf])), Box(-1e30, 1e30, (1,))]
)
def test_actions_without_bounds_are_refused_with_what_gives_them_some(
    register: Callable[..., str], space: Space
) -> None:
    env = register(VECTOR, space)
    for algo in ("auto", "sac"):
        with pytest.raises(ValueError, match=r"Spaces-v0: expected actions with bounds of at most .*TransformAction"):
            environment_spec(ApexSettings(env=env, algo=algo))


def test_numbers_of_an_action_fill_its_box_and_never_leave_it() -> None:
    space = Box(np.array([[-0.3, 0.1]]), np.array([[0.7, 0.1]]), dtype=np.float64)
    bounds = action_bounds(space)
    assert bounds is not None
    assert (bounds.shape, bounds.size) == ((1, 2), 2)
    numbers = np.array([[-1.0, -1.0], [0.0, 0.5], [1.0, 1.0], [1.0 + 1e-6, 0.0]])
    actions = bounds.actions(numbers)
    np.testing.assert_allclose(actions[:, 0], [[-0.3, 0.1], [0.2, 0.1], [0.7, 0.1], [0.7, 0.1]], atol=1e-7)
    for action in actions:
        assert as_taken(space, action) in space  # whatever float32 made of 0.1 and 0.7


@pytest.mark.parametrize("space", [Discrete(16), Box(-1, 1, (3, 4)), IMAGE, DictSpace({"a": VECTOR, "b": IMAGE})])
def test_policies_refuse_what_apex_takes_and_say_so(register: Callable[..., str], space: Space) -> None:
    env = register(space, Discrete(2))
    assert environment_spec(ApexSettings(env=env)).num_actions == 2
    with pytest.raises(ValueError, match=r"FlattenObservation.*replay-server apex takes them as they are"):
        policy_spec(PolicySettings(env=env))


def test_breakout_reports_lost_lives_fires_and_resets_one_step_after_the_end() -> None:
    environments = make_environments(BREAKOUT, 4, seed(0))
    generator = np.random.default_rng(0)
    lost, ended, fired = np.zeros(4, int), np.zeros(4, int), 0
    previous = environments.reset()
    assert (previous.shape, previous.dtype) == ((4, 4, 84, 84), np.uint8)
    was_over = np.zeros(4, bool)
    for _ in range(700):
        kept = previous.copy()
        chosen = generator.choice([0, 2, 3], size=4)
        actions = environments.forced(chosen)
        fired += int((actions == 1).sum())
        step = environments.step(actions)
        np.testing.assert_array_equal(previous, kept, err_msg="earlier observations stay as they were")
        assert (step.ignored == was_over).all()
        assert not (step.lost_life & (step.terminated | step.truncated | step.ignored)).any()
        assert (step.rewards[step.ignored] == 0).all()
        lost[~was_over] += step.lost_life[~was_over]
        was_over = step.terminated | step.truncated
        for environment in np.flatnonzero(was_over):
            assert lost[environment] == 4, "a game of 5 lives: 4 are lost before its end"
            lost[environment] = 0
        ended += was_over
        previous = step.observations
    environments.close()
    assert ended.min() >= 1
    assert fired >= 4 * ended.sum()


def test_breakout_without_a_chosen_fire_goes_on_after_each_lost_life() -> None:
    environments = make_environments(ApexSettings(env="ALE/Breakout-v5", noop_max=0), 1, seed(1))
    environments.reset()
    over = False
    for _ in range(1_000):  # 5 balls that nobody hits are over within some hundred steps
        over = over or bool(environments.step(environments.forced(np.zeros(1, np.int64))).terminated[0])
    environments.close()
    assert over


def test_a_frame_limit_truncates_and_does_not_terminate() -> None:
    settings = ApexSettings(env="ALE/Pong-v5", max_frames_per_episode=400)
    environments = make_environments(settings, 2, seed(2))
    environments.reset()
    for _ in range(101):
        step = environments.step(np.zeros(2, np.int64))
        if step.truncated.any():
            break
    environments.close()
    assert step.truncated.any()
    assert not step.terminated.any()


def test_scores_are_unclipped_and_whole_games() -> None:
    environments = make_environments(ApexSettings(env="ALE/SpaceInvaders-v5"), 2, seed(3))
    environments.reset()
    scores, running, finished = EpisodeScores(2), np.zeros(2), []
    generator = np.random.default_rng(1)
    largest = 0.0
    for _ in range(900):
        step = environments.step(environments.forced(generator.integers(6, size=2)))
        running += step.rewards
        largest = max(largest, step.rewards.max())
        for environment, score in scores.add(step):
            assert score == running[environment]
            running[environment] = 0.0
            finished.append(score)
    environments.close()
    assert finished
    assert largest > 1.0


def test_cartpole_shows_its_final_observation_and_then_ignores_one_action() -> None:
    environments = make_environments(ApexSettings(env="CartPole-v1"), 3, seed(4))
    observations = environments.reset()
    assert (observations.shape, observations.dtype) == ((3, 4), np.float32)
    was_over = np.zeros(3, bool)
    ends = 0
    for _ in range(100):
        step = environments.step(np.zeros(3, np.int64))
        assert (step.ignored == was_over).all()
        was_over = step.terminated | step.truncated
        out_of_bounds = (np.abs(step.observations[:, 2]) > 0.2094) | (np.abs(step.observations[:, 0]) > 2.4)
        assert (out_of_bounds == step.terminated).all()
        assert (np.abs(step.observations[step.ignored]) <= 0.05).all(), "a fresh start"
        ends += int(was_over.sum())
    environments.close()
    assert ends >= 6


def test_the_same_seed_plays_the_same_games() -> None:
    def screens(value: int) -> np.ndarray:
        environments = make_environments(BREAKOUT, 2, seed(value))
        environments.reset()
        last = np.empty(0)
        for action in [1, 2, 2, 3, 0] * 6:
            last = environments.step(np.full(2, action)).observations
        environments.close()
        return last

    np.testing.assert_array_equal(screens(5), screens(5))
    assert (screens(5) != screens(6)).any()
