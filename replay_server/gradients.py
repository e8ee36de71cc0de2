"""GRAD.*: gradients that wait on the server, by name, until weights are published that were made of them.

A learner pushes a gradient under a name and with the version of the weights that it was computed at. The one that
applies them looks at the oldest, or takes their weighted sum; they go on waiting until it publishes the weights that
it made of them, in one command, so that whoever dies in between has neither lost nor applied any twice.

The commands as data, as in `commands`, documented as the client offers them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .checks import check_timeout, check_version
from .codec import (
    Argument,
    Reading,
    as_dict,
    bulk_into,
    bytes_of,
    encode_arrays,
    length_of,
    not_resp,
    read_value,
    value_after,
)
from .commands import Command, block, plain
from .errors import SchemaError, ServerError, explain

MOST_WAITING = 1024
"""The most gradients that wait under a key."""


@dataclass
class Gradients:
    """The oldest gradients that wait under a key, oldest first. They stay there until they are published or dropped.

    Attributes:
        names: as pushed; bytes that are not UTF-8 are lone surrogates, and are sent back as those bytes.
        versions: int64 (n,), of the weights at which each was computed.
        dtype: "float32" or "bfloat16", in the server and on the wire.
        vector_bytes: bytes of one vector in the server.
        vectors: float32 (N,) each (bfloat16 is widened exactly); empty if only the sum or the headers were requested.
        sum: float32 (N,), Σ w_k x_k, if weights were given.
    """

    names: list[str]
    versions: np.ndarray
    dtype: str
    vector_bytes: int
    vectors: list[np.ndarray] = field(default_factory=list)
    sum: np.ndarray | None = None

    def staleness(self, version: int) -> np.ndarray:
        """int64 (n,): how many versions each gradient is behind `version`; at least 0."""
        return np.maximum(version - self.versions, 0)


# ---- vectors ---------------------------------------------------------------------------------------------------------


def narrow(values: np.ndarray) -> np.ndarray:
    """float32 as bfloat16, uint16 of the same shape: to nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def widen(bits: np.ndarray) -> np.ndarray:
    """bfloat16 in uint16 as float32, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _vector(value: Any, dtype: str | None) -> tuple[str, np.ndarray]:
    """The dtype to push as, and the elements in it."""
    if dtype not in (None, "float32", "bfloat16"):
        raise SchemaError(f"expected the dtype float32 or bfloat16, got {dtype!r}")
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            dtype = dtype or "bfloat16"
            value = value.float()  # exact; narrowed again below without rounding
        value = value.numpy()
    array = np.asarray(value)
    if array.dtype != np.float32 or array.ndim != 1 or not array.size:
        raise SchemaError(f"expected a gradient as float32 (N,), got {array.dtype} {array.shape}")
    return (dtype or "float32"), (narrow(array) if dtype == "bfloat16" else np.ascontiguousarray(array))


def _read_vector(header: bytes, dtype: str) -> Reading[np.ndarray]:
    item = np.uint16 if dtype == "bfloat16" else np.float32
    array = np.empty(max(0, length_of(header)) // np.dtype(item).itemsize, item)
    if not (yield from bulk_into(header, array)):
        raise ServerError(f"expected a vector of {dtype}, got {length_of(header)} bytes")
    return widen(array) if dtype == "bfloat16" else array


# ---- commands --------------------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    return bytes(value).decode("utf-8", "replace")


def _name(value: Any) -> str:
    """A gradient's name: one that is not UTF-8 can be sent back as it came."""
    return bytes(value).decode("utf-8", "surrogateescape")


