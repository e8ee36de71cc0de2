"""A serverless training job: functions in rounds, from the first policy to the end that the settings say.

    scaler → how many actors → round (`synchronous`, `asynchronous`) → record → evaluation now and then → checkpoint

The orchestrator holds no experience and no network: these are on the replay server, by the job's name
(`replay_server.rl.function_contract.Names`), and several jobs share one. What it knows is where each actor stands,
which version is the newest, and what everything has cost.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import redis.exceptions

import replay_server as rs
from replay_server.cluster_address import is_cluster_url
from replay_server.learner.algorithms import Settings
from replay_server.learner.checkpoint import checkpoint_to_resume
from replay_server.learner.circular_buffer import CircularBufferSettings
from replay_server.learner.published_state import StateError, initialise, save_checkpoint
from replay_server.rl.environment_spec import FRAME_SKIP, is_atari
from replay_server.rl.fragments import fragment_signature
from replay_server.rl.function_contract import Names
from replay_server.rl.policy_spec import PolicySpec, policy_spec
from replay_server.rl.run_directory import RunDirectory, write_json
from replay_server.serverless.asynchronous import AsynchronousRounds
from replay_server.serverless.backends.backend import Backend, Invocation, Platform, make_platform
from replay_server.serverless.cost import Bill
from replay_server.serverless.job_name_claim import REFUSALS, JobInUse, JobNameClaim
from replay_server.serverless.prices import load_prices
from replay_server.serverless.record import RoundRecord
from replay_server.serverless.requests import ActorPlace, Requests
from replay_server.serverless.rounds import Job, Played, Rounds, TrainingFailed, answer, told
from replay_server.serverless.run_log import RunLog
from replay_server.serverless.running_functions import RunningFunctions
from replay_server.serverless.scalers.scaler import Scaler
from replay_server.serverless.settings import (
    TrainSettings,
    algorithm_settings,
    json_options,
    learning_settings,
    make_scaler,
)
from replay_server.serverless.synchronous import SynchronousRounds
from replay_server.topology import Topology

SCORE_ROUNDS = 5
"""Rounds whose games are taken together to see whether the target is reached, where nothing is evaluated."""
ROUNDS_KEPT = 3
"""Rounds of fragments that an on-policy table has room for: what attempts left behind that never answered."""
EVALUATION_SEED = 0xE7A1
"""Mixed into the seed of evaluations, with the round: no two play the same games."""
TABLE_FRAGMENTS = 64
"""Room that a table has at least."""
LOST = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.RedisClusterException,
)
"""What redis-py raises where a server is away."""

Clock = Callable[[RoundRecord, Sequence[Invocation]], RoundRecord]


@dataclass
class Progress:
    """How far a job is; what a live view shows."""

    round: int = 0
    rounds: int = 0
    version: int = 0
    total_steps: int = 0
    elapsed_s: float = 0.0
    """Of all rounds, in all sessions; evaluations are not in it."""
    cost: float = 0.0
    attempts_lost: int = 0
    record: RoundRecord | None = None
    evaluation: dict[str, Any] | None = None


class Orchestrator:
    """One job. `run` plays it to its end and leaves nothing running.

    Args:
        platform: where functions run; None = the one that the settings name, made and ended with the job.
        scaler: None = the one that the settings name; else one that asks for up to `actors_max` actors.
        make_backend: makes the backend over the platform, called as `Backend` is.
        clock: is given each round's record and its invocations, and returns the record that counts: with times and
            costs as they would be elsewhere (`replay_server.serverless.job_clock`). None = as they really were.
        on_progress: is given how far the job is, after each round and evaluation.
        on_message: is given a sentence when something happens.
    """

    def __init__(
        self,
        settings: TrainSettings,
        run_directory: RunDirectory,
        *,
        platform: Platform | None = None,
        scaler: Scaler | None = None,
        make_backend: Callable[..., Backend] = Backend,
        clock: Clock | None = None,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        on_message: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.settings = settings
        self.run_directory = run_directory
        self.algorithm: Settings = algorithm_settings(settings)
        self.scaler = make_scaler(settings) if scaler is None else scaler
        self.most_actors = settings.most_actors if scaler is None else settings.actors_max
        self.bill = make_bill(settings)
        # A colon ends a job's name in its keys: with one in it, it would be among another job's (module:Env-v0).
        made_up = f"{re.sub('[^A-Za-z0-9._-]', '-', settings.env)}-{settings.seed}-{uuid.uuid4().hex[:8]}"
        shards = settings.replay_shards > 1 or is_cluster_url(settings.server)
        self.names = Names(settings.job or made_up, uuid.uuid4().hex, shards)
        self.progress = Progress(rounds=settings.rounds)
        self.ended_by = ""
        self.final: dict[str, Any] | None = None
        """The last evaluation."""
        self._scaler_state: dict[str, Any] = {}
        """The scaler's after the last whole round: one that is cut off is decided on again by whoever resumes."""
        self._platform = platform
        self._make_backend = make_backend
        self._clock = clock
        self._on_progress = on_progress
        self._message = on_message
        self._server: rs.Server | None = None
        self._cluster: rs.Cluster | None = None
        self._claim: JobNameClaim | None = None
        self._session_steps = 0
        self._session_updates = 0
        self._session_s = 0.0

    def run(self) -> str:
        """Plays rounds until one of the settings' ends is met, and returns its name: rounds, target_score, budget.

        However it ends, the newest state of the learner is saved, if it can be had, and a summary written.

        Raises:
            TrainingFailed: functions failed for good.
            rs.ConnectionLost: the server is gone.
            JobInUse: a job of that name lives on the server, or has come to while this one was stopped.
            KeyboardInterrupt: as it came.
        """
        checkpoint = checkpoint_to_resume(self.run_directory.checkpoints) if self.settings.resume else None
        earlier = _counters(checkpoint)
        log = RunLog(self.run_directory.path, self.bill, after=int(earlier.get("round", 0)))
        try:
            with contextlib.ExitStack() as stack:
                self._run(stack, log, checkpoint, earlier)
        except KeyboardInterrupt:
            self.ended_by = "interrupted"
            raise
        except rs.ConnectionLost:
            self.ended_by = "server lost"
            raise
        except LOST as error:
            self.ended_by = "server lost"
            raise rs.ConnectionLost(str(error)) from error
        except BaseException:
            self.ended_by = "failure"
            raise
        finally:
            self._write_summary(log)
            log.close()
        return self.ended_by

    # -- parts

    def _run(self, stack: contextlib.ExitStack, log: RunLog, checkpoint: Path | None, earlier: dict[str, Any]) -> None:
        settings = self.settings
        spec = policy_spec(self.algorithm)
        url = self._open_server(stack)
        self.run_directory.write_job("train", url)
        client = stack.enter_context(rs.Client(url, connect_timeout=2.0, socket_timeout=30.0, reconnect_timeout=2.0))
        shards = _shards(client) if self.names.shards else 1
        self._claim = stack.enter_context(JobNameClaim(client, self.names, settings.keep))
        client.create_table(self._table(spec, shards))
        version = initialise(self.algorithm, spec, client, self.names, checkpoint)
        requests = Requests(
            self.names, settings.function_server or url, settings.algo, dataclasses.asdict(self.algorithm),
            settings.environments,
        )  # fmt: skip
        platform = self._platform or make_platform(settings.backend, **json_options(settings.backend_option))
        backend = self._make_backend(
            platform,
            concurrency=settings.concurrency or self.most_actors + self._learner_functions(),
            timeout_s=settings.timeout_s,
            retries=settings.retries,
            on_invocation=log.add,
        )
        stack.enter_context(RunningFunctions(self.run_directory.path, backend.unfinished))
        places = {int(actor): ActorPlace(int(sequence)) for actor, sequence in earlier.get("sequences", ())}
        job = Job(
            settings, self.algorithm, requests, client, backend, self._check_server, places, self.scaler.probes
        )  # fmt: skip
        self._take_up(log, earlier, version)
        rounds = self._rounds(job)
        # From here on whatever ends the job ends its functions first, then saves what they learned.
        stack.callback(self._save, job, log)
        stack.callback(backend.close)
        if settings.prewarm:
            self._message(f"warming {settings.prewarm} function instances")
            backend.prewarm(settings.prewarm)
        self._play(rounds, job, log)
        self._evaluate_finally(job, log)
        backend.close()
        rounds.close()

    def _open_server(self, stack: contextlib.ExitStack) -> str:
        if self.settings.server is not None:
            return self.settings.server
        if self.settings.replay_shards > 1:
            self._cluster = stack.enter_context(rs.Cluster(shards=self.settings.replay_shards, pin=False))
            self._message(f"shards {self._cluster.url} (processes {', '.join(map(str, self._cluster.pids))})")
            return self._cluster.url
        # TCP: a function shares no file system with anyone here.
        self._server = stack.enter_context(rs.Server([], host="127.0.0.1", port=0))
        self._message(f"server {self._server.url} (process {self._server.pid})")
        return self._server.url

    def _table(self, spec: PolicySpec, shards: int) -> rs.Table:
        """On-policy: fragments are learned from by id. Off-policy: the circular buffer. Adding never waits."""
        batch = self.most_actors * self.settings.environments
        kept, passes = ROUNDS_KEPT, 0
        if self.settings.learners == "async":  # By id, whatever the algorithm.
            kept += learning_settings(self.settings).actors_ahead
        elif isinstance(self.algorithm, CircularBufferSettings):
            kept, passes = self.algorithm.buffer_batches + 2, self.algorithm.passes
        return rs.Table(
            self.names.fragments,
            # A function adds to one shard, and all of a round may have chosen the same.
            capacity=max(TABLE_FRAGMENTS, kept * batch) * shards,
            signature=fragment_signature(self.algorithm, spec),
            sampler=rs.Fifo(),
            remover=rs.Fifo(),
            rate_limiter=rs.MinSize(1),
            max_times_sampled=passes,
            seed=self.settings.seed,
        )

    def _learner_functions(self) -> int:
        """That run at a time, beside the actors; a parameter function is one."""
        return learning_settings(self.settings).learners + 1 if self.settings.learners == "async" else 1

    def _rounds(self, job: Job) -> Rounds:
        if self.settings.learners == "async":
            # With its learner comes torch, which no other kind of round needs.
            from replay_server.serverless.asynchronous_learners import AsynchronousLearnerRounds

            return AsynchronousLearnerRounds(job, learning_settings(self.settings))
        if isinstance(self.algorithm, CircularBufferSettings):
            return AsynchronousRounds(job, self.algorithm.buffer_batches, self.algorithm.passes)
        return SynchronousRounds(job)

    def _check_server(self) -> None:
        if self._claim is not None:
            self._claim.check()
        if self._server is not None and not self._server.running:
            words = self._server.log().strip().splitlines()
            raise rs.ConnectionLost(
                f"its process ended with status {self._server.returncode}: {words[-1] if words else 'it said nothing'}"
            )
        if self._cluster is not None and (self._cluster.restarts or not self._cluster.running):
            raise rs.ConnectionLost("the process of a shard ended, and what it held is lost")

    def _take_up(self, log: RunLog, earlier: dict[str, Any], version: int) -> None:
        """Goes on from what an earlier session left."""
        progress = self.progress
        progress.version = version
        progress.round = int(earlier.get("round", 0))
        progress.total_steps = int(earlier.get("total_steps", 0))
        progress.elapsed_s = sum(record.round_s for record in log.rounds)
        progress.record = log.rounds[-1] if log.rounds else None
        progress.cost, progress.attempts_lost = log.bill.dollars, log.attempts_lost
        if self._clock is not None and progress.record is not None:
            progress.cost = progress.record.cost
        if "scaler" in earlier:
            self.scaler.restore(earlier["scaler"])
        self._scaler_state = copy.deepcopy(dict(self.scaler.state()))
        if progress.round:
            self._message(f"going on after round {progress.round}, version {version}; actors begin new episodes")

    # -- rounds

    def _play(self, rounds: Rounds, job: Job, log: RunLog) -> None:
        settings, progress = self.settings, self.progress
        while not self._met(log):
            self._check_server()
            number = progress.round + 1
            actors = max(1, min(self.scaler.actors(progress.record), self.most_actors))
            played = rounds.play(number, actors, progress.version)
            record = self._record(played, number, actors, log)
            if self._clock is not None:
                record = self._clock(record, list(log.recent))
            log.add_round(record)
            self._session_updates += played.version - progress.version
            progress.round, progress.version, progress.record = number, played.version, record
            self._scaler_state = copy.deepcopy(dict(self.scaler.state()))
            progress.total_steps = record.total_steps
            progress.elapsed_s += record.round_s
            progress.cost, progress.attempts_lost = record.cost, log.attempts_lost
            self._session_steps += played.steps
            self._session_s += played.round_s
            if settings.eval_every and number % settings.eval_every == 0:
                self._evaluate(job, log, settings.eval_episodes)
            if number % settings.checkpoint_every == 0:
                self._save(job, log)
            self._on_progress(progress)

    def _record(self, played: Played, number: int, actors: int, log: RunLog) -> RoundRecord:
        return RoundRecord(
            round=number,
            version=played.version,
            actors=actors,
            arrived=played.arrived,
            environments=self.settings.environments,
            steps=played.steps,
            total_steps=self.progress.total_steps + played.steps,
            scores=played.scores,
            statistics=played.statistics,
            round_s=played.round_s,
            learner_s=played.learner_s,
            actor_s_mean=float(np.mean(played.actor_s)) if played.actor_s else 0.0,
            actor_s_max=max(played.actor_s, default=0.0),
            cost=log.bill.dollars,
            phases=played.phases,
        )

    def _met(self, log: RunLog) -> bool:
        """Whether an end is met; `ended_by` is then its name."""
        settings = self.settings
        if settings.target_score is not None and self._score(log) >= settings.target_score:
            self.ended_by = "target_score"
        elif settings.budget is not None and self.progress.cost >= settings.budget:
            self.ended_by = "budget"
        elif self.progress.round >= settings.rounds:
            self.ended_by = "rounds"
        return bool(self.ended_by)

    def _score(self, log: RunLog) -> float:
        """What the target is held against; −∞ where there is nothing yet."""
        if self.settings.eval_every:
            return float(log.evaluations[-1]["score_mean"]) if log.evaluations else float("-inf")
        scores = [score for record in log.rounds[-SCORE_ROUNDS:] for score in record.scores]
        return float(np.mean(scores)) if scores and len(log.rounds) >= SCORE_ROUNDS else float("-inf")

    def _evaluate(self, job: Job, log: RunLog, episodes: int, final: bool = False) -> dict[str, Any]:
        """Plays fresh games with the newest policy, in one function."""
        progress = self.progress
        name = f"r{progress.round}-{'final-' if final else ''}evaluation-{progress.version}"
        seeds = np.random.SeedSequence([self.settings.seed, EVALUATION_SEED, progress.round, int(final)])
        payload = job.requests.evaluation(
            name, progress.round, progress.version, episodes, int(seeds.generate_state(1)[0])
        )
        future = job.backend.submit(payload, timeout_s=self.settings.learner_timeout_s)
        job.await_some([future])
        response, error = answer(future)
        if response is None or response.result is None:
            if error is not None:
                job.check_reachable(error)
            raise TrainingFailed(f"the evaluation failed: {told(error) if error is not None else 'no result'}")
        scores = [float(score) for score in response.result["scores"]]
        row = {
            "round": progress.round, "version": progress.version, "final": final, "episodes": len(scores),
            "score_mean": float(np.mean(scores)), "score_std": float(np.std(scores)), "scores": scores,
        }  # fmt: skip
        log.add_evaluation(row)
        progress.evaluation = row
        self._message(
            f"evaluation after round {progress.round}: {row['score_mean']:.1f} ± {row['score_std']:.1f} over "
            f"{len(scores)} games"
        )
        return row

    def _evaluate_finally(self, job: Job, log: RunLog) -> None:
        if self.settings.final_episodes and self.progress.round:
            self.final = self._evaluate(job, log, self.settings.final_episodes, final=True)
            self._on_progress(self.progress)

    # -- what stays

    def _save(self, job: Job, log: RunLog) -> None:
        """Writes the learner's newest state to checkpoints/step_N, with where the job stands."""
        more = {
            "round": self.progress.round,
            "total_steps": self.progress.total_steps,
            "scaler": self._scaler_state,
            "sequences": [[actor, place.sequence] for actor, place in sorted(job.places.items())],
        }
        try:
            if self._claim is not None:  # Else it would be another job's state that is saved here.
                self._claim.renew()
                self._claim.check()
            save_checkpoint(self.algorithm, job.client, self.names, self.run_directory.checkpoints, more)
        except (*REFUSALS, StateError, JobInUse) as error:
            self._message(f"no checkpoint could be written: {error}")

    def _write_summary(self, log: RunLog) -> None:
        settings, progress, final = self.settings, self.progress, self.final
        frames_per_step = FRAME_SKIP if is_atari(settings.env) else 1
        seconds = max(self._session_s, 1e-9)
        summary = {
            "env": settings.env,
            "seed": settings.seed,
            "algorithm": settings.algo,
            "profile": settings.profile,
            "sticky_actions": self.algorithm.sticky_actions,
            "backend": settings.backend,
            "scaler": settings.scaler,
            "job": self.names.job,
            "ended_by": self.ended_by or "failure",
            "rounds": progress.round,
            "version": progress.version,
            "steps": progress.total_steps,
            "frames": progress.total_steps * frames_per_step,
            "updates": progress.version,
            "elapsed_s": progress.elapsed_s,
            "frames_per_s": self._session_steps * frames_per_step / seconds if self._session_s else 0.0,
            "updates_per_s": self._session_updates / seconds if self._session_s else 0.0,
            "restarts": log.attempts_lost,
            "cost": log.bill.dollars,
            "bill": log.bill.summary(),
            "eval_episodes": final["episodes"] if final else 0,
            "eval_mean": final["score_mean"] if final else None,
            "eval_std": final["score_std"] if final else None,
            "evaluations": log.evaluations,
        }
        write_json(self.run_directory.summary, summary)


def _shards(client: rs.Client) -> int:
    """How many shards there are. ReplayError where the servers have no topology, by which redis-py finds keys."""
    try:
        shards = Topology.from_json(client.command("CLUSTER", "TOPOLOGY", repeatable=True)).shards
    except rs.ServerError as error:
        if "cluster support disabled" not in str(error):
            raise
        shards = ()
    if not shards:
        raise rs.ReplayError(
            "expected shards with a topology, got servers without one: start them with `replay-server cluster start`"
        )
    return len(shards)


def make_bill(settings: TrainSettings) -> Bill:
    """The bill that the settings ask for. PriceError, ValueError where there is no such profile or column."""
    prices = load_prices(settings.prices)
    profile = prices.profile(settings.price_profile)
    provisioned = settings.most_actors if profile.actor == "provisioned" else 0
    return Bill(prices, settings.price_profile, settings.price_column, provisioned)


def _counters(checkpoint: Path | None) -> dict[str, Any]:
    """What stands in a checkpoint beside its tensors."""
    return json.loads((checkpoint / "counters.json").read_text()) if checkpoint is not None else {}
