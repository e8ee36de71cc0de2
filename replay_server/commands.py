"""Every REPLAY.* and WEIGHTS.* command as data: what to send, how to read the reply, whether it may be repeated.

What a client offers as it is (`Client.info`) has its documentation here: `operations` makes methods of these functions.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import msgpack
import numpy as np

from .batch import Batch
from .batch_replies import batch_reading, coded_reading
from .checks import check_awaited, check_ids, check_priorities, check_reason, check_timeout, check_version
from .codec import (
    Argument,
    Blob,
    Reading,
    as_dict,
    bulk_after,
    bulk_into,
    bytes_of,
    decode_arrays,
    encode_arrays,
    length_of,
    pack,
    read_value,
    value_after,
)
from .errors import ReplayError, SchemaError, ServerError, TableNotFound, explain
from .options import SampleOptions, TableChanges
from .ragged import Ragged
from .selectors import RateLimiter, Selector
from .shared_memory import Arena
from .table import Table, changes_map

T = TypeVar("T")


@dataclass(frozen=True)
class ServedTable:
    """A table as a server has it.

    Attributes:
        table: what it is.
        incarnation: the server's number for this table; one made anew under the same name has another. Sent with every
            command whose bytes follow the signature, so that those of one table are never taken for another's.
    """

    table: Table
    incarnation: int


@dataclass(frozen=True)
class Command(Generic[T]):
    """One request.

    Attributes:
        what: for error messages, e.g. "sample of 512 from 'atari'".
        arguments: what is sent.
        read: makes the generator that reads the reply; it returns the result, or an exception object to be raised.
        repeatable: whether sending it twice is safe, so that it may be sent again when the connection was lost.
        wait_s: how long the server may hold the reply back, None = for ever.
        shared_arguments: what is sent in place of `arguments` over a connection with shared memory, so that the reply
            may come through it; None: it may not.
    """

    what: str
    arguments: Sequence[Argument]
    read: Callable[[], Reading[T | ReplayError]]
    repeatable: bool
    wait_s: float | None = 0.0
    shared_arguments: Sequence[Argument] | None = None

    @property
    def shared(self) -> bool:
        """Whether the connection should have shared memory."""
        return self.shared_arguments is not None

    def sent(self, arena: Arena | None) -> Sequence[Argument]:
        """What is sent over a connection with that shared memory."""
        return self.arguments if arena is None or self.shared_arguments is None else self.shared_arguments


def block(timeout: float | None) -> tuple[Argument, ...]:
    """BLOCK for a checked timeout in seconds, rounded up to whole milliseconds."""
    if timeout is None:
        return ("BLOCK", 0)
    return ("BLOCK", math.ceil(timeout * 1000)) if timeout > 0 else ()


def plain(
    what: str, arguments: Sequence[Argument], convert: Callable[[Any], T], repeatable: bool, wait_s: float | None = 0.0
) -> Command[T]:
    """A command whose reply is one value."""

    def read() -> Reading[Any]:
        value = yield from read_value()
        return value if isinstance(value, ReplayError) else convert(value)

    return Command(what, arguments, read, repeatable, wait_s)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _nothing(_: Any) -> None:
    return None


def greet(address: str, username: str | None, password: str | None, source: str) -> Command[dict[str, Any]]:
    """HELLO 3, with AUTH where there is a password. Errors name the address, and where the password is from."""
    user = username or "default"
    login = ("AUTH", user, password) if password is not None else ()
    ways = "in the URL, redis://[user]:password@host:port, or in the variable REPLAY_SERVER_PASSWORD"

    def read() -> Reading[Any]:
        value = yield from read_value()
        if isinstance(value, ServerError) and value.code == "NOAUTH":
            return ServerError(f"the server at {address} needs a password, got none: give it {ways}", "NOAUTH")
        if isinstance(value, ServerError) and value.code == "WRONGPASS":
            sentence = f"the server at {address} refused the password of user {user!r}, which is from {source}"
            return ServerError(f"WRONGPASS {sentence}: give the right one {ways}", "WRONGPASS")
        return value if isinstance(value, ReplayError) else as_dict(value)

    return Command("greeting", ("HELLO", 3, *login), read, repeatable=True)


@dataclass(frozen=True)
class Standing:
    """What a server is among the hosts of a URL.

    Attributes:
        is_primary: whether it is a primary, and no replica.
        epoch: when it was promoted, or the primary that it follows; 0 = never. None: it does not tell, as a Redis.
        newest: the newest epoch that it has heard of. A primary of an older one refuses writes.
        origin: of its data; epochs of different origins are not compared. Empty: it does not tell, or has none yet.
    """

    is_primary: bool
    epoch: int | None = None
    newest: int = 0
    origin: str = ""

    @property
    def takes_writes(self) -> bool:
        """Whether it is a primary whose place no other one has taken, as far as it knows."""
        return self.is_primary and (self.epoch is None or self.newest <= self.epoch)


def fence(newest: int, origin: str) -> Command[Standing]:
    """FENCE: tells the server the newest epoch that is known of this origin, and asks what the server is."""
    words = ("FENCE", newest, origin) if origin else ("FENCE",)
    return plain("fence", words, _standing, True)


def _standing(told: Any) -> Standing:
    origin = _text(told[3])
    return Standing(_is_master(told), int(told[1]), int(told[2]), origin if int(origin, 16) else "")


def is_a_primary() -> Command[bool]:
    """ROLE: whether the server is a primary, and no replica; for servers that do not answer FENCE."""
    return plain("role", ("ROLE",), _is_master, True)


def _is_master(told: Any) -> bool:
    return told[0] in (b"master", "master")


def any_command(*arguments: str | bytes | int, repeatable: bool = False) -> Command[Any]:
    """Any command that answers at once, over this client's own connections: for programs that do without redis-py.

    Args:
        arguments: the command's name and what follows it.
        repeatable: whether it is safe to do twice; then it is sent again if the connection was lost.

    Returns: the reply: bytes for what was stored, str for a status such as "OK", int, None, a list, a dict.

    Raises:
        ReplayError: the error reply.
        ConnectionLost: the connection broke; whether the command was done is not known.
    """
    return plain(str(arguments[0]), arguments, lambda value: value, repeatable)


# ---- shared memory ---------------------------------------------------------------------------------------------------


def share_socket() -> Command[tuple[str, str]]:
    """REPLAY.SHARE over TCP: the name of the abstract socket for clients of the same host, and a nonce to show there.

    The result is a ServerError where the server is on another host, or shares no memory.
    """
    return plain("sharing memory", ("REPLAY.SHARE",), lambda value: (_text(value[0]), _text(value[2])), True)


def prove(nonce: str) -> Command[None]:
    return plain("sharing memory", ("REPLAY.PROVE", nonce), _nothing, False)


def share(size_bytes: int) -> Command[int]:
    """REPLAY.SHARE over a unix socket: the bytes granted; the descriptor comes with the reply."""
    arguments = ("REPLAY.SHARE", *((size_bytes,) if size_bytes else ()))
    return plain("sharing memory", arguments, int, False)


def release_returned(arena: Arena | None) -> Command[int] | None:
    """REPLAY.RELEASE of the leases given back since the last call; None: there are none."""
    leases = arena.take_returned() if arena is not None else None
    return plain("release of shared memory", ("REPLAY.RELEASE", *leases), int, True) if leases else None


# ---- tables ----------------------------------------------------------------------------------------------------------


def create(table: Table) -> Command[None]:
    """Creates a table; creating it again with the same spec is fine.

    Raises:
        SchemaError: a table of that name has another spec.
        LimitExceeded: the server has no room for it.
    """
    return plain(
        f"creation of table {table.name!r}", ("REPLAY.CREATE", table.name, table.pack()), _nothing, repeatable=True
    )


def spec(name: str) -> Command[ServedTable]:
    def convert(value: bytes) -> ServedTable:
        fields = msgpack.unpackb(value)
        incarnation = fields.pop("incarnation")
        return ServedTable(Table.from_spec(fields, name), incarnation)

    return plain(f"spec of {name!r}", ("REPLAY.SPEC", name), convert, True)


def tables() -> Command[list[str]]:
    """The names of the server's tables."""
    return plain("list of tables", ("REPLAY.LIST",), lambda names: [_text(name) for name in names], True)


