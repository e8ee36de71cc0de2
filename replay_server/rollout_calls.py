"""How operations of rollouts reach their server: keys, scripts that run there, waiting for changes, reading samples."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import msgpack
import numpy as np

from . import rollout_scripts as scripts
from .cluster_address import is_cluster_url
from .codec import Argument, pack
from .commands import Command, plain
from .driver import Operation, Written
from .errors import SchemaError, ServerError, Timeout, explain
from .rollout_batches import Lease, RolloutBatch, TaskBatch
from .rollout_scripts import Script
from .rollout_tasks import SUBMITTED, Dataflow, Task
from .selectors import check_whole
from .table import Table
from .tree import shaped

MOST_BATCH_SAMPLES = 1 << 20
MOST_STALENESS = 1 << 10
MOST_CHOSEN_GROUPS = 1 << 10
"""Of a batch, with a max_delay: one script chooses them."""
MOST_VERSION = 1 << 31
"""Scripts count in float64: a place, version times samples, stays exact."""
LONGEST_LEASE_S = 30 * 86400.0
CALL_BYTES = 16
"""Random ones, by which a call that leases is known."""
_READ_SAMPLES, _READ_SEGMENTS = 16, 256
"""Of one command; the segments are of the samples of one."""


class RolloutCalls(Written):
    """Rollouts on a server, and what their operations are made of."""

    def __init__(
        self,
        client: Any,
        name: str,
        signature: Mapping[str, Any],
        *,
        group_size: int,
        groups_per_batch: int,
        max_staleness: int = 1,
        lease_s: float = 600.0,
        first_version: int = 0,
        tasks: Mapping[str, Task] | None = None,
        max_delay: int = 0,
    ) -> None:
        if is_cluster_url(client.url):
            raise ValueError(f"rollouts lie on one server: expected a client of one, or of its replicas, got {client}")
        self._table = Table(name, 1, signature)
        if self._table.windows:
            raise SchemaError(f"the signature of rollouts {name!r} must have columns alone, got windows")
        check_whole(group_size, "group_size", 1)
        check_whole(groups_per_batch, "groups_per_batch", 1)
        check_whole(max_staleness, "max_staleness", 0)
        check_whole(first_version, "first_version", 0)
        check_whole(max_delay, "max_delay", 0)
        if max_delay and (max_delay >= max_staleness or groups_per_batch > MOST_CHOSEN_GROUPS):
            raise SchemaError(
                f"rollouts {name!r}: with a max_delay, expected it below max_staleness, and at most "
                f"{MOST_CHOSEN_GROUPS} groups of a batch, got {max_delay}, {max_staleness} and {groups_per_batch}"
            )
        samples = int(group_size) * int(groups_per_batch)
        if samples > MOST_BATCH_SAMPLES or max_staleness > MOST_STALENESS or first_version > MOST_VERSION:
            raise SchemaError(
                f"rollouts {name!r}: expected at most {MOST_BATCH_SAMPLES} samples of a batch, a max_staleness of "
                f"{MOST_STALENESS} and a first_version of {MOST_VERSION}, got {samples}, {max_staleness} and "
                f"{first_version}"
            )
        self.name, self.group_size, self.groups_per_batch = name, int(group_size), int(groups_per_batch)
        self.max_staleness, self.lease_s = int(max_staleness), seconds_of(lease_s, "lease_s", 0.001)
        self.max_delay = int(max_delay)
        self.first_version, self._client, self._samples = int(first_version), client, samples
        self._dataflow = Dataflow(self._table, {} if tasks is None else tasks, self.group_size)
        self._incarnation: bytes | None = None

    @property
    def tasks(self) -> Mapping[str, Task]:
        """The tasks, by name."""
        return self._dataflow.tasks

    @property
    def signature(self) -> Mapping[str, Any]:
        """The columns of a sample, by name."""
        return self._table.signature

    def _keys(self, *parts: str) -> list[str]:
        root = f"rollouts:{{{self.name}}}"
        return [root, *(f"{root}:{part}" for part in parts)]

    def _leases_of(self, task: str) -> list[str]:
        """The keys of the leases of a task; of SUBMITTED: of samples that are to be made."""
        prefix = f"task:{self._number(task)}:" if task else ""
        return self._keys(*(prefix + part for part in ("changes", "leases", "expiry", "calls", "free")))

    def _number(self, task: str) -> int:
        if task not in self.tasks:
            raise SchemaError(f"rollouts {self.name!r} have no task {task!r}: expected one of {', '.join(self.tasks)}")
        return self._dataflow.numbers[task]

    def _batch_key(self, batch: int) -> str:
        return f"{self._keys()[0]}:batch:{batch}"

    def _results_key(self, batch: int) -> str:
        return f"{self._keys()[0]}:results:{batch}"

    def _spec(self) -> dict[str, Any]:
        return {
            "signature": {path: column.to_spec() for path, column in self._table.item_columns.items()},
            "group_size": self.group_size,
            "groups_per_batch": self.groups_per_batch,
            "max_staleness": self.max_staleness,
            "lease_s": self.lease_s,
            "first_version": self.first_version,
            "max_delay": self.max_delay,
            "tasks": {name: task.to_spec() for name, task in sorted(self.tasks.items())},
        }

    def _open(self) -> Operation[bytes]:
        """The incarnation of the rollouts, made where there are none.

        Raises:
            SchemaError: there are others of this name.
        """
        if self._incarnation is not None:
            return self._incarnation
        lease_ms = round(self.lease_s * 1000)
        numbers = (self.first_version, self._samples, self.max_staleness, lease_ms, len(self.tasks), self.max_delay)
        arguments = (pack(self._spec()), os.urandom(CALL_BYTES), *numbers, self.group_size)
        what = f"opening of rollouts {self.name!r}"
        incarnation, spec = yield from self._answer(what, scripts.OPEN, self._keys(), arguments)
        known, own = msgpack.unpackb(spec), self._spec()
        for key, value in own.items():
            if known.get(key) != value:
                other = "other" if key == "tasks" else "another"
                raise SchemaError(
                    f"rollouts {self.name!r} exist with {other} {key}: expected {known.get(key)!r}, got {value!r}; "
                    "use it, choose another name, or drop() them from a program that has theirs"
                )
        self._incarnation = incarnation
        return incarnation

    def _run(
        self, what: str, script: Script, keys: Sequence[str], *arguments: Argument, repeatable: bool = True
    ) -> Operation[Any]:
        incarnation = yield from self._open()
        return (yield from self._answer(what, script, keys, (incarnation, *arguments), repeatable))

    def _answer(
        self, what: str, script: Script, keys: Sequence[str], arguments: Sequence[Argument], repeatable: bool = True
    ) -> Operation[Any]:
        """What a script returns. The server forgets scripts when it ends, so it may have to be sent whole."""
        rest = (len(keys), *keys, *arguments)
        try:
            command = plain(what, ("EVALSHA", script.sha, *rest), lambda value: value, repeatable)
            return (yield from self._client._answer(command))
        except ServerError as error:
            if error.code != "NOSCRIPT":
                raise
        command = plain(what, ("EVAL", script.text, *rest), lambda value: value, repeatable)
        return (yield from self._client._answer(command))

    def _await_change(
        self,
        what: str,
        reason: str,
        stream: str,
        changes: int,
        longest: float,
        timeout: float | None,
        deadline: float | None,
    ) -> Operation[None]:
        """Waits for the change of a stream after the one of that number, at most `longest` seconds.

        Raises:
            Timeout: the deadline has passed.
        """
        wait_s = longest
        if deadline is not None:
            wait_s = min(longest, deadline - time.monotonic())
            if wait_s <= 0:
                raise explain(what, timeout, Timeout(reason))
        wait_ms = max(1, round(wait_s * 1000))
        arguments = ("XREAD", "BLOCK", wait_ms, "STREAMS", stream, f"{changes}-0")
        yield from self._client._answer(plain(what, arguments, lambda value: None, True, wait_ms / 1000))

    def _read_segments(
        self, what: str, batch: int, counts: Mapping[int, int]
    ) -> Operation[dict[int, list[tuple[int, bytes]]] | None]:
        """The version and the rows of each segment of samples of a batch, place → how many; None where one is not
        there."""
        fields = [f"{place}:{number}" for place, count in counts.items() for number in range(count)]
        key, told = f"{self._keys()[0]}:segments:{batch}", list[Any]()
        for start in range(0, len(fields), _READ_SEGMENTS):
            told += yield from self._fields(what, key, fields[start : start + _READ_SEGMENTS])
            if None in told:
                return None
        segments = iter(told)
        return {
            place: [tuple(msgpack.unpackb(segment)) for segment in islice(segments, count)]
            for place, count in counts.items()
        }

    def _fields(self, what: str, key: str, fields: Sequence[str]) -> Operation[list[Any]]:
        command: Command[Any] = plain(what, ("HMGET", key, *fields), lambda value: value, True)
        return (yield from self._client._answer(command))

    def _read(
        self, what: str, policy_version: int, paths: Sequence[str], chosen: bytes = b""
    ) -> Operation[RolloutBatch | None]:
        """Columns of the samples of a batch that was complete, group by group; None where one is no longer there."""
        first = policy_version * self.groups_per_batch
        groups = sorted(map(int, chosen.split())) or range(first, first + self.groups_per_batch)
        places = [group * self.group_size + index for group in groups for index in range(self.group_size)]
        if (found := (yield from self._read_places(what, places, paths))) is None:
            return None
        data, versions, newest = found
        return RolloutBatch(policy_version, data, np.array(places) // self.group_size, versions, newest)

    def _read_units(self, what: str, task: str, units: Sequence[int], holder: bytes) -> Operation[TaskBatch | None]:
        """What a task reads of its samples; None where one is no longer there, as after a kill with `everysec`."""
        unit = self._dataflow.unit(task)
        places = [place for first in units for place in range(first * unit, (first + 1) * unit)]
        if (found := (yield from self._read_places(what, places, self.tasks[task].reads))) is None:
            return None
        data, versions, _ = found
        leases = []
        for at in range(0, len(places), unit):
            group, index = divmod(places[at], self.group_size)
            oldest, batch = int(versions[at : at + unit].min()), group // self.groups_per_batch
            leases.append(Lease(group, index, batch, oldest, places[at], holder, task))
        return TaskBatch(task, leases, data, np.array(places) // self.group_size, versions)

    def _read_places(
        self, what: str, places: Sequence[int], paths: Sequence[str]
    ) -> Operation[tuple[dict[str, Any], np.ndarray, np.ndarray] | None]:
        """Columns of samples, and the smallest and the largest version that made each; None where one is not there."""
        tasks = sorted({self._dataflow.writers[path] for path in paths} - {SUBMITTED})
        needs_submitted = any(self._dataflow.writers[path] == SUBMITTED for path in paths)
        oldest: list[int] = []
        newest: list[int] = []
        rows: dict[str, list[Sequence[bytes]]] = {part: [] for part in ([SUBMITTED] if needs_submitted else []) + tasks}
        start = 0
        while start < len(places):
            batch = places[start] // self._samples
            some = [place for place in places[start : start + _READ_SAMPLES] if place // self._samples == batch]
            start += len(some)
            fields = [f"{place}{name}" for name in (["h", ""] if needs_submitted else ["h"]) for place in some]
            told = yield from self._fields(what, self._batch_key(batch), fields)
            if tasks:
                numbers = [self._dataflow.numbers[task] for task in tasks]
                fields = [f"{place}:{number}" for number in numbers for place in some]
                told += yield from self._fields(what, self._results_key(batch), fields)
            if None in told:
                return None
            for at, part in enumerate(rows, 1):
                rows[part] += map(msgpack.unpackb, told[at * len(some) : (at + 1) * len(some)])
            base, counts = len(oldest), dict[int, int]()
            for place, holder in zip(some, told[: len(some)], strict=True):
                low, high, segments = _made_by(holder)
                oldest.append(low)
                newest.append(high)
                if segments and needs_submitted:
                    counts[place] = segments
            if (found := (yield from self._read_segments(what, batch, counts))) is None:
                return None
            for at, place in enumerate(some, base):
                if place in found:
                    pieces = [packed for _, packed in found[place]]
                    rows[SUBMITTED][at] = self._dataflow.grown(rows[SUBMITTED][at], pieces)
        data = shaped(self._table.signature, self._dataflow.stacked(rows, paths))
        return data, np.array(oldest, np.int64), np.array(newest, np.int64)


def _made_by(holder: bytes) -> tuple[int, int, int]:
    """Of what a sample keeps of its holder: the smallest and the largest version that made it, and its segments."""
    if grown := holder[CALL_BYTES + 8 :].split():
        return int(grown[0]), int(grown[1]), int(grown[2])
    version = int.from_bytes(holder[CALL_BYTES:], "little")
    return version, version, 0


def seconds_of(value: float, what: str, least: float) -> float:
    """A duration from a caller.

    Raises:
        SchemaError: it is none, or out of range.
    """
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not is_number or not least <= value <= LONGEST_LEASE_S:
        raise SchemaError(f"{what} must be from {least:g} to {LONGEST_LEASE_S:.0f} seconds, got {value!r}")
    return float(value)
