"""A storage back end for TransferQueue: its values lie on a replay server, under their keys, one value a key.

Importing this module makes it known to TransferQueue: as the storage manager "ReplayServer", and as the client
"ReplayServerClient". A put is `MSET`, a get `MGET`, a clear `UNLINK`, some thousand keys at once. With the server's
append-only file on, values outlive the server (docs/durability.md).

A value is stored as a header and its bytes, never as a pickle: tensors and arrays as they lie in memory; strings,
numbers, bytes, None, and lists, tuples and dicts of all these as msgpack. NumPy's single texts and bytes come back as
Python's. A tensor's bytes are sent from where they lie, and lie in the reply when they have arrived: they are copied
nowhere in this process.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np

from replay_server import Client
from replay_server.codec import Blob, bytes_of
from replay_server.extras import needed_by

with needed_by(__name__):
    import torch
    from transfer_queue.storage.bootstrap.provider import StorageBootstrapProvider
    from transfer_queue.storage.clients.base import StorageClientFactory, StorageKVClient
    from transfer_queue.storage.managers.base import KVStorageManager, StorageManagerFactory

MOST_KEYS = 4096
"""Of one command."""
MOST_BYTES = 64 << 20
"""Of the values of one MSET, but for a single larger one."""
_ALIGNMENT = 64
_TENSOR, _ARRAY, _TUPLE = 1, 2, 3
"""Codes of msgpack's extension types."""
_HEADER = struct.Struct("<I")


@StorageClientFactory.register("ReplayServerClient")
class ReplayServerStorageClient(StorageKVClient):
    """Values of TransferQueue on a server.

    Args:
        config: `url` of the server, "redis://127.0.0.1:6379" unless given; its password comes from the variable
            REPLAY_SERVER_PASSWORD, or from `password_file`. `prefix` of the keys, "transfer-queue:" unless given.
    """

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        super().__init__(config or {})
        self._prefix = str(self.config.get("prefix", "transfer-queue:"))
        url = self.config.get("url", "redis://127.0.0.1:6379")
        self._client = Client(url, password_file=self.config.get("password_file"))

    def put(self, keys: list[str], values: list[Any]) -> None:
        """Stores values, each in the place of what its key had.

        Raises:
            ValueError: there are not as many values as keys.
            TypeError: a value is of a type that is not stored; nothing of this call's values is stored then.
        """
        _check_lists(keys, values)
        if len(keys) != len(values):
            raise ValueError(f"expected as many values as keys, {len(keys)}, got {len(values)}")
        blobs = [_encoded(key, value) for key, value in zip(keys, values, strict=True)]
        for part in _parts(blobs):
            pairs: list[Any] = []
            for key, blob in zip(keys[part], blobs[part], strict=True):
                pairs += self._prefix + key, blob
            self._client.command("MSET", *pairs, repeatable=True)

    def get(self, keys: list[str], shapes: Any = None, dtypes: Any = None, custom_backend_meta: Any = None) -> list:
        """The values of keys, in their order; tensors are on the CPU and may be written to. The other arguments are
        for other back ends: a value tells its own shape and dtype.

        Raises:
            KeyError: a key has no value.
        """
        _check_lists(keys)
        values: list[Any] = []
        for start in range(0, len(keys), MOST_KEYS):
            wanted = keys[start : start + MOST_KEYS]
            replies = self._client.command("MGET", *(self._prefix + key for key in wanted), repeatable=True)
            if missing := [key for key, reply in zip(wanted, replies, strict=True) if reply is None]:
                raise KeyError(f"{len(missing)} of {len(wanted)} keys have no value, {missing[0]!r} among them")
            values += map(_decoded, replies)
        return values

    def clear(self, keys: list[str], custom_backend_meta: Any = None) -> None:
        """Removes the values of keys; those that have none are left out."""
        _check_lists(keys)
        for start in range(0, len(keys), MOST_KEYS):
            chosen = keys[start : start + MOST_KEYS]
            self._client.command("UNLINK", *(self._prefix + key for key in chosen), repeatable=True)

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()


@StorageManagerFactory.register("ReplayServer")
class ReplayServerStorageManager(KVStorageManager):
    """TransferQueue's manager of key-value storages, with this one: `config` is that of `ReplayServerStorageClient`."""

    def __init__(self, controller_info: Any, config: dict[str, Any] | None, zmq_context: Any = None) -> None:
        chosen = {**(config or {}), "client_name": "ReplayServerClient"}
        super().__init__(controller_info, chosen, zmq_context=zmq_context)


@StorageBootstrapProvider.register_provider("ReplayServer")
def _started(conf: Any) -> dict[str, Any]:
    """What `transfer_queue.init` starts for this storage: nothing, since the server is running."""
    return {}


