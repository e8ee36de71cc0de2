"""Whether some rounds gain more by more actors than others: one checkpoint, boosted and not, at rounds of known R.

For each seed a run with a fixed count leaves a checkpoint after every round, with R of its policy. From some of them
the next round is played twice: with the boosted count, and with the usual one; both go on for as many rounds with the
usual count, and are scored by the same fresh games. The gain is the difference: what boosting brought, net of going on.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from replay_server.bench.scalers.cell import JobSettings, Lent
from replay_server.bench.scalers.statistics import Interval, stratified_interval
from replay_server.learner.checkpoint import newest_checkpoint
from replay_server.learner.metrics import read_metrics
from replay_server.rl.run_directory import RunDirectory
from replay_server.serverless.backends.backend import Platform
from replay_server.serverless.orchestrator import Orchestrator
from replay_server.serverless.record import RoundRecord
from replay_server.serverless.run_log import EVALUATION, read_rounds
from replay_server.serverless.scalers.nitro import convexity_ratio
from replay_server.serverless.scalers.scaler import Scheme
from replay_server.serverless.settings import TrainSettings

WHYS = ("lowest", "median", "highest")


@dataclass(frozen=True)
class BoostSettings:
    """Of one experiment."""

    env: str
    job: JobSettings
    boosted: int = 64
    """Actors of the boosted round."""
    horizon: int = 3
    """Rounds from the checkpoint to the score, the boosted one included."""
    first: int = 3
    """The earliest round after which is boosted."""
    random_rounds: int = 2
    """Besides those of the lowest, median and highest R."""
    episodes: int = 40
    """Fresh games of each score."""


class _Counts(Scheme):
    """Counts of a session, from wherever it begins; the last one again. Nothing of it is in a checkpoint."""

    def __init__(self, counts: Sequence[int], probed: bool) -> None:
        self._counts, self._probed, self._asked = list(counts), probed, 0

    @property
    def probes(self) -> Mapping[str, Mapping[str, Any]]:
        return {"curvature": {}} if self._probed else {}

    def actors(self, before: RoundRecord | None) -> int:
        self._asked += 1
        return self._counts[min(self._asked, len(self._counts)) - 1]


def run_seed(
    settings: BoostSettings, seed: int, folder: Path, platform: Platform, say: Callable[[str], None] = print
) -> list[dict[str, Any]]:
    """One seed's points; what is in the folder already is not run again. Its checkpoints go when all is done."""
    here = folder / settings.env / f"seed-{seed}"
    points_file = here / "rounds.json"
    base = here / "base"
    if not points_file.exists():
        ratios = _base(settings, seed, base, platform)
        chosen = choose_rounds(ratios, settings, seed)
        points_file.write_text(json.dumps(chosen) + "\n")
    chosen = json.loads(points_file.read_text())
    found = []
    for point in chosen:
        kept = here / f"round-{point['round']}.json"
        if not kept.exists():
            scores = {
                what: _branch(settings, seed, base, point["round"], here / what, count, platform)
                for what, count in (("unboosted", settings.job.actors), ("boosted", settings.boosted))
            }
            means = {what: float(np.mean(each)) for what, each in scores.items()}
            gain = means["boosted"] - means["unboosted"]
            partial = kept.with_suffix(".part")
            partial.write_text(json.dumps({**point, "seed": seed, "gain": gain, **means, "scores": scores}) + "\n")
            partial.replace(kept)
            say(f"seed {seed} round {point['round']} ({', '.join(point['why'])}; R = {point['ratio']:.3g}): "
                f"{means['unboosted']:.0f} → {means['boosted']:.0f}")  # fmt: skip
        found.append(json.loads(kept.read_text()))
    shutil.rmtree(base, ignore_errors=True)
    return found


