"""On-policy acting: a policy plays environments side by side, and each of them yields fragments of T steps.

The same seeds and weights give the same fragments, bit by bit: environments, actions and order of arithmetic depend on
nothing else (one torch thread; another number of environments may round a forward pass differently).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from replay_server.actors.envs import EpisodeScores, make_environments
from replay_server.actors.play_games import Watch, game_seeds, play_games
from replay_server.actors.state_codec import StateError, pack_state, unpack_state
from replay_server.rl.environment_spec import is_atari
from replay_server.rl.fragments import fragment_signature
from replay_server.rl.moments import Moments
from replay_server.rl.policy_networks import ActorCritic
from replay_server.rl.policy_settings import PolicySettings
from replay_server.rl.policy_spec import PolicySpec


@dataclass(frozen=True)
class Rollout:
    """What one call of `FragmentCollector.collect` brought."""

    fragments: dict[str, np.ndarray]
    """One fragment of each environment: the columns of `replay_server.rl.fragments`, (E, …)."""
    scores: list[float]
    """Unclipped scores of the games that ended, exploration and all."""
    steps: int
    """Agent steps, over all environments."""


class FragmentCollector:
    """Plays E environments for one fragment of each at a time; episodes go on from one fragment to the next.

    Args:
        seed: of environments and actions; any numbers, such as the run's seed and the actor's.
        first_environment: number, within the run, of the first of these environments.
        sequence: how many fragments each of them has yielded before.
        state: that another collector of the same settings and number of environments gave; its episodes and random
            numbers go on, and `seed` counts for nothing.
        stateful: to be able to give a state, and implied by one; `replay_server.actors.envs.make_environments`.
    """

    def __init__(
        self,
        settings: PolicySettings,
        spec: PolicySpec,
        environments: int,
        seed: Sequence[int],
        first_environment: int = 0,
        sequence: int = 0,
        state: bytes | None = None,
        stateful: bool = False,
    ) -> None:
        environments_seed, action_seed = np.random.SeedSequence(seed).spawn(2)
        self.settings = settings
        self.spec = spec
        self._environments = make_environments(settings, environments, environments_seed, stateful or state is not None)
        self._generator = _generator(action_seed)
        self._scores = EpisodeScores(environments)
        self.first_environment = first_environment
        self.sequence = sequence
        if state is None:
            self._observations = self._environments.reset()
        else:
            self.restore(state)

    def collect(
        self, network: ActorCritic, policy_version: int, before_step: Callable[[], object] | None = None
    ) -> Rollout:
        """Plays T steps of every environment with `network` (on the CPU).

        Args:
            before_step: called before each step; what it raises ends the call, and the collector is of no more use
                until it is restored.

        Raises RuntimeError where an environment truncates episodes more often than its time limit says.
        """
        with one_thread(), torch.inference_mode():
            return self._collect(network, policy_version, before_step)

    def state(self) -> bytes:
        """All that is needed to go on elsewhere, bit by bit, as if this collector had gone on itself.

        Environments with their random numbers, those of the actions, running scores, observations and the number of
        fragments; not the policy. StateUnsupported where an environment cannot give its state.
        """
        return pack_state(
            {
                "environments": self._environments.state(),
                "generator": self._generator.get_state().numpy(),
                "scores": self._scores.running,
                "observations": self._observations,
                "sequence": self.sequence,
            }
        )

    def restore(self, state: bytes) -> None:
        """Goes on from the state of a collector of the same settings and number of environments.

        Raises StateError for another state.
        """
        values = unpack_state(state)
        if not isinstance(values, dict) or "observations" not in values:
            raise StateError("expected the state of a collector of fragments, got another state")
        self._environments.restore(values["environments"])
        self._generator.set_state(torch.from_numpy(values["generator"]))
        self._scores.running = values["scores"]
        self._observations = values["observations"]
        self.sequence = values["sequence"]

    def _collect(self, network: ActorCritic, policy_version: int, before_step: Callable[[], object] | None) -> Rollout:
        columns = self._empty(policy_version)
        normalize = network.normalizer()
        finals = _Finals(columns)
        raw = np.empty((self.settings.steps, *self._observations.shape), self._observations.dtype)
        scores: list[float] = []
        for step_number in range(self.settings.steps):
            if before_step is not None:
                before_step()
            raw[step_number] = self._observations
            seen = normalize(self._observations)
            if network.shares_features:
                parameters, columns["value"][:, step_number] = network(torch.from_numpy(seen))
            else:
                parameters = network.policy(torch.from_numpy(seen))
            drawn = network.distribution.sample(parameters, self._generator).numpy()
            actions = self._environments.forced(drawn)
            step = self._environments.step(self.spec.bounded(actions))
            ended = step.terminated | step.truncated

            columns["observation"][:, step_number] = seen
            columns["action"][:, step_number] = actions
            columns["reward"][:, step_number] = step.rewards
            columns["terminated"][:, step_number] = step.terminated | self._lost(step.lost_life)
            columns["truncated"][:, step_number] = step.truncated
            columns["behaviour_parameters"][:, step_number] = parameters
            is_last = step_number == self.settings.steps - 1
            finals.add(step_number, np.ones_like(ended) if is_last else step.truncated, step.observations, normalize)

            scores += [score for _, score in self._scores.add(step)]
            self._observations = step.observations
            if ended.any():
                rows = ended.reshape(-1, *[1] * (self._observations.ndim - 1))
                self._observations = np.where(rows, self._environments.restart(ended), self._observations)
        finals.evaluate(network)
        self._evaluate(columns, network)
        self._add_moments(columns, raw)
        self.sequence += 1
        return Rollout(columns, scores, self.settings.steps * self._environments.num_envs)

    def close(self) -> None:
        self._environments.close()

    def _lost(self, lost_life: np.ndarray) -> np.ndarray:
        return lost_life & (self.settings.episodic_life and is_atari(self.settings.env))

    def _empty(self, policy_version: int) -> dict[str, np.ndarray]:
        environments = self._environments.num_envs
        columns = {
            name: np.zeros((environments, *column.shape), column.dtype)
            for name, column in fragment_signature(self.settings, self.spec).items()
        }
        columns["final_step"][:] = -1
        columns["policy_version"][:] = policy_version
        columns["environment"][:] = self.first_environment + np.arange(environments)
        columns["sequence"][:] = self.sequence
        return columns

    def _evaluate(self, columns: dict[str, np.ndarray], network: ActorCritic) -> None:
        """Probabilities and values: for a whole fragment at once they take a fraction of what they do step by step."""
        # Of the actions that were taken, which FIRE after a lost life makes others than those drawn.
        columns["behaviour_log_probability"][:] = network.distribution.log_probability(
            torch.from_numpy(columns["behaviour_parameters"]), torch.from_numpy(columns["action"])
        )
        if not network.shares_features:
            for value, observation in zip(columns["value"], columns["observation"], strict=True):
                value[:] = network.values(torch.from_numpy(observation))

    def _add_moments(self, columns: dict[str, np.ndarray], raw: np.ndarray) -> None:
        if "observation_count" not in columns:
            return
        for environment in range(raw.shape[1]):
            moments = Moments.of(raw[:, environment])
            columns["observation_count"][environment] = moments.count
            columns["observation_mean"][environment] = moments.mean
            columns["observation_squared_deviations"][environment] = moments.squared_deviations


class _Finals:
    """Fills the slots of successors that are no row of their fragment."""

    def __init__(self, columns: dict[str, np.ndarray]) -> None:
        self._columns = columns
        self._used = np.zeros(len(columns["final_step"]), np.int64)

    def add(
        self, step: int, mask: np.ndarray, observations: np.ndarray, normalize: Callable[[np.ndarray], np.ndarray]
    ) -> None:
        """The observations (E, …) that followed `step`, of the environments in `mask`."""
        if not mask.any():
            return
        seen = normalize(observations)
        slots = self._columns["final_step"].shape[1]
        for environment in np.flatnonzero(mask):
            slot = self._used[environment]
            if slot == slots:
                raise RuntimeError(
                    f"expected at most {slots - 1} truncations before the last of {self._columns['reward'].shape[1]} "
                    "steps, by the environment's time limit (max_episode_steps), got more: register the "
                    "environment with the limit that it has"
                )
            self._columns["final_step"][environment, slot] = step
            self._columns["final_observation"][environment, slot] = seen[environment]
            self._used[environment] += 1

    def evaluate(self, network: ActorCritic) -> None:
        used = self._columns["final_step"] >= 0
        self._columns["final_value"][used] = network.values(torch.from_numpy(self._columns["final_observation"][used]))


def evaluate_policy(
    network: ActorCritic,
    settings: PolicySettings,
    spec: PolicySpec,
    episodes: int,
    seed: int,
    greedy: bool = False,
    before_step: Callable[[], object] | None = None,
    watch: Watch | None = None,
) -> list[float]:
    """Plays `episodes` whole fresh games with `network` (on the CPU) and returns their unclipped scores.

    Actions are drawn from the policy; with `greedy`, those it thinks likeliest. What `before_step` raises, called
    before each step, ends the call. `watch`: see `replay_server.actors.play_games.play_games`.
    """

    normalize = network.normalizer()

    def act(observations: np.ndarray, generator: torch.Generator) -> torch.Tensor:
        if before_step is not None:
            before_step()
        parameters = network.policy(torch.from_numpy(normalize(observations)))
        return _likeliest(spec, parameters) if greedy else network.distribution.sample(parameters, generator)

    return _play(act, settings, spec, episodes, seed, watch)


def random_scores(settings: PolicySettings, spec: PolicySpec, episodes: int, seed: int) -> list[float]:
    """What `evaluate_policy` returns of actions drawn uniformly, continuous ones within their bounds.

    The same seed makes the same environments as there. Raises ValueError where bounds are infinite.
    """
    low, high = torch.tensor(spec.action_low), torch.tensor(spec.action_high)
    if not (torch.isfinite(low).all() and torch.isfinite(high).all()):
        raise ValueError(f"{settings.env}: expected actions with finite bounds to draw between, got {low} to {high}")

    def act(observations: np.ndarray, generator: torch.Generator) -> torch.Tensor:
        if spec.is_discrete:
            return torch.randint(spec.num_actions, (len(observations),), generator=generator)
        return low + (high - low) * torch.rand(len(observations), spec.action_size, generator=generator)

    return _play(act, settings, spec, episodes, seed)


def _play(
    act: Callable[[np.ndarray, torch.Generator], torch.Tensor],
    settings: PolicySettings,
    spec: PolicySpec,
    episodes: int,
    seed: int,
    watch: Watch | None = None,
) -> list[float]:
    """Scores of `episodes` fresh games of the actions that `act` answers to observations (K, …)."""
    environments_seed, action_seed = game_seeds(seed)
    generator = _generator(action_seed)
    with one_thread(), torch.inference_mode():
        return play_games(
            lambda observations: spec.bounded(act(observations, generator).numpy()),
            settings, episodes, environments_seed, watch=watch,
        )  # fmt: skip


def _likeliest(spec: PolicySpec, parameters: torch.Tensor) -> torch.Tensor:
    return parameters.argmax(dim=-1) if spec.is_discrete else parameters[:, : spec.action_size]


def _generator(seed: np.random.SeedSequence) -> torch.Generator:
    generator = torch.Generator()
    generator.manual_seed(int(seed.generate_state(1, np.uint64)[0] >> np.uint64(1)))
    return generator


@contextlib.contextmanager
def one_thread() -> Iterator[Any]:
    """Batches are so small that more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
