"""Rollouts for on-policy training of language models: leased before they begin, in whole groups, each trained on once.

The samples of a prompt are a group, and so many groups a batch: batch v is what the learner trains on when its policy
has version v, and what makes version v + 1 of it. Each sample has a place, numbered from 0: its group and its batch
follow from the number, and never change.

Why the staleness is bounded: a place of batch b is leased only to a policy of version v >= b - max_staleness, and its
sample is stored only by whoever holds its lease. So a sample is at most max_staleness versions old when the learner
trains on its batch, however long it took and whatever was killed meanwhile.

Why each sample is there once: a place has one holder at a time. What was submitted ends the lease, and such a place is
never leased again. The learner gets a batch once all its places are filled, as often as it asks, until it says that its
policy is one version further; then the samples leave, and the version before is refused.

Why a sample that grows keeps the bound: each segment is stored only if its version is at least
b + max_delay - max_staleness. The next holder of the lease continues what is there, and the batch of the place stays
the same. A sample is stored only if its worker names how many segments there are. So none is missing, and no whole
sample is joined to what another worker began.

Why the order of completion keeps the bound: with a max_delay of d, a place of batch b is leased only to a version of at
least b + d - max_staleness, and batch v takes every group that is left of batch v - d, before those that were complete
first. So a group of batch b is trained on with version b + d at the latest, and nothing is left of batch v - d then.

Why each task works on each sample once: its units, samples or groups, are leased as places are. A unit becomes free
when the last part that the task reads is written, which happens once; what the task writes ends the lease, and the unit
is never free again. A batch is complete only when every task is done with it, so nothing of it is still leased when it
leaves.

Why a lost reply does no harm: a call of `lease` is known by 16 random bytes, and a sample keeps those of its lease. A
repeated call finds that it was done. Each step is one script (`rollout_scripts`, `rollout_leases`), whole in the
append-only file.

Why it is bounded: places are leased only up to the batch of the learner's version + max_staleness - max_delay. Those of
batches before its version - max_delay have left. So there are never more than max_staleness + 1 batches of samples and
leases.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from . import rollout_scripts as scripts
from .checks import check_timeout, check_version
from .codec import Argument, pack
from .driver import Awaited, Blocking, Operation, operation
from .errors import LeaseExpired, LimitExceeded, ReplayError, SchemaError
from .rollout_batches import Lease, RolloutBatch, Segment, TaskBatch
from .rollout_calls import CALL_BYTES, MOST_VERSION, RolloutCalls, seconds_of
from .rollout_leases import EXTEND, LEASE, LEASE_UNITS
from .rollout_scripts import MOST_SAMPLE_BYTES
from .rollout_tasks import SUBMITTED, PackedSample
from .selectors import check_whole

_EXTENDED_LEASES = 256
_MOST_SUBMITTED = 256
"""Samples of a call: as many as one of `lease` returns."""
_PUT_SAMPLES, _PUT_BYTES = 64, 4 << 20
"""Of one command; a group is not cut."""
_LOOK_S = 5.0
"""How long at most a call waits for a change before it looks again: under `appendfsync everysec` a killed server may
come back with fewer changes than were counted."""


class RolloutOperations(RolloutCalls):
    """The operations of rollouts; see `replay_server.Rollouts`."""

    @operation
    def lease(
        self, count: int, policy_version: int, timeout: float | None = None, drop_segments: bool = False
    ) -> Operation[list[Lease]]:
        """Leases samples before they are made: those with the lowest numbers that are free.

        It waits while everything is leased or there that a policy of this version may make: up to the batch of the
        learner's version + max_staleness - max_delay. So fast workers wait, and no sample is discarded for its age.

        Args:
            count: at most as many, and at most 256; ask for group_size to get whole groups where they are free.
            policy_version: of the weights that make them.
            timeout: seconds; None = for ever, 0 = not at all.
            drop_segments: throw away what former holders appended; else a lease says how many `segments` there are, and
                its holder continues behind them.

        Returns:
            1 to `count` leases.

        Raises:
            Timeout: nothing could be leased in time.
            StaleVersion: what can be leased must be made by a newer policy: fetch the weights, and ask again.
            ServerError: the version is more than one above the learner's.
            LimitExceeded: the server's `maxmemory` is reached. After a lost reply samples may be leased nonetheless:
                they are free after lease_s.
        """
        check_whole(count, "count", 1)
        policy_version, timeout = _version(policy_version), check_timeout(timeout)
        holder = os.urandom(CALL_BYTES) + policy_version.to_bytes(8, "little")
        keys, what = self._leases_of(SUBMITTED), f"lease of {count} samples of {self.name!r}"
        deadline = None if timeout is None else time.monotonic() + timeout
        arguments = (holder, int(count), policy_version, int(bool(drop_segments)))
        while True:
            leased, *told = yield from self._run(what, LEASE, keys, *arguments)
            if leased > 0:
                return [self._lease(place, policy_version, holder) for place in told[0].split()]
            if leased < 0:
                continue  # many leases had expired, and some are still to be freed
            changes, expires_ms, learners = told
            newest = min(policy_version, learners) + self.max_staleness - self.max_delay
            reason = (
                f"every sample up to batch {newest} is leased or there; a policy of version {policy_version} may make "
                f"no others, while the learner is at version {learners}"
            )
            longest = _LOOK_S if expires_ms < 0 else min(_LOOK_S, expires_ms / 1000)
            yield from self._await_change(what, reason, keys[1], changes, longest, timeout, deadline)

    @operation
    def append(self, lease: Lease, number: int, rows: Mapping[str, Any], policy_version: int) -> Operation[None]:
        """Adds a segment to a sample that is being made: further rows of ragged columns. `submit` closes the sample.

        What was appended stays when the lease expires or is given back: the next holder continues it, or drops it. A
        repeated call changes nothing: the first segment of a number counts.

        Args:
            lease: of `lease`.
            number: of the segment: `lease.segments` for the first one of this lease, then one more each.
            rows: name → rows of some of the ragged columns that are submitted, in the form of the signature.
            policy_version: of the weights that made them, at least lease.batch + max_delay - max_staleness.

        Raises:
            SchemaError: the rows do not fit the signature, or columns get longer than their max_length; or another
                number is next.
            StaleVersion: the version is too old for the batch of the sample.
            ServerError: the version is more than one above the learner's.
            LeaseExpired: another worker has the lease by now, or the sample was submitted.
            LimitExceeded: the sample gets more than 32 MiB, or 256 segments, or the server's `maxmemory` is reached.
                After a lost reply the segment may be stored nonetheless: repeat the same call.
            All of them change nothing, and but for LeaseExpired the lease stays.
        """
        self._check_lease(lease)
        check_whole(number, "number", lease.segments)
        policy_version = _version(policy_version)
        packed, lengths = self._dataflow.packed_segment(rows)
        what = f"append to sample {lease.index} of group {lease.group} of {self.name!r}"
        segment = pack([policy_version, packed])
        self._check_bytes(len(segment))
        given = (lease.place, lease.holder, segment, policy_version, len(lengths) // 2, int(number), *lengths)
        told = yield from self._run(what, scripts.APPEND, self._leases_of(SUBMITTED), *given)
        if told[0] == -1:
            raise SchemaError(f"{what}: segment {told[1]} is next, got number {number}; nothing was stored")
        if told[0] < 0:
            raise self._too_much(what, told)

    @operation
    def segments(self, lease: Lease) -> Operation[list[Segment]]:
        """What former holders of a lease appended, to be continued: `lease.segments` of them, in order.

        Raises:
            LeaseExpired: they are gone: the sample was trained on, or another worker dropped them.
        """
        self._check_lease(lease)
        what = f"segments of sample {lease.index} of group {lease.group} of {self.name!r}"
        found = yield from self._read_segments(what, lease.batch, {lease.place: lease.segments})
        if found is None:
            raise LeaseExpired(f"{what}: they are gone; drop this sample, and lease again")
        return [Segment(version, self._dataflow.rows_of(rows)) for version, rows in found[lease.place]]

    @operation
    def submit(self, lease: Lease, sample: Mapping[str, Any], segments: int = 0) -> Operation[None]:
        """Stores the sample of a lease, and ends the lease. The first sample counts: a repeated call changes nothing.

        An expired lease is as good as another one until it has been given to another worker.

        Args:
            lease: of `lease`.
            sample: column name → the value of one item, in the form of the signature, without what tasks write. If
                segments were appended, these rows come behind them, and the columns that have segments may be left out.
            segments: how many segments the sample has: what former holders left, and those of this lease.

        Raises:
            SchemaError: the sample does not fit the signature, or has another number of segments: the server lost some,
                or a former holder left some. Nothing was stored, and the lease stays.
            LeaseExpired: another worker has the lease by now; nothing was changed.
            LimitExceeded: the sample has more than 32 MiB, or the server's `maxmemory` is reached; nothing was stored,
                and the lease stays. After a lost reply the sample may be stored nonetheless: repeat the same call.
        """
        self._check_lease(lease)
        packed = self._dataflow.packed_sample(sample)
        what = self._submission_of(lease)
        if lost := (yield from self._store(what, [lease], [packed], [segments])):
            told = (
                "the lease was given back, or had expired and was given to another worker: drop this sample, and lease "
                "again"
            )
            if lost[0] < 0:
                told = (
                    f"batch {lease.batch} has been trained on: if this call repeats one whose reply was lost, that one "
                    "was done; else another worker had the lease"
                )
            raise LeaseExpired(f"{what}: {told}. Nothing was changed", lost=[lease])

    @operation
    def submit_samples(
        self, leases: Sequence[Lease], columns: Mapping[str, Any], segments: Sequence[int] | None = None
    ) -> Operation[None]:
        """Stores the samples of several leases, such as those of a group, at once, and ends the leases. All are checked
        before the first is stored. The first sample of a lease counts: a repeated call changes nothing.

        Args:
            leases: of `lease`, each once, of one group or of several; at most 256.
            columns: name → values (N, *column.shape), or ragged ones of N samples, in the order of the leases, without
                what tasks write. Columns of which every sample has segments may be left out.
            segments: of each sample as `submit` takes it, N whole numbers; None: no sample has any.

        Raises:
            SchemaError: the columns do not fit the signature, a lease is named twice, or a sample has another number of
                segments. Nothing is stored, and all leases stay.
            LimitExceeded: the samples have more than 32 MiB together, or one of them has with its segments; there are
                more than 256; or the server's `maxmemory` is reached. Nothing is stored, and all leases stay. After a
                lost reply the samples may be stored nonetheless: repeat the same call.
            LeaseExpired: other workers have some of the leases by now, or their batch was trained on: the error's
                `lost`. The other samples were stored.
        """
        given = list(leases)
        if len(given) > _MOST_SUBMITTED:
            raise LimitExceeded(
                f"expected at most {_MOST_SUBMITTED} leases in a call, got {len(given)}; nothing was stored: use "
                "several calls"
            )
        named: set[tuple[int, bytes]] = set()
        for lease in given:
            self._check_lease(lease)
            if (lease.place, lease.holder) in named:
                raise SchemaError(
                    f"expected each lease once, got that of sample {lease.index} of group {lease.group} twice; nothing "
                    "was stored"
                )
            named.add((lease.place, lease.holder))
        counts = [0] * len(given) if segments is None else segments
        if np.shape(counts) != (len(given),):
            raise SchemaError(f"expected the number of segments of each of {len(given)} samples, got {segments!r:.200}")
        what = f"submission of {len(given)} samples to {self.name!r}"
        packed = self._dataflow.packed_samples(columns, len(given))
        if lost := (yield from self._store(what, given, packed, counts)):
            raise self._some_lost(what, [given[abs(number) - 1] for number in lost], len(given))

    @operation
    def take_samples(self, task: str, count: int, timeout: float | None = None) -> Operation[TaskBatch]:
        """Leases samples that are ready for a task, those with the lowest numbers first, and returns what it reads.

        A task gets each sample once. Another worker gets it as well only if its lease expires or is given back before
        `put_columns`.

        Args:
            task: name of one of the `tasks`.
            count: at most as many samples, or as many groups if the task has whole groups; and at most 256.
            timeout: seconds; None = for ever, 0 = not at all.

        Returns:
            1 to `count` samples or groups.

        Raises:
            SchemaError: there is no such task.
            Timeout: no sample became ready in time.
            LimitExceeded: the server's `maxmemory` is reached. After a lost reply samples may be leased nonetheless:
                they are free after lease_s.
        """
        number, unit = self._number(task), self._dataflow.unit(task)
        check_whole(count, "count", 1)
        timeout = check_timeout(timeout)
        what = f"take of samples of {self.name!r} for {task!r}"
        deadline = None if timeout is None else time.monotonic() + timeout
        keys = self._leases_of(task)
        while True:
            holder = os.urandom(CALL_BYTES)
            leased, *told = yield from self._run(what, LEASE_UNITS, keys, holder, int(count), number)
            if leased > 0:
                units = sorted(map(int, told[0].split()))
                if batch := (yield from self._read_units(what, task, units, holder)):
                    return batch
            elif leased == 0:
                reason = f"no {'group' if unit > 1 else 'sample'} is ready for task {task!r}, or all have been leased"
                changes, expires_ms = told
                longest = _LOOK_S if expires_ms < 0 else min(_LOOK_S, expires_ms / 1000)
                yield from self._await_change(what, reason, keys[1], changes, longest, timeout, deadline)

    @operation
    def put_columns(self, samples: TaskBatch, columns: Mapping[str, Any]) -> Operation[None]:
        """Stores what a task writes of samples, and ends their leases. What comes first counts: a repeated call changes
        nothing.

        Args:
            samples: of `take_samples`.
            columns: name → values (N, *column.shape), or ragged ones of N samples, in their order: all columns that the
                task writes; an empty dict if it writes none.

        Raises:
            SchemaError: the columns do not fit the signature; nothing was stored, and the leases stay.
            LimitExceeded: those of one sample, or of one whole group, have more than 32 MiB; nothing was stored, and
                the leases stay. Or the server's `maxmemory` is reached: some may be stored, and the leases of the
                others stay; repeat the same call.
            LeaseExpired: other workers have some of the samples by now, or their batch was trained on, as it may be
                when a call is repeated. The others were stored.
        """
        if not isinstance(samples, TaskBatch):
            raise TypeError(f"expected a TaskBatch, as take_samples() returns, got {type(samples).__name__}")
        task = samples.task
        number, unit = self._number(task), self._dataflow.unit(task)
        rows = self._dataflow.packed_rows(task, columns, len(samples))
        units = [rows[start : start + unit] for start in range(0, len(rows), unit)]
        sizes = [sum(map(len, some)) for some in units]
        if max(sizes) > MOST_SAMPLE_BYTES:
            raise LimitExceeded(
                f"expected at most {MOST_SAMPLE_BYTES} bytes of columns of a {'group' if unit > 1 else 'sample'}, got "
                f"{max(sizes)}"
            )
        what = f"put of columns of task {task!r} to {self.name!r}"
        followers, lost, first = self._dataflow.followers[task], [], 0
        while first < len(units):
            last = first + 1
            while (
                last < len(units)
                and (last + 1 - first) * unit <= _PUT_SAMPLES
                and (sum(sizes[first : last + 1]) <= _PUT_BYTES)
            ):
                last += 1
            leases = samples.leases[first:last]
            given = [
                part
                for lease, some in zip(leases, units[first:last], strict=True)
                for at, row in enumerate(some)
                for part in (lease.place + at, row)
            ]
            arguments = (leases[0].holder, number, unit, len(given) // 2, *given, *followers)
            told = yield from self._run(what, scripts.PUT, self._leases_of(task), *arguments)
            lost += [leases[at] for at in told]
            first = last
        if lost:
            raise self._some_lost(what, lost, len(units))

    @operation
    def renew(self, leases: Iterable[Lease], seconds: float | None = None) -> Operation[list[Lease]]:
        """Moves the expiry of leases, of samples or of tasks: to `seconds` from now, `lease_s` unless it is given.

        Returns:
            Those of them that their worker still has: stop making the others.
        """
        seconds = self.lease_s if seconds is None else seconds_of(seconds, "seconds", 0.0)
        return (yield from self._extend("renewal", leases, repr(seconds)))

    @operation
    def give_back(self, leases: Iterable[Lease]) -> Operation[None]:
        """Ends leases without a sample, so that other workers get them at once. Those that were lost are left out."""
        yield from self._extend("return", leases, "")

    @operation
    def take(
        self, policy_version: int, timeout: float | None = None, columns: Sequence[str] | None = None
    ) -> Operation[RolloutBatch]:
        """Waits until all samples of a version's batch are there and every task is done with them, and returns them. It
        may be repeated: the batch stays until the next version is asked for.

        Asking for version v says that the learner has trained on batch v - 1, and has kept the weights of version v
        where it will find them after a crash: the samples of that batch leave, and those of batch v + max_staleness
        (less max_delay) may be leased.

        Args:
            policy_version: the learner's.
            timeout: seconds for the samples to come; None = for ever, 0 = not at all.
            columns: only these, by their paths, such as "obs/image", or "obs" for all in it; None = all. The server
                sends the submitted columns only if one of them is named, and likewise those of each task.

        Raises:
            SchemaError: there is no such column; nothing was asked for.
            Timeout: not all samples are there, or tasks are not done with them; its `reason` says how many. What asking
                says has been done.
            StaleVersion: that batch was trained on already.
            BatchNotTaken: the batch of the version before was not taken; nothing was changed.
        """
        policy_version, timeout = _version(policy_version), check_timeout(timeout)
        paths = self._table.chosen(columns)
        what = f"take of batch {policy_version} of {self.name!r}"
        deadline = None if timeout is None else time.monotonic() + timeout
        before = policy_version - 1 - self.max_delay  # that of no version names keys that are never written
        batches = [key(version) for key in (self._batch_key, self._results_key) for version in (policy_version, before)]
        keys = [*self._keys("changes"), *batches]
        while True:
            complete, *told = yield from self._run(what, scripts.TAKE, keys, policy_version, self.first_version)
            changes, *told = told
            if complete:
                if batch := (yield from self._read(what, policy_version, paths, *told)):
                    return batch
                reason = f"batch {policy_version} was complete, but data of it is gone: evicted, deleted or lost"
            elif self.max_delay:
                there, due, due_there = told
                reason = f"groups complete: {there}; a batch has {self.groups_per_batch}"
                if due_there < due:
                    reason += f"; {due_there} of the {due} that batch {policy_version} may not leave out are complete"
            else:
                there, results = told
                reason = f"{there} of the {self._samples} samples of batch {policy_version} are there"
                if self.tasks:
                    reason += f", and {results} of the {self._samples * len(self.tasks)} results of tasks"
            yield from self._await_change(what, reason, keys[1], changes, _LOOK_S, timeout, deadline)

    @operation
    def info(self) -> Operation[dict[str, Any]]:
        """How far the rollouts are.

        Returns:
            policy_version, the learner's; begun, samples of its batch and later ones that were leased at least once;
            leased, samples that a worker has; expired, those of them, and of those given back, that another worker
            would get now; samples, of each batch from policy_version - max_delay on how many are there. Where there are
            tasks: tasks, name → ready, the samples or groups that another worker would get now, and leased, those that
            a worker has.
        """
        told = yield from self._run(f"info of rollouts {self.name!r}", scripts.INFO, self._leases_of(SUBMITTED))
        *counts, works = told
        info: dict[str, Any] = dict(
            zip(("policy_version", "begun", "leased", "expired", "samples"), counts, strict=True)
        )
        if self.tasks:
            named = zip(sorted(self.tasks), works, strict=True)
            info["tasks"] = {name: dict(zip(("ready", "leased"), work, strict=True)) for name, work in named}
        return info

    @operation
    def drop(self) -> Operation[None]:
        """Removes all samples and leases, and what is known of them. Programs that use them get a SchemaError."""
        of_tasks = [key for task in self.tasks for key in self._leases_of(task)[1:]]
        keys = [*self._leases_of(SUBMITTED), *of_tasks, *self._keys("there", "complete", "completion", "trained")[1:]]
        yield from self._run(f"drop of rollouts {self.name!r}", scripts.DROP, keys, repeatable=False)
        self._incarnation = None

    # ---- how ---------------------------------------------------------------------------------------------------------

    def _lease(self, told: bytes, policy_version: int, holder: bytes) -> Lease:
        place, _, segments = told.partition(b":")
        group, index = divmod(int(place), self.group_size)
        batch = group // self.groups_per_batch
        return Lease(group, index, batch, policy_version, int(place), holder, segments=int(segments or 0))

    def _extend(self, what: str, leases: Iterable[Lease], seconds: str) -> Operation[list[Lease]]:
        given, held = list(leases), []
        what = f"{what} of leases of {self.name!r}"
        for start in range(0, len(given), _EXTENDED_LEASES):
            some = given[start : start + _EXTENDED_LEASES]
            for task in {lease.task: None for lease in some}:
                own = [lease for lease in some if lease.task == task]
                kind, unit = "changes", 1
                if task:
                    kind, unit = f"changes:{self._number(task)}", self._dataflow.unit(task)
                pairs = [part for lease in own for part in (lease.place // unit, lease.holder)]
                told = yield from self._run(what, EXTEND, self._leases_of(task), seconds, kind, *pairs)
                held += [own[at] for at in told]
        return held

    def _check_lease(self, lease: Lease) -> None:
        if not isinstance(lease, Lease) or lease.task:
            got = f"one of task {lease.task!r}" if isinstance(lease, Lease) else type(lease).__name__
            raise TypeError(f"expected a Lease, one of those that lease() returns, got {got}")

    def _check_bytes(self, size_bytes: int, what: str = "a sample") -> None:
        if size_bytes > MOST_SAMPLE_BYTES:
            raise LimitExceeded(f"expected {what} of at most {MOST_SAMPLE_BYTES} bytes, got {size_bytes}")

    def _too_much(self, what: str, told: Sequence[int]) -> ReplayError:
        """The error for what a script refused, since with the segments before it there would be too much."""
        if told[0] == -2:
            path = self._dataflow.growing[told[1]]
            most = self._table.columns[path].max_length
            return SchemaError(
                f"{what}: column {path!r} holds items of at most {most} rows (its max_length), got {told[2]} with the "
                "segments; nothing was stored"
            )
        return LimitExceeded(
            f"{what}: expected a sample of at most {MOST_SAMPLE_BYTES} bytes with its segments, got {told[1]}; nothing "
            "was stored"
        )

    def _submission_of(self, lease: Lease) -> str:
        return f"submission of sample {lease.index} of group {lease.group} to {self.name!r}"

    def _store(
        self, what: str, leases: Sequence[Lease], packed: Sequence[PackedSample], segments: Sequence[int]
    ) -> Operation[list[int]]:
        """Submits samples in one script; which of them were lost, as the script tells it."""
        given: list[Argument] = [len(leases), len(self._dataflow.growing)]
        for lease, (sample, lengths), count in zip(leases, packed, segments, strict=True):
            check_whole(count, "segments", 0)
            made_by = lease.policy_version if any(rows not in (0, "-") for rows in lengths[::2]) else ""
            given += lease.place, lease.holder, sample, made_by, int(count), *lengths
        self._check_bytes(sum(len(sample) for sample, _ in packed), "a sample" if len(leases) == 1 else "samples")
        followers = self._dataflow.followers[SUBMITTED]
        first, *told = yield from self._run(what, scripts.SUBMIT, self._leases_of(SUBMITTED), *given, *followers)
        if first < 0:
            return told
        what = self._submission_of(leases[first])
        if told[0] == -1:
            missing = self._dataflow.growing[told[1]]
            raise SchemaError(f"{what}: no segment has this column; missing: {missing}; nothing was stored")
        if told[0] == -4:
            raise SchemaError(
                f"{what}: expected segments={told[1]}, as many as the sample has, got {segments[first]}: append those "
                "that are lost, continue those of a former holder, or lease with drop_segments=True; nothing was stored"
            )
        raise self._too_much(what, told)

    def _some_lost(self, what: str, lost: list[Lease], count: int) -> LeaseExpired:
        return LeaseExpired(
            f"{what}: {len(lost)} of {count} leases had expired and gone to other workers, or were given back, or "
            f"their batches have been trained on, the first of them of sample {lost[0].index} of group "
            f"{lost[0].group}; the others are stored",
            lost=lost,
        )


class Rollouts(RolloutOperations, Blocking):
    """Samples of language models for GRPO and the like, on a server: leased before they are made, in whole groups.

    A group is `group_size` samples of one prompt; a batch is `groups_per_batch` groups. Batch v is what the learner
    trains on with policy version v. Workers lease, make and submit samples, at most `max_staleness` versions ahead of
    what the learner trains on. A sample of an expired lease is made by another worker. All of it survives a kill of a
    server with an append-only file (docs/how-to/language-models.md).

    Whoever comes first makes the rollouts, with the first call; all others must name the same settings.

    Args:
        client: of one server, or of a primary and its replicas. Its `reconnect_timeout` is how long a call waits for a
            server that is started again.
        name: of the rollouts, 1 to 255 bytes.
        signature: the columns of a sample, as of a `Table` without windows.
        group_size: samples of a prompt.
        groups_per_batch: prompts of a batch.
        max_staleness: how many versions a sample's policy may be behind the learner's; 0: workers wait while it trains.
        lease_s: seconds after which a lease may be given to another worker, unless it is renewed.
        first_version: of the learner's policy, where the rollouts are new. All programs name the same one.
        tasks: name → `Task`, work on samples before they are trained on, which may add columns to them.
        max_delay: how many batches later than its number says a group may be trained on, if others were complete first;
            below max_staleness, which it is part of. 0: batches have the groups in the order of their numbers.

    Raises:
        ValueError: the client is of a cluster.
        SchemaError: a setting is out of range; or, with the first call, there are rollouts of this name with others.
    """

    def __repr__(self) -> str:
        return f"Rollouts({self._client!r}, {self.name!r})"


class AsyncRollouts(RolloutOperations, Awaited):
    """`replay_server.Rollouts` of an `aio.Client`: the same arguments, results and errors, its methods awaited."""

    def __repr__(self) -> str:
        return f"AsyncRollouts({self._client!r}, {self.name!r})"


def _version(policy_version: int) -> int:
    version = check_version(policy_version)
    if not 0 <= version <= MOST_VERSION:
        raise ValueError(f"policy_version must be from 0 to {MOST_VERSION}, got {policy_version!r}")
    return version