def with_known_tables(error: TableNotFound, wanted: str, known: Sequence[str]) -> TableNotFound:
    """The server's error in the words of this library, with the known name that is nearest to the one wanted."""
    said, is_missing, _ = str(error).partition("; REPLAY.LIST")
    if not is_missing:  # such as one that was dropped meanwhile
        return error
    near = difflib.get_close_matches(wanted, known, 1, 0.6)
    meant = f": did you mean {near[0]!r}?" if near else ";"
    return TableNotFound(f"{said}{meant} client.tables() lists those there are, client.create_table() makes one")


def drop(name: str) -> Command[None]:
    """Removes a table with all its items; whoever waits on it gets `TableNotFound`."""
    return plain(f"drop of {name!r}", ("REPLAY.DROP", name), _nothing, False)


def close_table(name: str, reason: str | None = None) -> Command[None]:
    """Ends a table's data: nothing enters it until `open_table`, and whoever waits is told at once.

    An `add`, an append or an item of a writer raises `TableClosed`, waiting or not. Samples go on with what is there;
    one that would wait for more items raises `TableClosed`, and the iteration of a `sampler` ends. Updates, reads and
    deletions go on. The table stays closed in a snapshot and after `reset`. Closing a closed table replaces the reason.

    Args:
        name: the table.
        reason: one line of at most 127 bytes for those who are told.

    Raises:
        TableNotFound: there is none.
    """
    told = check_reason(reason)
    arguments = ("REPLAY.CLOSETABLE", name, *(() if told is None else (told,)))
    return plain(f"close of {name!r}", arguments, _nothing, True)


