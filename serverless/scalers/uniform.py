"""Any number of actors, each as likely: what a learned scheduler has to be better than."""

from __future__ import annotations

import numpy as np

from replay_server.serverless.record import RoundRecord
from replay_server.serverless.scalers.scaler import PlainScaler, check_seed, check_whole


class Uniform(PlainScaler):
    """Round k gets a number drawn from least to most, with `seed` and k: the same seed, the same counts."""

    def __init__(self, most: int, seed: int = 1, least: int = 1) -> None:
        check_whole(least=least)
        check_seed(seed)
        if not 1 <= least <= most:
            raise ValueError(f"expected 1 ≤ least ≤ most actors, got {least} and {most}")
        self._least, self._most, self._seed = least, most, seed

    def actors(self, before: RoundRecord | None) -> int:
        number = 1 if before is None else before.round + 1
        return int(np.random.default_rng([self._seed, number]).integers(self._least, self._most + 1))
