"""How stale gradients may be, and how much a stale one counts: Stellaris' threshold, rule and modulation.

The staleness of a gradient is the version that is current when it is looked at, minus the version that it was computed
of. Formulas are those of Stellaris' published code; its slides have none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from replay_server.rl.asynchronous_learning import AsynchronousLearning


def threshold(bound: int | None, round_number: int, decay: float = 0.9) -> float:
    """β_k = clip(⌊M · decay^(k−1)⌋ + 1, 1, M): the mean staleness up to which queued gradients are applied in round k.

    Args:
        bound: M; None while no round had any staleness, and there is no threshold then (∞).
        round_number: k, from 1 on, of the whole job.
    """
    if round_number < 1:
        raise ValueError(f"expected a round from 1 on, got {round_number}")
    if bound is None:
        return math.inf
    return float(max(1, min(bound, math.floor(bound * decay ** (round_number - 1)) + 1)))


def flush_limit(learning: AsynchronousLearning, bound: int | None, round_number: int) -> float:
    """Mean staleness up to which queued gradients are applied by the rule of the settings; negative = never by it."""
    if learning.flush == "count":
        return -1.0
    if learning.flush == "every":
        return math.inf
    return threshold(bound, round_number, learning.threshold_decay)


def threshold_bound(stalenesses: Sequence[int]) -> int | None:
    """M = 1 + ⌊mean staleness⌋ of a round's gradients; None where none of them was stale: the next round is asked."""
    if not any(stalenesses):
        return None
    return 1 + math.floor(sum(stalenesses) / len(stalenesses))


def holds(stalenesses: Sequence[int], limit: float, learners: int) -> bool:
    """Whether queued gradients are to be applied: their mean staleness is at most `limit`, or none is missing.

    Args:
        stalenesses: of all that are queued; with none of them there is nothing to apply.
        limit: β_k.
        learners: that compute gradients just now.
    """
    if not stalenesses:
        return False
    return sum(stalenesses) / len(stalenesses) <= limit or len(stalenesses) >= learners


def factor(staleness: int, root: float | None = 3.0) -> float:
    """1 / s^(1/v): the share of the learning rate that a gradient of staleness s gets; 1 for s = 0, and without v.

    Stellaris' published code resets the staleness before it gets here, so that the factor is always 1: not copied.
    """
    if staleness < 0:
        raise ValueError(
            f"expected a staleness of at least 0, got {staleness}: the gradient's version is newer than the policy's"
        )
    if root is None or staleness == 0:
        return 1.0
    return float(staleness) ** (-1.0 / root)