def open_table(name: str) -> Command[None]:
    """Opens a closed table again; one that is open stays so.

    Raises:
        TableNotFound: there is none.
    """
    return plain(f"opening of {name!r}", ("REPLAY.OPENTABLE", name), _nothing, True)


def reset(name: str) -> Command[None]:
    """Removes every item of a table and forgets its newest policy version; its rate limiter starts anew."""
    return plain(f"reset of {name!r}", ("REPLAY.RESET", name), _nothing, False, wait_s=None)


def configure(
    name: str,
    *,
    sampler: Selector | None = None,
    remover: Selector | None = None,
    rate_limiter: RateLimiter | None = None,
    max_times_sampled: int | None = None,
    max_bytes: int | None = None,
    max_staleness: int | None = None,
) -> Command[None]:
    """Changes a live table; None leaves a value as it is, `max_staleness=-1` lifts that limit.

    Items beyond new limits leave, as the remover chooses. The server works through a large table in slices while
    it serves others; adding and sampling wait until it is done, and so does this call.

    Raises:
        SchemaError: a value is outside what its field allows.
    """
    changes = TableChanges(sampler, remover, rate_limiter, max_times_sampled, max_bytes, max_staleness)
    packed = pack(changes_map(changes.given()))
    return plain(f"configuration of {name!r}", ("REPLAY.CONFIG", name, packed), _nothing, True, wait_s=None)


def checkpoint(name: str | os.PathLike[str] | None = None) -> Command[str]:
    """Saves all tables as they are now, while everyone else is served; returns when the file is on the disk.

    Args:
        name: of the file in the server's directory, no path; the file is replaced if it exists, and ".snapshot" is
            added if it does not end so. None: a new one named by the time; of those the server keeps the newest few
            (setting snapshot-keep).

    Returns:
        The path of the file on the server's machine.

    Raises:
        ServerError: the name is a path, or the file could not be written; an older one of that name is unchanged.
        LimitExceeded: the tables changed faster than the disk took the snapshot, or there are as many files of
            given names as there may be (setting snapshot-named-limit).
    """
    # The reply comes when the file is on the disk; saving again does no harm.
    arguments = ("REPLAY.SAVE",) if name is None else ("REPLAY.SAVE", os.fspath(name))
    return replace(plain("checkpoint", arguments, _text, True), wait_s=None)


