"""The evaluator of a job, and the final evaluation of the network it kept."""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from replay_server.actors.evaluator import Evaluation, evaluate, run_evaluator
from replay_server.actors.rollout import Stop
from replay_server.jobs.fork_server import asked
from replay_server.learner.checkpoint import checkpoint_fault, newest_checkpoint, read_network, write_best
from replay_server.rl.environment_spec import environment_spec
from replay_server.rl.networks import make_network
from replay_server.rl.run_directory import BEST
from replay_server.rl.settings import ApexSettings

FINAL_SEED = 0xF1A1
"""Mixed into the seed of the final evaluation: its games are none that an evaluation during the run has played."""


def run_evaluations(
    settings: ApexSettings, server_url: str, run_directory: Path, stop: threading.Event, *, patience_s: float = 30.0
) -> None:
    """Evaluates until `stop` as `run_evaluator` does, and keeps the best network so far in checkpoints/best.

    Best is the highest mean; of equal means the later, which has learned from more.
    """
    folder = run_directory / "checkpoints"
    best = _best_mean(folder)

    def keep(result: Evaluation, network: nn.Module) -> None:
        nonlocal best
        if result.score_mean >= best:
            best = result.score_mean
            write_best(folder, network.state_dict(), {"step": result.version, **asdict(result)})

    run_evaluator(settings, server_url, stop, keep, patience_s=patience_s)


def final_evaluation(settings: ApexSettings, run_directory: Path, stop: Stop = lambda: False) -> dict[str, Any] | None:
    """Plays `settings.final_episodes` fresh games with the best network, or the newest checkpoint if none was judged.

    Returns the keys of summary.json: checkpoint, checkpoint_step, eval_episodes, eval_mean, eval_std, eval_scores; None
    if there is no network to play with, or `stop` came first.
    """
    folder = run_directory / "checkpoints"
    path = _best(folder) or newest_checkpoint(folder, _say)
    if path is None or settings.final_episodes < 1:
        return None
    torch.set_num_threads(1)
    network = make_network(settings, environment_spec(settings)).eval()
    counters = read_network(path, network)
    seed = int(np.random.SeedSequence([settings.seed, FINAL_SEED]).generate_state(1)[0])
    scores = evaluate(network, settings, settings.final_episodes, seed, stop=stop)
    if not scores:
        return None
    return {
        "checkpoint": str(path.relative_to(run_directory)),
        "checkpoint_step": int(counters["step"]),
        "eval_episodes": len(scores),
        "eval_mean": float(np.mean(scores)),
        "eval_std": float(np.std(scores)),
        "eval_scores": scores,
    }


def main() -> int:
    """Answers a job's process, which loads no torch, with what `final_evaluation` returns."""
    question = asked()
    print(json.dumps(final_evaluation(ApexSettings(**question["settings"]), Path(question["run_directory"]))))
    return 0


def _best_mean(folder: Path) -> float:
    path = _best(folder)
    return float("-inf") if path is None else float(json.loads((path / "counters.json").read_text())["score_mean"])


def _best(folder: Path) -> Path | None:
    """The best folder, where there is one that is not damaged."""
    path = folder / BEST
    if not path.exists():
        return None
    if fault := checkpoint_fault(path, ["network"]):
        _say(f"{path} is passed over: {fault}")
        return None
    return path


def _say(text: str) -> None:
    """Into the log: standard output may be an answer (`main`)."""
    print(text, file=sys.stderr, flush=True)
