"""What a job costs: by use, as a platform would bill its invocations, and beside it on reserved machines.

Every attempt is billed that was handed to the platform, whether it was done, failed, lost, ended at its time limit or
done a second time. Sums are exact: durations are whole microseconds, prices are decimal fractions, so that a bill does
not depend on the order in which invocations come.
"""

from __future__ import annotations

import heapq
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from replay_server.serverless.backends.backend import Invocation
from replay_server.serverless.prices import COLUMNS, FunctionPrice, MachinePrice, Prices, Profile, part_of

US = 1_000_000
"""Microseconds in a second."""
RESERVED = "reserved-vms"
"""The profile that the same work is set beside."""


@dataclass(frozen=True)
class Charge:
    """What one invocation is billed by itself, in one column; standing charges of machines and warm instances apart."""

    request: str
    attempt: int
    kind: str
    resource: str
    """`function`, `provisioned use` (of instances kept warm), or `machine` (nothing by itself, but in column code)."""
    billed_s: float
    dollars: Fraction


@dataclass
class _Use:
    """Sums of what is billed, in whole numbers."""

    requests: int = 0
    mb_us: Fraction = Fraction(0)
    dollars: Fraction = Fraction(0)


class Bill:
    """The bill of a job, while it runs or afterwards from its log. Threads may share it.

    Args:
        profile: of `prices`, by name.
        column: which of `COLUMNS` is `dollars`.
        provisioned: instances that are kept warm for the whole job; needed where the profile has actors on them.
        memory_mb: of each of these; None = the largest of an actor's invocation.

    Evaluations are off the bill: `summary()["evaluation"]` tells how long they took.

    Raises:
        PriceError: no such profile.
        ValueError: no such column; a profile with provisioned concurrency, and no number of instances.
    """

    def __init__(
        self,
        prices: Prices,
        profile: str,
        column: str = "full",
        provisioned: int = 0,
        memory_mb: int | None = None,
    ) -> None:
        if column not in COLUMNS:
            raise ValueError(f"unknown column {column!r}: expected one of {', '.join(COLUMNS)}")
        self.prices = prices
        self.profile = profile
        self.column = column
        self.provisioned = provisioned
        self.memory_mb = memory_mb
        self._profile: Profile = prices.profile(profile)
        self._invocations: list[Invocation] = []
        self._cache: dict[str, Any] = {}
        self._lock = threading.RLock()
        if self._profile.actor == "provisioned" and provisioned < 1:
            raise ValueError(
                f"price profile {profile!r} keeps instances warm: tell how many (provisioned = the most actors of a "
                "round)"
            )

    def add(self, *invocations: Invocation) -> None:
        """Bills attempts that have ended, in any order."""
        with self._lock:
            self._invocations.extend(invocations)
            self._cache.clear()

    @property
    def dollars(self) -> float:
        """So far: standing charges up to the end of the last invocation."""
        return float(self.exact())

    def exact(self, column: str | None = None) -> Fraction:
        """Dollars so far without rounding, in a column."""
        column = column or self.column
        with self._lock:
            if column not in self._cache:
                used = sum((each.dollars for each in self.charges(column)), Fraction(0))
                self._cache[column] = used + sum(self.standing(column).values())
            return self._cache[column]

    # ---- by use ------------------------------------------------------------------------------------------------------

    def charges(self, column: str | None = None) -> list[Charge]:
        """What each invocation is billed by itself, in the order of their starts."""
        column = column or self.column
        return [self._charge(invocation, on, column) for invocation, on in self._placed()]

    def standing(self, column: str | None = None) -> dict[str, Fraction]:
        """Dollars of what is billed whether it is used or not: resource → dollars."""
        column = column or self.column
        profile, standing = self._profile, {}
        if column == "code" or not self._billed():
            return {}
        duration_us = self._duration_us()
        if profile.actor == "provisioned":
            price = profile.function and profile.function.provisioned
            assert price is not None, "checked when the profile was read"
            kept_us = _rounded_up(duration_us, price.step_s) if column == "full" else Fraction(duration_us)
            gb = Fraction(self._provisioned_mb() * self.provisioned, 1024)
            standing["provisioned"] = gb * kept_us / US * price.gb_s
        for part, way in (("actor", profile.actor), ("learner", profile.learner)):
            if way == "machine":
                machine = profile.machine(part)
                used_us = Fraction(duration_us)
                if column == "full":
                    used_us = max(_rounded_up(duration_us, machine.step_s), machine.minimum_s * US)
                standing[f"{part} machine"] = self._machines(part, machine) * used_us / US / 3600 * machine.hour
        return standing

    def _charge(self, invocation: Invocation, on: str, column: str) -> Charge:
        profile, duration_us = self._profile, Fraction(_duration_us(invocation))
        if on == "machine":
            machine = profile.machine(invocation.kind)
            dollars = duration_us / US / 3600 * machine.hour / machine.slots if column == "code" else Fraction(0)
            return _charge_of(invocation, on, duration_us, dollars)
        price = profile.function
        assert price is not None, "checked when the profile was read"
        if column == "full":
            duration_us = max(_rounded_up(int(duration_us), price.step_s), price.minimum_s * US)
        dollars = _use_dollars(price, invocation.memory_mb, duration_us, on == "provisioned use" and column != "code")
        if column == "full":
            dollars += price.request
        return _charge_of(invocation, on, duration_us, dollars)

    def _placed(self) -> list[tuple[Invocation, str]]:
        """Each billed invocation with what it runs on: more actors at a time than are kept warm run on demand."""
        with self._lock:
            if "placed" in self._cache:
                return self._cache["placed"]
            placed, running = [], []
            for invocation in sorted(self._billed(), key=_order):
                on = self._profile.way(invocation.kind)
                if on == "provisioned":
                    while running and running[0] <= _us(invocation.started):
                        heapq.heappop(running)
                    on = "function"
                    if len(running) < self.provisioned:
                        heapq.heappush(running, _us(invocation.ended))
                        on = "provisioned use"
                placed.append((invocation, on))
            self._cache["placed"] = placed
            return placed

    def _billed(self) -> list[Invocation]:
        with self._lock:
            return [each for each in self._invocations if each.kind != "evaluation"]

    def _duration_us(self) -> int:
        """Of the job so far: from the first submission to the last end."""
        billed = self._billed()
        return max(_us(each.ended) for each in billed) - min(_us(each.queued) for each in billed) if billed else 0

    def _provisioned_mb(self) -> int:
        return self.memory_mb or max((each.memory_mb for each in self._of("actor")), default=0)

    def _machines(self, part: str, machine: MachinePrice) -> int:
        """How many machines hold all that ran at a time; at least one."""
        return max(1, -(-_peak(self._of(part)) // machine.slots))

    def _of(self, part: str) -> list[Invocation]:
        return [each for each in self._billed() if _part(each) == part]

    # ---- what is told of it ------------------------------------------------------------------------------------------

    def resources(self, column: str | None = None) -> dict[str, dict[str, float]]:
        """Of each resource: `dollars`, and how much of it in units that end its names (gb_s, requests, hours)."""
        column = column or self.column
        uses: dict[str, _Use] = defaultdict(_Use)
        for (invocation, _), charge in zip(self._placed(), self.charges(column), strict=True):
            use = uses[charge.resource if charge.resource != "machine" else f"{_part(invocation)} machine"]
            request = self._request_price(charge.resource, column)
            use.dollars += charge.dollars - request
            use.mb_us += invocation.memory_mb * round(charge.billed_s * US)
            if request:
                uses["requests"].requests += 1
                uses["requests"].dollars += request
        found: dict[str, dict[str, float]] = {}
        for resource, use in sorted(uses.items()):
            amount: dict[str, float] = {"dollars": float(use.dollars)}
            if resource == "requests":
                amount["requests"] = use.requests
            elif not resource.endswith("machine"):
                amount["gb_s"] = float(use.mb_us / 1024 / US)
            found[resource] = amount
        for resource, dollars in self.standing(column).items():
            amount = found.setdefault(resource, {"dollars": 0.0})
            amount["dollars"] += float(dollars)
            hours = self._duration_us() / US / 3600
            if resource == "provisioned":
                amount["gb_s"] = self.provisioned * self._provisioned_mb() / 1024 * hours * 3600
            else:
                part = resource.split()[0]
                amount["hours"] = hours * self._machines(part, self._profile.machine(part))
        return found

    def _request_price(self, resource: str, column: str) -> Fraction:
        price = self._profile.function
        return price.request if price is not None and resource != "machine" and column == "full" else Fraction(0)

    def reserved(self, profile: str = RESERVED) -> Bill | None:
        """The bill of the same invocations on reserved machines; None where the price file has no such profile.

        What they would have taken there is not guessed: durations are those that were measured.
        """
        if profile not in self.prices.profiles:
            return None
        bill = Bill(self.prices, profile, "full")
        bill.add(*self._invocations)
        return bill

    def idle(self) -> dict[str, float]:
        """Seconds in which something was there and did nothing: instance seconds, or seconds of a machine's slot.

        `warm_s`: instances between two invocations, which nobody bills. `provisioned_s`: instances kept warm.
        `actor_machine_s`, `learner_machine_s`: of reserved machines, in this profile or else those set beside it.
        """
        idle = {"warm_s": _warm_idle_us(self._billed()) / US}
        duration_us = self._duration_us()
        if self._profile.actor == "provisioned":
            used_us = sum(_duration_us(each) for each, on in self._placed() if on == "provisioned use")
            idle["provisioned_s"] = (self.provisioned * duration_us - used_us) / US
        machines = self if "machine" in (self._profile.actor, self._profile.learner) else self.reserved()
        for part in ("actor", "learner") if machines is not None else ():
            if machines is not None and machines._profile.way(part) == "machine":
                machine = machines._profile.machine(part)
                there_us = machines._machines(part, machine) * machine.slots * duration_us
                idle[f"{part}_machine_s"] = (there_us - sum(map(_duration_us, self._of(part)))) / US
        return idle

    def summary(self) -> dict[str, Any]:
        """What summary.json tells: dollars in each column, by resource, beside reserved machines, and idle time."""
        reserved = self.reserved()
        evaluation = [each for each in self._invocations if each.kind == "evaluation"]
        return {
            "profile": self.profile,
            "about": self._profile.about,
            "column": self.column,
            "dollars": self.dollars,
            "columns": {column: float(self.exact(column)) for column in COLUMNS},
            "resources": self.resources(),
            "duration_s": self._duration_us() / US,
            "invocations": len(self._billed()),
            "outcomes": _counted(each.outcome for each in self._billed()),
            "reserved": None
            if reserved is None
            else {"profile": reserved.profile, "dollars": reserved.dollars, "resources": reserved.resources()},
            "idle": self.idle(),
            "evaluation": {
                "invocations": len(evaluation),
                "seconds": sum(map(_duration_us, evaluation)) / US,
                "gb_s": sum(each.memory_mb * _duration_us(each) for each in evaluation) / 1024 / US,
            },
        }


def seconds_price(profile: Profile, kind: str, memory_mb: int) -> float:
    """Dollars for one second of use by an invocation of a kind: what column `code` bills."""
    if profile.way(kind) == "machine":
        machine = profile.machine(kind)
        return float(machine.hour / 3600 / machine.slots)
    assert profile.function is not None, "checked when the profile was read"
    return float(_use_dollars(profile.function, memory_mb, Fraction(US), provisioned=False))


# ---- parts ----------------------------------------------------------------------------------------------------------


def _us(time_s: float) -> int:
    return round(time_s * US)


def _duration_us(invocation: Invocation) -> int:
    """What is billed of an attempt: from its handing over to its answer or end, start-up of a cold one included."""
    return max(0, _us(invocation.ended) - _us(invocation.started))


def _rounded_up(duration_us: int, step_s: Fraction) -> Fraction:
    step_us = step_s * US
    return Fraction(-(-duration_us // step_us) * step_us) if step_us else Fraction(duration_us)


def _use_dollars(price: FunctionPrice, memory_mb: int, duration_us: Fraction, provisioned: bool) -> Fraction:
    gb_s = price.provisioned.used_gb_s if provisioned and price.provisioned else price.gb_s
    return duration_us / US * (Fraction(memory_mb, 1024) * gb_s + price.vcpus * price.vcpu_s)


def _charge_of(invocation: Invocation, on: str, duration_us: Fraction, dollars: Fraction) -> Charge:
    return Charge(invocation.request, invocation.attempt, invocation.kind, on, float(duration_us / US), dollars)


def _order(invocation: Invocation) -> tuple[Any, ...]:
    return invocation.started, invocation.ended, invocation.memory_mb, invocation.request, invocation.attempt


def _part(invocation: Invocation) -> str:
    return part_of(invocation.kind)


def _peak(invocations: Sequence[Invocation]) -> int:
    """The most that ran at a time."""
    changes = sorted([(_us(each.started), 1) for each in invocations] + [(_us(each.ended), -1) for each in invocations])
    peak = running = 0
    for _, change in changes:
        running += change
        peak = max(peak, running)
    return peak


def _warm_idle_us(invocations: Sequence[Invocation]) -> int:
    by_instance: dict[str, list[Invocation]] = defaultdict(list)
    for each in invocations:
        if each.instance:
            by_instance[each.instance].append(each)
    return sum(
        max(_us(each.ended) for each in mine) - min(_us(each.started) for each in mine) - sum(map(_duration_us, mine))
        for mine in by_instance.values()
    )


def _counted(names: Iterable[str]) -> Mapping[str, int]:
    counted: dict[str, int] = defaultdict(int)
    for name in names:
        counted[name] += 1
    return dict(sorted(counted.items()))
