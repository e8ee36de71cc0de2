"""What is told of several runs: interquartile means, intervals over seeds, and times of which some were cut off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000


@dataclass(frozen=True)
class Interval:
    """A statistic with its 95 % percentile bootstrap interval."""

    value: float
    low: float
    high: float


def interquartile_mean(values: Sequence[float] | np.ndarray) -> float:
    """Mean of the middle half: a quarter of the values, rounded down, is left out at each end.

    (Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice".)
    """
    if not len(values):
        raise ValueError("expected at least one value to take the interquartile mean of, got none")
    return float(_middle_means(np.asarray(values, np.float64)))


def _middle_means(values: np.ndarray) -> np.ndarray:
    """The interquartile mean along the last axis."""
    size = values.shape[-1]
    return np.sort(values)[..., size // 4 : size - size // 4].mean(axis=-1)


def stratified_interval(
    strata: Sequence[Sequence[float] | np.ndarray],
    statistic: Callable[[np.ndarray], float] = interquartile_mean,
    resamples: int = RESAMPLES,
    seed: int = 1,
) -> Interval:
    """A statistic of all values together; resampled within each stratum (a task), as runs of one task are alike."""
    arrays = [np.asarray(each, np.float64) for each in strata if len(each)]
    if not arrays:
        raise ValueError("expected at least one value, got none")
    generator = np.random.default_rng(seed)
    drawn = np.concatenate([each[generator.integers(0, len(each), (resamples, len(each)))] for each in arrays], axis=1)
    found = _middle_means(drawn) if statistic is interquartile_mean else [statistic(row) for row in drawn]
    low, high = np.quantile(found, [0.025, 0.975])
    return Interval(statistic(np.concatenate(arrays)), float(low), float(high))


def paired_interval(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Interquartile mean of ours − theirs, the same seeds in the same order."""
    if len(ours) != len(theirs):
        raise ValueError(f"expected as many values on both sides, got {len(ours)} and {len(theirs)}")
    return stratified_interval([np.asarray(ours, np.float64) - np.asarray(theirs, np.float64)])


def restricted_mean(reached: Sequence[float | None], followed: Sequence[float], horizon: float) -> float:
    """Mean of min(T, horizon), where T of a run that missed the target is known to be longer than it was followed.

    It is the area under Kaplan and Meier's survival curve up to the horizon. Where no run was followed so far, it stays
    where it was last (Gill 1980): those that had missed the target till then are thought never to reach it.

    Args:
        reached: when each run reached the target; None = it did not.
        followed: how long each run was.
    """
    times = sorted(
        (whole if at is None else at, at is None) for at, whole in zip(reached, followed, strict=True)
    )  # at equal times those that reached it come first
    surviving, area, before = 1.0, 0.0, 0.0
    for index, (at, censored) in enumerate(times):
        area += surviving * max(0.0, min(at, horizon) - before)
        before = min(at, horizon)
        if at >= horizon:
            return area
        if not censored:
            surviving *= 1.0 - 1.0 / (len(times) - index)
    return area + surviving * (horizon - before)
