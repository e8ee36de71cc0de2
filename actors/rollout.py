"""One Ape-X actor: plays many environments with one network, and pushes prioritized n-step transitions."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

import replay_server as rs
from replay_server.actors.envs import EpisodeScores, make_environments
from replay_server.actors.transitions import TransitionWriter, n_step_options
from replay_server.n_step_writer import VectorNStepWriter
from replay_server.rl.acting import make_acting
from replay_server.rl.connection import PersistentClient, part_timeouts
from replay_server.rl.environment_spec import environment_spec
from replay_server.rl.exploration import actor_epsilons
from replay_server.rl.networks import make_acting_network
from replay_server.rl.observations import Observations, map_tree
from replay_server.rl.part_ids import PartId
from replay_server.rl.preprocessing import clip_rewards
from replay_server.rl.process_memory import keep_freed_memory
from replay_server.rl.settings import ApexSettings
from replay_server.rl.shared_settings import incarnation, join
from replay_server.rl.weights import load_arrays

Stop = threading.Event | Callable[[], bool]

PROGRESS_EVERY_S = 1.0
PUSH_WAIT_S = 0.5
"""How long one push waits for the rate limiter before the actor looks at its stop signal again."""
FLUSH_STEPS = 64
"""Steps of each environment after which they are sent, whether or not there are enough transitions for a push."""
RECENT_EPISODES = 100


@dataclass
class ActorProgress:
    """How far an actor is: what `HSET <table>:actor:<id>` holds, each field as a decimal string."""

    frames: int = 0
    """Emulator frames (4 for each agent step on Atari)."""
    steps: int = 0
    """Agent steps, over all of its environments."""
    transitions: int = 0
    """Transitions that the server has taken."""
    episodes: int = 0
    score_mean: float = 0.0
    """Mean unclipped score of its last 100 games, exploration and all: not the score to report."""
    version: int = -1
    """Version of the weights it plays with; -1 = the initial ones."""
    blocked_s: float = 0.0
    """Seconds spent waiting for the rate limiter, part of `push_s`."""
    environment_s: float = 0.0
    """Seconds in which the environments were stepped."""
    inference_s: float = 0.0
    """Seconds of forward passes."""
    push_s: float = 0.0
    """Seconds of making transitions and sending them."""
    pull_s: float = 0.0
    """Seconds of asking for newer weights and loading them."""
    steps_per_s: float = 0.0
    started_at: float = 0.0
    """Unix time of its first step."""
    updated_at: float = 0.0

    def as_fields(self) -> Mapping[Any, str]:
        return {field.name: str(getattr(self, field.name)) for field in fields(self)}


def as_callable(stop: Stop) -> Callable[[], bool]:
    """A stop signal as a function: an Event's `is_set`, or the function itself."""
    return stop if callable(stop) else stop.is_set


def actor_seeds(seed: int, actor_id: int, session: int = 0, before: int = 0) -> list[np.random.SeedSequence]:
    """Seeds of an actor's environments and of its exploration: others for each of its lives (`incarnation`)."""
    return np.random.SeedSequence([seed, actor_id, session, before]).spawn(2)


def run_actor(
    settings: ApexSettings,
    server_url: str,
    actor_id: int | PartId,
    stop: Stop,
    on_progress: Callable[[ActorProgress], None] | None = None,
    *,
    patience_s: float = 30.0,
    least_life: int = 0,
) -> ActorProgress:
    """Acts until `stop`; returns what it has done. Uses one torch thread in this process.

    Weights are looked for every `pull_every_frames` and loaded only if newer; until the first ones are published the
    actor plays with the initial network, which every part of a run shares. `on_progress` is called about once a
    second, after the same numbers went to the server. A `PartId` is renewed by the caller; where it becomes another
    number, because this actor was away for too long, the actor goes on with that. `least_life`: how many of its lives
    are known of here, which a server that came back may have forgotten; the seeds are others than theirs.

    Raises TableClosed when the table is closed: the job is over. ConnectionLost if the server stayed away for
    `patience_s` seconds; SettingsDiffer, a ValueError, for other settings than the run's; ValueError for weights of
    another network.
    """
    return _Actor(settings, server_url, actor_id, as_callable(stop), on_progress, patience_s, least_life).run()


