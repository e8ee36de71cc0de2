"""How updates are computed on this machine: each way is timed on the real network and batch, and the fastest taken.

The fastest way cannot be told from a processor's name: bfloat16 convolutions are nine times slower than float32 where
there are no instructions for them, and faster where there are. So nothing is assumed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from replay_server.learner.dqn import Dqn
from replay_server.rl.environment_spec import EnvironmentSpec
from replay_server.rl.observations import columns, map_tree
from replay_server.rl.settings import ApexSettings

PRECISIONS = ("float32", "bfloat16")
"""The first is taken unless another is clearly faster."""
CLEARLY_FASTER = 0.95
"""Another precision must take less than this share of the first one's time,"""
CLEARLY_FASTER_OF_LESS = 0.8
"""and less than this where fewer rows than a batch's were timed: there a busy machine misleads sooner."""
BUDGET_S = 4.0
"""What all timed updates may take together, those that warm up included."""
REPEAT_S = 0.5
"""Short updates are repeated for this long, so that a busy moment of the machine decides nothing."""

UpdateSeconds = Callable[[str, int], float]
"""Does one update in a precision with so many rows; returns the seconds that it took."""


@dataclass(frozen=True)
class Choice:
    """How updates are computed, and the times that decided it."""

    precision: str
    rows: int = 0
    """Batch size of the timed updates; 0 = none was timed."""
    seconds: dict[str, float] = field(default_factory=dict)
    """One update's, the shortest of several, by precision; infinite where it failed."""

    def as_values(self) -> dict[str, Any]:
        """For config.json and summary.json."""
        times = {name: round(1e3 * each, 4) if math.isfinite(each) else None for name, each in self.seconds.items()}
        return {"precision": self.precision, "measured_rows": self.rows, "update_ms": times}

    def told(self) -> str:
        """One line for people."""
        if not self.seconds:
            return f"precision {self.precision} (as asked for)"
        times = ", ".join(
            f"{name} {1e3 * each:.1f} ms" if math.isfinite(each) else f"{name} fails"
            for name, each in self.seconds.items()
        )
        return f"precision {self.precision} (measured, an update of {self.rows}: {times})"


def fastest(names: Sequence[str], rows: int, update_seconds: UpdateSeconds, budget_s: float = BUDGET_S) -> Choice:
    """Times updates in each precision of `names` and returns the fastest, or the first where it is about as fast.

    Sizes grow up to `rows`. A size is left out where the times of the one before say that it would not fit in
    `budget_s`: a precision that is so much slower shows with fewer rows, too. The precisions take turns, so that other
    work on the machine slows all of them. Where not even the smallest updates fit twice, the first is taken.
    """
    spent_s, measured, times = 0.0, 0, dict.fromkeys(names, 0.0)
    for size in sorted({max(1, rows >> shift) for shift in (6, 4, 2, 0)}):
        round_s = _finite_sum(times) * size / max(measured, 1)
        if measured and spent_s + 2 * round_s > budget_s:
            break
        going = [name for name in names if math.isfinite(times[name])]
        repeat_s = REPEAT_S if size == rows else 0.0
        found, took_s, repeated = _shortest(going, size, update_seconds, repeat_s, budget_s - spent_s)
        if not repeated and not measured:
            return Choice(names[0], size, found)
        if not repeated:
            break
        spent_s, measured, times = spent_s + took_s, size, {**dict.fromkeys(names, math.inf), **found}
    return _decided(names, rows, measured, times)


def _decided(names: Sequence[str], rows: int, measured: int, times: dict[str, float]) -> Choice:
    best = min(names, key=lambda name: times[name])
    share = CLEARLY_FASTER if measured == rows else CLEARLY_FASTER_OF_LESS
    return Choice(best if times[best] < share * times[names[0]] else names[0], measured, times)


def _shortest(
    names: Sequence[str], rows: int, update_seconds: UpdateSeconds, repeat_s: float, budget_s: float
) -> tuple[dict[str, float], float, bool]:
    """The shortest of each precision's updates, the seconds that all of them took, and whether any were repeated.

    The first ones warm up, and are told only where no others fit in `budget_s`.
    """
    newest = {name: update_seconds(name, rows) for name in names}
    took_s, repeated_s, found = _finite_sum(newest), 0.0, dict[str, float]()
    while (not found or repeated_s < repeat_s) and took_s + _finite_sum(newest) <= budget_s:
        newest = {name: update_seconds(name, rows) for name in names}
        found = {name: min(found.get(name, math.inf), each) for name, each in newest.items()}
        repeated_s += _finite_sum(newest)
        took_s += _finite_sum(newest)
    return found or newest, took_s, bool(found)


def _finite_sum(seconds: Mapping[str, float]) -> float:
    return sum(each for each in seconds.values() if math.isfinite(each))


def choose_execution(
    settings: ApexSettings, spec: EnvironmentSpec, make_network: Callable[[], nn.Module], device: torch.device
) -> Choice:
    """The precision that the settings name, or for "auto" the fastest on this machine."""
    if settings.precision != "auto":
        return Choice(settings.precision)
    return fastest(PRECISIONS, settings.batch_size, _Trial(settings, spec, make_network, device))


class _Trial:
    """Updates of networks that nobody uses afterwards, on random batches."""

    def __init__(
        self, settings: ApexSettings, spec: EnvironmentSpec, make_network: Callable[[], nn.Module], device: torch.device
    ) -> None:
        self.learners = {name: Dqn(settings, make_network, device, name, spec.branches) for name in PRECISIONS}
        self.device = device
        rows, generator = settings.batch_size, np.random.default_rng(0)
        action = generator.integers(spec.branches or (spec.num_actions,), size=(rows, len(spec.branches) or 1))
        observations = [
            columns(name, map_tree(lambda leaf: leaf.random(generator, rows), spec.observation))
            for name in ("obs", "next_obs")
        ]
        self.columns = {
            **observations[0],
            **observations[1],
            "action": action if spec.branches else action[:, 0],
            "reward": generator.normal(size=rows).astype(np.float32),
            "discount": np.full(rows, settings.discount, np.float32),
        }
        self.weights = np.ones(rows, np.float32)

    def __call__(self, name: str, rows: int) -> float:
        data = {column: array[:rows] for column, array in self.columns.items()}
        begin = time.perf_counter()
        try:
            self.learners[name].update(data, self.weights[:rows])
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
        except RuntimeError:
            if name == PRECISIONS[0]:
                raise
            return math.inf  # no kernels for it here, or a network of the user's that does not take it
        return time.perf_counter() - begin
