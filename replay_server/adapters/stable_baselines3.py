"""Stable-Baselines3's replay buffers over a table of this project: `ReplayBuffer`, `DictReplayBuffer` and
`NStepReplayBuffer` in one, and `HerReplayBuffer`.

`model.save_replay_buffer` writes Stable-Baselines3's file, which is a pickle of this object: its settings, and, of a
buffer in this process, the bytes of a snapshot (docs/snapshot.md). No transition is pickled. Of a buffer on a server it
holds the URL and the table's name: the transitions stay where they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from replay_server import Column, Uniform, Window
from replay_server.extras import needed_by
from replay_server.table import MAX_WINDOW
from replay_server.tree import name_of_key

from .maker import maker_of
from .tables import made_table, refuse_password, restore, snapshot_of

with needed_by(__name__):
    import gymnasium as gym
    import torch
    from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
    from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
    from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
    from stable_baselines3.her.goal_selection_strategy import KEY_TO_GOAL_STRATEGY, GoalSelectionStrategy
    from stable_baselines3.her.her_replay_buffer import HerReplayBuffer


class ReplayServerBuffer(ReplayBuffer):
    """A `stable_baselines3.common.buffers.ReplayBuffer` over a `replay_server.Buffer`, or over a table of a server:
    `replay_buffer_class=ReplayServerBuffer`.

    Observations may be dicts; their keys are percent-encoded in the names of columns. With `n_steps` of the algorithm
    above 1 it is an `NStepReplayBuffer`, of dicts too, and observations are stored once.

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
        refuse_password(url)
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
        self._last: Any = None
        """Where the environments are, and which of them are in mid-episode: one that was reset does not go on there."""
        self._goes_on = np.zeros(n_envs, np.bool_)
        self._table = made_table(url, table, buffer_size, self._signature(), sampler)
        if self._n_steps > 1:
            columns = {"reward_column": "rewards", "discount_column": "discounts"}
            self._writer = self._table.vector_writer(n_envs, n_step=self._n_steps, discount=discount, **columns)

    def _signature(self) -> dict[str, Any]:
        if self._n_steps > 1:
            return {
                "step": self._observation(step_only=True),
                "observations": self._seen(0),
                "actions": self._action(),
                "next_observations": self._seen(self._n_steps),
                "rewards": Column("float32"),
                "discounts": Column("float32"),
            }
        return {
            "observations": self._observation(),
            "actions": self._action(),
            "next_observations": self._observation(),
            "dones": Column("float32", (1,)),
            "rewards": Column("float32", (1,)),
        }

    def _observation(self, step_only: bool = False) -> Any:
        """The column of an observation, or of each of its parts."""
        space: Any = self.observation_space
        if isinstance(self.obs_shape, dict):
            return {
                name_of_key(key): Column(space[key].dtype, shape, step_only=step_only)
                for key, shape in self.obs_shape.items()
            }
        return Column(space.dtype, self.obs_shape, step_only=step_only)

    def _seen(self, offset: int) -> Any:
        """The window of the observation so many steps later."""
        if isinstance(self.obs_shape, dict):
            return {name_of_key(key): Window(f"step/{name_of_key(key)}", offset=offset) for key in self.obs_shape}
        return Window("step", offset=offset)

    def _action(self) -> Column:
        dtype = np.float32 if self.action_space.dtype == np.float64 else self.action_space.dtype
        return Column(dtype, (self.action_dim,))

    # ---- saved by the library ----------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        if self._n_steps > 1:
            self._writer.flush()
        state = {"settings": self._settings}
        return state if self._settings["url"] is not None else {**state, "snapshot": snapshot_of(self._table)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        type(self).__init__(self, **state["settings"])
        if "snapshot" in state:
            restore(self._table, state["snapshot"])

    # ---- the library's methods ---------------------------------------------------------------------------------------

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]) -> None:
        """Adds one transition of each of the environments."""
        done, terminated = self._ends(done, infos)
        actions = self._actions_as_stored(action)
        obs, next_obs = self._observations_as_stored(obs), self._observations_as_stored(next_obs)
        if self._n_steps > 1:
            if (breaks := self._breaks_off(obs, self._goes_on)).any():
                self._writer.append({"step": self._last}, mask=breaks)
            step = {"step": obs, "actions": actions, "rewards": np.asarray(reward, np.float32)}
            self._writer.append(step, terminated=terminated, truncated=done & ~terminated)
            if done.any():
                self._writer.append({"step": next_obs}, mask=done)
            self._last, self._goes_on = next_obs, ~done
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

    def _ends(self, done: Any, infos: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
        """Whose episode ends, and whose ends by itself, bool (n_envs,) each."""
        done = np.asarray(done, bool)
        if not self.handle_timeout_termination:
            return done, done
        return done, done & [not info.get("TimeLimit.truncated", False) for info in infos]

    def _breaks_off(self, seen: Any, goes_on: np.ndarray) -> np.ndarray:
        """Of environments in mid-episode, bool (n_envs,), those that were reset: they do not go on from where they
        were."""
        breaks = np.zeros(self.n_envs, np.bool_)
        if self._last is not None:
            pairs = [(seen[key], self._last[key]) for key in seen] if isinstance(seen, dict) else [(seen, self._last)]
            for now, before in pairs:
                differs = (now != before) & ((now == now) | (before == before))  # NaN is as it was
                breaks |= differs.reshape(self.n_envs, -1).any(1)
        return breaks & goes_on

    def _actions_as_stored(self, action: Any) -> np.ndarray:
        actions = np.reshape(action, (self.n_envs, self.action_dim))
        return actions.astype(np.float32) if actions.dtype == np.float64 else actions

    def _observations_as_stored(self, observations: Any) -> Any:
        if isinstance(self.obs_shape, dict):
            space: Any = self.observation_space
            return {
                name_of_key(key): np.asarray(observations[key], space[key].dtype).reshape(self.n_envs, *shape)
                for key, shape in self.obs_shape.items()
            }
        return np.asarray(observations, self.observation_space.dtype).reshape(self.n_envs, *self.obs_shape)

    def _by_key(self, observations: Any) -> Any:
        """A batch's observations by the keys of their space."""
        if isinstance(self.obs_shape, dict):
            return {key: observations[name_of_key(key)] for key in self.obs_shape}
        return observations

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
            "observations": self._tensors(self._normalize_obs(self._by_key(data["observations"]), env)),
            "actions": self._tensors(data["actions"]),
            "next_observations": self._tensors(self._normalize_obs(self._by_key(data["next_observations"]), env)),
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


class ReplayServerHerBuffer(ReplayServerBuffer, HerReplayBuffer):
    """A `stable_baselines3.HerReplayBuffer` over a table: hindsight experience replay (Andrychowicz et al. 2017).

    An episode's steps are stored once. Each of its transitions is an item that also shows the goals that were achieved
    where its new goal may come from, so another process can sample them without knowing the episode. As in the
    original, a transition can be sampled once its episode has ended, and `env` computes the new goals' rewards.

    Args:
        n_sampled_goal, goal_selection_strategy: as the original's: of n + 1 transitions n have another goal.
        copy_info_dict: must be False: infos are not stored.
        max_episode_steps: goals are taken from this many steps at a time of a longer episode. None: as many as the
            environment's time limit, or 1,000; at most 16,384. A transition takes 4 bytes of memory for each, with the
            strategy "final" for one alone.

        The others are those of `ReplayServerBuffer`.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: gym.Space,
        action_space: gym.Space,
        env: Any = None,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_sampled_goal: int = 4,
        goal_selection_strategy: GoalSelectionStrategy | str = "future",
        copy_info_dict: bool = False,
        url: str | None = None,
        table: str = "stable-baselines3",
        sampler: Any = Uniform(),  # noqa: B008
        max_episode_steps: int | None = None,
    ) -> None:
        if copy_info_dict:
            raise ValueError("copy_info_dict is not for this buffer: infos are not stored")
        if n_steps_of_algorithm()[0] > 1:
            raise ValueError("expected n_steps=1: a return over several steps would be of the old goal")
        if isinstance(goal_selection_strategy, str):
            if goal_selection_strategy.lower() not in KEY_TO_GOAL_STRATEGY:
                raise ValueError(f"expected a strategy of {[*KEY_TO_GOAL_STRATEGY]}, got {goal_selection_strategy!r}")
            goal_selection_strategy = KEY_TO_GOAL_STRATEGY[goal_selection_strategy.lower()]
        self.env = env
        self.goal_selection_strategy = goal_selection_strategy
        self.copy_info_dict = False
        self.n_sampled_goal = n_sampled_goal
        self.her_ratio = 1 - 1 / (n_sampled_goal + 1)
        self._longest = max_episode_steps or min(time_limit(env) or 1_000, MAX_WINDOW)
        arguments = (buffer_size, observation_space, action_space, device, n_envs, optimize_memory_usage)
        ReplayServerBuffer.__init__(self, *arguments, handle_timeout_termination, url, table, sampler, (1, 0.0))
        del self._settings["n_step"]
        self._settings |= {
            "n_sampled_goal": n_sampled_goal,
            "goal_selection_strategy": goal_selection_strategy,
            "max_episode_steps": self._longest,
        }
        self._writer = self._table.vector_writer(n_envs, history=self._longest + 1)
        self._lengths = np.zeros(n_envs, np.int64)
        self._has_items = False

    def _signature(self) -> dict[str, Any]:
        one_goal = self.goal_selection_strategy == GoalSelectionStrategy.FINAL
        return {
            "step": self._observation(step_only=True),
            "observations": self._seen(0),
            "actions": self._action(),
            "next_observations": self._seen(1),
            "goals": Window("step/achieved_goal", max_length=1 if one_goal else self._longest),
            "dones": Column("float32", (1,)),
            "rewards": Column("float32", (1,)),
        }

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]) -> None:
        """Adds one transition of each of the environments; they can be sampled once their episodes have ended."""
        done, terminated = self._ends(done, infos)
        seen = self._observations_as_stored(obs)
        self._end(self._breaks_off(seen, self._lengths > 0))
        self._writer.append(
            {
                "step": seen,
                "actions": self._actions_as_stored(action),
                "dones": np.asarray(terminated, np.float32).reshape(self.n_envs, 1),
                "rewards": np.asarray(reward, np.float32).reshape(self.n_envs, 1),
            }
        )
        self._lengths += 1
        self._last = self._observations_as_stored(next_obs)
        self._end(done | (self._lengths == self._longest))

    def _end(self, ended: np.ndarray) -> None:
        """Makes the items of these environments' episodes, bool (n_envs,)."""
        if not ended.any():
            return
        self._writer.append({"step": self._last}, mask=ended)
        lengths = np.where(ended, self._lengths, 0)
        for t in range(lengths.max()):
            goals = {
                GoalSelectionStrategy.FUTURE: slice(t + 1, None),
                GoalSelectionStrategy.FINAL: slice(-1, None),
                GoalSelectionStrategy.EPISODE: slice(1, None),
            }[self.goal_selection_strategy]
            at = np.where(t < lengths, t - lengths - 1, -1)
            self._writer.create_items(at=at, columns={"goals": goals}, mask=t < lengths)
        self._writer.flush()
        self._lengths[ended] = 0

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Draws a batch, as tensors on the buffer's device, first those with their own goals and then the others;
        `env` normalizes it where it is a `VecNormalize`.

        Raises:
            RuntimeError: no episode has ended yet.
        """
        if self.env is None:
            raise ValueError("this buffer has no environment to compute rewards with: call set_env")
        self._has_items = self._has_items or self.size() > 0  # not asked for each batch: it may be a round trip
        if not self._has_items:
            raise RuntimeError("no episode has ended yet: expected learning_starts to be longer than an episode")
        data = self._table.sample(batch_size, timeout=0 if self._settings["url"] is None else None).data
        seen, then = self._by_key(data["observations"]), self._by_key(data["next_observations"])
        rewards = data["rewards"].copy()
        real = batch_size - int(self.her_ratio * batch_size)
        if real < batch_size:
            achieved = data["goals"]
            which = achieved.offsets[real:-1] + np.random.randint(achieved.lengths[real:])
            goals = np.concatenate([seen["desired_goal"][:real], achieved.values[which]])
            seen["desired_goal"] = then["desired_goal"] = goals
            about: list[dict[str, Any]] = [{} for _ in which]
            given = (then["achieved_goal"][real:], goals[real:], about)
            rewards[real:, 0] = self.env.env_method("compute_reward", *given, indices=[0])[0]
        return DictReplayBufferSamples(
            observations=self._tensors(self._normalize_obs(seen, env)),
            actions=self._tensors(data["actions"]),
            next_observations=self._tensors(self._normalize_obs(then, env)),
            dones=self._tensors(data["dones"]),
            rewards=self._tensors(self._normalize_reward(rewards, env)),
        )

    def truncate_last_trajectory(self) -> None:
        """Ends the episodes that have not ended, as a time limit would. A saved buffer holds none of them."""
        self._end(self._lengths > 0)

    def reset(self) -> None:
        """Removes all transitions, those of unfinished episodes as well."""
        self._writer.end_episode()
        self._lengths[:] = 0
        self._has_items = False
        ReplayServerBuffer.reset(self)


def time_limit(env: Any) -> int | None:
    """Of a vector environment's first environment, in steps; None where nothing tells of one."""
    # Of Gymnasium's TimeLimit: the whole spec may not be able to leave an environment's process.
    if env is None or not env.has_attr("_max_episode_steps"):
        return None
    return env.get_attr("_max_episode_steps", [0])[0]


def n_steps_of_algorithm() -> tuple[int, float]:
    """`n_steps` and `gamma` of the algorithm that is making its buffer; 1 and 0 where none is.

    Stable-Baselines3 hands them to a buffer of its own alone, and would go on with single steps from any other.
    """
    algorithm = maker_of(OffPolicyAlgorithm)
    return (1, 0.0) if algorithm is None else (algorithm.n_steps, algorithm.gamma)