class _Actor:
    def __init__(
        self,
        settings: ApexSettings,
        server_url: str,
        actor_id: int | PartId,
        stop: Callable[[], bool],
        on_progress: Callable[[ActorProgress], None] | None,
        patience_s: float,
        least_life: int,
    ) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        self.settings = settings
        self.lease = actor_id if isinstance(actor_id, PartId) else None
        self.actor_id = actor_id if isinstance(actor_id, int) else actor_id.number
        self.stop = stop
        self.on_progress = on_progress
        self.epsilons = self._epsilons()
        self.spec = environment_spec(settings)
        self.network = make_acting_network(settings, self.spec)
        self.acting = make_acting(self.spec)
        self.progress = ActorProgress()
        self.recent_scores: collections.deque[float] = collections.deque(maxlen=RECENT_EPISODES)
        self.version: int | None = None
        self.client = PersistentClient(server_url, patience_s=patience_s, stop=stop, on_connect=self._on_connect)
        session, before = self.client.call(lambda client: incarnation(client, settings.table, self.actor_id))
        seeds = actor_seeds(settings.seed, self.actor_id, session, max(before, least_life))
        environments_seed, exploration_seed = seeds
        self.generator = np.random.default_rng(exploration_seed)
        self.environments = make_environments(settings, settings.envs_per_actor, environments_seed)
        # The writer's client is never replaced: after a loss it connects anew, and sends again what later items see.
        self.writing = rs.Client(server_url, reconnect_timeout=0.5, **part_timeouts(server_url))
        self.writer = self.client.call(lambda _: self._make_writer())
        self.transitions = TransitionWriter(self.writer, settings, self.spec, self._patiently)

    def run(self) -> ActorProgress:
        try:
            self._play()
            self._finish()
            return self.progress
        except rs.TableClosed:
            with contextlib.suppress(rs.ReplayError):
                self._report()
            raise
        finally:
            self.writer.close(flush=False)
            self.writing.close()
            self.client.close()
            self.environments.close()

    def _make_writer(self) -> VectorNStepWriter:
        settings, options = self.settings, {"flush_steps": FLUSH_STEPS, "timeout": PUSH_WAIT_S, "place": self.actor_id}
        return self.writing.vector_writer(
            settings.table, settings.envs_per_actor, **n_step_options(settings), **options
        )

    def _play(self) -> None:
        settings, progress, environments = self.settings, self.progress, self.environments
        pull_every_steps = max(1, settings.pull_every_frames // self.spec.frames_per_step)
        scores = EpisodeScores(settings.envs_per_actor)
        progress.started_at = time.time()
        report_at = time.monotonic()
        observations = environments.reset()
        step_number = 0
        while not self.stop():
            if step_number % pull_every_steps == 0:
                with self._timed("pull_s"):
                    self._pull()
            step_number += 1

            with self._timed("inference_s"):
                outputs = self._outputs(observations)
            actions = environments.forced(self.acting.explore(outputs, self.epsilons, self.generator))
            with self._timed("environment_s"):
                step = environments.step(actions)
            terminated = step.terminated | step.lost_life if settings.episodic_life else step.terminated
            rewards = clip_rewards(step.rewards, settings.reward_clip)
            with self._timed("push_s"):
                self.transitions.step(observations, outputs, actions, rewards, terminated, step.truncated, step.ignored)
            observations = step.observations

            acted = settings.envs_per_actor - int(step.ignored.sum())
            progress.steps += acted
            progress.frames += acted * self.spec.frames_per_step
            for _, score in scores.add(step):
                progress.episodes += 1
                self.recent_scores.append(score)
            if self.transitions.waiting >= settings.push_every:
                with self._timed("push_s"):
                    self._patiently(self._push)
            if time.monotonic() >= report_at:
                report_at = time.monotonic() + PROGRESS_EVERY_S
                self._report()

    @contextlib.contextmanager
    def _timed(self, field: str) -> Iterator[None]:
        """Adds the seconds that pass to a field of the progress."""
        begin = time.perf_counter()
        yield
        setattr(self.progress, field, getattr(self.progress, field) + time.perf_counter() - begin)

    def _outputs(self, observations: Observations) -> np.ndarray:
        """One batched forward pass for all environments: float32 (E, …)."""
        with torch.inference_mode():
            return self.network(map_tree(torch.from_numpy, observations)).numpy()

    def _pull(self) -> None:
        fetched = self.client.call(lambda client: client.fetch_weights(self.settings.table, newer_than=self.version))
        if fetched is not None:
            self.version, arrays = fetched
            load_arrays(self.network, arrays)
            self.progress.version = self.version

    def _push(self) -> None:
        """Waits for the answer: on two cores an actor whose writer sent in a thread played no faster."""
        self.progress.transitions += len(self.writer.flush(timeout=PUSH_WAIT_S))

    def _patiently(self, write: Callable[[], None]) -> bool:
        """Repeats what the rate limiter holds back as long as it takes; False where it was given up, after `stop`."""
        while True:
            began = time.monotonic()
            try:
                self.client.call(lambda _: write())
                return True
            except rs.Timeout:
                self.progress.blocked_s += time.monotonic() - began
                self._report()
                if self.stop():
                    return False

    def _epsilons(self) -> np.ndarray:
        settings = self.settings
        return actor_epsilons(
            self.actor_id, settings.actors, settings.envs_per_actor, settings.epsilon_base, settings.epsilon_exponent
        )

    def _go_on_as(self, actor_id: int) -> None:
        """Another actor has this one's id: it goes on with a new one, as which it has played nothing yet."""
        print(f"actor {self.actor_id} was taken for dead, and another has its id: it is {actor_id} now", flush=True)
        self.actor_id = actor_id
        self.epsilons = self._epsilons()
        self.client.call(lambda client: incarnation(client, self.settings.table, actor_id))
        vars(self.progress).update(vars(ActorProgress(version=self.progress.version, started_at=time.time())))

    def _report(self) -> None:
        if self.lease is not None and (actor_id := self.lease.number) != self.actor_id:
            self._go_on_as(actor_id)
        progress = self.progress
        progress.updated_at = time.time()
        progress.steps_per_s = progress.steps / max(progress.updated_at - progress.started_at, 1e-3)
        progress.score_mean = float(np.mean(self.recent_scores)) if self.recent_scores else 0.0
        key = f"{self.settings.table}:actor:{self.actor_id}"
        self.client.call(lambda client: client.redis.hset(key, mapping=progress.as_fields()))
        if self.on_progress is not None:
            self.on_progress(progress)

    def _finish(self) -> None:
        """Sends the rest and the last numbers, unless the server has gone already."""
        with contextlib.suppress(rs.ReplayError):
            self._patiently(self._push)
            self._report()

    def _on_connect(self, client: rs.Client) -> None:
        join(client, self.settings, self.spec)
        # A restarted server may count versions anew.
        self.version = None
