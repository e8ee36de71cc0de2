"""Hindsight in Stable-Baselines3, with the library's own buffer beside this project's, for test_replaced_buffers.py to
run:

python tests/examples/stable_baselines3_hindsight.py [URL]
"""

from __future__ import annotations

import collections
import functools
import itertools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from replay_server.adapters.stable_baselines3 import ReplayServerBuffer, ReplayServerHerBuffer

BITS, STEPS, ENVS = 6, 240, 2
BATCH, BATCHES = 4_000, 15
URL = {"url": sys.argv[1]} if sys.argv[1:] else {}
names = (f"hindsight-{number}" for number in itertools.count())


class Both(ReplayServerHerBuffer):
    """Hands to Stable-Baselines3's own buffer what it is given."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        own = ("url", "table", "max_episode_steps")
        kwargs = {name: value for name, value in options.items() if name not in own}
        self.original = HerReplayBuffer(*arguments, **kwargs)

    def add(self, *arguments: Any) -> None:
        self.original.add(*arguments)
        super().add(*arguments)


def rows(samples: Any) -> list[tuple[float, ...]]:
    """The transitions of a batch, in its order."""
    parts = [*(samples.observations[key] for key in sorted(samples.observations)), samples.actions, samples.rewards]
    parts += [samples.dones, *(samples.next_observations[key] for key in sorted(samples.next_observations))]
    flat = np.concatenate([part.numpy().reshape(len(samples.dones), -1).astype(np.float64) for part in parts], axis=1)
    return [tuple(row.round(4)) for row in flat]


def make(buffer: Any, env: Any, steps: int = STEPS, learn: bool = True, **options: Any) -> Any:
    kwargs = {"n_sampled_goal": 3, **options} | ({"table": next(names), **URL} if buffer is not HerReplayBuffer else {})
    model = DQN(
        "MultiInputPolicy", env, buffer_size=2_000, learning_starts=4 * BITS, train_freq=1, gamma=0.95, seed=1,
        target_update_interval=100, learning_rate=1e-3, exploration_fraction=0.5, device="cpu",
        replay_buffer_class=buffer, replay_buffer_kwargs=kwargs,
    )  # fmt: skip
    return model.learn(steps) if learn else model


def compare(strategy: str) -> None:
    """The same transitions, with the same goals, each as often."""
    env = make_vec_env(lambda: BitFlippingEnv(BITS), ENVS, seed=1)
    buffer = make(Both, env, goal_selection_strategy=strategy).replay_buffer
    drawn = [[rows(each.sample(BATCH)) for _ in range(BATCHES)] for each in (buffer, buffer.original)]
    for part in (slice(BATCH // 4), slice(BATCH // 4, None)):  # their own goals, and others
        ours, theirs = (collections.Counter(row for batch in batches for row in batch[part]) for batches in drawn)
        assert ours.keys() == theirs.keys(), (strategy, len(ours), len(theirs), len(ours.keys() & theirs.keys()))
        both = np.array([(ours[row], theirs[row]) for row in ours], float)
        # Two samples of one distribution: chi-squared with a degree of freedom less than it has kinds of transitions.
        squares = ((both[:, 0] - both[:, 1]) ** 2 / both.sum(1)).sum()
        freedom = len(both) - 1
        assert abs(squares - freedom) < 4 * np.sqrt(2 * freedom), (strategy, squares, freedom)


def told_by(call: Callable[[], Any]) -> str:
    """What it is refused with."""
    try:
        call()
    except (ValueError, RuntimeError) as error:
        return str(error)
    return "nothing"


def refusals() -> None:
    env = make_vec_env(lambda: BitFlippingEnv(BITS), 1)
    made = functools.partial(make, ReplayServerHerBuffer, env, learn=False)
    assert "infos are not stored" in told_by(lambda: made(copy_info_dict=True))
    assert "expected a strategy of" in told_by(lambda: made(goal_selection_strategy="past"))
    assert "no episode has ended yet" in told_by(lambda: made().replay_buffer.sample(1))


def all_rows(buffer: Any, env: Any) -> set[tuple[float, ...]]:
    return {row for _ in range(BATCHES) for row in rows(buffer.sample(BATCH, env))}


def save_and_load() -> None:
    """A saved buffer goes on, without what was unfinished; rewards are normalized where the environment's are."""
    env = VecNormalize(make_vec_env(lambda: BitFlippingEnv(BITS, max_steps=50), ENVS, seed=1), norm_obs=False)
    model = make(ReplayServerHerBuffer, env, steps=STEPS + 20, max_episode_steps=7)
    file = Path(tempfile.mkdtemp()) / "buffer.pkl"
    model.save_replay_buffer(file)
    before = all_rows(model.replay_buffer, env)
    again = make(ReplayServerHerBuffer, env, learn=False)
    again.load_replay_buffer(file)
    saved = again.replay_buffer.size()
    assert saved == model.replay_buffer.size() > 200
    assert all_rows(again.replay_buffer, env) == before
    again.learn(60, reset_num_timesteps=False)
    assert again.replay_buffer.size() > saved
    again.replay_buffer.reset()
    assert again.replay_buffer.size() == 0


