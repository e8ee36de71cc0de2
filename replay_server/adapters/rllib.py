"""RLlib's prioritized replay buffer over a table of this project (the new API stack).

`get_state` and `set_state` save and load it. The state of a buffer in this process has the bytes of a snapshot
(docs/snapshot.md) beside its settings. Of a buffer on a server it has the settings alone: the transitions stay there.
"""

from __future__ import annotations

from collections import OrderedDict
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from replay_server import Column, Prioritized, Table
from replay_server.extras import needed_by
from replay_server.tree import SEPARATOR, Leaves, leaves_of, mapped, tree_from, tree_of

from .maker import maker_of
from .tables import made_table, restore, snapshot_of

with needed_by(__name__):
    from ray.rllib.algorithms.algorithm import Algorithm
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.utils.replay_buffers.prioritized_episode_buffer import PrioritizedEpisodeReplayBuffer
    from ray.rllib.utils.serialization import gym_space_from_dict, gym_space_to_dict
    from ray.rllib.utils.spaces.space_utils import batch as batch_of

MOST_RUNNING = 1024
"""Unfinished episodes whose last steps are kept here, for returns over several steps."""


class _Steps(NamedTuple):
    """Steps of an episode in their order.

    `observations` has the parts of an observation by path, `obs` alone where it has none, and one row more than there
    are steps where it has the last step's successor.
    """

    observations: dict[str, np.ndarray]
    actions: np.ndarray
    rewards: np.ndarray


