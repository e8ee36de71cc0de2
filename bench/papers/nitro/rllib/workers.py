"""A cell of RLlib with its own rollout workers: RLlib as it comes, beside RLlib with actor functions.

Everything is RLlib's, in its own process; this project gives the first weights, the same as on the other side, and
plays the evaluations: the same games as there, with RLlib's weights and moments in its own network. Times and dollars
are simulated on machines that are always there (`replay_server.bench.papers.nitro.cell.reserved_clock`), since nothing
of it is a function. One worker plays all environments side by side: its processor time, shared out evenly over the
actors, is less than so many workers' with one environment each.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from replay_server.actors.fragments import evaluate_policy
from replay_server.bench.load import ONE_THREAD
from replay_server.bench.papers.nitro.cell import Cell, CellName, JobSettings, reserved_clock, train_settings
from replay_server.bench.papers.nitro.rllib.learner import (
    ENVIRONMENT,
    PROGRAMS,
    TOLD,
    check_rllib,
    rllib_name,
    rllib_parameters,
    told_statistics,
)
from replay_server.bench.process import Program
from replay_server.learner.ppo import PpoSettings
from replay_server.rl.moments import Moments
from replay_server.rl.policy_networks import ActorCritic, make_policy_network
from replay_server.rl.policy_spec import policy_spec
from replay_server.serverless.orchestrator import EVALUATION_SEED
from replay_server.serverless.settings import algorithm_settings


def run_workers_cell(name: CellName, job: JobSettings, on_round: Callable[[int], None] = lambda number: None) -> Cell:
    """Trains, evaluates and clocks one cell with `job.actors` environments.

    RuntimeError where RLlib is not there or fails, ValueError for what it cannot learn.
    """
    began = time.monotonic()
    settings = algorithm_settings(train_settings(name, job, ""))
    spec = policy_spec(settings)
    check_rllib(settings, spec)
    assert isinstance(settings, PpoSettings)
    network = make_policy_network(settings, spec)
    clock = reserved_clock(job.actors, job.price_column)
    rounds: list[dict[str, Any]] = []
    evaluations: list[tuple[int, float]] = []

    def evaluate(number: int, episodes: int, final: bool) -> list[float]:
        seeds = np.random.SeedSequence([name.seed, EVALUATION_SEED, number, int(final)])
        return evaluate_policy(network, settings, spec, episodes, int(seeds.generate_state(1)[0]))

    with tempfile.TemporaryDirectory(prefix="replay-rllib-") as folder:
        given, found = str(Path(folder) / "given.npz"), str(Path(folder) / "found.npz")
        first: dict[str, Any] = {**rllib_parameters(network), "kl_coefficient": np.array(settings.kl_coefficient)}
        np.savez(given, **first)
        with Program("rllib_workers", ENVIRONMENT, ONE_THREAD, PROGRAMS) as program:
            told = {each: getattr(settings, each) for each in (*TOLD, "normalize_observations")}
            program.ask(
                "role", role="learner", env=name.env, actors=job.actors, steps=job.steps, seed=name.seed,
                settings=told, given=given,
            )  # fmt: skip
            for number in range(1, job.rounds + 1):
                rounds.append(program.ask("call", found=found))
                clock.play([rounds[-1]["acting_cpu_s"] / job.actors] * job.actors, rounds[-1]["learning_cpu_s"])
                _take(network, found)
                if job.eval_every and number % job.eval_every == 0:
                    evaluations.append((number, float(np.mean(evaluate(number, job.eval_episodes, False)))))
                on_round(number)
    final = evaluate(job.rounds, job.final_episodes, True)
    return Cell(
        env=name.env,
        scheme=name.scheme.trained_name,
        seed=name.seed,
        counts=(job.actors,) * job.rounds,
        steps=tuple(int(steps) for steps in np.cumsum([each["steps"] for each in rounds])),
        scores=tuple(float(np.mean(each["scores"])) if each["scores"] else None for each in rounds),
        round_s=tuple(each.duration_s for each in clock.rounds),
        learner_s=tuple(each.learner_s for each in clock.rounds),
        cost=tuple(each.cost for each in clock.rounds),
        evaluations=tuple(evaluations),
        final=float(np.mean(final)),
        final_scores=tuple(final),
        statistics=tuple(dict(told_statistics(each["results"])) for each in rounds),
        actor_cpu_s=tuple(each.actor_cpu_s for each in clock.rounds),
        learner_cpu_s=tuple(each.learner_cpu_s for each in clock.rounds),
        scaler_state={},
        wall_s=time.monotonic() - began,
    )


def _take(network: ActorCritic, found: str) -> None:
    """RLlib's weights and its worker's moments, into this project's network."""
    with np.load(found, allow_pickle=False) as file:
        arrays = dict(file)
    with torch.no_grad():
        for each, parameter in network.named_parameters():
            parameter.copy_(torch.from_numpy(arrays[f"parameter.{rllib_name(each)}"]))
    if network.normalizes:
        count, mean, squares = (arrays[f"moments.{each}"] for each in ("count", "mean", "squared_deviations"))
        network.set_moments(Moments(float(count), mean.astype(np.float64), squares.astype(np.float64)))
