"""Dict observations and saved buffers in Stable-Baselines3, for test_replaced_buffers.py to run:

python tests/examples/stable_baselines3_dicts.py [URL]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import gymnasium as gym
import numpy as np
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import DictReplayBuffer
from stable_baselines3.common.env_util import make_vec_env

from replay_server.adapters.stable_baselines3 import ReplayServerBuffer

SIZE, STEPS, ENVS = 1_000, 200, 2


class Halves(gym.ObservationWrapper):
    """CartPole's observation in two parts, and a count of bytes. Their keys are refused as names of columns."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        box = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        count = gym.spaces.Box(0, 255, (1,), np.uint8)
        self.observation_space = gym.spaces.Dict({"the cart": box, "pole/angle": box, "count": count})
        self._count = 0

    def observation(self, observation: np.ndarray) -> dict[str, np.ndarray]:
        self._count = (self._count + 1) % 256
        count = np.array([self._count], np.uint8)
        return {"the cart": observation[:2], "pole/angle": observation[2:], "count": count}


class Both(ReplayServerBuffer):
    """Hands to Stable-Baselines3's own buffer what it is given."""

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        kwargs = {name: value for name, value in options.items() if name != "url"}
        self.original = DictReplayBuffer(*arguments, **kwargs)

    def add(self, *arguments) -> None:
        self.original.add(*arguments)
        super().add(*arguments)


def rows(samples) -> set[tuple]:
    """The transitions of a batch."""
    parts = [*(samples.observations[key] for key in sorted(samples.observations)), samples.actions, samples.rewards]
    parts += [samples.dones, *(samples.next_observations[key] for key in sorted(samples.next_observations))]
    flat = np.concatenate([part.numpy().reshape(len(samples.dones), -1).astype(np.float64) for part in parts], axis=1)
    return {tuple(row.round(4)) for row in flat}


def main() -> None:
    """Trains, compares, saves, loads, and trains on; then the same with n-step returns."""
    kwargs = {"url": sys.argv[1]} if sys.argv[1:] else {}
    env = make_vec_env(lambda: Halves(gym.wrappers.TimeLimit(gym.make("CartPole-v1").unwrapped, 12)), ENVS, seed=1)
    common = {"policy": "MultiInputPolicy", "env": env, "buffer_size": SIZE, "learning_starts": 20, "device": "cpu"}
    model = DQN(**common, seed=1, replay_buffer_class=Both, replay_buffer_kwargs=kwargs)
    model.learn(STEPS)
    original = model.replay_buffer.original
    draw = np.random.randint
    expected = set()
    for e in range(ENVS):
        np.random.randint = lambda *_, e=e, **__: np.array([e])
        for position in range(original.pos):
            expected |= rows(original._get_samples(np.array([position])))
    np.random.randint = draw
    sampled = rows(model.replay_buffer.sample(20_000))
    assert len(expected) == STEPS, len(expected)
    assert sampled == expected, (len(sampled), len(expected), len(sampled & expected))
    for n_steps in (1, 3):
        own = {**kwargs, "table": f"saved-{n_steps}"}
        model = DQN(
            **common, n_steps=n_steps, replay_buffer_class=ReplayServerBuffer, replay_buffer_kwargs=own, gamma=0.9
        )
        model.learn(STEPS)
        file = Path(tempfile.mkdtemp()) / "buffer.pkl"
        model.save_replay_buffer(file)
        before = rows(model.replay_buffer.sample(20_000))
        again = DQN(
            **common, n_steps=n_steps, replay_buffer_class=ReplayServerBuffer, replay_buffer_kwargs=own, gamma=0.9
        )
        again.load_replay_buffer(file)
        assert again.replay_buffer.size() == model.replay_buffer.size() > 150
        assert rows(again.replay_buffer.sample(20_000)) == before
        again.learn(60, reset_num_timesteps=False)
        assert again.replay_buffer.size() > len(before)
    print(f"the same {len(expected)} transitions")


if __name__ == "__main__":
    main()