def restore(name: str | os.PathLike[str]) -> Command[list[str]]:
    """Replaces tables by those of the same names in a snapshot; other tables stay.

    All of it is read and checked first, while everyone is served; a damaged file changes nothing. A table here must
    equal the one saved, except in the settings that `configure` changes; these stay as they are here. Ids of the
    snapshot are valid again. A client that waits at a replaced table is served by the new one.

    Args:
        name: of the file in the server's directory, no path; ".snapshot" is added if it does not end so.

    Returns:
        Lines that say what was restored, and which limits differ from those saved.

    Raises:
        ServerError: the name is a path, or there is no such file; or it is damaged or cut short, and the message names
            the place.
    """
    file = os.fspath(name)

    def convert(lines: Any) -> list[str]:
        return [_text(line) for line in lines]

    return replace(plain(f"restore of {file!r}", ("REPLAY.RESTORE", file), convert, False), wait_s=None)


_INFO_NUMBERS = ("max_priority", "total_priority")


def info(name: str) -> Command[dict[str, Any]]:
    """Counters and state of a table: at least size, capacity, bytes, added, sampled, removed, stale_updates,
    max_priority, priorities (exponent e: items with 2^e <= priority < 2^(e + 1)), zero_priorities, waiting (blocked
    clients), reason (why a sample would wait now, "" if it would not), closed (bool) and closed_reason."""

    def convert(value: Any) -> dict[str, Any]:
        fields = {}
        for key, field in as_dict(value).items():
            key = _text(key)
            field = _text(field) if isinstance(field, bytes) else field
            fields[key] = float(field) if key in _INFO_NUMBERS else field
        fields["closed"] = bool(fields.get("closed"))
        if "priorities" in fields:
            fields["priorities"] = {int(exponent): int(count) for exponent, count in fields["priorities"]}
        return fields

    return plain(f"info of {name!r}", ("REPLAY.INFO", name), convert, True)


def await_items(
    name: str, *, since: int | None = None, size: int | None = None, timeout: float | None = None
) -> Command[tuple[int, int]]:
    """Waits for what others add, instead of asking `info` again and again. Nothing is sampled by it.

    Args:
        name: the table.
        since: waits until `added` differs from this: begin with 0, then give what the last call returned. A table that
            was created again counts from 0, so the call returns at once.
        size: or: waits until at least so many items are there.
        timeout: seconds; None = for ever, 0 = not at all.

    Returns:
        (added, size): items that were ever added, and those that are there.

    Raises:
        Timeout: nothing was added, or too little is there.
        TableClosed: neither will come: the table is closed.
        TableNotFound: there is no such table, or it was dropped meanwhile.
    """
    check_awaited(since, size)
    timeout = check_timeout(timeout)
    what = f"wait for items of {name!r}"
    wanted = ("SIZE", int(size)) if size is not None else ("SINCE", int(since or 0))

    def read() -> Reading[Any]:
        value = explain(what, timeout, (yield from read_value()))
        return value if isinstance(value, ReplayError) else (int(value[0]), int(value[1]))

    return Command(what, ("REPLAY.AWAIT", name, *wanted, *block(timeout)), read, repeatable=True, wait_s=timeout)


# ---- items -----------------------------------------------------------------------------------------------------------


