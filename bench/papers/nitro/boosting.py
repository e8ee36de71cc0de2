"""Whether some rounds gain more by more actors than others: one checkpoint, boosted and not, at rounds of known R.

For each seed a run with a fixed count leaves a checkpoint after every round, with R of its policy. From some of them
the next round is played twice: with the boosted count, and with the usual one; both go on for as many rounds with the
usual count, and are scored by the same fresh games. The gain is the difference: what boosting brought, net of going on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from replay_server.bench.papers.nitro.branches import Job
from replay_server.bench.papers.statistics import Interval, stratified_interval
from replay_server.learner.curvature import CurvatureOptions

WHYS = ("lowest", "median", "highest")


@dataclass(frozen=True)
class BoostSettings:
    """Of one experiment."""

    rounds: int = 50
    """Of the job; the last ones are only gone on into."""
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

    def __post_init__(self) -> None:
        if not self.horizon >= 1 or not 1 <= self.first <= self.last:
            raise ValueError(
                f"expected a horizon of at least 1 and a first round from 1 to {self.last} (rounds − horizon), got "
                f"{self.horizon} and {self.first}"
            )

    @property
    def last(self) -> int:
        """The latest round after which is boosted."""
        return self.rounds - self.horizon


def run_seed(
    job: Job, settings: BoostSettings, curvature: CurvatureOptions, say: Callable[[str], None] = print
) -> list[dict[str, Any]]:
    """The points of one job from its start, which is used up: round, R, why it was taken, scores and gain."""
    seed = job.settings.seed
    ratios: dict[int, float | None] = {}
    after: dict[int, Job] = {}
    for _ in range(settings.last):
        fragments = job.play()
        ratios[job.round] = job.ratio(fragments, curvature)
        after[job.round] = job.copy()
    found = []
    for point in choose_rounds(ratios, settings, seed):
        scores = {
            what: _scores(after[point["round"]], actors, settings)
            for what, actors in (("unboosted", job.actors), ("boosted", settings.boosted))
        }
        means = {what: float(np.mean(each)) for what, each in scores.items()}
        found.append({**point, "seed": seed, "gain": means["boosted"] - means["unboosted"], **means, "scores": scores})
        say(f"seed {seed} round {point['round']} ({', '.join(point['why'])}; R = {point['ratio']:.3g}): "
            f"{means['unboosted']:.0f} → {means['boosted']:.0f}")  # fmt: skip
    return found


def _scores(job: Job, actors: int, settings: BoostSettings) -> list[float]:
    """Goes on from a job, which stays as it is, its first round with so many actors; scores of the fresh games."""
    branch = job.copy()
    branch.play(actors)
    for _ in range(settings.horizon - 1):
        branch.play()
    return branch.scores(settings.episodes)


def choose_rounds(ratios: Mapping[int, float | None], settings: BoostSettings, seed: int) -> list[dict[str, Any]]:
    """Rounds after which is boosted, with the reasons: the lowest, median and highest R, and random ones.

    ValueError where fewer than three rounds have an R.
    """
    first, last = settings.first, settings.last
    known = {number: each for number, each in ratios.items() if each is not None and first <= number <= last}
    if len(known) < len(WHYS):
        raise ValueError(f"expected at least {len(WHYS)} rounds from {first} to {last} with a ratio, got {len(known)}")
    by_ratio = sorted(known, key=lambda number: known[number])
    why: dict[int, list[str]] = {}
    for name, number in zip(WHYS, (by_ratio[0], by_ratio[(len(by_ratio) - 1) // 2], by_ratio[-1]), strict=True):
        why.setdefault(number, []).append(name)
    drawn = np.random.default_rng([seed, 0xB0057]).permutation(sorted(known))[: settings.random_rounds]
    for number in map(int, drawn):
        why.setdefault(number, []).append("random")
    return [{"round": number, "ratio": known[number], "why": reasons} for number, reasons in sorted(why.items())]


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
