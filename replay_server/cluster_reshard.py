"""A checkpoint of some shards as snapshots of another number of shards.

Files are made of files, and no server is asked. Two passes: the first looks at every checksum, and notes what the index
says of each item; then each item has its new shard and slot. The second copies bytes, a record at a time. So memory
holds some dozens of bytes for each item and 4 for each step that items see, and no data.

What holds:
- Each item is in one of the new files, once, with its bytes, its priority and how often it was sampled. Items of one
  old shard that meet in a new one are in the same order there.
- The steps that an item sees are with it. Items that share steps stay together, but for at most as many cuts as there
  are new shards, where each side has its own copy of the steps that both see.
- No id is given twice: an id is shard, generation and slot, and all new generations are above those of all old files,
  by as much as a server jumps that restores one (slot_store_forget_ids). So an old id is stale, whatever shard it
  names. An empty table hands this on by a slot without an item.
- Keys, weights and gradients are with the shard of their slot, whole and in their order.
- Counters add up to what they were.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from . import snapshot_file as kinds
from .cluster_address import slot_of
from .cluster_bytes import RAGGED_VALUE_BYTES, blocks_take, rows_take
from .cluster_deal import STEPS_MOST, in_turn, merged_order, sharing, whole_groups
from .cluster_queue import has_order
from .cluster_tables import CHANGEABLE, share_of, whole_of
from .commands import pack
from .errors import ServerError
from .selectors import Queue
from .snapshot_file import SnapshotFile, SnapshotWriter
from .step_codec import LEAST_STEP_BYTES
from .table import Column, Table

_MOST_GENERATION = 0xFFFFFF
_JUMP = 16384
"""As FORGOTTEN_GENERATIONS of native/replay/slot_store.c."""
_CHUNK = 64
"""Slots in a record."""
_SUMS = (
    "added", "sampled", "removed", "stale_updates", "stale_items", "updates_applied", "limiter_inserts",
    "limiter_samples",
)  # fmt: skip


@dataclass(frozen=True)
class _Layout:
    """How a column lies in a record: `bytes` a value, or a value a row, of which each has a number; or blocks."""

    bytes: int
    varies: bool = False


@dataclass
class _Part:
    """A table on one old shard."""

    table: Table
    told: dict[str, Any]
    """Its description."""
    times: np.ndarray
    """By slot, and so the next ones."""
    ages: np.ndarray
    priorities: np.ndarray
    live: np.ndarray
    generation: int = 0
    """The highest."""
    order: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """Slots of items, oldest first."""
    groups: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """Of these, which share steps."""
    counts: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """Of these, how many steps each sees."""
    seen: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint32))
    """The slots of those steps, one item's after another's."""
    bytes: dict[int, np.ndarray] = field(default_factory=dict)
    """Of items and of steps, by slot: what they take of `max_bytes`. None where that is no limit."""
    target: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """By slot: the new shard; -1: none."""
    place: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """By slot: the new slot."""
    steps: list[np.ndarray] = field(default_factory=list)
    """By new shard: the slots of steps that its items see, in order."""
    first_step: list[int] = field(default_factory=list)
    """By new shard: where the first of these goes."""


@dataclass
class _Whole:
    """A table over all shards."""

    table: Table
    parts: dict[int, _Part]
    sizes: list[int]
    """By new shard: items."""
    step_counts: list[int]
    left: int
    """Items that no longer fit: at most what shares of capacity are rounded up."""
    generation: int
    """Of all new items."""


def reshard(
    files: Sequence[str | Path], before: Sequence[int], tables: Mapping[str, Table], numbers: Sequence[int],
    owners: Sequence[int], out: Sequence[Path],
) -> None:  # fmt: skip
    """Makes the snapshots of new shards.

    Args:
        files: snapshots of all old shards.
        before: by slot of keys, which of them had it. What lay elsewhere nobody could reach; it stays away.
        tables: as the new shards shall have them, the whole, by name; others stay as they were.
        numbers: of the new shards.
        owners: by slot of keys, which of them gets it: its place among `numbers`.
        out: the files to make, as many; none is there if this fails.

    Raises:
        ServerError: a file is damaged, tables differ between shards, or items do not fit a capacity.
    """
    sources = [SnapshotFile(file) for file in files]
    names: dict[str, dict[int, _Part]] = {}
    limited = {name for name, table in tables.items() if table.max_bytes}
    parts = [_read(source, limited) for source in sources]
    for shard, own in enumerate(parts):
        for part in own:
            names.setdefault(part.table.name, {})[shard] = part
    wholes = [_planned(name, of, tables.get(name), len(numbers)) for name, of in names.items()]
    for whole in wholes:
        _place_steps(whole)
    try:
        with ExitStack() as stack:
            writers = []
            for file in out:
                writers.append(SnapshotWriter(file, len(wholes), any(source.has_store for source in sources)))
                stack.callback(writers[-1].abandon)
            _write(sources, parts, wholes, numbers, (before, owners), writers)
            for writer in writers:
                writer.finish()
    except BaseException:
        for file in out:
            file.unlink(missing_ok=True)
        raise


# ---- what there is ---------------------------------------------------------------------------------------------------


def _read(source: SnapshotFile, limited: Collection[str]) -> list[_Part]:
    """The tables of a file. `limited`: those that shall have `max_bytes`, whatever they had."""
    parts: list[_Part] = []
    lists: list[list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = []
    for kind, number, body in source.records(check=True):
        if kind == kinds.TABLE:
            told = msgpack.unpackb(body.tobytes())
            used, table = told["slots_used"], Table.from_spec(told["spec"])
            times, ages, priorities = np.zeros(used, np.uint32), np.zeros(used, np.uint64), np.zeros(used)
            live = np.zeros(used, np.bool_)
            parts.append(_Part(table, told, times, ages, priorities, live))
            lists.append([])
            if table.max_bytes or table.name in limited:
                parts[-1].bytes = {kinds.ITEMS: np.zeros(used), kinds.STEPS: np.zeros(told["steps_used"])}
        elif kind == kinds.SLOTS:
            _note_slots(parts[number], body)
        elif kind in (kinds.ITEMS, kinds.STEPS):
            part = parts[number]
            if kind == kinds.ITEMS and part.table.windows:
                slots, seen, _ = _slots_and_lists(body, _list_length(part.table))
                is_step = seen < STEPS_MOST
                lists[number].append((slots.copy(), is_step.sum(1), seen[is_step]))
            if part.bytes:
                _note_bytes(part, kind, body)
    for part, seen in zip(parts, lists, strict=True):
        used = np.flatnonzero(part.live)
        part.order = used[np.argsort(part.ages[used], kind="stable")]
        if seen:
            _note_seen(part, *(np.concatenate(each) for each in zip(*seen, strict=True)))
    return parts


def _note_seen(part: _Part, slots: np.ndarray, counts: np.ndarray, steps: np.ndarray) -> None:
    """Brings what items see into the order of items."""
    where = np.zeros(len(part.live), np.int64)
    where[slots] = np.arange(len(slots))
    rows = where[part.order]
    part.counts = counts[rows]
    begins = (np.cumsum(counts) - counts)[rows]
    ends = np.cumsum(part.counts)
    part.seen = steps[np.repeat(begins - (ends - part.counts), part.counts) + np.arange(len(steps))]
    part.groups = sharing(part.counts, part.seen)


def _note_bytes(part: _Part, kind: int, body: np.ndarray) -> None:
    """What items or steps of a record take of `max_bytes`."""
    slots, _, at = _slots_and_lists(body, _list_length(part.table) if kind == kinds.ITEMS else 0)
    layouts = _layouts(part.table)[kind]
    largest = max((layout.bytes for layout in layouts if layout.varies), default=0)
    for layout in layouts:
        taken: Any = layout.bytes
        end = at + len(slots) * layout.bytes
        if layout.varies:
            sizes = body[at : at + 4 * len(slots)].view(np.uint32).astype(np.int64)
            if kind == kinds.ITEMS:
                sizes *= layout.bytes
                taken = RAGGED_VALUE_BYTES + rows_take(sizes)
            else:
                taken = blocks_take(sizes, largest)
            end = at + 4 * len(slots) + int(sizes.sum())
        part.bytes[kind][slots] += taken
        at = end


def _note_slots(part: _Part, body: np.ndarray) -> None:
    first, count = body[:8].view(np.uint32).tolist()
    here, at = slice(first, first + count), 8
    for dtype, to in (
        ("u4", None), ("u4", part.times), ("u8", part.ages), ("f8", part.priorities), ("u1", part.live)
    ):  # fmt: skip
        values = np.frombuffer(body.tobytes(), f"<{dtype}", count, at)
        at += values.nbytes
        if to is not None:
            to[here] = values
        elif count:
            part.generation = max(part.generation, int(values.max()))


def _list_length(table: Table) -> int:
    fixed = {(window.steps, window.offset) for window in table.fixed_windows.values()}
    return sum(steps for steps, _ in fixed) + sum(window.steps for window in table.ragged_windows.values())


def _slots_and_lists(body: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Of a record of items or steps: their slots, what each sees, and where columns begin."""
    count = int(body[:4].view(np.uint32)[0])
    end = 4 + 4 * count
    columns = end + 4 * count * length
    slots, lists = body[4:end].view(np.uint32), body[end:columns].view(np.uint32)
    return slots, lists.reshape(count, length), columns