def choose_rounds(ratios: Mapping[int, float | None], settings: BoostSettings, seed: int) -> list[dict[str, Any]]:
    """Rounds after which is boosted, with the reasons: the lowest, median and highest R, and random ones.

    ValueError where fewer than three rounds have an R.
    """
    last = settings.job.rounds - settings.horizon
    known = {number: each for number, each in ratios.items() if each is not None and settings.first <= number <= last}
    if len(known) < len(WHYS):
        raise ValueError(
            f"expected at least {len(WHYS)} rounds from {settings.first} to {last} with a ratio, came {len(known)}"
        )
    by_ratio = sorted(known, key=lambda number: known[number])
    why: dict[int, list[str]] = {}
    for name, number in zip(WHYS, (by_ratio[0], by_ratio[(len(by_ratio) - 1) // 2], by_ratio[-1]), strict=True):
        why.setdefault(number, []).append(name)
    drawn = np.random.default_rng([seed, 0xB0057]).permutation(sorted(known))[: settings.random_rounds]
    for number in map(int, drawn):
        why.setdefault(number, []).append("random")
    return [{"round": number, "ratio": known[number], "why": reasons} for number, reasons in sorted(why.items())]


def _base(settings: BoostSettings, seed: int, folder: Path, platform: Platform) -> dict[int, float | None]:
    """The run that checkpoints are of; it goes on where it was interrupted. Round → R."""
    train = _train_settings(settings, seed, folder, resume=(folder / "config.json").exists())
    directory = RunDirectory(folder)
    directory.create(train)
    _keep(folder)
    Orchestrator(
        train, directory, platform=Lent(platform), scaler=_Counts([settings.job.actors], probed=True),
        on_progress=lambda progress: _keep(folder),
    ).run()  # fmt: skip
    return {
        each.round: convexity_ratio(each.statistics["curvature_max"], each.statistics["curvature_min"])
        for each in read_rounds(folder)
        if "curvature_max" in each.statistics
    }


def _keep(folder: Path) -> None:
    """Copies the run's newest checkpoint to where none is removed, as ``rounds/N/step_M``."""
    newest = newest_checkpoint(RunDirectory(folder).checkpoints)
    if newest is None:
        return
    kept = folder / "rounds" / str(json.loads((newest / "counters.json").read_text())["round"])
    if not kept.exists():
        partial = folder / "rounds" / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(newest, partial / newest.name)
        partial.rename(kept)


def _branch(
    settings: BoostSettings, seed: int, base: Path, number: int, folder: Path, actors: int, platform: Platform
) -> list[float]:
    """Goes on from the checkpoint after a round, its first round with so many actors; scores of the fresh games."""
    shutil.rmtree(folder, ignore_errors=True)
    train = _train_settings(settings, seed, folder, resume=True)
    train.rounds, train.checkpoint_every = number + settings.horizon, 10**9
    train.final_episodes = settings.episodes
    directory = RunDirectory(folder)
    directory.create(train)
    shutil.copytree(base / "rounds" / str(number), directory.checkpoints, dirs_exist_ok=True)
    Orchestrator(
        train, directory, platform=Lent(platform), scaler=_Counts([actors, settings.job.actors], probed=False)
    ).run()
    scores = [row["scores"] for row in read_metrics(folder, EVALUATION) if row["final"]][-1]
    shutil.rmtree(folder, ignore_errors=True)
    return [float(each) for each in scores]


def _train_settings(settings: BoostSettings, seed: int, folder: Path, resume: bool) -> TrainSettings:
    job = settings.job
    return TrainSettings(
        env=settings.env, algo=job.algo, profile=job.profile, setting=dict(job.setting), seed=seed, rounds=job.rounds,
        steps=job.steps, actors=job.actors, actors_max=max(settings.boosted, job.actors), concurrency=1,
        final_episodes=0, checkpoint_every=1, logdir=str(folder), resume=resume, timeout_s=600.0,
        learner_timeout_s=3600.0,
    )  # fmt: skip


# ---- what comes of it ------------------------------------------------------------------------------------------------


def gains(points: Sequence[Mapping[str, Any]]) -> dict[str, Interval]:
    """Mean gain of each kind of round, over seeds; and the lowest R's over the highest's, paired by seed."""
    by_seed: dict[str, dict[int, list[float]]] = {}
    for point in points:
        for why in point["why"]:
            by_seed.setdefault(why, {}).setdefault(point["seed"], []).append(point["gain"])
    means = {why: {seed: float(np.mean(each)) for seed, each in seeds.items()} for why, seeds in by_seed.items()}
    found = {why: stratified_interval([list(each.values())], _mean) for why, each in means.items()}
    for other in ("highest", "random"):
        both = sorted(set(means.get("lowest", {})) & set(means.get(other, {})))
        if both:
            differences = [means["lowest"][seed] - means[other][seed] for seed in both]
            found[f"lowest − {other}"] = stratified_interval([differences], _mean)
    return found


def regression(points: Sequence[Mapping[str, Any]], resamples: int = 2_000, seed: int = 1) -> dict[str, Interval]:
    """Least squares of gain = a + b·ln R + c·round: `log_ratio` is b, `round` is c.

    R spans orders of magnitude, so its logarithm is taken. Seeds are resampled whole: points of one are alike.
    """
    seeds = sorted({point["seed"] for point in points})
    by_seed = [[point for point in points if point["seed"] == one] for one in seeds]
    exact = _least_squares(points)
    generator = np.random.default_rng(seed)
    drawn = []
    for _ in range(resamples):
        rows = [point for index in generator.integers(0, len(seeds), len(seeds)) for point in by_seed[int(index)]]
        drawn.append(_least_squares(rows))
    low, high = np.quantile(np.asarray(drawn), [0.025, 0.975], axis=0)
    return {
        name: Interval(float(exact[at]), float(low[at]), float(high[at]))
        for at, name in ((1, "log_ratio"), (2, "round"))
    }


def _least_squares(points: Sequence[Mapping[str, Any]]) -> np.ndarray:
    design = np.asarray([[1.0, np.log(point["ratio"]), point["round"]] for point in points])
    found, *_ = np.linalg.lstsq(design, np.asarray([point["gain"] for point in points]), rcond=None)
    return found


def _mean(values: np.ndarray) -> float:
    return float(values.mean())