def _check_lists(*given: Any) -> None:
    for each in given:
        if not isinstance(each, list):
            raise ValueError(f"expected a list, got {type(each).__name__}")


def _parts(blobs: list[Blob]) -> Iterator[slice]:
    """The values of one MSET each."""
    start, size_bytes = 0, 0
    for number, blob in enumerate(blobs):
        if number > start and (number - start >= MOST_KEYS or size_bytes + blob.size_bytes > MOST_BYTES):
            yield slice(start, number)
            start, size_bytes = number, 0
        size_bytes += blob.size_bytes
    if start < len(blobs):
        yield slice(start, len(blobs))


# ---- values as bytes -------------------------------------------------------------------------------------------------


def _encoded(key: str, value: Any) -> Blob:
    """The length of the header, the header, zeros up to a multiple of 64 bytes, the bytes of a tensor or an array."""
    if isinstance(value, torch.Tensor):
        head, body = ["tensor", *_described(value)], bytes_of(_array_of(value))
    elif isinstance(value, np.ndarray) and _is_plain(value.dtype):
        head, body = ["array", value.dtype.str, list(value.shape)], bytes_of(np.ascontiguousarray(value))
    else:
        head, body = ["object"], memoryview(_packed(key, value))
    header = msgpack.packb(head) or b""
    padding = -(_HEADER.size + len(header)) % _ALIGNMENT
    return Blob([_HEADER.pack(len(header)) + header + bytes(padding), body])


def _decoded(stored: bytes | bytearray) -> Any:
    data = stored if isinstance(stored, bytearray) else bytearray(stored)
    (length,) = _HEADER.unpack_from(data)
    head: list[Any] = [*msgpack.unpackb(data[_HEADER.size : _HEADER.size + length]), "", []]
    kind, dtype, shape = head[:3]
    start = _HEADER.size + length + -(_HEADER.size + length) % _ALIGNMENT
    if kind == "tensor":
        return _tensor_from(dtype, shape, data, start)
    if kind == "array":
        return np.frombuffer(data, np.dtype(dtype), offset=start).reshape(shape)
    return _unpacked(memoryview(data)[start:])


def _is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether an array's bytes say all: numbers, and texts and bytes of one width."""
    return dtype.kind in "biufcSU" and dtype.itemsize > 0


def _described(tensor: torch.Tensor) -> tuple[str, list[int]]:
    return str(tensor.dtype).removeprefix("torch."), list(tensor.shape)


def _array_of(tensor: torch.Tensor) -> np.ndarray:
    """Its bytes, on the host; also of dtypes that NumPy has not."""
    if tensor.layout != torch.strided:
        raise TypeError(f"expected a tensor with a layout of its own, got {tensor.layout}")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)


def _tensor_from(dtype: str, shape: list[int], data: bytearray, start: int = 0) -> torch.Tensor:
    kind = getattr(torch, dtype)
    if 0 in shape:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(data, dtype=kind, offset=start).reshape(shape)


def _packed(key: str, value: Any) -> bytes:
    def extended(part: Any) -> Any:
        if isinstance(part, torch.Tensor):
            head = msgpack.packb(_described(part)) or b""
            return msgpack.ExtType(_TENSOR, _HEADER.pack(len(head)) + head + bytes(bytes_of(_array_of(part))))
        if isinstance(part, np.bytes_ | np.str_):
            return part.item()
        if isinstance(part, np.generic | np.ndarray) and _is_plain(part.dtype):
            array = np.ascontiguousarray(part)
            head = msgpack.packb([array.dtype.str, list(np.shape(part))]) or b""
            return msgpack.ExtType(_ARRAY, _HEADER.pack(len(head)) + head + array.tobytes())
        if isinstance(part, tuple):
            return msgpack.ExtType(_TUPLE, pack(list(part)))
        raise TypeError(
            f"{key!r}: expected tensors, arrays, strings, numbers, bytes, None, and lists, tuples and dicts of them "
            f"(nothing is pickled), got {type(part).__module__}.{type(part).__qualname__}"
        )

    def pack(part: Any) -> bytes:
        return msgpack.packb(part, default=extended, strict_types=True) or b""

    return pack(value)


def _unpacked(data: bytes | memoryview) -> Any:
    def extended(code: int, inner: bytes) -> Any:
        if code == _TUPLE:
            return tuple(_unpacked(inner))
        (length,) = _HEADER.unpack_from(inner)
        dtype, shape = msgpack.unpackb(inner[_HEADER.size : _HEADER.size + length])
        body = bytearray(inner[_HEADER.size + length :])
        if code == _TENSOR:
            return _tensor_from(dtype, shape, body)
        return np.frombuffer(body, np.dtype(dtype)).reshape(shape)

    return msgpack.unpackb(data, ext_hook=extended, strict_map_key=False)
