"""Count, mean and squared deviations of observations, which merge: what a normalisation shared by many actors needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Moments:
    """Of `count` vectors of F features, in float64: order and grouping of merges change them by rounding alone."""

    count: float
    mean: np.ndarray
    """float64 (F,)."""
    squared_deviations: np.ndarray
    """float64 (F,): Σ (x − mean)², not divided by anything."""

    @classmethod
    def none(cls, features: int) -> Moments:
        """Of no vectors at all."""
        return cls(0.0, np.zeros(features), np.zeros(features))

    @classmethod
    def of(cls, observations: np.ndarray) -> Moments:
        """Of observations (N, F)."""
        values = np.asarray(observations, np.float64)
        if len(values) == 0:
            return cls.none(values.shape[1])
        mean = values.mean(axis=0)
        return cls(float(len(values)), mean, np.square(values - mean).sum(axis=0))

    def merged(self, other: Moments) -> Moments:
        """Those of both sets of vectors (Chan, Golub and LeVeque 1979, equation 2.1)."""
        count = self.count + other.count
        if count == 0:
            return self
        difference = other.mean - self.mean
        mean = self.mean + difference * (other.count / count)
        squares = self.squared_deviations + other.squared_deviations
        return Moments(count, mean, squares + np.square(difference) * (self.count * other.count / count))

    @classmethod
    def merge(cls, parts: Iterable[Moments], features: int) -> Moments:
        """Those of all parts, one after the other."""
        total = cls.none(features)
        for part in parts:
            total = total.merged(part)
        return total

    @property
    def variance(self) -> np.ndarray:
        """float64 (F,): of the vectors as a whole population; ones while there are none."""
        return self.squared_deviations / self.count if self.count > 0 else np.ones_like(self.mean)
