"""Settings of asynchronous learners: what learner functions, the parameter function and who starts them have to share.

Stellaris (Yu et al., SC 2024): several learner functions compute gradients at once, each of the newest policy that it
could get, and one parameter function applies them by how stale they have become (docs/asynchronous-learners.md).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from replay_server.rl.field_types import check_types
from replay_server.rl.function_contract import HISTORY
from replay_server.rl.options import typed_values


@dataclass(frozen=True)
class AsynchronousLearning:
    """Defaults are Stellaris', but for `ahead`, of which it says nothing; other values are its ablations and what it is
    compared with."""

    learners: int = 4
    """Learner functions at a time, at most; each gets its share of a round's fragments."""
    ahead: int = 1
    """Gradients that a learner may have pushed and that are not applied yet; it waits before it computes more."""
    flush: Literal["staleness", "count", "every"] = "staleness"
    """When queued gradients are applied. staleness: their mean staleness is at most β_k, or as many are there as
    learners run. count: `flush_count` are there. every: as soon as one is there."""
    flush_count: int | None = None
    """Of flush=count: gradients that are applied together (soft-sync); None = as many as learners run, which averages
    synchronously, without any staleness."""
    threshold_decay: float = 0.9
    """Base of β_k's decay with the rounds, in (0, 1]."""
    modulation_root: float | None = 3.0
    """v of the learning-rate modulation lr / s^(1/v); 1 divides by the staleness; None = no modulation."""
    aggregation: Literal["mean", "each"] = "mean"
    """mean: one optimiser step a flush, along the weighted mean. each: one step a gradient, as Stellaris' code does."""
    truncation: float | None = 1.0
    """ρ of the global importance-sampling truncation across the learners' policies; None = none."""
    max_staleness: int | None = None
    """Gradients that are staler are dropped, and counted; None = all are applied."""
    slack: int | None = None
    """Of flush=every: gradients that a learner may be ahead of the slowest one that runs (stale-synchronous parallel);
    None = any number."""
    delay: int = 0
    """Versions that a learner's policy is older than the newest, on purpose: staleness that does not depend on how
    fast this machine is."""
    patience_s: float = 2.0
    """Seconds after which queued gradients are applied whatever the rule says: a learner may have been lost."""
    gradient_dtype: Literal["float32", "bfloat16"] = "float32"
    """What gradients travel and wait as; bfloat16 is half the bytes, and each element is rounded to 8 bits,
    and so is each of a flush's sum."""
    actors_ahead: int = 1
    """Batches that actors may be ahead of the learners, from so late in a round on that they end with its learners, by
    what both took in the round before; 0 = they play only while nobody learns, with the newest policy exactly, as
    on-policy rounds do."""

    def __post_init__(self) -> None:
        """ValueError for a value that there cannot be, naming the field."""
        check_types(type(self), dataclasses.asdict(self), "learner option")
        for name, least in {"learners": 1, "ahead": 1, "delay": 0, "actors_ahead": 0}.items():
            if getattr(self, name) < least:
                raise ValueError(f"learner option {name}: expected at least {least}, got {getattr(self, name)}")
        if not 0.0 < self.threshold_decay <= 1.0:
            raise ValueError(f"learner option threshold_decay: expected (0, 1], got {self.threshold_decay}")
        for name in ("modulation_root", "truncation", "patience_s"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"learner option {name}: expected a number above 0, got {value}")
        if self.flush_count is not None and self.flush_count < 1:
            raise ValueError(f"learner option flush_count: expected at least 1, got {self.flush_count}")
        if self.max_staleness is not None and self.max_staleness < 0:
            raise ValueError(f"learner option max_staleness: expected at least 0, got {self.max_staleness}")
        if self.slack is not None and (self.slack < 0 or self.flush != "every"):
            raise ValueError(
                f"learner option slack: expected at least 0, and flush=every, got {self.slack} and {self.flush}"
            )
        if self.delay > HISTORY - self.learners:
            raise ValueError(f"learner option delay: expected at most {HISTORY - self.learners}, got {self.delay}")

    def flush_size(self, running: int) -> int:
        """How many queued gradients are applied whatever their staleness, while so many learners run."""
        most = self.learners if self.flush != "count" or self.flush_count is None else self.flush_count
        return max(1, min(most, running))

    @property
    def keeps_history(self) -> bool:
        """Whether learners need policies that are not the newest."""
        return self.delay > 0 or (self.truncation is not None and self.learners > 1)


def asynchronous_learning(words: Mapping[str, Any]) -> AsynchronousLearning:
    """The settings from words, as a command line has them. ValueError for what they do not take."""
    try:
        return AsynchronousLearning(**typed_values(AsynchronousLearning, words))
    except ValueError as error:
        text = str(error)
        raise ValueError(text if text.startswith("learner option") else f"learner option: {text}") from None
