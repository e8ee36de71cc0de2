"""Stable-Baselines3's n-step buffer and the replaced one, side by side, for test_replaced_buffers.py to run:

python tests/examples/stable_baselines3_n_steps.py [URL]
"""

from __future__ import annotations

import sys

import gymnasium as gym
import numpy as np
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.env_util import make_vec_env

from replay_server.adapters.stable_baselines3 import ReplayServerBuffer

SIZE, STEPS, N_STEPS, ENVS = 1_000, 200, 3, 2


class Both(ReplayServerBuffer):
    """Hands to Stable-Baselines3's own buffer what it is given."""

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        kwargs = {name: value for name, value in options.items() if name != "url"}
        self.original = NStepReplayBuffer(*arguments, **kwargs, n_steps=N_STEPS, gamma=0.9)

    def add(self, *arguments) -> None:
        self.original.add(*arguments)
        super().add(*arguments)


def rows(samples) -> set[tuple]:
    """The transitions of a batch; those of a terminal state bootstrap from nothing."""
    target = (1 - samples.dones) * samples.discounts
    parts = (samples.observations, samples.actions, samples.rewards, target, samples.next_observations)
    arrays = [part.numpy().reshape(len(target), -1) for part in parts]
    # What follows a terminal state is multiplied by 0; rewards are summed in another precision.
    arrays[4] = arrays[4] * (arrays[3] != 0)
    return {
        tuple(np.concatenate([array[i] for array in arrays]).astype(np.float64).round(4)) for i in range(len(target))
    }


def original_rows(original: NStepReplayBuffer) -> set[tuple]:
    """All of the original's, but for those that the newest step cut short."""
    draw, found = np.random.randint, set()
    for position in range(original.pos):
        for e in range(ENVS):
            reach = range(position, min(position + N_STEPS, original.pos))
            if not original.dones[reach, e].any() and len(reach) < N_STEPS:
                continue
            if position + N_STEPS == original.pos and not original.dones[reach, e].any():
                continue  # its successor has arrived with the next step only
            np.random.randint = lambda *_, e=e, **__: np.array([e])
            found |= rows(original._get_samples(np.array([position])))
    np.random.randint = draw
    return found


def main() -> None:
    """Trains and compares."""
    url = sys.argv[1:]
    env = make_vec_env(lambda: gym.wrappers.TimeLimit(gym.make("CartPole-v1").unwrapped, 12), ENVS, seed=1)
    model = DQN(
        "MlpPolicy", env, n_steps=N_STEPS, gamma=0.9, buffer_size=SIZE, learning_starts=20, seed=1, device="cpu",
        replay_buffer_class=Both, replay_buffer_kwargs={"url": url[0]} if url else {},
    )  # fmt: skip
    model.learn(STEPS)
    buffer = model.replay_buffer
    expected = original_rows(buffer.original)
    sampled = rows(buffer.sample(20_000))
    assert len(expected) > 150, len(expected)
    assert sampled == expected, (len(sampled), len(expected), len(sampled & expected))
    print(f"the same {len(expected)} transitions")


if __name__ == "__main__":
    main()