class Counting(BitFlippingEnv):
    """Tells of each step how many there were before: of no transition may the next observation be another's."""

    steps = 0

    def __init__(self) -> None:
        super().__init__(BITS, max_steps=50)
        box = gym.spaces.Box(0, np.inf, (1,), np.float64)
        self.observation_space = gym.spaces.Dict({**self.observation_space.spaces, "observation": box})

    def _get_obs(self) -> dict[str, Any]:
        return {**super()._get_obs(), "observation": np.array([Counting.steps], np.float64)}

    def reset(self, **options: Any) -> Any:
        Counting.steps += 1_000
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        Counting.steps += 1
        return super().step(action)


def interrupted() -> None:
    """An environment that is reset in mid-episode goes on elsewhere; a buffer that is reset is empty at once."""
    model = make(ReplayServerHerBuffer, make_vec_env(Counting, 1, vec_env_cls=DummyVecEnv), 25)
    model.learn(25)
    model.replay_buffer.truncate_last_trajectory()
    batch = model.replay_buffer.sample(BATCH)
    went = batch.next_observations["observation"] - batch.observations["observation"]
    assert (went == 1).all(), went[went != 1]
    assert model.replay_buffer.size() == 50
    model.replay_buffer.reset()
    assert model.replay_buffer.size() == 0
    assert "no episode has ended yet" in told_by(lambda: model.replay_buffer.sample(1))
    several = DQN(
        "MultiInputPolicy", make_vec_env(Counting, 1), n_steps=3, learning_starts=10, device="cpu", seed=1,
        replay_buffer_class=ReplayServerBuffer, replay_buffer_kwargs={"table": next(names), **URL},
    )  # fmt: skip
    several.learn(25).learn(25)
    batch = several.replay_buffer.sample(BATCH)
    went = batch.next_observations["observation"] - batch.observations["observation"]
    assert set(went.flatten().tolist()) == {1, 2, 3}, "returns are cut where the environment was reset"
    apart = SubprocVecEnv([functools.partial(gym.make, "hindsight/Limited-v0")], start_method="fork")
    assert make(ReplayServerHerBuffer, apart, learn=False).replay_buffer._longest == 9
    apart.close()


def learns(buffer: Any) -> float:
    """Mean reward of games in which −6 is the worst and the target is 6 bits away at most."""
    model = make(buffer, make_vec_env(lambda: BitFlippingEnv(BITS), 1, seed=1), 2_500)
    return evaluate_policy(model, make_vec_env(lambda: BitFlippingEnv(BITS), 1, seed=9), 50)[0]


if __name__ == "__main__":
    torch.set_num_threads(1)
    for strategy in ("future", "final", "episode"):
        compare(strategy)
    refusals()
    save_and_load()
    gym.register("hindsight/Limited-v0", entry_point=lambda: BitFlippingEnv(BITS), max_episode_steps=9)
    interrupted()
    original, ours = learns(HerReplayBuffer), learns(ReplayServerHerBuffer)
    print(f"reached {original:.2f} with the original, {ours:.2f} with this")
    assert ours >= original - 0.5
    print("the same transitions with the same goals")
