# /// script
# requires-python = ">=3.10"
# dependencies = ["replay-server", "stable-baselines3==2.9.0"]
# ///
"""Stable-Baselines3 with its replay buffer replaced: in this process, or on a server.

    python examples/with_stable_baselines3.py                                      # SAC on Pendulum
    python examples/with_stable_baselines3.py --buffer original                    # Stable-Baselines3's own buffer
    python examples/with_stable_baselines3.py --buffer redis://127.0.0.1:6379      # a server's

What an own program takes over is `ReplayServerBuffer`, by `replay_buffer_class=ReplayServerBuffer`.
"""

from __future__ import annotations

import argparse
import functools
import inspect
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import DummyVecEnv
from timing import Clock

import replay_server as rs


class ReplayServerBuffer(BaseBuffer):
    """A `stable_baselines3.common.buffers.ReplayBuffer` over an `rs.Buffer`, or over a table of a server.

    With `n_steps` of the algorithm above 1 it is an `NStepReplayBuffer`, and observations are stored once.

    Args:
        url: of a server; None: in this process. `replay_buffer_kwargs={"url": …}` names one.
        table: its table, created where it is not there.
        sampler: Stable-Baselines3's losses have no importance-sampling weights, hence `rs.Uniform`.
        handle_timeout_termination: an episode that was cut off by a time limit bootstraps from its last observation.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: gym.Space,
        action_space: gym.Space,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        url: str | None = None,
        table: str = "stable-baselines3",
        sampler: Any = rs.Uniform(),  # noqa: B008
    ) -> None:
        super().__init__(buffer_size, observation_space, action_space, device, n_envs)
        if optimize_memory_usage:
            raise ValueError("optimize_memory_usage is not for this buffer: rs.Window stores an observation once")
        if isinstance(observation_space, gym.spaces.Dict):
            raise TypeError("expected an observation of one array, got a dict: give each of its parts a column")
        self._timeouts = handle_timeout_termination
        self._n_steps, discount = n_steps_of_algorithm()
        action_dtype = np.float32 if action_space.dtype == np.float64 else action_space.dtype
        observation = rs.Column(observation_space.dtype, self.obs_shape)
        signature = {
            "observations": observation,
            "actions": rs.Column(action_dtype, (self.action_dim,)),
            "next_observations": observation,
            "dones": rs.Column("float32", (1,)),
            "rewards": rs.Column("float32", (1,)),
        }
        if self._n_steps > 1:
            signature = {
                "step": rs.Column(observation_space.dtype, self.obs_shape, step_only=True),
                "observations": rs.Window("step"),
                "actions": signature["actions"],
                "next_observations": rs.Window("step", offset=self._n_steps),
                "rewards": rs.Column("float32"),
                "discounts": rs.Column("float32"),
            }
        # In this process the draws follow from NumPy's seed, as the original's do; a server's table has its own.
        seed = int(np.random.randint(1, 2**31)) if url is None else 0
        made = rs.Table(table, buffer_size, signature, sampler=sampler, seed=seed)
        if url is None:
            buffer = rs.Buffer(made)
            self._add, self._info, self._empty = buffer.add, buffer.info, buffer.reset
            self._sample = functools.partial(buffer.sample, timeout=0)  # nobody else will add what is missing
            vector_writer = buffer.vector_writer
        else:
            client = rs.Client(url)
            client.create_table(made)
            self._add = functools.partial(client.add, table)
            self._sample = functools.partial(client.sample, table)
            self._info = functools.partial(client.info, table)
            self._empty = functools.partial(client.reset, table)
            vector_writer = functools.partial(client.vector_writer, table)
        if self._n_steps > 1:
            columns = {"reward_column": "rewards", "discount_column": "discounts"}
            self._writer = vector_writer(n_envs, n_step=self._n_steps, discount=discount, **columns)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuses `model.save_replay_buffer`."""
        raise TypeError(
            "save_replay_buffer pickles, and transitions are never pickled here: keep them in a table of a server, "
            'replay_buffer_kwargs={"url": "redis://…"}. There they outlive this process, and '
            "rs.Client(url).checkpoint() saves them"
        )

    def add(
        self,
        obs: np.ndarray,
        next_obs: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> None:
        """Adds one transition of each of the environments."""
        done = np.asarray(done, bool)
        terminated = done
        if self._timeouts:
            terminated = done & [not info.get("TimeLimit.truncated", False) for info in infos]
        rows = (self.n_envs, *self.obs_shape)
        obs, next_obs = np.reshape(obs, rows), np.reshape(next_obs, rows)
        actions = self._actions_as_stored(np.reshape(action, (self.n_envs, self.action_dim)))
        if self._n_steps > 1:
            step = {"step": obs, "actions": actions, "rewards": reward}
            self._writer.append(step, terminated=terminated, truncated=done & ~terminated)
            if done.any():
                self._writer.append({"step": next_obs}, mask=done)
            return
        self._add(
            {
                "observations": obs,
                "actions": actions,
                "next_observations": next_obs,
                "dones": np.asarray(terminated, np.float32).reshape(self.n_envs, 1),
                "rewards": np.asarray(reward, np.float32).reshape(self.n_envs, 1),
            }
        )

    @staticmethod
    def _actions_as_stored(action: np.ndarray) -> np.ndarray:
        return action.astype(np.float32) if action.dtype == np.float64 else action

    def sample(self, batch_size: int, env: Any = None) -> ReplayBufferSamples:
        """Draws a batch, as tensors on the buffer's device; `env` normalizes it where it is a `VecNormalize`."""
        if self._n_steps > 1:
            return self._n_step_sample(batch_size, env)
        data = self._sample(batch_size).data
        return ReplayBufferSamples(
            observations=self._tensor(self._normalize_obs(data["observations"], env)),
            actions=self._tensor(data["actions"]),
            next_observations=self._tensor(self._normalize_obs(data["next_observations"], env)),
            dones=self._tensor(data["dones"]),
            rewards=self._tensor(self._normalize_reward(data["rewards"], env)),
        )

    def _n_step_sample(self, batch_size: int, env: Any) -> ReplayBufferSamples:
        if env is not None and env.norm_reward:
            raise ValueError(
                "n_steps above 1: rewards are summed when they are stored, so VecNormalize cannot normalize each; "
                "expected norm_reward=False"
            )
        self._writer.flush()
        data = self._sample(batch_size).data
        discounts = self._tensor(data["discounts"][:, None])
        return ReplayBufferSamples(
            observations=self._tensor(self._normalize_obs(data["observations"], env)),
            actions=self._tensor(data["actions"]),
            next_observations=self._tensor(self._normalize_obs(data["next_observations"], env)),
            dones=torch.zeros_like(discounts),  # the discount is 0 where an episode terminated
            rewards=self._tensor(data["rewards"][:, None]),
            discounts=discounts,
        )

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return self.to_torch(array, copy=False)  # a batch's arrays belong to whoever sampled it

    def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> ReplayBufferSamples:
        raise NotImplementedError("items have no position: use sample")

    def size(self) -> int:
        """Transitions in the buffer."""
        return self._info()["size"]

    def reset(self) -> None:
        """Removes all transitions."""
        self._empty()


def n_steps_of_algorithm() -> tuple[int, float]:
    """`n_steps` and `gamma` of the algorithm that is making its buffer; 1 and 0 where none is.

    Stable-Baselines3 hands them to a buffer of its own alone, and would go on with single steps from any other.
    """
    frame = inspect.currentframe()
    while frame is not None:
        maker = frame.f_locals.get("self")
        if maker is not None and isinstance(maker, OffPolicyAlgorithm):
            return maker.n_steps, maker.gamma
        frame = frame.f_back
    return 1, 0.0


def train(buffer: str, seed: int, steps: int) -> None:
    """Trains SAC on Pendulum, with everything but the buffer as Stable-Baselines3 has it."""
    clock = Clock()
    original = buffer == "original"
    kind = clock.timed(ReplayBuffer if original else ReplayServerBuffer, "add", "sample")
    model = SAC(
        "MlpPolicy",
        "Pendulum-v1",
        seed=seed,
        learning_rate=1e-3,
        learning_starts=min(100, steps),
        replay_buffer_class=kind,
        replay_buffer_kwargs={"url": buffer} if "://" in buffer else {},
        device="cpu",
    )
    model.learn(steps)
    print(f"{buffer}, seed {seed}, {steps} steps: {clock}")
    games = DummyVecEnv([lambda: Monitor(gym.make("Pendulum-v1"))])
    games.seed(seed + 10_000)  # the same for either buffer
    score, _ = evaluate_policy(model, games, n_eval_episodes=20)
    print(f"reached {score:.1f} on Pendulum-v1")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--buffer", default="replay-server", help="replay-server, original, or the URL of a server")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4_000)
    torch.set_num_threads(1)
    train(**vars(parser.parse_args()))
