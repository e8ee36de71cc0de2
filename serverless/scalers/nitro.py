"""Nitro: more actors where the policy's objective is more convex (Nitro, equations 3 to 6).

    R_k = −λ_max / λ_min         of the Hessian of the policy's surrogate objective after round k
    S_k = (R_max − R_k) / (R_max − R_min) · d^k,   R_max and R_min of the last n rounds, this one included
    I_(k+1) = clip(⌊I_max · S_k⌋, I_min, I_max)

What λ_max and λ_min are is measured by the learner function (the probe `curvature`). Rounds are counted from 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from replay_server.serverless.record import RoundRecord
from replay_server.serverless.scalers.scaler import check_truth, check_whole, clip

FLAT = 1e-8
"""|λ_min| / |λ_max| below which their ratio is noise."""


def convexity_ratio(most: float, least: float) -> float | None:
    """R = −λ_max / λ_min; None where there is no maximum and minimum to be weighed: λ_min ≥ 0, λ_max ≤ 0, or flat."""
    if not (math.isfinite(most) and math.isfinite(least)) or least >= 0.0 or most <= 0.0:
        return None
    return None if abs(least) < FLAT * abs(most) else -most / least


class Nitro:
    """The boosting of Nitro.

    The paper leaves open what the first round gets, and what happens where R is undefined or all of the window are
    equal, as the first one always is. Here S_1 = d, which the first round goes by, too; later a round without a score
    of its own keeps the one before. `undefined` counts these rounds.

    Args:
        most, least: I_max and I_min.
        decay: d.
        window: n.
        inverted: boost where R is high in place of low (a control that ought to do worse).
        curvature: options of the probe.
    """

    def __init__(
        self,
        most: int = 64,
        least: int = 8,
        decay: float = 0.96,
        window: int = 6,
        inverted: bool = False,
        curvature: Mapping[str, Any] | None = None,
    ) -> None:
        check_whole(least=least, window=window)
        check_truth(inverted=inverted)
        if not 1 <= least <= most:
            raise ValueError(f"expected 1 ≤ least ≤ most actors, got {least} and {most}")
        if not 0.0 < decay <= 1.0 or window < 1:
            raise ValueError(f"expected a decay in (0, 1] and a window of at least 1, got {decay} and {window}")
        self._most, self._least, self._decay, self._window = most, least, decay, window
        self._inverted = inverted
        if not isinstance(curvature or {}, Mapping):
            raise ValueError(f"expected curvature as a map of the probe's options, got {curvature!r}")
        self._curvature = dict(curvature or {})
        self._ratios: list[float] = []
        self._score = decay
        self.undefined = 0
        """Rounds that had no ratio of their own, or no other to hold it against."""

    @property
    def probes(self) -> Mapping[str, Mapping[str, Any]]:
        return {"curvature": self._curvature}

    def actors(self, before: RoundRecord | None) -> int:
        if before is not None:
            # Missing where the one of several learners that was to measure it was lost.
            most, least = (before.statistics.get(f"curvature_{end}", math.nan) for end in ("max", "min"))
            self.look_at(before.round, convexity_ratio(most, least))
        return clip(self._most * self._score, self._least, self._most)

    def look_at(self, number: int, ratio: float | None) -> float | None:
        """S of a round, by its R; None where it has none of its own. Rounds come in their order, each once."""
        if ratio is not None:
            self._ratios = [*self._ratios, ratio][-self._window :]
        high, low = max(self._ratios, default=0.0), min(self._ratios, default=0.0)
        if ratio is None or high == low:
            self.undefined += 1
            return None
        share = (ratio - low if self._inverted else high - ratio) / (high - low)
        self._score = share * self._decay**number
        return self._score

    def state(self) -> Mapping[str, Any]:
        return {"ratios": list(self._ratios), "score": self._score, "undefined": self.undefined}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._ratios = [float(ratio) for ratio in state["ratios"]]
        self._score, self.undefined = float(state["score"]), int(state["undefined"])
