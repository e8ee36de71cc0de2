"""The dtypes of columns: their names, as in a table's spec, and what NumPy has for them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .errors import SchemaError

COLUMN_DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "complex64",
    "complex128",
)  # fmt: skip
MAX_WIDTH = 65_535
"""Bytes of one value of fixed-length bytes: S1 to S65535."""
_BITS: np.dtype[Any] = np.dtype(np.uint16, metadata={"bfloat16": True})  # uint16 in all but this
_EXPECTED = f"{', '.join(COLUMN_DTYPES)}, or fixed-length bytes such as S16"


def dtype_name(given: Any) -> str:
    """The name of a dtype, given as NumPy takes it, as torch's, or by name.

    Raises:
        SchemaError: columns cannot have it.
    """
    name = str(given).removeprefix("torch.")
    if name == "bfloat16":  # which NumPy alone does not know
        return name
    try:
        # NumPy takes None for float64, but not its name.
        kind = np.dtype(name if given is None or str(given).startswith("torch.") else given)
    except (TypeError, ValueError, SyntaxError) as error:
        raise SchemaError(f"a column's dtype must be one of {_EXPECTED}, got {given!r}") from error
    if kind.name == "bfloat16":
        return kind.name
    if kind.kind == "S" and 1 <= kind.itemsize <= MAX_WIDTH:
        return f"S{kind.itemsize}"
    if kind.names:
        raise SchemaError(
            f"a column's dtype must be one of {_EXPECTED}, got the fields {', '.join(kind.names)}; use a "
            "dict of columns, one for each field"
        )
    if kind.name not in COLUMN_DTYPES or kind.newbyteorder("<") != kind:
        raise SchemaError(f"a column's dtype must be one of {_EXPECTED}, got {kind}")
    return kind.name


@functools.cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """What arrays of a column have: of bfloat16 that of ml_dtypes or, where it is not installed, uint16, its bits."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes  # pyright: ignore[reportMissingImports]
    except ImportError:
        return _BITS
    return np.dtype(ml_dtypes.bfloat16)


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Whether an array of a column holds bfloat16, with ml_dtypes or without: its bits know of it then."""
    return dtype.name == "bfloat16" or "bfloat16" in (dtype.metadata or ())


def bits_of_tensor(value: Any) -> np.ndarray | None:
    """A torch tensor of bfloat16, which NumPy cannot read, as an array; None: it is none."""
    if str(getattr(value, "dtype", None)) != "torch.bfloat16":
        return None
    import torch

    return value.detach().cpu().contiguous().view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
