"""What a comparison comes to: a row for each environment, method and delay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from replay_server.bench.scalers.statistics import paired_interval, stratified_interval

HEADING = (
    f"{'method':20} {'delay':>8} {'rate':>7} {'final score':>27} {'- synchronous':>24} {'at equal time':>24} "
    f"{'time':>6} {'cost':>6} {'stale':>6} {'cut':>5} {'busy':>5} {'KL':>8}"
)


def tell(told: dict[str, Any], baseline: dict[str, Any], say: Callable[[str], None]) -> None:
    """A line: scores with 95 % intervals over seeds (paired for differences), times and cost as ratios.

    Args:
        told: a method's `replay_server.bench.stellaris.job.summary`, with its name, delay and learning rate.
        baseline: that of the method that it is held against, with the same seeds.
    """
    score = stratified_interval([told["final"]])
    apart = paired_interval(told["final"], baseline["final"])
    equal = [pair for pair in zip(told["at_equal_time"], told["baseline_at_equal_time"], strict=True)
             if not np.isnan(pair).any()]  # fmt: skip
    sooner = paired_interval(*zip(*equal, strict=True)) if equal else None
    equally = f"{sooner.value:+8.1f} ({sooner.low:+.0f} to {sooner.high:+.0f})" if sooner is not None else "-"
    rate = "-" if told["learning_rate"] is None else f"{told['learning_rate']:g}"
    say(
        f"{told['method'][-20:]:20} {str(told['delay']).partition(':')[0]:>8} {rate:>7} "
        f"{score.value:9.1f} ({score.low:.0f} to {score.high:.0f}) "
        f"{apart.value:+9.1f} ({apart.low:+.0f} to {apart.high:+.0f}) {equally:>24} "
        f"{told['time_s'] / baseline['time_s']:6.2f} {told['cost'] / baseline['cost']:6.2f} {told['staleness']:6.2f} "
        f"{told['truncated_fraction']:5.2f} {told['utilization']:5.2f} {told['kl']:8.5f}"
    )
