"""RESP as the client speaks it, apart from any socket; and the codec of named arrays, for weights.

Encoding gives a list of buffers, large ones by reference, ready for `sendmsg`. Decoding is a generator that says what
it needs next: it yields None for a line, or a writable memoryview to be filled; blocking and asyncio connections drive
the same generators.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import msgpack
import numpy as np

from .errors import SchemaError, ServerError, error_from_reply

T = TypeVar("T")
Buffer: TypeAlias = bytes | bytearray | memoryview
Argument: TypeAlias = "str | int | float | Buffer | Blob"
Reading = Generator["memoryview | None", bytes, T]

SCATTER_BYTES = 4096
"""An argument of at least so many bytes is sent from where it lies; smaller ones are gathered into one buffer."""
_NUMBERS = (int, float)  # a union is made anew at each use
MAX_LINE_BYTES = 64 * 1024
MAX_DEPTH = 32


def pack(value: Any) -> bytes:
    """A value of plain types as msgpack."""
    packed = msgpack.packb(value)
    assert packed is not None  # the type stubs allow it
    return packed


class Blob:
    """One argument that lies in several buffers."""

    __slots__ = ("buffers", "size_bytes")

    def __init__(self, buffers: Iterable[Buffer]) -> None:
        self.buffers = [memoryview(buffer) for buffer in buffers]
        self.size_bytes = sum(buffer.nbytes for buffer in self.buffers)


def bytes_of(array: np.ndarray) -> memoryview:
    """The bytes of a C-contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8).data


def encode_command(arguments: Sequence[Argument]) -> list[Buffer]:
    """A request as RESP: an array of bulk strings, in buffers to be sent one after another."""
    buffers: list[Buffer] = []
    gathered = bytearray(b"*%d\r\n" % len(arguments))
    for argument in arguments:
        if isinstance(argument, Blob):
            size, parts = argument.size_bytes, argument.buffers
        else:
            if isinstance(argument, str):
                argument = argument.encode()
            elif isinstance(argument, _NUMBERS):
                argument = repr(argument).encode()
            size = argument.nbytes if isinstance(argument, memoryview) else len(argument)
            if size < SCATTER_BYTES:
                gathered += b"$%d\r\n%b\r\n" % (size, argument)
                continue
            parts = [argument]
        gathered += b"$%d\r\n" % size
        for part in parts:
            if len(part) < SCATTER_BYTES:
                gathered += part
            else:
                buffers += (gathered, part)
                gathered = bytearray()
        gathered += b"\r\n"
    buffers.append(gathered)
    return buffers


# ---- replies ---------------------------------------------------------------------------------------------------------


def not_resp(line: bytes) -> ServerError:
    """The error for bytes that are no RESP reply."""
    return ServerError(f"expected a RESP reply, got {line[:80]!r}: is this the address of a replay server?")


def length_of(line: bytes) -> int:
    """The number after a type byte."""
    try:
        return int(line[1:])
    except ValueError:
        raise not_resp(line) from None


def read_value(depth: int = 0) -> Reading[Any]:
    """One whole reply as Python values: bytes, str (simple strings), int, float, bool, None, list, dict; an error reply
    is returned, not raised, as an exception object."""
    line = yield None
    return (yield from value_after(line, depth))


def value_after(line: bytes, depth: int = 0) -> Reading[Any]:
    """As `read_value`, the value's first line being read already."""
    kind = line[:1]
    if kind == b"+":
        return line[1:].decode("utf-8", "replace")
    if kind == b"-":
        return error_from_reply(line[1:].decode("utf-8", "replace"))
    if kind in (b":", b"("):
        return length_of(line)
    if kind == b"_":
        return None
    if kind == b"#" and line[1:] in (b"t", b"f"):
        return line[1:] == b"t"
    if kind == b",":
        try:
            return float(line[1:])
        except ValueError:
            raise not_resp(line) from None
    if kind in (b"$", b"=", b"!"):
        data = yield from bulk_after(line)
        if data is None:
            return None
        if kind == b"!":
            return error_from_reply(data.decode("utf-8", "replace"))
        return bytes(data[4:] if kind == b"=" else data)
    return (yield from _aggregate_after(line, depth))


def _aggregate_after(line: bytes, depth: int) -> Reading[Any]:
    kind = line[:1]
    if kind not in (b"*", b"%", b"~", b">", b"|") or depth > MAX_DEPTH:
        raise not_resp(line)
    count = length_of(line)
    if count < 0:
        return None
    if kind in (b"%", b"|"):
        pairs = {}
        for _ in range(count):
            key = yield from read_value(depth + 1)
            pairs[key] = yield from read_value(depth + 1)
        if kind == b"%":
            return pairs
        return (yield from read_value(depth))  # an attribute goes before the value that it describes
    values = []
    for _ in range(count):
        values.append((yield from read_value(depth + 1)))
    if kind == b">" and depth == 0:
        return (yield from read_value(depth))  # a push message is not the reply
    return values