def _sent(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def push(key: str, version: int, name: str, vector: Any, dtype: str | None = None) -> Command[bool]:
    """Adds a gradient at the end of those that wait.

    Args:
        key: of the queue, made with its first gradient. At most 1,024 wait under one, all of one dtype and length.
        version: of the weights that it was computed at.
        name: 1 to 128 bytes, its own among all of the key, such as learner, version and sequence: one that waits
            already, or is among the last 4,096 that were applied or dropped, is not added again.
        vector: float32 (N,), or a tensor of float32 or bfloat16.
        dtype: "float32" or "bfloat16", to which elements are rounded (to nearest, ties to even) before they are
            sent; None: as they are.

    Returns:
        Whether it was new. If the connection is lost it is sent again; the name makes that safe.

    Raises:
        SchemaError: no such vector, or not like those that wait.
        LimitExceeded: too many wait, or there is no memory.
    """
    sent_as, elements = _vector(vector, dtype)
    arguments = ("GRAD.PUSH", key, check_version(version), _sent(name), sent_as, bytes_of(elements))
    return plain(f"push of gradient {name!r} to {key!r}", arguments, bool, repeatable=True)  # its name makes it so


def _taken(what: str, timeout: float | None) -> Reading[Any]:
    """Reads [names, versions, dtype, then: bytes of a vector, the sum, or an array of vectors]."""
    line = yield None
    if line[:1] == b"-":
        return explain(what, timeout, (yield from value_after(line)))
    if line != b"*4":
        raise not_resp(line)
    names = [_name(name) for name in (yield from read_value())]
    versions = np.array((yield from read_value()), np.int64)
    dtype = _text((yield from read_value()))
    taken = Gradients(names, versions, dtype, 0)
    line = yield None
    if line[:1] == b":":
        taken.vector_bytes = length_of(line)
    elif line[:1] == b"$":
        taken.vector_bytes = length_of(line)
        taken.sum = yield from _read_vector(line, dtype)
    else:
        for _ in range(length_of(line)):
            header = yield None
            taken.vector_bytes = length_of(header)
            taken.vectors.append((yield from _read_vector(header, dtype)))
    return taken


def take(
    key: str,
    count: int,
    *,
    until: tuple[int, float] | None = None,
    weights: Sequence[float] | np.ndarray | None = None,
    timeout: float | None = None,
) -> Command[Gradients]:
    """The oldest gradients, once enough are waiting. They stay in the queue.

    Args:
        key: of the queue; it need not be there yet.
        count: as many at most.
        until: (current version, β): waits until the mean staleness (current version − the gradient's version) of all
            waiting gradients is at most β, or `count` are waiting. None: until any is waiting; with `weights`, until
            `count` are.
        weights: (count,), finite: the server returns Σ w_k x_k alone, summed in float64 and rounded once to the dtype
            of the gradients, so that it sends only one vector. Not together with `until`: call `gradient_headers`
            first.
        timeout: seconds; None = for ever, 0 = not at all.

    Raises:
        Timeout: not enough wait; its `reason` says how many do.
    """
    return _take(key, count, until, weights, False, timeout)


def take_headers(
    key: str, count: int = MOST_WAITING, *, until: tuple[int, float] | None = None, timeout: float | None = None
) -> Command[Gradients]:
    """As `take_gradients`, without the vectors: names, versions, dtype and bytes, from which weights follow."""
    return _take(key, count, until, None, True, timeout)


def _take(
    key: str,
    count: int,
    until: tuple[int, float] | None,
    weights: Sequence[float] | np.ndarray | None,
    headers: bool,
    timeout: float | None,
) -> Command[Gradients]:
    timeout = check_timeout(timeout)
    what = f"take of {count} gradients from {key!r}"
    options: list[Argument] = []
    if until is not None:
        options += ("UNTIL", check_version(until[0]), float(until[1]))
    options += block(timeout)
    if headers:
        options.append("HEADERS")
    if weights is not None:
        options += ("SUM", *(float(weight) for weight in weights))
    arguments = ("GRAD.TAKE", key, int(count), *options)
    return Command(what, arguments, lambda: _taken(what, timeout), repeatable=True, wait_s=timeout)


def await_taken(key: str, names: Sequence[str], most: int = 0, timeout: float | None = None) -> Command[int]:
    """Waits until at most `most` of these gradients are waiting, so that a learner does not run far ahead.

    Args:
        key: of the queue.
        names: 1 to 1,024; one that is not known counts as not waiting.
        most: as many may still wait.
        timeout: seconds; None = for ever, 0 = not at all.

    Returns:
        How many do.

    Raises:
        Timeout: more do.
    """
    timeout = check_timeout(timeout)
    what = f"wait for gradients of {key!r}"
    arguments = ("GRAD.AWAIT", key, int(most), len(names), *map(_sent, names), *block(timeout))

    def read() -> Reading[Any]:
        return explain(what, timeout, (yield from read_value()))

    return Command(what, arguments, read, repeatable=True, wait_s=timeout)


def publish(key: str, names: Sequence[str], version: int, weights: Mapping[str, Mapping[str, Any]]) -> Command[int]:
    """Publishes weights and removes the gradients that were applied to them, in one atomic step.

    Args:
        key: of the queue.
        names: of gradients that wait under it, each once; none is fine (what a job begins with).
        version: of the weights, above that of each key.
        weights: key → named arrays, as for `publish_weights`; 1 to 16 keys, such as a policy and its optimiser.

    Returns:
        The version.

    Raises:
        StaleVersion: that version or a newer one is published already: discard these weights, and begin again with
            the published ones.
        GradientNotWaiting: a name was applied or dropped already, or is not known.
        ConnectionLost: whether it was done is not known; `fetch_weights` or `gradient_states` tells.
    """
    blobs: list[Argument] = []
    if not isinstance(weights, Mapping):
        raise SchemaError(
            f"expected a dict of keys and their named arrays, such as {{'policy': model.state_dict()}}, got "
            f"{type(weights).__name__}"
        )
    for weights_key, arrays in weights.items():
        blobs += (weights_key, encode_arrays(arrays))
    arguments = ("GRAD.PUBLISH", key, check_version(version), len(names), *map(_sent, names), *blobs)
    return plain(f"publication of version {version} from {key!r}", arguments, int, False)


def drop(key: str, names: Sequence[str]) -> Command[int]:
    """Takes gradients out without applying them; returns how many of them waited."""
    return plain(f"drop of gradients of {key!r}", ("GRAD.DROP", key, *map(_sent, names)), int, True)


def states(key: str, names: Sequence[str]) -> Command[list[str | None]]:
    """Of each name: "waiting", "applied", "dropped", or None where it is not known (any more)."""

    def convert(value: Any) -> list[str | None]:
        return [None if state is None else _text(state) for state in value]

    return plain(f"states of gradients of {key!r}", ("GRAD.STATE", key, *map(_sent, names)), convert, True)


def info(key: str) -> Command[dict[str, Any]]:
    """What waits under a key: waiting, bytes, vector_bytes, dtype, oldest_version and newest_version (-1: none
    waits); counters since the server began: pushed, duplicates, applied, dropped; remembered and forgotten names;
    takers, clients that wait. All 0 where there is no such key."""

    def convert(value: Any) -> dict[str, Any]:
        fields = as_dict(value)
        return {_text(name): _text(v) if isinstance(v, bytes) else v for name, v in fields.items()}

    return plain(f"info of gradients {key!r}", ("GRAD.INFO", key), convert, True)


def keys() -> Command[list[str]]:
    """The keys under which gradients wait, or names are remembered."""
    return plain("list of gradients' keys", ("GRAD.LIST",), lambda names: [_text(name) for name in names], True)


def delete(*keys: str) -> Command[int]:
    """Removes keys with all that waits and every name; returns how many there were."""
    return plain("removal of gradients", ("GRAD.DEL", *keys), int, True)
