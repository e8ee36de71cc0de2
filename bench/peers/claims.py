"""What this project claims beside its peers: each a number from one run, with its range over the rounds and its aim."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Round = Mapping[str, float]

PRIORITIZED = ("cpprb", "tianshou", "torchrl", "torchrl_one_thread")
TREES = ("cpprb", "tianshou", "torchrl", "torchrl_f32")


@dataclass(frozen=True)
class Claim:
    """A measurement of this project against the best of some others, or against a number.

    Attributes:
        what: for people.
        name: of the measurement, with {} for the side.
        sides: ways of using this project; the one with the best median counts.
        against: sides to divide by, the best of them; none: the measurement itself is the value.
        aim: the ratio at least, or where there is nothing to divide by the value at most.
        divisor: of `against`, where that is another measurement.
    """

    what: str
    name: str
    sides: tuple[str, ...]
    against: tuple[str, ...]
    aim: float
    divisor: str | None = None
    at_most: bool = False


def _tree(leaves: int, call: str, aim: float) -> Claim:
    name = f"tree.{leaves}.{{}}.{call}_calls_per_s"
    return Claim(f"tree, {call} 512 of {leaves:,}, over the best peer", name, ("replay",), TREES, aim)


_CYCLE = "buffer.atari.{}.cycle_calls_per_s"
_BUFFERS = ("replay", "replay_windows")
_WIRE = ("replay", "replay_windows")
_BATCHES = "load.atari.{}.pushers=0.sample_batches_per_s"
_BUSY = "load.atari.{}.pushers=4."
_COPIED = "buffer.atari.{}.sample_calls_per_s"
_ITEM = "experience.breakout.{}."

CLAIMS = (
    _tree(10**6, "sample", 4),
    _tree(10**7, "sample", 2.5),
    _tree(10**6, "update", 2.5),
    _tree(10**7, "update", 2),
    Claim(
        "sampling cost, 10⁷ leaves over 10⁵",
        "tree.100000.{}.sample_calls_per_s",
        ("replay",),
        ("replay",),
        4,
        divisor="tree.10000000.{}.sample_calls_per_s",
        at_most=True,
    ),
    Claim(
        "Buffer, Hopper, sample 512, over the best prioritized peer",
        "buffer.hopper.{}.sample_calls_per_s",
        ("replay",),
        PRIORITIZED,
        4,
    ),
    Claim("Buffer, Hopper, add 50, over cpprb", "buffer.hopper.{}.add_calls_per_s", ("replay",), ("cpprb",), 2),
    Claim("Buffer, Atari, cycle, over the best prioritized peer", _CYCLE, _BUFFERS, PRIORITIZED, 1.15),
    Claim("Buffer, Atari, cycle, over memcpy of the same blocks", _CYCLE, _BUFFERS, ("ceiling",), 0.8),
    Claim(
        "server's processor time a pushed Atari transition, µs",
        "load.atari.{}.pushers=1,alone.server_cpu_us_per_push",
        _WIRE,
        (),
        10,
    ),
    Claim("bytes of memory a Breakout transition", _ITEM + "memory_bytes_per_item", ("replay_windows",), (), 8000),
    Claim(
        "bytes of memory a Breakout transition, compressed",
        _ITEM + "memory_bytes_per_item",
        ("replay_lz4", "replay_zstd"),
        (),
        1500,
    ),
    Claim("bytes on the wire a Breakout transition", _ITEM + "wire_bytes_per_item", ("replay_windows",), (), 7500),
    Claim(
        "4 pushers and a learner: pushes over Reverb's", _BUSY + "push_items_per_s", ("replay_shared",), ("reverb",), 4
    ),
    Claim(
        "4 pushers and a learner: batches over Reverb's",
        _BUSY + "sample_batches_per_s",
        ("replay_shared",),
        ("reverb",),
        6,
    ),
    Claim("4 pushers and a learner: pushes over Ray's", _BUSY + "push_items_per_s", ("replay_shared",), ("ray",), 1),
    Claim(
        "4 pushers and a learner: batches over Ray's", _BUSY + "sample_batches_per_s", ("replay_shared",), ("ray",), 1
    ),
    Claim("learner alone, TCP, over Reverb", _BATCHES, _WIRE, ("reverb",), 3),
    Claim("learner alone, shared memory, over Reverb", _BATCHES, ("replay_whole_shared",), ("reverb",), 8),
    Claim(
        "learner alone, shared memory, over memcpy of the same blocks",
        _BATCHES,
        ("replay_shared",),
        ("ceiling",),
        0.6,
        divisor=_COPIED,
    ),
)


@dataclass(frozen=True)
class Finding:
    """A claim and what a run has to say of it."""

    claim: Claim
    side: str
    peer: str | None
    value: float
    spread: tuple[float, float]

    @property
    def met(self) -> bool:
        """Whether the median is what was aimed at."""
        return self.value <= self.claim.aim if self.is_cost else self.value >= self.claim.aim

    @property
    def is_cost(self) -> bool:
        """Whether less is better."""
        return self.claim.at_most or not self.claim.against


def findings(rounds: Sequence[Round]) -> list[Finding]:
    """What the rounds say of each claim whose measurements they have."""
    return [found for claim in CLAIMS if (found := _finding(claim, rounds)) is not None]


def _finding(claim: Claim, rounds: Sequence[Round]) -> Finding | None:
    pick = max if claim.against else min
    side = _best(claim.name, claim.sides, rounds, pick)
    if side is None:
        return None
    values = [measured[claim.name.format(side)] for measured in rounds]
    peer = None
    if claim.against:
        divisor = claim.divisor or claim.name
        peer = _best(divisor, claim.against, rounds, max)
        if peer is None:
            return None
        values = [value / measured[divisor.format(peer)] for value, measured in zip(values, rounds, strict=True)]
    return Finding(claim, side, peer, statistics.median(values), (min(values), max(values)))


def _best(name: str, sides: Sequence[str], rounds: Sequence[Round], pick: Any) -> str | None:
    medians = {
        side: statistics.median(measured[name.format(side)] for measured in rounds)
        for side in sides
        if all(measured.get(name.format(side)) for measured in rounds)
    }
    return pick(medians, key=medians.__getitem__) if medians else None


def markdown(found: Sequence[Finding]) -> str:
    """The table of claims."""
    lines = ["| what | measured (range) | aim | by |", "|---|---|---|---|"]
    for finding in found:
        low, high = finding.spread
        digits = ".0f" if finding.value >= 100 else ".2f"
        value = f"{finding.value:{digits}} ({low:{digits}}–{high:{digits}})"
        bound = f"{'≤' if finding.is_cost else '≥'} {finding.claim.aim:g}" + ("" if finding.met else ", **not met**")
        by = finding.side + (f" / {finding.peer}" if finding.peer else "")
        lines.append(f"| {finding.claim.what} | {value} | {bound} | {by} |")
    return "\n".join(lines) + "\n"