def bulk_after(line: bytes) -> Reading[bytearray | None]:
    """The bytes of a bulk string whose header line is given."""
    size = length_of(line)
    if line[:1] not in b"$=!" or size < -1:
        raise not_resp(line)
    if size == -1:
        return None
    data = bytearray(size)
    yield memoryview(data)
    return data


def bulk_into(line: bytes, array: np.ndarray) -> Reading[bool]:
    """Receives a bulk string straight into a C-contiguous array; False, the bytes dropped, where the size differs."""
    if line[:1] != b"$":
        raise not_resp(line)
    size = length_of(line)
    if size == array.nbytes:
        yield bytes_of(array)
        return True
    if size >= 0:
        yield memoryview(bytearray(size))
    return False


def as_dict(reply: Any) -> dict[Any, Any]:
    """A map reply: RESP3's map, or RESP2's flat array of names and values."""
    if isinstance(reply, dict):
        return reply
    if not isinstance(reply, list) or len(reply) % 2:
        raise ServerError(f"expected a map from the server, got {type(reply).__name__}")
    return dict(zip(reply[::2], reply[1::2], strict=True))


# ---- named arrays ----------------------------------------------------------------------------------------------------

ARRAYS_MAGIC = b"RSA1"
_ALIGNMENT = 64
_PREFIX = struct.Struct("<4sI")  # magic, bytes of the msgpack header


def _plain_array(name: str, value: Any) -> np.ndarray:
    """An array or a tensor on any device as a little-endian, C-contiguous NumPy array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            raise SchemaError(f"array {name!r} is bfloat16, which NumPy lacks: send value.float(), or view it as int16")
        value = value.numpy()
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise SchemaError(f"array {name!r} must hold bools, integers or floats of up to 64 bits, got {array.dtype}")
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")


def encode_arrays(arrays: Mapping[str, Any]) -> Blob:
    """Named arrays or tensors as one blob, their bytes by reference.

    Layout: "RSA1", uint32 header size, header: msgpack {name: [dtype, shape, offset]}, then the arrays' bytes; offsets
    count from the first multiple of 64 after the header, and are multiples of 64.

    Raises:
        SchemaError: it is no dict, or a value is not an array of numbers.
    """
    if not isinstance(arrays, Mapping):
        raise SchemaError(
            f"expected a dict of names and arrays or tensors, such as model.state_dict(), got {type(arrays).__name__}"
        )
    header: dict[str, list[Any]] = {}
    pieces: list[Buffer] = []
    offset = 0
    for name, value in arrays.items():
        if not isinstance(name, str):
            raise SchemaError(f"expected array names to be strings, got {name!r}")
        array = _plain_array(name, value)
        header[name] = [array.dtype.name, list(array.shape), offset]
        padding = -array.nbytes % _ALIGNMENT
        pieces += (bytes_of(array), bytes(padding))
        offset += array.nbytes + padding
    packed = pack(header)
    padding = -(_PREFIX.size + len(packed)) % _ALIGNMENT
    return Blob([_PREFIX.pack(ARRAYS_MAGIC, len(packed)) + packed + bytes(padding), *pieces])


def decode_arrays(blob: Buffer) -> dict[str, np.ndarray]:
    """The arrays of `encode_arrays`, as views of the blob: writable where the blob is.

    Raises:
        SchemaError: the bytes are not such a blob.
    """
    view = memoryview(blob)
    try:
        magic, header_bytes = _PREFIX.unpack_from(view)
        if magic != ARRAYS_MAGIC:
            raise ValueError(f"it begins with {magic!r}, expected {ARRAYS_MAGIC!r}")
        header = msgpack.unpackb(view[_PREFIX.size : _PREFIX.size + header_bytes])
        start = _PREFIX.size + header_bytes
        start += -start % _ALIGNMENT
        arrays = {}
        for name, (dtype_name, shape, offset) in header.items():
            dtype = np.dtype(dtype_name)  # a SyntaxError of some names, such as "<,i8"
            if dtype.kind not in "biuf" or not all(isinstance(n, int) and n >= 0 for n in [*shape, offset]):
                raise ValueError(f"array {name!r} is {dtype_name!r} of shape {shape!r} at {offset!r}")
            count = int(np.prod(shape, dtype=object))
            flat = np.frombuffer(view, dtype, count, start + offset) if count else np.empty(0, dtype)
            arrays[name] = flat.reshape(shape)
        return arrays
    except (ValueError, TypeError, AttributeError, SyntaxError, struct.error, msgpack.UnpackException) as error:
        raise SchemaError(f"expected named arrays as publish_weights sends them: {error}") from error
