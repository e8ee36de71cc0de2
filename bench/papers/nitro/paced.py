"""Another scaler's counts, held to a total number of actors over the job: for comparisons at equal actors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replay_server.serverless.record import RoundRecord
from replay_server.serverless.scalers.scaler import Scaler, clip


class Paced:
    """I_k = clip(⌊raw_k · f_k + ½⌋, least, most), f_k = what is left of the total / what is expected to be asked for.

    Expected of each round to come is the mean of what the scaler has asked for so far, in proportion to `outlook`. The
    last round gets all that is left, as far as the bounds let it.

    Args:
        scaler: asked for raw_k.
        total: actors of all rounds together.
        outlook: what each round is thought to be asked for, up to a factor; its length is the number of rounds.
        least, most: bounds of each round's count.
    """

    def __init__(self, scaler: Scaler, total: int, outlook: tuple[float, ...], least: int, most: int) -> None:
        if not 1 <= least <= most:
            raise ValueError(f"expected 1 ≤ least ≤ most actors, got {least} and {most}")
        if not outlook or not len(outlook) * least <= total <= len(outlook) * most or min(outlook) <= 0.0:
            raise ValueError(
                f"expected a total within {len(outlook)} rounds of {least} to {most} actors, each outlook above 0; "
                f"got {total}"
            )
        self._scaler = scaler
        self._total, self._outlook = total, outlook
        self._least, self._most = least, most
        self._round = self._given = 0
        self._asked = self._foreseen = 0.0

    @property
    def probes(self) -> Mapping[str, Mapping[str, Any]]:
        return self._scaler.probes

    def actors(self, before: RoundRecord | None) -> int:
        raw = self._scaler.actors(before)
        now = min(self._round, len(self._outlook) - 1)
        self._asked += raw
        self._foreseen += self._outlook[now]
        to_come = sum(self._outlook[now + 1 :])
        left, rounds_left = self._total - self._given, len(self._outlook) - now - 1
        expected = raw + to_come * self._asked / self._foreseen
        # What the rounds to come can take, and what they must have, bound this one, too.
        least = max(self._least, left - rounds_left * self._most)
        most = max(least, min(self._most, left - rounds_left * self._least))
        count = clip(raw * left / expected + 0.5, least, most) if rounds_left else clip(left, least, most)
        self._round += 1
        self._given += count
        return max(self._least, min(self._most, count))

    def state(self) -> Mapping[str, Any]:
        return {
            "scaler": dict(self._scaler.state()), "round": self._round, "given": self._given, "asked": self._asked,
            "foreseen": self._foreseen,
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        self._scaler.restore(state["scaler"])
        self._round, self._given = int(state["round"]), int(state["given"])
        self._asked, self._foreseen = float(state["asked"]), float(state["foreseen"])
