"""States of environments as bytes: msgpack, with arrays and numbers that come back with the type they had."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np

_ARRAY, _SCALAR, _TUPLE, _INTEGER = range(1, 5)
_INTEGER_MIN, _INTEGER_MAX = -(2**63), 2**64 - 1
_KINDS = "biufc"


class StateError(ValueError):
    """Bytes that are no state of what is to be restored from them: what was expected, what was got."""


def pack_state(values: Any) -> bytes:
    """Plain values, tuples, integers of any size, and numpy's numbers and arrays, as bytes.

    Types matter as much as values: arithmetic with a float32 goes on in other bits than with a float.

    Raises TypeError for anything else.
    """
    packed = msgpack.packb(_prepared(values), default=_extended, strict_types=True, use_bin_type=True)
    assert packed is not None
    return packed


def unpack_state(packed: bytes) -> Any:
    """What `pack_state` was given, arrays fresh and writable. StateError for bytes that it did not make."""
    try:
        return msgpack.unpackb(packed, raw=False, strict_map_key=False, ext_hook=_plain)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise StateError(f"expected a packed state, got {len(packed)} other bytes: {error}") from None


def _prepared(value: Any) -> Any:
    """The same with integers beyond 64 bits (the states of PCG64) made into what msgpack can take."""
    if isinstance(value, dict):
        return {name: _prepared(one) for name, one in value.items()}
    if type(value) is list:
        return [_prepared(one) for one in value]
    if type(value) is int and not _INTEGER_MIN <= value <= _INTEGER_MAX:
        size = value.bit_length() // 8 + 1
        return msgpack.ExtType(_INTEGER, value.to_bytes(size, "little", signed=True))
    return value


def _extended(value: Any) -> msgpack.ExtType:
    if type(value) is tuple:
        return msgpack.ExtType(_TUPLE, pack_state(list(value)))
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in _KINDS:
        code = _ARRAY if isinstance(value, np.ndarray) else _SCALAR
        header = [value.dtype.str, list(value.shape), np.ascontiguousarray(value).tobytes()]
        return msgpack.ExtType(code, pack_state(header))
    raise TypeError(f"expected plain values, numbers and arrays of numbers in a state, got {type(value).__name__}")


def _plain(code: int, data: bytes) -> Any:
    if code == _INTEGER:
        return int.from_bytes(data, "little", signed=True)
    if code == _TUPLE:
        return tuple(unpack_state(data))
    if code not in (_ARRAY, _SCALAR):
        raise StateError(f"expected extension {_ARRAY} to {_INTEGER}, got {code}")
    dtype, shape, content = unpack_state(data)
    array = np.frombuffer(content, np.dtype(dtype)).reshape(shape).copy()
    return array if code == _ARRAY else array[()]
