"""The scheduler's policy: a small actor and critic that this package's own PPO trains, saved without pickle.

A policy's folder is a checkpoint of a learner (`replay_server.learner.policy_checkpoint`): its networks and optimiser
as safetensors, and in counters.json what is needed to make them, with whatever its training wants to keep.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from replay_server.actors.fragments import one_thread
from replay_server.learner.checkpoint import newest_checkpoint
from replay_server.learner.policy_checkpoint import read_policy_checkpoint, write_policy_checkpoint
from replay_server.learner.ppo import Ppo, PpoSettings, Statistics
from replay_server.rl.moments import Moments
from replay_server.rl.policy_spec import PolicySpec
from replay_server.serverless.scheduler.decision import STATE

CHECKPOINTS = "checkpoints"
"""Folder of a training directory that holds its policies."""
MOMENTS_KEPT = 10.0
"""States that those of another task count as, where a policy is tuned for a new one."""
ENV = "scheduler"
"""What stands for the environment's name in the PPO's settings."""


@dataclass
class SchedulerSettings:
    """MinionsRL's Table 1, right column. Where it is silent, or its text has lost which of several values, [ours]."""

    scheduler_seed: int = 1
    """Seeds the scheduler's networks and its decisions."""
    actors_most: int = 32
    """I_max: decisions are 1 to this many actors."""
    time_weight: float = 0.1
    """β: what a second of a round takes from the reward (the authors' code; the paper: between 0 and 1)."""
    learning_rate: float = 0.005
    """Of Adam."""
    discount: float = 0.99
    """γ."""
    gae_lambda: float = 0.95
    """λ [ours]."""
    clip: float = 0.2
    """ε."""
    entropy_coefficient: float = 0.01
    value_coefficient: float = 0.5
    iterations: int = 4
    """Passes over an episode's rounds [ours]: with 10 a policy settles on one number within some thirty episodes."""
    minibatch_size: int = 4
    """Rounds of one optimiser step (the paper tries 1, 2 and 4)."""
    hidden: int = 64
    """Units of each of the two tanh layers of actor and critic."""

    def __post_init__(self) -> None:
        """ValueError, naming it, for a number that no scheduler can have."""
        least = {"scheduler_seed": 0, "actors_most": 1, "iterations": 1, "minibatch_size": 1, "hidden": 1}
        for name, lowest in least.items():
            if getattr(self, name) < lowest:
                raise ValueError(f"{name}: expected at least {lowest}, got {getattr(self, name)}")
        for name in ("time_weight", "clip", "entropy_coefficient", "value_coefficient", "learning_rate"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected a finite number of at least 0, got {getattr(self, name)}")
        for name in ("discount", "gae_lambda"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name}: expected 0 to 1, got {getattr(self, name)}")

    def ppo(self) -> PpoSettings:
        """The same for this package's PPO: no KL penalty, states normalised by all that was seen."""
        return PpoSettings(
            env=ENV,
            seed=self.scheduler_seed,
            hidden=self.hidden,
            discount=self.discount,
            gae_lambda=self.gae_lambda,
            clip=self.clip,
            kl_coefficient=0.0,
            entropy_coefficient=self.entropy_coefficient,
            value_coefficient=self.value_coefficient,
            learning_rate=self.learning_rate,
            iterations=self.iterations,
            minibatch_size=self.minibatch_size,
        )


@dataclass(frozen=True)
class Decision:
    """One decision, with all that is needed to learn from it."""

    actors: int
    state: np.ndarray
    """As it is, float32 (8,)."""
    seen: np.ndarray
    """As the network saw it: normalised."""
    parameters: np.ndarray
    """Logits, float32 (I_max,)."""
    log_probability: float
    value: float


class SchedulerPolicy:
    """Decides numbers of actors, and learns from whole jobs (episodes)."""

    def __init__(self, settings: SchedulerSettings | None = None) -> None:
        self.settings = settings or SchedulerSettings()
        self.learner = Ppo(self.settings.ppo(), PolicySpec((len(STATE),), "float32", self.settings.actors_most))

    @property
    def episodes(self) -> int:
        """That it has learned from."""
        return self.learner.version

    def decide(self, state: np.ndarray, draw: np.random.Generator | None) -> Decision:
        """A number of actors for a state (8,): drawn from the policy, or the likeliest one where `draw` is None."""
        network = self.learner.network
        seen = network.normalize(state[None])
        with one_thread(), torch.no_grad():
            logits, value = network(torch.from_numpy(seen))
            logarithms = logits.log_softmax(dim=-1)[0].numpy()
        if draw is None:
            index = int(logarithms.argmax())
        else:
            # The place of one uniform number among the cumulated probabilities: any generator, the same everywhere.
            shares = np.cumsum(np.exp(logarithms.astype(np.float64)))
            index = min(int(np.searchsorted(shares, draw.random() * shares[-1], side="right")), len(shares) - 1)
        return Decision(
            index + 1, state, seen[0], logits[0].numpy(), float(logarithms[index]), float(value[0])
        )  # fmt: skip

    def learn(self, decisions: Sequence[Decision], rewards: Sequence[float]) -> Statistics:
        """One round of PPO from an episode: every decision of a job, and what each round was rewarded with."""
        with one_thread():
            return self.learner.update(episode_fragment(decisions, rewards, self.learner.version))

    def for_another_task(self, settings: SchedulerSettings) -> SchedulerPolicy:
        """One to be fine-tuned with these settings: parameters stay; optimiser and number of episodes begin anew.

        The moments that states are normalised by keep their values and count as much as 10 states, so that they become
        those of the new task within an episode. ValueError where the settings are of a network of another shape.
        """
        tuned = SchedulerPolicy(settings)
        try:
            tuned.learner.network.load_state_dict(self.learner.network.state_dict())
        except RuntimeError:
            old = self.settings
            raise ValueError(
                f"the policy has {old.hidden} units and decides on 1 to {old.actors_most} actors: expected the same of "
                f"what it is tuned for, got {settings.hidden} and {settings.actors_most}"
            ) from None
        moments = self.learner.network.moments
        if moments.count > MOMENTS_KEPT:
            share = MOMENTS_KEPT / moments.count
            lighter = Moments(MOMENTS_KEPT, moments.mean, moments.squared_deviations * share)
            tuned.learner.network.set_moments(lighter)
        return tuned

    def save(self, folder: Path, more: Mapping[str, Any] | None = None) -> Path:
        """Writes `folder`/step_N, N = episodes, whole or not at all, and keeps the three newest; its path."""
        kept = {"scheduler": dataclasses.asdict(self.settings), "state": list(STATE), **(more or {})}
        return write_policy_checkpoint(folder, self.learner, kept)


def episode_fragment(decisions: Sequence[Decision], rewards: Sequence[float], version: int) -> dict[str, np.ndarray]:
    """An episode of T rounds as one fragment (`replay_server.rl.fragments`) that ends with its last step."""
    steps = len(decisions)
    if steps != len(rewards) or not steps:
        raise ValueError(f"expected a reward for each of at least one decision, got {len(rewards)} for {steps}")
    terminated = np.zeros((1, steps), bool)
    terminated[0, -1] = True
    seen = np.stack([each.seen for each in decisions])
    moments = Moments.of(np.stack([each.state for each in decisions]))
    return {
        "observation": seen[None],
        "action": np.array([[each.actors - 1 for each in decisions]], np.int64),
        "reward": np.array([rewards], np.float32),
        "terminated": terminated,
        "truncated": np.zeros((1, steps), bool),
        "behaviour_log_probability": np.array([[each.log_probability for each in decisions]], np.float32),
        "behaviour_parameters": np.stack([each.parameters for each in decisions])[None],
        "value": np.array([[each.value for each in decisions]], np.float32),
        "final_observation": seen[None, -1:],
        "final_step": np.array([[steps - 1]], np.int64),
        "final_value": np.zeros((1, 1), np.float32),
        "policy_version": np.array([version], np.int64),
        "environment": np.zeros(1, np.int64),
        "sequence": np.array([version], np.int64),
        "observation_count": np.array([moments.count]),
        "observation_mean": moments.mean[None],
        "observation_squared_deviations": moments.squared_deviations[None],
    }


def load_policy(folder: Path) -> tuple[SchedulerPolicy, dict[str, Any]]:
    """The policy in a folder: that of a step_N, or the newest of a training directory; and its counters.

    Raises FileNotFoundError where there is none, ValueError where it is something else.
    """
    found = folder if (folder / "counters.json").exists() else newest_checkpoint(folder / CHECKPOINTS)
    if found is None:
        raise FileNotFoundError(
            f"{folder} holds no policy of a scheduler: expected the directory of replay-server scheduler train, or a "
            f"step_N folder of its {CHECKPOINTS}"
        )
    try:
        counters = json.loads((found / "counters.json").read_text())
    except ValueError as error:
        raise ValueError(f"{found / 'counters.json'} is damaged: {error}") from None
    if not isinstance(counters, dict) or "scheduler" not in counters:
        raise ValueError(f"{found} is no policy of a scheduler: its counters.json has no settings of one")
    if (state := counters.get("state")) != list(STATE):
        raise ValueError(f"{found} was trained on states of {state}, this version has {list(STATE)}")
    try:
        policy = SchedulerPolicy(SchedulerSettings(**counters["scheduler"]))
    except TypeError as error:
        raise ValueError(f"{found} has settings of another version: {error}") from None
    try:
        read_policy_checkpoint(found, policy.learner)
    except (SafetensorError, KeyError, TypeError) as error:
        raise ValueError(f"{found} is damaged: {error!r}") from error
    return policy, counters
