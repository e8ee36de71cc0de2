"""`replay-server bench learning`: what PPO, IMPACT, IMPALA and Ape-X learn, beside other libraries on the same jobs.

Every seed trains each side on as many steps: environments × steps × rounds. The final score is the mean of fresh games
played by the stochastic policy. With `--against stable_baselines3` PPO gets the settings that both can have
(`EQUAL`); what still differs is that Stable-Baselines3 updates its observation statistics at every step, from the first
one on, and this project once a round; and random numbers. Both sides run at the same time, one core each: only
processor times are told.

`--against rllib` trains RLlib's APPO, which is IMPACT, beside this project's with the settings in `IMPACT_EQUAL`. It
differs by more: it normalises observations anew at every step, does not standardise advantages, takes V-trace's values
from the network that learns, makes its minibatches of whole fragments, and has another initialisation.

With `--against random` as many games are played by actions drawn uniformly, on environments with the same seeds; the
result then says how the 95 % bootstrap intervals of the two means lie to each other, seed by seed.

`--algorithm apex`, or `--against` with peers that play Atari games (cleanrl-dqn, cleanrl-rainbow, cleanrl-pqn, sb3-dqn,
tianshou-dqn; several with commas between them), is another comparison: a whole job of `replay-server apex` and each
peer, one after another, for as many `--minutes`; see `replay_server.bench.side_by_side`.

`--combine` trains nothing: it makes one result of files that runs with equal settings left, of other seeds or
environments.
"""

from __future__ import annotations

import argparse
import ast
import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from replay_server.actors.fragments import random_scores
from replay_server.arguments import Parser
from replay_server.bench import result, side_by_side
from replay_server.bench.environments import set_up
from replay_server.bench.load import ONE_THREAD
from replay_server.bench.process import Program
from replay_server.bench.training import Trained, train
from replay_server.learner.algorithms import ALGORITHMS, make_settings
from replay_server.rl.options import option_of
from replay_server.rl.policy_spec import policy_spec

PEER = "stable_baselines3"
IMPACT_PEER = "rllib"
RANDOM = "random"
APEX = "apex"
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
IMPACT_EQUAL = (
    "discount",
    "clip",
    "kl_coefficient",
    "kl_target",
    "entropy_coefficient",
    "value_coefficient",
    "learning_rate",
    "gradient_norm",
    "minibatch_size",
    "target_update_every",
    "buffer_batches",
    "passes",
    "normalize_observations",
    "hidden",
)
"""What RLlib is told of this project's settings."""


@dataclass(frozen=True)
class Peer:
    """Another library's learner."""

    algorithm: str
    program: str
    told: tuple[str, ...]
    """Settings that its program is given."""
    given: dict[str, Any]
    """Settings of both sides, unless --set says otherwise."""


PEERS = {
    PEER: Peer("ppo", "stable_baselines3_ppo", tuple(EQUAL), EQUAL),
    IMPACT_PEER: Peer("impact", "rllib_impact", IMPACT_EQUAL, {}),
}


def paired_difference(
    ours: Sequence[float], theirs: Sequence[float], resamples: int = 10_000, seed: int = 1
) -> dict[str, float]:
    """Mean of ours − theirs over paired seeds with its 95 % percentile bootstrap interval, and theirs' mean.

    `low_over_theirs` is the lower bound as a share of their mean.
    """
    differences = mean_interval(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64), resamples, seed)
    mean = float(np.mean(theirs))
    share = differences["low"] / abs(mean) if mean else float("nan")
    return {**differences, "theirs": mean, "low_over_theirs": share}


def mean_interval(values: Sequence[float] | np.ndarray, resamples: int = 10_000, seed: int = 1) -> dict[str, float]:
    """Mean of values with its 95 % percentile bootstrap interval."""
    array = np.asarray(values, np.float64)
    rows = np.random.default_rng(seed).integers(0, len(array), (resamples, len(array)))
    low, high = np.quantile(array[rows].mean(axis=1), [0.025, 0.975])
    return {"mean": float(array.mean()), "low": float(low), "high": float(high)}