# ---- what goes where -------------------------------------------------------------------------------------------------


def _planned(name: str, parts: dict[int, _Part], given: Table | None, shards: int) -> _Whole:
    tables = {shard: part.table for shard, part in parts.items()}
    whole = whole_of(tables)
    for shard, table in tables.items():
        if replace(table, **_shared(whole)) != replace(whole, **_shared(whole)):
            raise ServerError(f"table {name!r} differs between shards, here in what shard {shard} has of it")
    if given is not None:
        whole = replace(whole, capacity=given.capacity)
        if given.signature == whole.signature:  # else it is refused when it starts
            # What is given wins over the files, as when a server starts.
            whole = replace(whole, **{name: getattr(given, name) for name in CHANGEABLE})
    most = share_of(whole, 0, shards).capacity
    shard_of, ranks = merged_order([len(part.order) for part in parts.values()])
    left = max(0, len(shard_of) - shards * most)
    if left >= max(1, len(parts)):  # more than shares of the same capacity were rounded up
        raise ServerError(
            f"table {name!r} holds {len(shard_of):,} items, and its capacity of {whole.capacity:,} is "
            f"{shards * most:,} on {shards} shards: give it at least {len(shard_of):,}"
        )
    shard_of, ranks = shard_of[left:], ranks[left:]
    targets = _dealt(whole, parts, shard_of, ranks, shards)
    _set_targets(parts, shard_of, ranks, targets, shards)
    if whole.max_bytes and (needed := max(_bytes_on_each(parts, shards))) > math.ceil(whole.max_bytes / shards):
        enough = whole
        while needed > math.ceil(enough.max_bytes / shards):  # with more room, others are the largest
            enough = replace(enough, max_bytes=int(shards * needed))
            _set_targets(parts, shard_of, ranks, _dealt(enough, parts, shard_of, ranks, shards), shards)
            needed = max(_bytes_on_each(parts, shards))
        raise ServerError(
            f"table {name!r} has items that do not fit its max_bytes of {whole.max_bytes:,}, "
            f"{math.ceil(whole.max_bytes / shards):,} on each of {shards} shards: give it at least "
            f"{enough.max_bytes:,}"
        )
    generation = max(part.generation for part in parts.values()) + _JUMP + secrets.randbelow(_JUMP)
    if generation > _MOST_GENERATION - 2 * _JUMP:
        raise ServerError(f"table {name!r}: its ids are used up, so it can be restored on as many shards alone")
    sizes = np.bincount(targets, minlength=shards).tolist()
    return _Whole(whole, parts, sizes, [0] * shards, left, generation)


