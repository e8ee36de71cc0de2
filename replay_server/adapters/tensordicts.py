"""TensorDicts as the columns of a table, and batches of a table as TensorDicts: for the adapter `torchrl`.

A key ("next", "obs") is the column "next/obs". Ids are not columns: the entry "index", which TorchRL's buffers write
into what is added, is left out.
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor
from torch import Tensor

from replay_server import Batch, Column, SchemaError
from replay_server.torch import RaggedTensor
from replay_server.tree import SEPARATOR, Leaves, tree_of

INDEX = "index"
"""The entry in which TorchRL's buffers note where an item lies: here its id."""


def columns_of(data: TensorDictBase) -> Leaves:
    """The entries of a TensorDict by path, as tensors on the CPU without a graph; nested tensors with the jagged layout
    as (values, offsets), for ragged columns.

    Args:
        data: of batch size (N, …).

    Raises:
        SchemaError: an entry is not a tensor, or its key has a slash.
    """
    found = Leaves()
    for key, value in data.items(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor):
        parts = key if isinstance(key, tuple) else (key,)
        if parts == (INDEX,):
            continue
        if any(SEPARATOR in part for part in parts):
            raise SchemaError(f"expected keys without a slash, which stands between the parts of a path, got {key!r}")
        found[SEPARATOR.join(parts)] = _on_host(key, value)
    if not found:
        raise SchemaError("expected a TensorDict with at least one tensor besides 'index', got none")
    return found


def _on_host(key: Any, value: Any) -> Any:
    if not isinstance(value, Tensor):
        raise SchemaError(
            f"{key!r}: expected a tensor, got {type(value).__name__}; a table has no column for other objects: "
            ".exclude(…) them, or encode them as tensors"
        )
    value = value.detach()
    if value.is_nested:
        if value.layout is not torch.jagged:
            raise SchemaError(f"{key!r}: expected a nested tensor with the jagged layout, got {value.layout}")
        value = value.contiguous()  # without rows that no item has
        return value.values().cpu(), value.offsets().cpu()
    return value.cpu()


def signature_of(columns: Leaves) -> dict[str, Any]:
    """The signature of a table that holds rows of these columns.

    Raises:
        SchemaError: a column cannot have a tensor's dtype, or paths contradict each other.
    """
    return tree_of({path: _column_of(value) for path, value in columns.items()})


def _column_of(value: Any) -> Column:
    if isinstance(value, tuple):
        return Column(value[0].dtype, (None, *value[0].shape[1:]))
    return Column(value.dtype, value.shape[1:])


def rows_of(columns: Leaves, first: int, last: int) -> Leaves:
    """The rows from `first` up to, and without, `last`."""
    return Leaves({path: _rows(value, first, last) for path, value in columns.items()})


def _rows(value: Any, first: int, last: int) -> Any:
    if isinstance(value, tuple):
        values, offsets = value[0], value[1][first : last + 1]
        return values[offsets[0] : offsets[-1]], offsets - offsets[0]
    return value[first:last]


def tensordict_of(batch: Batch, batch_size: tuple[int, ...], device: torch.device) -> TensorDict:
    """A batch as a TensorDict, on the CPU over the batch's own arrays. A ragged column becomes a nested tensor with the
    jagged layout.

    Args:
        batch_size: (N, …): that of the TensorDict, and of those in it.
    """
    nested: dict[str, Any] = {}
    for path, value in batch.torch().columns.items():
        *within, last = path.split(SEPARATOR)
        node = nested
        for part in within:
            node = node.setdefault(part, {})
        node[last] = value.nested() if isinstance(value, RaggedTensor) else value
    return TensorDict(nested, batch_size, device)