def one_seed(options: argparse.Namespace, env: str, seed: int, given: dict[str, Any], say: Callable[[str], None]):
    """→ measured; curves and scores by side, the other side's where there is one."""
    settings = make_settings(options.algorithm, options.profile, env=env, steps=options.steps, seed=seed, **given)

    def tell(row: dict[str, float]) -> None:
        if options.verbose:
            say("  " + " ".join(f"{name}={value:.4g}" for name, value in row.items()))

    def ours() -> Trained:
        return train(settings, options.environments, options.rounds, options.episodes, tell)

    measured: dict[str, float] = {}
    curves: dict[str, Any] = {}
    scores: dict[str, list[float]] = {}
    if options.against in PEERS:
        peer = PEERS[options.against]
        with Program(peer.program, options.against, ONE_THREAD) as program:
            program.send(
                "train",
                env=env,
                seed=seed,
                environments=options.environments,
                steps=options.steps,
                rounds=options.rounds,
                episodes=options.episodes,
                settings={name: getattr(settings, name) for name in peer.told},
            )
            trained = ours()
            theirs = program.receive()
        curves[options.against], scores[options.against] = theirs["curve"], theirs["scores"]
        measured[f"{env}.{options.against}.cpu_s"] = theirs["cpu_s"]
    else:
        trained = ours()
    if options.against == RANDOM:
        scores[RANDOM] = random_scores(settings, policy_spec(settings), options.episodes, seed)
    curves["replay"], scores["replay"] = trained.curve, trained.scores
    for side, games in scores.items():
        measured[f"{env}.{side}.score"] = float(np.mean(games))
        measured[f"{env}.{side}.score_std"] = float(np.std(games))
    measured |= {
        f"{env}.replay.acting_cpu_s": trained.acting_cpu_s,
        f"{env}.replay.learning_cpu_s": trained.learning_cpu_s,
    }
    return measured, curves, scores


