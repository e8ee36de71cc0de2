"""``replay-server bench learning``: what PPO and IMPACT learn, beside Stable-Baselines3 on the same jobs.

Every seed trains each side on as many steps: environments × steps × rounds. The final score is the mean of fresh games
played by the stochastic policy. With ``--against stable_baselines3`` PPO gets the settings that both can have
(`EQUAL`); what still differs is that Stable-Baselines3 updates its observation statistics at every step, from the first
one on, and this project once a round; and random numbers. Both sides run at the same time, one core each: only
processor times are told.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from replay_server.bench import result
from replay_server.bench.environments import set_up
from replay_server.bench.load import ONE_THREAD
from replay_server.bench.process import Program
from replay_server.bench.training import ALGORITHMS, Trained, make_settings, train

PEER = "stable_baselines3"
EQUAL: dict[str, Any] = {
    "discount": 0.99,
    "gae_lambda": 0.95,
    "clip": 0.2,
    "kl_coefficient": 0.0,
    "entropy_coefficient": 0.0,
    "value_coefficient": 0.5,
    "value_clip": None,
    "standardize_advantages": "minibatch",
    "learning_rate": 3e-4,
    "adam_epsilon": 1e-5,
    "gradient_norm": 0.5,
    "iterations": 10,
    "minibatch_size": 256,
    "normalize_observations": True,
    "observation_clip": 10.0,
    "hidden": 256,
    "initial_log_std": 0.0,
}
"""Both sides of a comparison: Stable-Baselines3's defaults but for its minibatch of 64 and its 2×64 units."""


def paired_difference(
    ours: Sequence[float], theirs: Sequence[float], resamples: int = 10_000, seed: int = 1
) -> dict[str, float]:
    """Mean of ours − theirs over paired seeds with its 95 % percentile bootstrap interval, and theirs' mean.

    `low_over_theirs` is the lower bound as a share of their mean.
    """
    differences = np.asarray(ours, np.float64) - np.asarray(theirs, np.float64)
    rows = np.random.default_rng(seed).integers(0, len(differences), (resamples, len(differences)))
    low, high = np.quantile(differences[rows].mean(axis=1), [0.025, 0.975])
    mean = float(np.mean(theirs))
    return {
        "mean": float(differences.mean()),
        "low": float(low),
        "high": float(high),
        "theirs": mean,
        "low_over_theirs": float(low / abs(mean)) if mean else float("nan"),
    }


def one_seed(options: argparse.Namespace, env: str, seed: int, given: dict[str, Any], say: Callable[[str], None]):
    """→ (measured, ours' curve, theirs' curve or None)."""
    settings = make_settings(options.algorithm, options.profile, env=env, steps=options.steps, seed=seed, **given)

    def tell(row: dict[str, float]) -> None:
        if options.verbose:
            say("  " + " ".join(f"{name}={value:.4g}" for name, value in row.items()))

    def ours() -> Trained:
        return train(settings, options.environments, options.rounds, options.episodes, tell)

    measured: dict[str, float] = {}
    their_curve = None
    if options.against:
        with Program("stable_baselines3_ppo", PEER, ONE_THREAD) as program:
            program.send(
                "train",
                env=env,
                seed=seed,
                environments=options.environments,
                steps=options.steps,
                rounds=options.rounds,
                episodes=options.episodes,
                settings={name: getattr(settings, name) for name in EQUAL},
            )
            trained = ours()
            theirs = program.receive()
        their_curve = theirs["curve"]
        measured |= {
            f"{env}.{PEER}.score": float(np.mean(theirs["scores"])),
            f"{env}.{PEER}.score_std": float(np.std(theirs["scores"])),
            f"{env}.{PEER}.cpu_s": theirs["cpu_s"],
        }
    else:
        trained = ours()
    measured |= {
        f"{env}.replay.score": float(np.mean(trained.scores)),
        f"{env}.replay.score_std": float(np.std(trained.scores)),
        f"{env}.replay.acting_cpu_s": trained.acting_cpu_s,
        f"{env}.replay.learning_cpu_s": trained.learning_cpu_s,
    }
    return measured, trained.curve, their_curve


