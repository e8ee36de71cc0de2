"""A table's signature and settings in the words of REPLAY.INFO, where no server tells them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .table import Column, Table


def settings_told(table: Table) -> dict[str, Any]:
    """The signature and settings as REPLAY.INFO tells them."""
    spec = table.to_spec()
    shown = {**table.columns, **table.step_columns}
    return {
        "max_times_sampled": spec["max_times_sampled"],
        "max_bytes": spec["max_bytes"],
        "max_staleness": spec["max_staleness"],
        "storage": table.storage,
        "sampler": part_told(spec["sampler"]),
        "remover": part_told(spec["remover"]),
        "rate_limiter": part_told(spec["rate_limiter"]),
        "signature": "; ".join(f"{name}: {shown[name].dtype} {_shape_told(shown[name])}" for name in table.leaves),
    }


def part_told(fields: Mapping[str, Any]) -> str:
    """A sampler, remover or rate limiter of a spec."""
    values = {name: value for name, value in fields.items() if name != "kind" and value is not True}
    words = [
        f"{name}={'false' if value is False else format(value, 'g' if isinstance(value, float) else '')}"
        for name, value in values.items()
    ]
    return fields["kind"] + (f"({','.join(words)})" if words else "")


def _shape_told(column: Column) -> str:
    sizes = [f"0..{column.max_length}", *column.shape[1:]] if column.ragged else column.shape
    return f"[{','.join(map(str, sizes))}]"