def given_settings(words: Sequence[str]) -> dict[str, Any]:
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
    parser = Parser(
        "replay-server bench learning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--algorithm", choices=[APEX, *sorted(ALGORITHMS)], help="(ppo)")
    parser.add_argument("--env", nargs="+", help=f"gymnasium ids (Hopper-v5; of apex {side_by_side.ENV})")
    parser.add_argument("--profile", default="default", help="of the algorithm's settings (default)")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings that win over the profile")
    parser.add_argument("--environments", type=int, default=16, help="side by side (16)")
    parser.add_argument("--steps", type=int, default=256, help="of each environment in a round (256)")
    parser.add_argument("--rounds", type=int, default=50, help="of acting and learning (50)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="one run each (1 2 3 4 5)")
    parser.add_argument("--episodes", type=int, default=20, help="fresh games at the end, or of a checkpoint (20)")
    others = ", ".join([*PEERS, RANDOM])
    parser.add_argument("--against", metavar="SIDE", help=f"{others}; or, with commas, {', '.join(side_by_side.PEERS)}")
    parser.add_argument("--setup", action="store_true", help="make the environment of --against if it is missing")
    parser.add_argument("--pip-options", default="", help="further options of pip with --setup, as one word")
    parser.add_argument("--verbose", action="store_true", help="a line a round")
    parser.add_argument("--combine", nargs="+", metavar="FILE", help="result files to make one of")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument(
        "--plot", metavar="FILE.png", help="score in training against steps; of apex, minutes and frames"
    )
    side_by_side.add_options(parser)
    return parser


def _resolve(options: argparse.Namespace) -> None:
    """What was not given follows from what was. Raises RuntimeError for a side that there is not."""
    against = (options.against or "").split(",") if options.against else []
    if options.algorithm is None:
        options.algorithm = APEX if against and against[0] in side_by_side.PEERS else "ppo"
    options.env = options.env or [side_by_side.ENV if options.algorithm == APEX else "Hopper-v5"]
    own = [name for name in side_by_side.DEFAULTS if name in vars(options)]
    if options.algorithm == APEX:
        options.against = against
        for name, default in side_by_side.DEFAULTS.items():
            setattr(options, name, getattr(options, name, default))
        if options.combine:
            raise RuntimeError("--combine: expected files of other algorithms; runs of apex gather in one --folder")
    elif own:
        raise RuntimeError(f"{option_of(own[0])}: expected --algorithm apex with it, got {options.algorithm}")
    elif options.against not in (None, *PEERS, RANDOM):
        expected = ", ".join([*PEERS, RANDOM, *side_by_side.PEERS])
        raise RuntimeError(f"--against: expected {expected}, got {options.against!r}")


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    options = _parser().parse_args(argv)
    _resolve(options)
    if options.algorithm == APEX:
        return _whole_jobs(options, argv, folder, say)
    if options.combine:
        content = combined([json.loads(Path(file).read_text()) for file in options.combine])
    else:
        content = _trained(options, argv, say)
    result.tell(content, say, width=44)
    for env, found in content.get("difference", {}).items():
        interval = f"{found['low']:.0f} to {found['high']:.0f}"
        say(f"{env}: ours − theirs = {found['mean']:.0f} ({interval}); theirs {found['theirs']:.0f}")
    for name, found in content.get("above_random", {}).items():
        ours, random = (f"{found[side]['low']:.0f} to {found[side]['high']:.0f}" for side in ("replay", RANDOM))
        say(f"{name}: {ours}, random {random}: {'above' if found['above'] else 'not above'}")
    if options.json:
        result.write(options.json, content)
    if options.plot:
        from replay_server.bench.plot import plot_curves

        plot_curves({name: _points(curve) for name, curve in content["curves"].items()}, options.plot)
    return 0


def _whole_jobs(options: argparse.Namespace, argv: Sequence[str], folder: str, say: Callable[[str], None]) -> int:
    content = side_by_side.run(options, argv, folder, say)
    say(side_by_side.markdown(content))
    if options.plot:
        from replay_server.bench.plot import plot_side_by_side

        plot_side_by_side(content, options.plot)
    for name in content["failed"]:
        say(f"failed, and tried again by the same command: {name}")
    return 1 if content["failed"] else 0


def _trained(options: argparse.Namespace, argv: Sequence[str], say: Callable[[str], None]) -> dict[str, Any]:
    given = given_settings(options.set)
    if options.against in PEERS:
        peer = PEERS[options.against]
        if options.algorithm != peer.algorithm:
            instead = f"leave out --against, or use --algorithm {peer.algorithm}"
            raise RuntimeError(f"{options.against} has no {options.algorithm} here: {instead}")
        given = {**peer.given, **given}
        if options.setup:
            set_up(options.against, options.pip_options.split(), say)
    torch.set_num_threads(1)
    host = result.machine()
    host["packages"] |= {name: version(name) for name in ("torch", "gymnasium", "mujoco", "ale-py")}
    rounds: list[dict[str, float]] = [{} for _ in options.seeds]
    curves: dict[str, Any] = {}
    scores: dict[str, Any] = {}
    for measured, seed in zip(rounds, options.seeds, strict=True):
        for env in options.env:
            found, of_curves, of_scores = one_seed(options, env, seed, given, say)
            measured |= found
            curves |= {f"{env}.{side}.seed={seed}": curve for side, curve in of_curves.items()}
            scores |= {f"{env}.{side}.seed={seed}": games for side, games in of_scores.items()}
            say(f"seed {seed} {env}: " + ", ".join(f"{k}={v:.1f}" for k, v in found.items() if k.startswith(env)))
    command = " ".join(["replay-server bench learning", *argv])
    return _content(command, host, {**vars(options), "given": given}, rounds, curves, scores)


def _content(
    command: str,
    host: dict[str, Any],
    settings: dict[str, Any],
    rounds: Sequence[dict[str, float]],
    curves: dict[str, Any],
    scores: dict[str, Any],
) -> dict[str, Any]:
    """A result file's: one round a seed; curves and scores by ``ENV.SIDE.seed=SEED``."""
    envs, against = settings["env"], settings["against"]
    ratios = {f"{env}: ours / theirs": (f"{env}.replay.score", f"{env}.{against}.score") for env in envs}
    content = result.document("learning", command, host, settings, rounds, ratios)
    content |= {"curves": curves, "scores": scores}
    if against in PEERS:
        content["difference"] = {
            env: paired_difference(
                [measured[f"{env}.replay.score"] for measured in rounds],
                [measured[f"{env}.{against}.score"] for measured in rounds],
            )
            for env in envs
        }
    if against == RANDOM:
        content["above_random"] = {
            f"{env}.seed={seed}": _above_random(*(scores[f"{env}.{side}.seed={seed}"] for side in ("replay", RANDOM)))
            for seed in settings["seeds"]
            for env in envs
        }
    return content


def _above_random(ours: Sequence[float], random: Sequence[float]) -> dict[str, Any]:
    intervals = {"replay": mean_interval(ours), RANDOM: mean_interval(random)}
    return {**intervals, "above": intervals["replay"]["low"] > intervals[RANDOM]["high"]}


# What may differ between runs that one result is made of: none of it changes what a seed learns.
_OF_ONE_RUN = ("env", "seeds", "setup", "pip_options", "verbose", "combine", "json", "plot")


def combined(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One result of several: their environments and seeds, each with what its own run measured.

    `parts` keeps each run's command, time and load. Raises ValueError where settings differ, where a run of a seed and
    environment comes twice, or where one of a seed is missing that another seed has.
    """
    first = documents[0]
    kept = {name: value for name, value in first["settings"].items() if name not in _OF_ONE_RUN}
    rounds: dict[int, dict[str, float]] = {}
    curves: dict[str, Any] = {}
    scores: dict[str, Any] = {}
    envs: list[str] = []
    parts = []
    for document in documents:
        for name, value in kept.items():
            if (found := document["settings"].get(name)) != value:
                raise ValueError(
                    f"{document['command']}: expected {name} {value!r} as in the first file, got {found!r}"
                )
        envs += [env for env in document["settings"]["env"] if env not in envs]
        for seed, measured in zip(document["settings"]["seeds"], document["rounds"], strict=True):
            if twice := sorted(set(measured) & set(rounds.setdefault(seed, {}))):
                raise ValueError(
                    f"{document['command']}: expected each seed once, got seed {seed} again with {twice[0]}"
                )
            rounds[seed] |= measured
        curves |= document["curves"]
        scores |= document.get("scores", {})
        load = document["machine"]["load_average_before"]
        part = {"command": document["command"], "time": document["time"], "load_average_before": load}
        parts += document.get("parts", [part])
    seeds = sorted(rounds)
    for seed in seeds:
        if missing := [env for env in envs if f"{env}.replay.score" not in rounds[seed]]:
            raise ValueError(f"seed {seed} has no run of {missing[0]}, which others have: leave it out or run it")
    settings = {**kept, "env": envs, "seeds": seeds}
    command = _command(settings)
    content = _content(command, first["machine"], settings, [rounds[seed] for seed in seeds], curves, scores)
    return {**content, "parts": parts}


def _command(settings: dict[str, Any]) -> str:
    """What would run all of a combined result."""
    words = ["replay-server bench learning"]
    for name, value in settings.items():
        if name == "given" or value is None or value == []:
            continue
        values = value if isinstance(value, list) else [value]
        words += [f"--{name}", *(shlex.quote(str(each)) for each in values)]
    return " ".join(words)


def _points(curve: list[dict[str, float]]) -> tuple[list[float], list[float]]:
    rows = [row for row in curve if "score" in row]
    return [row["steps"] for row in rows], [row["score"] for row in rows]
