"""What a comparison comes to: a row for each environment, method and delay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from replay_server.bench.papers.statistics import paired_interval, stratified_interval

HEADING = (
    f"{'method':20} {'delay':>8} {'rate':>7} {'final score':>27} {'- synchronous':>24} {'at equal time':>24} "
    f"{'at equal cost':>24} {'time':>19} {'cost':>19} {'stale':>6} {'cut':>5} {'busy':>5} {'KL':>8}"
)


def tell(told: dict[str, Any], baseline: dict[str, Any], say: Callable[[str], None]) -> None:
    """A line: scores with 95 % intervals over seeds, paired for differences and for ratios of time and cost.

    "KL" is how far a round moves the policy: KL(π_{k−1} ‖ π_k), mean over rounds.

    Args:
        told: a method's `replay_server.bench.papers.stellaris.job.summary`, with its name, delay and learning rate.
        baseline: that of the method that it is held against, with the same seeds.
    """
    score = stratified_interval([told["final"]])
    rate = "-" if told["learning_rate"] is None else f"{told['learning_rate']:g}"
    say(
        f"{told['method'][-20:]:20} {str(told['delay']).partition(':')[0]:>8} {rate:>7} "
        f"{score.value:9.1f} ({score.low:.0f} to {score.high:.0f}) {_apart(told['final'], baseline['final'])} "
        f"{_apart(told['at_equal_time'], told['baseline_at_equal_time'])} "
        f"{_apart(told['at_equal_cost'], told['baseline_at_equal_cost'])} "
        f"{_ratio(told['time_ratios'])} {_ratio(told['cost_ratios'])} {told['staleness']:6.2f} "
        f"{told['truncated_fraction']:5.2f} {told['utilization']:5.2f} {told['kl_of_round']:8.5f}"
    )


def _apart(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """The difference, of the seeds that have both; a dash without any."""
    pairs = [pair for pair in zip(ours, theirs, strict=True) if not np.isnan(pair).any()]
    if not pairs:
        return f"{'-':>24}"
    found = paired_interval(*zip(*pairs, strict=True))
    return f"{f'{found.value:+.1f} ({found.low:+.0f} to {found.high:+.0f})':>24}"


def _ratio(values: Sequence[float]) -> str:
    found = stratified_interval([values])
    return f"{f'{found.value:.2f} ({found.low:.2f} to {found.high:.2f})':>19}"
