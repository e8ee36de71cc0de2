"""Stable-Baselines3's replay buffers over a table of this project: `ReplayBuffer`, `DictReplayBuffer` and
`NStepReplayBuffer` in one.

`model.save_replay_buffer` writes Stable-Baselines3's file, which is a pickle of this object: its settings, and, of a
buffer in this process, the bytes of a snapshot (docs/snapshot.md). No transition is pickled. Of a buffer on a server it
holds the URL and the table's name: the transitions stay where they are.
"""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples

from replay_server import Column, Uniform, Window
from replay_server.connection import Address

from .tables import made_table


class ReplayServerBuffer(ReplayBuffer):
    """A `stable_baselines3.common.buffers.ReplayBuffer` over a `replay_server.Buffer`, or over a table of a server:
    `replay_buffer_class=ReplayServerBuffer`.

    Observations may be dicts. With `n_steps` of the algorithm above 1 it is an `NStepReplayBuffer`, of dicts too, and
    observations are stored once.

    Args:
        url: of a server; None: in this process. `replay_buffer_kwargs={"url": …}` names one.
        table: its table, created where it is not there.
        sampler: Stable-Baselines3's losses have no importance-sampling weights, hence `Uniform`.
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
        sampler: Any = Uniform(),  # noqa: B008
        n_step: tuple[int, float] | None = None,
    ) -> None:
        # Not the original's, which would allocate its arrays.
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs)
        if optimize_memory_usage:
            raise ValueError("optimize_memory_usage is not for this buffer: windows store an observation once")
        if url is not None and Address.parse(url).has_password_in_url:
            raise ValueError(
                "expected a url without a password, which would be saved with the model: set the variable "
                "REPLAY_SERVER_PASSWORD"
            )
        self.optimize_memory_usage = False
        self.handle_timeout_termination = handle_timeout_termination
        n_step = n_step or n_steps_of_algorithm()
        self._settings = {
            "buffer_size": buffer_size,
            "observation_space": observation_space,
            "action_space": action_space,
            "n_envs": n_envs,
            "handle_timeout_termination": handle_timeout_termination,
            "url": url,
            "table": table,
            "sampler": sampler,
            "n_step": n_step,
        }
        self._n_steps, discount = n_step
        self._table = made_table(url, table, buffer_size, self._signature(), sampler)
        if self._n_steps > 1:
            columns = {"reward_column": "rewards", "discount_column": "discounts"}
            self._writer = self._table.vector_writer(n_envs, n_step=self._n_steps, discount=discount, **columns)

    def _signature(self) -> dict[str, Any]:
        space, shapes = self.observation_space, self.obs_shape
        action_dtype = np.float32 if self.action_space.dtype == np.float64 else self.action_space.dtype
        actions = Column(action_dtype, (self.action_dim,))

        def observation(step_only: bool = False) -> Any:
            if isinstance(space, gym.spaces.Dict):
                return {key: Column(space[key].dtype, shapes[key], step_only=step_only) for key in shapes}
            return Column(space.dtype, shapes, step_only=step_only)

        def seen(offset: int) -> Any:
            if isinstance(space, gym.spaces.Dict):
                return {key: Window(f"step/{key}", offset=offset) for key in shapes}
            return Window("step", offset=offset)

        if self._n_steps > 1:
            return {
                "step": observation(step_only=True),
                "observations": seen(0),
                "actions": actions,
                "next_observations": seen(self._n_steps),
                "rewards": Column("float32"),
                "discounts": Column("float32"),
            }
        return {
            "observations": observation(),
            "actions": actions,
            "next_observations": observation(),
            "dones": Column("float32", (1,)),
            "rewards": Column("float32", (1,)),
        }

    # ---- saved by the library ----------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        if self._n_steps > 1:
            self._writer.flush()
        if self._settings["url"] is not None:
            return {"settings": self._settings}
        with tempfile.TemporaryDirectory() as folder:
            saved = self._table.checkpoint(str(Path(folder) / "buffer"))
            return {"settings": self._settings, "snapshot": Path(saved).read_bytes()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ReplayServerBuffer.__init__(self, **state["settings"])
        if "snapshot" in state:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "buffer.snapshot"
                file.write_bytes(state["snapshot"])
                self._table.restore(str(file))

    # ---- the library's methods ---------------------------------------------------------------------------------------

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]) -> None:
        """Adds one transition of each of the environments."""
        done = np.asarray(done, bool)
        terminated = done
        if self.handle_timeout_termination:
            terminated = done & [not info.get("TimeLimit.truncated", False) for info in infos]
        actions = np.reshape(action, (self.n_envs, self.action_dim))
        actions = actions.astype(np.float32) if actions.dtype == np.float64 else actions
        obs, next_obs = self._observations_as_stored(obs), self._observations_as_stored(next_obs)
        if self._n_steps > 1:
            step = {"step": obs, "actions": actions, "rewards": np.asarray(reward, np.float32)}
            self._writer.append(step, terminated=terminated, truncated=done & ~terminated)
            if done.any():
                self._writer.append({"step": next_obs}, mask=done)
            return
        self._table.add(
            {
                "observations": obs,
                "actions": actions,
                "next_observations": next_obs,
                "dones": np.asarray(terminated, np.float32).reshape(self.n_envs, 1),
                "rewards": np.asarray(reward, np.float32).reshape(self.n_envs, 1),
            }
        )

    def _observations_as_stored(self, observations: Any) -> Any:
        if isinstance(self.obs_shape, dict):
            space: Any = self.observation_space
            return {
                key: np.asarray(observations[key], space[key].dtype).reshape(self.n_envs, *shape)
                for key, shape in self.obs_shape.items()
            }
        return np.asarray(observations, self.observation_space.dtype).reshape(self.n_envs, *self.obs_shape)

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Draws a batch, as tensors on the buffer's device; `env` normalizes it where it is a `VecNormalize`."""
        if self._n_steps > 1:
            if env is not None and env.norm_reward:
                raise ValueError(
                    "n_steps above 1: rewards are summed when they are stored, so VecNormalize cannot normalize each; "
                    "expected norm_reward=False"
                )
            self._writer.flush()
        timeout = 0 if self._settings["url"] is None else None  # in this process nobody else will add what is missing
        data = self._table.sample(batch_size, timeout=timeout).data
        samples: Any = DictReplayBufferSamples if isinstance(self.obs_shape, dict) else ReplayBufferSamples
        parts = {
            "observations": self._tensors(self._normalize_obs(data["observations"], env)),
            "actions": self._tensors(data["actions"]),
            "next_observations": self._tensors(self._normalize_obs(data["next_observations"], env)),
        }
        if self._n_steps == 1:
            rewards = self._tensors(self._normalize_reward(data["rewards"], env))
            return samples(**parts, dones=self._tensors(data["dones"]), rewards=rewards)
        discounts = self._tensors(data["discounts"][:, None])
        # The discount is 0 where an episode terminated.
        rewards, dones = self._tensors(data["rewards"][:, None]), torch.zeros_like(discounts)
        return samples(**parts, dones=dones, rewards=rewards, discounts=discounts)

    def _tensors(self, arrays: Any) -> Any:
        if isinstance(arrays, dict):
            return {key: self._tensors(array) for key, array in arrays.items()}
        return self.to_torch(arrays, copy=False)  # a batch's arrays belong to whoever sampled it

    def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> Any:
        raise NotImplementedError("items have no position: use sample")

    def size(self) -> int:
        """Transitions in the buffer."""
        return self._table.info()["size"]

    def reset(self) -> None:
        """Removes all transitions."""
        self._table.reset()


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