class ReplayServerEpisodeReplayBuffer(PrioritizedEpisodeReplayBuffer):
    """RLlib's `PrioritizedEpisodeReplayBuffer` over a `replay_server.Buffer`, or over a table of a server.

    Observations may be dicts and tuples, nested to any depth: each array in them is a column.

    Episodes are taken apart into transitions when they come, and what is sampled is put into episodes of one step.

    As in RLlib, a transition over n steps is drawn only where its episode has n more steps, and rewards are discounted
    when it is drawn. Unlike there, `n_step` is fixed when the buffer is made. With a range, a transition also holds the
    observation after each number of steps, and one of an unfinished episode can be drawn once it has the most steps.

    Args:
        capacity: transitions.
        alpha, beta: the priority exponent, and the importance-sampling exponent where `sample` is given none.
        n_step: steps of a transition, or (least, most + 1), from which `sample` draws. None: as the algorithm has it
            that makes the buffer; 1 where none does.
        url: of a server; None: in this process.
        table: its table, made with the first episode, whose observations it has the shape of.

    Raises:
        ValueError: `n_step` is neither.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        alpha: float = 1.0,
        beta: float = 0.4,
        n_step: int | tuple[int, int] | None = None,
        url: str | None = None,
        table: str = "rllib",
        **options: Any,
    ) -> None:
        super().__init__(1, alpha=alpha, **options)  # the original, which stays empty
        self.capacity = capacity
        self._exponents = alpha, beta
        if n_step is None:
            # RLlib tells a buffer only when it samples.
            n_step = getattr(getattr(maker_of(Algorithm), "config", None), "n_step", 1)
        self._least, self._most = least_and_most(n_step)
        self._url, self._name = url, table
        self._spaces: tuple[Any, Any] | None = None
        self._running: OrderedDict[str, tuple[int, _Steps]] = OrderedDict()
        """By an unfinished episode's id, the time of its end so far, and the steps that lack successors."""
        self._sampled = np.empty(0, np.uint64)

    def __len__(self) -> int:
        return self.get_num_timesteps()

    def get_num_timesteps(self, module_id: Any = None) -> int:
        """Transitions in the buffer."""
        return self._table.info()["size"] if self._spaces else 0

    def _make(self, signature: dict[str, Any]) -> Any:
        sampler = Prioritized(self._exponents[0], stratified=False)
        return made_table(self._url, self._name, self.capacity, signature, sampler)

    def _signature(self, steps: _Steps) -> dict[str, Any]:
        """Of transitions of such steps: rewards of each step, and the observations that may be the next one."""
        observations = steps.observations.items()
        after = self._most - self._least + 1
        return {
            **tree_of({path: Column(part.dtype, part.shape[1:]) for path, part in observations}),
            **tree_of({f"next_{path}": Column(part.dtype, (after, *part.shape[1:])) for path, part in observations}),
            "action": Column(steps.actions.dtype, steps.actions.shape[1:]),
            "rewards": Column("float32", (self._most,)),
            "steps": Column("int32"),
            "terminated": Column("bool"),
            "truncated": Column("bool"),
        }

    def add(self, episodes: Any, weight: float | None = None) -> None:
        """Adds the transitions of episodes, or of parts of them; without a weight each gets the largest there is.

        Raises:
            SchemaError: observations have parts that are no columns, such as one whose name has a slash, or another
                form than those of the first episode.
        """
        for episode in episodes if isinstance(episodes, list) else [episodes]:
            if len(episode) == 0:
                continue
            steps = self._steps_since_last(episode)
            if self._spaces is None:
                self._table = self._make(self._signature(steps))
                self._spaces = episode.observation_space, episode.action_space
            data = self._transitions(steps, episode.is_terminated, episode.is_truncated)
            if count := len(data["steps"]):
                self._table.add(data, None if weight is None else np.full(count, weight, np.float64))
            self._num_timesteps_added += len(episode)

    def _steps_since_last(self, episode: SingleAgentEpisode) -> _Steps:
        """An episode's steps, and before them those of its last part that lacked successors."""
        count = len(episode)
        steps = _Steps(
            _parts_of(episode.get_observations(slice(0, count + 1))),
            np.asarray(episode.get_actions(slice(0, count))),
            np.asarray(episode.get_rewards(slice(0, count)), np.float32),
        )
        end, before = self._running.pop(episode.id_, (None, steps))
        if end == episode.t_started:
            steps = _Steps(
                {path: np.concatenate([part, steps.observations[path]]) for path, part in before.observations.items()},
                np.concatenate([before.actions, steps.actions]),
                np.concatenate([before.rewards, steps.rewards]),
            )
        if self._most > 1 and not episode.is_done:
            kept = slice(max(0, len(steps.rewards) - self._most + 1), None)
            last = {path: part[:-1][kept].copy() for path, part in steps.observations.items()}
            rest = _Steps(last, steps.actions[kept].copy(), steps.rewards[kept].copy())
            self._running[episode.id_] = episode.t, rest
            if len(self._running) > MOST_RUNNING:
                self._running.popitem(last=False)
        return steps

    def _transitions(self, steps: _Steps, terminated: bool, truncated: bool) -> Leaves:
        """All transitions of an episode that has ended; of another those that have the most steps."""
        least, most, count = self._least, self._most, len(steps.rewards)
        first = np.arange(max(0, count + 1 - (least if terminated or truncated else most)))
        lengths = np.minimum(most, count - first)
        reach = first[:, None] + np.arange(most)
        after = np.minimum(first[:, None] + np.arange(least, most + 1), count)
        last = first + lengths == count
        return Leaves(
            {
                **{path: part[first] for path, part in steps.observations.items()},
                **{f"next_{path}": part[after] for path, part in steps.observations.items()},
                "action": steps.actions[first],
                "rewards": np.where(reach < count, steps.rewards[np.minimum(reach, count - 1)], np.float32(0)),
                "steps": lengths.astype(np.int32),
                "terminated": last & terminated,
                "truncated": last & truncated,
            }
        )

    def sample(
        self,
        num_items: int | None = None,
        *,
        batch_size_B: int | None = None,
        batch_length_T: int | None = None,
        n_step: int | tuple[int, int] | None = None,
        beta: float | None = None,
        gamma: float = 0.99,
        include_infos: bool = False,
        include_extra_model_outputs: bool = False,
        **options: Any,
    ) -> list[SingleAgentEpisode]:
        """Draws transitions, each as an episode of one step with its importance-sampling weight and its `n_step`.

        Raises:
            ValueError: the buffer is for another `n_step`, nothing was added yet, or sequences, infos or outputs of
                the model are asked for.
            Timeout: a buffer in this process has no transition yet. On a server it waits instead until somebody adds.
        """
        if least_and_most(n_step or 1) != (self._least, self._most):
            raise ValueError(
                f"expected n_step={self._n_step()}, which the buffer was made for, got {n_step}: "
                "give n_step in replay_buffer_config, too"
            )
        if batch_length_T not in (None, 0, 1) or include_infos or include_extra_model_outputs:
            raise ValueError(
                f"expected single transitions without infos and outputs of the model, which are not stored, got "
                f"{batch_length_T=}, {include_infos=}, {include_extra_model_outputs=}"
            )
        if self._spaces is None:
            raise ValueError("nothing was added yet: there is nothing to sample")
        observation_space, action_space = self._spaces
        beta = self._exponents[1] if beta is None else beta
        drawn = self._draw(num_items or batch_size_B or self.batch_size_B, beta)
        n = drawn["n"]
        rewards = (drawn["rewards"] * (np.arange(self._most) < n[:, None])) @ float(gamma) ** np.arange(self._most)
        ends = n == drawn["steps"]
        seen, then = _under("obs", drawn), _under("next_obs", drawn)
        reached = np.arange(len(n)), n - self._least
        rows = zip(
            _rows(seen, len(n)),
            _rows(mapped(then, itemgetter(reached)), len(n)),
            drawn["action"],
            rewards,
            ends & drawn["terminated"],
            ends & drawn["truncated"],
            drawn["weights"] / drawn["weights"].max(),
            n.tolist(),
            strict=True,
        )
        return [
            SingleAgentEpisode(
                observations=[obs, next_obs],
                observation_space=observation_space,
                actions=[action],
                action_space=action_space,
                rewards=[reward],
                terminated=bool(terminated),
                truncated=bool(truncated),
                extra_model_outputs={"weights": [weight], "n_step": [steps]},
                len_lookback_buffer=0,
            )
            for obs, next_obs, action, reward, terminated, truncated, weight, steps in rows
        ]

    def _draw(self, count: int, beta: float) -> dict[str, np.ndarray]:
        """Columns of so many transitions, and for each a number of steps that it has, `n`, and its weight.

        As RLlib, it draws again where a transition has fewer steps than the number that was drawn for it.
        """
        parts: list[dict[str, np.ndarray]] = []
        found = 0
        while found < count:
            batch = self._table.sample(count - found, beta, timeout=0 if self._url is None else None)
            n = self.rng.integers(self._least, self._most + 1, len(batch))
            # Not the batch's weights, whose maximum is that of this draw.
            columns = {**batch.columns, "n": n, "weights": batch.probabilities**-beta, "ids": batch.ids}
            fits = n <= columns["steps"]
            parts.append(columns if fits.all() else {name: values[fits] for name, values in columns.items()})
            found += int(fits.sum())
        if len(parts) == 1:
            [drawn] = parts
        else:
            drawn = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        self._sampled = drawn["ids"]
        self.sampled_timesteps += count
        return drawn

    def update_priorities(self, priorities: np.ndarray, module_id: Any = None) -> None:
        """Takes the errors of what was sampled last."""
        self._table.update_priorities(self._sampled, np.abs(np.asarray(priorities, np.float64)) + 1e-6)

    # ---- saved by the library ----------------------------------------------------------------------------------------

    def _n_step(self) -> int | tuple[int, int]:
        return self._least if self._least == self._most else (self._least, self._most + 1)

    def get_state(self) -> dict[str, Any]:
        """What `set_state` restores: plain values and bytes, for RLlib's checkpoints as pickle or as msgpack. The last
        steps of unfinished episodes, which are no transitions yet, are not in it."""
        state = {
            "n_step": [self._least, self._most + 1],
            "_num_timesteps_added": self._num_timesteps_added,
            "sampled_timesteps": self.sampled_timesteps,
        }
        if self._spaces is None:
            return state
        state["spec"] = self._table.table.pack()
        state["spaces"] = [gym_space_to_dict(space) for space in self._spaces]
        return state if self._url is not None else {**state, "snapshot": snapshot_of(self._table)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the transitions, ids and priorities of a buffer in this process; one on a server has them there.

        Raises:
            ValueError: the state is not of this class, is for another `n_step`, or is of a buffer that lies elsewhere.
            SchemaError: the buffer that was saved had another capacity, or transitions of another shape.
            TableNotFound: its table had another name.
        """
        if "n_step" not in state:
            raise ValueError(f"expected a state from this class's get_state, got one with {[*state]}")
        if least_and_most(state["n_step"]) != (self._least, self._most):
            raise ValueError(f"expected the state of a buffer with n_step={self._n_step()}, got {state['n_step']}")
        if "spec" in state:
            if ("snapshot" in state) != (self._url is None):
                told = ["on a server", "in a process"]
                own, other = told[self._url is None], told["snapshot" in state]
                raise ValueError(f"expected the state of a buffer {own}, got that of one {other}")
            table = self._table if self._spaces else self._make(dict(Table.unpack(state["spec"]).signature))
            if "snapshot" in state:
                restore(table, state["snapshot"])
            self._table = table
            self._spaces = tuple(gym_space_from_dict(space) for space in state["spaces"])
        elif self._spaces and self._url is None:
            self._table.reset()
        self._num_timesteps_added, self.sampled_timesteps = state["_num_timesteps_added"], state["sampled_timesteps"]
        self._running.clear()
        self._sampled = np.empty(0, np.uint64)


def _parts_of(observations: Any) -> dict[str, np.ndarray]:
    """Observations of several steps, as RLlib has them, as one array for each of their parts, by path.

    Args:
        observations: a list of them, or an array, or a dict or tuple of arrays, which have the steps as their rows.
    """
    whole = batch_of(observations) if isinstance(observations, list) else observations
    return {path: np.asarray(part) for path, part in leaves_of(tree_from({"obs": whole})).items()}


def _under(name: str, columns: dict[str, Any]) -> Any:
    """The column of this name, or the tree of those under it."""
    return tree_of({p: part for p, part in columns.items() if p.partition(SEPARATOR)[0] == name})[name]


def _rows(tree: Any, count: int) -> Any:
    """The rows of an array, or those of a tree's arrays in the form of the tree."""
    return tree if isinstance(tree, np.ndarray) else [mapped(tree, itemgetter((row, ...))) for row in range(count)]


def least_and_most(n_step: Any) -> tuple[int, int]:
    """The least and the most steps of a transition: of (2, 5), as RLlib reads it, 2 and 4.

    Raises:
        ValueError: it is neither a number of at least 1 nor such a pair.
    """
    match n_step:
        case int() if n_step >= 1:
            return n_step, n_step
        case (int(least), int(end)) if 1 <= least < end:
            return least, end - 1
    raise ValueError(f"expected n_step of at least 1, or (least, most + 1), got {n_step!r}")
