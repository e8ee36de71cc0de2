"""KungFu: actors grow with the gradient's noise scale (Mai et al. 2020; McCandlish et al. 2018, appendix A.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from replay_server.serverless.record import RoundRecord
from replay_server.serverless.scalers.scaler import check_whole, clip

SMOOTHING = 0.9
"""Of signal and noise, each by itself, before they are divided."""


class KungFu:
    """I_k = clip(start · B_k / B_first, I_(k−1), most), B = S / G² the noise scale: never fewer than before.

    G² = (b|g_b|² − s|g_s|²) / (b − s) and S = (|g_s|² − |g_b|²) / (1/s − 1/b) are estimated from mean squared norms of
    gradients over s and over b samples (the probe `gradient_noise`). Where G² or S is not positive, the estimate says
    nothing and the number stays; one that is not finite is left out of what is smoothed, too.
    """

    def __init__(self, start: int, most: int) -> None:
        check_whole(start=start)
        if not 1 <= start <= most:
            raise ValueError(f"expected to start with 1 to {most} actors, got {start}")
        self._start, self._most = start, most
        self._signal: float | None = None
        self._noise = 0.0
        self._first: float | None = None
        self._count = start

    @property
    def probes(self) -> Mapping[str, Mapping[str, Any]]:
        return {"gradient_noise": {}}

    def actors(self, before: RoundRecord | None) -> int:
        if before is not None and (scale := self._scale(before.statistics)) is not None:
            self._first = scale if self._first is None else self._first
            self._count = clip(self._start * scale / self._first, self._count, self._most)
        return self._count

    def _scale(self, found: Mapping[str, float]) -> float | None:
        if "noise_small_batch" not in found:  # The one of several learners that was to measure it was lost.
            return None
        small, big = found["noise_small_batch"], found["noise_big_batch"]
        small_norm, big_norm = found["noise_small_norm"], found["noise_big_norm"]
        if not big > small:
            return None
        signal = (big * big_norm - small * small_norm) / (big - small)
        noise = (small_norm - big_norm) / (1.0 / small - 1.0 / big)
        if not (math.isfinite(signal) and math.isfinite(noise)):  # Smoothed in, it would stay there for good.
            return None
        if self._signal is None:
            self._signal, self._noise = signal, noise
        else:
            self._signal = SMOOTHING * self._signal + (1.0 - SMOOTHING) * signal
            self._noise = SMOOTHING * self._noise + (1.0 - SMOOTHING) * noise
        return self._noise / self._signal if self._signal > 0.0 and self._noise > 0.0 else None

    def state(self) -> Mapping[str, Any]:
        return {"signal": self._signal, "noise": self._noise, "first": self._first, "count": self._count}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._signal, self._noise = state["signal"], float(state["noise"])
        self._first, self._count = state["first"], int(state["count"])