def add(
    served: ServedTable,
    count: int,
    columns: Sequence[np.ndarray | Ragged],
    priorities: np.ndarray | None,
    timeout: float | None,
) -> Command[np.ndarray]:
    """REPLAY.ADD of checked columns; the result is the ids, uint64 (count,)."""
    timeout = check_timeout(timeout)
    table = served.table
    what = f"add of {count} to {table.name!r}"
    blobs: list[Argument] = []
    for name, column in zip(table.leaves, columns, strict=True):
        blobs += (name, _bytes_of_column(column))
    given: Argument = b"" if priorities is None else bytes_of(priorities)
    options = (*block(timeout), "INCARNATION", served.incarnation)
    head = ("REPLAY.ADD", table.name, count, given, *options)

    arguments = (*head, "COLUMNS", len(columns), *blobs)
    return Command(what, arguments, lambda: _ids_reading(what, timeout, count), False, timeout)


def _bytes_of_column(column: np.ndarray | Ragged) -> Argument:
    if isinstance(column, Ragged):
        return Blob([bytes_of(column.offsets), bytes_of(column.values)])
    return bytes_of(column)


def _ids_reading(what: str, timeout: float | None, count: int, partial: bool = False) -> Reading[Any]:
    line = yield None
    if line[:1] == b"-":
        return explain(what, timeout, (yield from value_after(line)))
    # At least one, but never more than there is room for.
    ids = np.empty(max(1, min(count, length_of(line) // 8)) if partial else count, np.uint64)
    if not (yield from bulk_into(line, ids)):
        raise ServerError(f"{what}: expected {count} ids of 8 bytes, got {length_of(line)} bytes")
    return ids


def _blobs(columns: Mapping[str, np.ndarray | Blob]) -> list[Argument]:
    blobs: list[Argument] = ["COLUMNS", len(columns)]
    for name, column in columns.items():
        blobs += (name, column if isinstance(column, Blob) else bytes_of(np.ascontiguousarray(column)))
    return blobs


def append(
    served: ServedTable,
    streams: np.ndarray,
    flags: np.ndarray,
    columns: Mapping[str, np.ndarray | Blob],
    history: int,
    coded: bool = False,
) -> Command[int]:
    """REPLAY.APPEND of checked steps; `history` is that of streams which it opens; `coded`: columns are blocks."""
    head = ("REPLAY.APPEND", served.table.name, len(streams), bytes_of(streams), bytes_of(flags))
    options = ("HISTORY", history, *(("CODED",) if coded else ()), "INCARNATION", served.incarnation)
    what = f"{len(streams)} steps for {served.table.name!r}"
    return plain(what, (*head, *options, *_blobs(columns)), int, False)


def items(
    served: ServedTable,
    streams: np.ndarray,
    steps: np.ndarray,
    priorities: np.ndarray | None,
    columns: Mapping[str, np.ndarray],
    timeout: float | None,
) -> Command[np.ndarray]:
    """REPLAY.ITEM of checked columns; the result is the ids of those that were made, the first m: uint64 (m,)."""
    what = f"{len(streams)} items for {served.table.name!r}"
    given: Argument = b"" if priorities is None else bytes_of(np.ascontiguousarray(priorities))
    head = ("REPLAY.ITEM", served.table.name, len(streams), bytes_of(streams), bytes_of(steps), given)
    options = (*block(timeout), "PARTIAL", "INCARNATION", served.incarnation)
    arguments = (*head, *options, *_blobs(columns))
    return Command(what, arguments, lambda: _ids_reading(what, timeout, len(streams), partial=True), False, timeout)


def end_episodes(name: str, streams: np.ndarray) -> Command[int]:
    return plain(f"end of episodes in {name!r}", ("REPLAY.END", name, bytes_of(streams)), int, False)


def sample(
    served: ServedTable, count: int, out: Batch, options: SampleOptions, shared: bool = False, coded: bool = False
) -> Command[Batch]:
    """REPLAY.SAMPLE into `out`, whose arrays fit; `shared`: or into shared memory, which the result then refers to;
    `coded`: as distinct steps, which are expanded into `out`."""
    timeout, columns, version = check_timeout(options.timeout), options.columns, options.policy_version
    name = served.table.name
    what = f"sample of {count} from {name!r}"
    if columns is not None or coded:  # coded columns come in the order asked for, and are read in that of `out`
        columns = tuple(out.columns)
    chosen = () if columns is None else ("COLUMNS", len(columns), *columns)
    once = () if options.replace else ("REPLACE", 0)
    beta = float(options.importance_sampling_exponent)
    head: tuple[Argument, ...] = ("REPLAY.SAMPLE", name, int(count), "BETA", beta, *block(timeout), *once)
    head += ("INCARNATION", served.incarnation)
    head += () if version is None else ("POLICY_VERSION", check_version(version))
    head += ("DETAILS",) if options.details else ()
    if coded:
        arguments = (*head, "CODED", *chosen)
        return Command(what, arguments, lambda: coded_reading(what, timeout, served.table, out), True, timeout)
    nearer = (*head, "SHARED", *chosen) if shared else None
    return Command(what, (*head, *chosen), lambda: batch_reading(what, timeout, out), True, timeout, nearer)


def get(served: ServedTable, ids: np.ndarray, out: Batch) -> Command[Batch]:
    name = served.table.name
    what = f"get of {len(ids)} from {name!r}"
    arguments = ("REPLAY.GET", name, bytes_of(ids), "INCARNATION", served.incarnation)
    return Command(what, arguments, lambda: batch_reading(what, 0, out), repeatable=True)


def update(name: str, ids: Any, priorities: Any) -> Command[tuple[int, int]]:
    """Sets the priorities of items that are still there.

    Args:
        name: the table.
        ids: uint64 (n,), as `add` and `sample` gave them; where an id comes twice the last one counts.
        priorities: float64 (n,), raw, at least 0.

    Returns:
        How many were applied, and how many were stale because their item has left.

    Raises:
        PriorityError: a priority is NaN, infinite or negative; nothing was changed.
    """
    # Repeating an update sets the same priorities again.
    checked = check_ids(ids)
    raw = check_priorities(priorities, len(checked))
    arguments = ("REPLAY.UPDATE", name, bytes_of(checked), bytes_of(raw))
    return plain(f"update of {len(checked)} in {name!r}", arguments, lambda both: (int(both[0]), int(both[1])), True)


def delete(name: str, ids: Any) -> Command[int]:
    """Removes items; how many of the ids were live."""
    checked = check_ids(ids)
    return plain(f"delete of {len(checked)} from {name!r}", ("REPLAY.DEL", name, bytes_of(checked)), int, False)


# ---- weights ---------------------------------------------------------------------------------------------------------


def publish_weights(key: str, arrays: Mapping[str, Any], version: int | None = None) -> Command[int]:
    """Publishes named arrays or tensors; readers see the whole set or the one before.

    Args:
        key: whose weights.
        arrays: name → array or tensor (bfloat16 is refused).
        version: above the published one; None = one more than that. Publishing the same arrays as the same
            version again is fine.

    Returns:
        The version.

    Raises:
        StaleVersion: a newer version is published, or other arrays as that version.
    """
    blob: Blob = encode_arrays(arrays)
    arguments = ("WEIGHTS.PUBLISH", key, "*" if version is None else int(version), blob)
    # The server takes the same bytes of the same version again; "*" would make another version of them.
    return plain(f"publication of weights {key!r}", arguments, int, repeatable=version is not None)


def fetch_weights(key: str, newer_than: int | None = None) -> Command[tuple[int, dict[str, np.ndarray]] | None]:
    """The newest published weights: version and arrays; None when there are none newer than `newer_than`."""

    def read() -> Reading[Any]:
        line = yield None
        if line[:1] != b"*" or length_of(line) != 2:
            return (yield from value_after(line))  # null, or an error
        version = yield from read_value()
        blob = yield from bulk_after((yield None))
        try:
            return int(version), decode_arrays(blob or b"")
        except SchemaError as error:  # the reply is read whole: the connection stays usable
            return error

    newer = () if newer_than is None else ("NEWER", int(newer_than))
    return Command(f"fetch of weights {key!r}", ("WEIGHTS.GET", key, *newer), read, repeatable=True)