def _given(words: Sequence[str]) -> dict[str, Any]:
    """name=value words as settings; values are Python literals, or else strings."""
    given = {}
    for word in words:
        name, _, text = word.partition("=")
        try:
            given[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            given[name] = text
    return given


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "replay-server bench learning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--algorithm", choices=sorted(ALGORITHMS), default="ppo")
    parser.add_argument("--env", nargs="+", default=["Hopper-v5"], help="gymnasium ids (Hopper-v5)")
    parser.add_argument("--profile", default="default", help="of the algorithm's settings (default)")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings that win over the profile")
    parser.add_argument("--environments", type=int, default=16, help="side by side (16)")
    parser.add_argument("--steps", type=int, default=256, help="of each environment in a round (256)")
    parser.add_argument("--rounds", type=int, default=50, help="of acting and learning (50)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="one run each (1 2 3 4 5)")
    parser.add_argument("--episodes", type=int, default=20, help="fresh games at the end (20)")
    parser.add_argument("--against", choices=[PEER], help="train this one, too, with the same settings on both sides")
    parser.add_argument("--setup", action="store_true", help="make the environment of --against if it is missing")
    parser.add_argument("--pip-options", default="", help="further options of pip with --setup, as one word")
    parser.add_argument("--verbose", action="store_true", help="a line a round")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--plot", metavar="FILE.png", help="score in training against steps")
    return parser


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    options = _parser().parse_args(argv)
    given = _given(options.set)
    if options.against:
        if options.algorithm != "ppo":
            raise RuntimeError(f"{PEER} has no {options.algorithm}: leave out --against, or use --algorithm ppo")
        given = {**EQUAL, **given}
        if options.setup:
            set_up(PEER, options.pip_options.split(), say)
    torch.set_num_threads(1)
    host = result.machine()
    host["packages"] |= {name: version(name) for name in ("torch", "gymnasium", "mujoco")}
    rounds: list[dict[str, float]] = [{} for _ in options.seeds]
    curves: dict[str, Any] = {}
    for measured, seed in zip(rounds, options.seeds, strict=True):
        for env in options.env:
            found, ours, theirs = one_seed(options, env, seed, given, say)
            measured |= found
            curves[f"{env}.replay.seed={seed}"] = ours
            if theirs is not None:
                curves[f"{env}.{PEER}.seed={seed}"] = theirs
            say(f"seed {seed} {env}: " + ", ".join(f"{k}={v:.1f}" for k, v in found.items() if k.startswith(env)))
    settings = {**vars(options), "given": given}
    ratios = {f"{env}: ours / theirs": (f"{env}.replay.score", f"{env}.{PEER}.score") for env in options.env}
    command = " ".join(["replay-server bench learning", *argv])
    content = result.document("learning", command, host, settings, rounds, ratios)
    content["curves"] = curves
    if options.against:
        content["difference"] = {
            env: paired_difference(
                [measured[f"{env}.replay.score"] for measured in rounds],
                [measured[f"{env}.{PEER}.score"] for measured in rounds],
            )
            for env in options.env
        }
    result.tell(content, say, width=44)
    for env, found in content.get("difference", {}).items():
        interval = f"{found['low']:.0f} to {found['high']:.0f}"
        say(f"{env}: ours − theirs = {found['mean']:.0f} ({interval}); theirs {found['theirs']:.0f}")
    if options.json:
        result.write(options.json, content)
    if options.plot:
        from replay_server.bench.plot import plot_curves

        plot_curves({name: _points(curve) for name, curve in curves.items()}, options.plot)
    return 0


def _points(curve: list[dict[str, float]]) -> tuple[list[float], list[float]]:
    rows = [row for row in curve if "score" in row]
    return [row["steps"] for row in rows], [row["score"] for row in rows]