def _dealt(
    whole: Table, parts: Mapping[int, _Part], shard_of: np.ndarray, ranks: np.ndarray, shards: int
) -> np.ndarray:
    """The new shard of each item, of those oldest first, int64 (n,)."""
    starts = np.cumsum([0, *(len(part.order) for part in parts.values())])
    items = starts[shard_of] + ranks
    weights, most, heaviest = np.ones(len(items)), share_of(whole, 0, shards).capacity, math.inf
    if whole.max_bytes:
        own = [_weights(part) for part in parts.values()]
        weights = np.concatenate(own)[items]
        heaviest = math.ceil(whole.max_bytes / shards)
    if has_order(whole):  # what one producer added stays in order
        return whole_groups(shard_of, shards, most, weights, heaviest)
    if not whole.windows:
        return in_turn(weights, shards)
    groups = np.concatenate([part.groups + start for part, start in zip(parts.values(), starts, strict=False)])
    if not whole.max_bytes:
        most = -(-len(shard_of) // shards)
    elif len(items):
        heaviest = weights.sum() / shards + weights.max()  # equal parts: each cut adds steps that both sides see
    return whole_groups(groups[items], shards, most, weights, heaviest)


def _weights(part: _Part) -> np.ndarray:
    """Bytes that each item brings, in their order, float64 (n,): its own, and of the steps that none before it sees."""
    weights = part.bytes[kinds.ITEMS][part.order]
    if part.table.windows:
        steps, first = np.unique(part.seen, return_index=True)
        items = np.repeat(np.arange(len(part.counts)), part.counts)[first]
        weights += np.bincount(items, part.bytes[kinds.STEPS][steps], len(weights))
    return weights


def _set_targets(
    parts: Mapping[int, _Part], shard_of: np.ndarray, ranks: np.ndarray, targets: np.ndarray, shards: int
) -> None:
    """Notes where items go, and with them steps."""
    places = np.empty(len(targets), np.int64)
    for target in range(shards):
        which = targets == target
        places[which] = np.arange(which.sum())
    for at, part in enumerate(parts.values()):
        own = shard_of == at
        slots = part.order[ranks[own]]
        part.target, part.place = np.full(len(part.live), -1), np.zeros(len(part.live), np.int64)
        part.target[slots], part.place[slots] = targets[own], places[own]
        if part.table.windows:
            to = np.repeat(part.target[part.order], part.counts)
            part.steps = [np.unique(part.seen[to == target]) for target in range(shards)]


def _bytes_on_each(parts: Mapping[int, _Part], shards: int) -> list[float]:
    """What items and their steps take on each new shard."""
    return [
        sum(
            part.bytes[kinds.ITEMS][part.target == target].sum()
            + (part.bytes[kinds.STEPS][part.steps[target]].sum() if part.steps else 0)
            for part in parts.values()
        )
        for target in range(shards)
    ]


def _shared(whole: Table) -> dict[str, Any]:
    """What differs between shares of a table."""
    names = "capacity", "max_bytes", "rate_limiter", "seed"
    return {name: getattr(whole, name) for name in names}


def _place_steps(whole: _Whole) -> None:
    for part in whole.parts.values():
        part.first_step = list(whole.step_counts)
        for target, steps in enumerate(part.steps):
            whole.step_counts[target] += len(steps)


# ---- what is written -------------------------------------------------------------------------------------------------


def _write(
    sources: Sequence[SnapshotFile], parts: Sequence[Sequence[_Part]], wholes: Sequence[_Whole],
    numbers: Sequence[int], owners: tuple[Sequence[int], Sequence[int]], writers: Sequence[SnapshotWriter],
) -> None:  # fmt: skip
    new_number = {whole.table.name: number for number, whole in enumerate(wholes)}
    for target, writer in enumerate(writers):
        for number, whole in enumerate(wholes):
            writer.add(kinds.TABLE, number, pack(_description(whole, target, numbers)))
    for number, whole in enumerate(wholes):
        for target, writer in enumerate(writers):
            _write_index(writer, number, whole, target)
    _write_libraries(sources, writers)
    before, after = owners
    for shard, (source, own) in enumerate(zip(sources, parts, strict=True)):
        layouts = [_layouts(part.table) for part in own]
        goes_to = [new if old == shard else -1 for old, new in zip(before, after, strict=True)]
        for kind, table, body in source.records():
            if kind in (kinds.ITEMS, kinds.STEPS):
                part = own[table]
                _write_slots(writers, kind, new_number[part.table.name], part, body, layouts[table][kind])
            elif kind in (kinds.KEYS, kinds.WEIGHTS, kinds.GRADIENTS):
                _write_keys(writers, kind, table, body.tobytes(), goes_to)


def _description(whole: _Whole, target: int, numbers: Sequence[int]) -> dict[str, Any]:
    shards, told = len(numbers), [part.told for part in whole.parts.values()]

    def share(total: int) -> int:
        return total // shards + (target < total % shards)

    def total(key: str) -> int:
        # The samples that a rate limiter counts may be below 0: rate_limiter.h.
        return sum((each[key] + 2**63) % 2**64 - 2**63 for each in told) + (whole.left if key == "removed" else 0)

    counts = {key: share(total(key)) % 2**64 for key in _SUMS}
    number = numbers[target]
    table = _share(whole.table, number, shards, target)
    words = hashlib.sha256(repr(([each["random"] for each in told], number)).encode()).digest()
    described = {
        "spec": table.to_spec(),
        "size": whole.sizes[target],
        "slots_used": max(1, whole.sizes[target]),
        "next_age": whole.sizes[target],
        "steps": whole.step_counts[target],
        "steps_used": whole.step_counts[target],
        "newest_version": max(each["newest_version"] for each in told),
        "random": list(struct.unpack("<4Q", words)),
        "changes": 0,
        **counts,
    }
    if all("closed" in each for each in told):
        described["closed"] = told[0]["closed"]
    return described


def _share(whole: Table, number: int, shards: int, place: int) -> Table:
    """A shard's part. Where a share of `max_bytes` is room for fewer items than a share of what samples wait for, these
    wait for as many as there is room for: no server has a table that could never be sampled."""
    table, limiter = share_of(whole, number, shards, place), whole.rate_limiter
    fixed = sum(RAGGED_VALUE_BYTES if column.ragged else column.item_bytes for column in whole.item_columns.values())
    if not whole.max_bytes or not fixed:
        return table
    key = "size" if isinstance(limiter, Queue) else "min_size_to_sample"
    least = min(getattr(table.rate_limiter, key), table.max_bytes // fixed)
    return replace(table, rate_limiter=replace(table.rate_limiter, **{key: least}))


def _write_index(writer: SnapshotWriter, number: int, whole: _Whole, target: int) -> None:
    size = whole.sizes[target]
    times, priorities = np.zeros(max(1, size), "<u4"), np.zeros(max(1, size), "<f8")
    for part in whole.parts.values():
        own = part.target == target
        times[part.place[own]], priorities[part.place[own]] = part.times[own], part.priorities[own]
    for first in range(0, len(times), _CHUNK):
        here = slice(first, first + _CHUNK)
        slots = np.arange(len(times))[here]
        generations = np.full(len(slots), whole.generation, "<u4")
        head = struct.pack("<II", first, len(slots))
        lives = (slots < size).astype("u1")
        writer.add(
            kinds.SLOTS, number, head, generations, times[here], slots.astype("<u8"), priorities[here], lives
        )  # fmt: skip


def _layouts(table: Table) -> dict[int, list[_Layout]]:
    """Of items and of steps: their columns that have bytes."""
    compresses = table.compression != "none"

    def of_item(column: Column) -> _Layout:
        return _Layout(column.item_bytes // (column.max_length or 1), column.ragged)

    def of_step(column: Column) -> _Layout:
        return _Layout(column.item_bytes, compresses and column.item_bytes >= LEAST_STEP_BYTES)

    return {
        kinds.ITEMS: [of_item(each) for each in table.item_columns.values() if each.item_bytes],
        kinds.STEPS: [of_step(each) for each in table.step_columns.values() if each.item_bytes],
    }


def _write_slots(
    writers: Sequence[SnapshotWriter], kind: int, number: int, part: _Part, body: np.ndarray, layouts: list[_Layout]
) -> None:
    """Items or steps of a record, to the shards that they go to; a step to each that sees it."""
    length = _list_length(part.table) if kind == kinds.ITEMS else 0
    slots, lists, at = _slots_and_lists(body, length)
    columns, is_block = [], kind == kinds.STEPS
    for layout in layouts:
        column, at = _column(body, at, len(slots), layout, is_block)
        columns.append(column)
    for target, writer in enumerate(writers):
        if kind == kinds.ITEMS:
            which = np.flatnonzero(part.target[slots] == target)
            places = part.place[slots[which]]
        else:
            which, places = _found(part, target, slots)
        if not len(which):
            continue
        chosen: list[bytes | np.ndarray] = [struct.pack("<I", len(which)), places.astype("<u4")]
        if length:
            chosen.append(_renumbered(part, target, lists[which]))
        for column in columns:
            chosen += column(which)
        writer.add(kind, number, *chosen)


def _found(part: _Part, target: int, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which of these steps go to a new shard, and to which slots there."""
    steps = part.steps[target]
    at = np.searchsorted(steps, slots)
    which = np.flatnonzero((at < len(steps)) & (np.append(steps, 0)[at] == slots)) if len(steps) else np.empty(0, int)
    return which, at[which] + part.first_step[target]


def _renumbered(part: _Part, target: int, lists: np.ndarray) -> np.ndarray:
    is_step = lists < STEPS_MOST
    new = lists.copy()
    new[is_step] = np.searchsorted(part.steps[target], lists[is_step]) + part.first_step[target]
    return new


def _column(body: np.ndarray, at: int, count: int, layout: _Layout, is_block: bool) -> tuple[Any, int]:
    """Values of one column of a record: a function that gives those of some, and where the next column begins."""
    if not layout.varies:
        end = at + count * layout.bytes
        values = body[at:end].reshape(count, layout.bytes)
        return lambda which: [values[which]], end
    sizes = body[at : at + 4 * count].view(np.uint32)
    begin = at + 4 * count
    ends = begin + np.cumsum(sizes.astype(np.int64) * (1 if is_block else layout.bytes))
    begins = np.concatenate([[begin], ends[:-1]])

    def some(which: np.ndarray) -> list[np.ndarray]:
        return [sizes[which], *(body[begins[each] : ends[each]] for each in which)]

    return some, int(ends[-1])


# ---- keys ------------------------------------------------------------------------------------------------------------


def _pieces(body: bytes) -> Iterator[tuple[bytes, int, int]]:
    """The key of each piece, and its first and last byte (docs/snapshot.md)."""
    at = 0
    while at < len(body):
        begin = at
        type_, flags, key_length, count = struct.unpack_from("<BBxxIQ", body, at)
        at += 16 + 8 * bool(flags & 4) + 8 * bool(flags & 1 and not flags & 2)
        key = body[at : at + key_length]
        at += key_length
        if type_ == 0:
            at += count
        else:
            for _ in range(2 * count if type_ == 2 else count):
                at += 8 * (type_ == 4)
                at += 4 + int.from_bytes(body[at : at + 4], "little")
        yield key, begin, at


def _write_keys(
    writers: Sequence[SnapshotWriter], kind: int, database: int, body: bytes, goes_to: Sequence[int]
) -> None:
    chosen: list[list[bytes]] = [[] for _ in range(len(writers) + 1)]  # the last for those of no shard, -1
    for key, begin, end in _pieces(body):
        name = key[4 : 4 + key[2]] if kind == kinds.GRADIENTS else key
        chosen[goes_to[slot_of(name)]].append(body[begin:end])
    for writer, pieces in zip(writers, chosen, strict=False):
        if pieces:
            writer.add(kind, database, *pieces)


def _write_libraries(sources: Sequence[SnapshotFile], writers: Sequence[SnapshotWriter]) -> None:
    """Functions are not spread: every shard has what any had. They come before keys."""
    there: set[bytes] = set()
    for source in sources:
        for kind, database, body in source.records():
            if kind != kinds.LIBRARIES:
                continue
            for name, begin, end in _pieces(body.tobytes()):
                if name not in there:
                    there.add(name)
                    for writer in writers:
                        writer.add(kind, database, body[begin:end])
