"""Values of dataclasses that came from outside: whether each is of the type that its field says, and plain data.

Knows the annotations that messages and settings use: str, bytes, bool, int, float, None, unions of them, Literal, and
mappings and sequences. A whole number does for a float; a bool is no number. No NumPy is imported for it.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, Union

MAX_DEPTH = 16
"""Levels of maps and lists within one value."""
PLAIN = (str, bytes, bool, int, float, type(None))


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """The value as maps with string keys, lists, strings, bytes, numbers, bools and None alone; NumPy's scalars become
    Python's. ValueError, naming the place, for anything else."""
    if isinstance(value, PLAIN):
        # Subclasses, NumPy's float64 and enumerations among them, become what they are in a message.
        return value if type(value) in PLAIN else _base(value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item"):
        return plain(value.item(), where, depth)
    if depth >= MAX_DEPTH:
        raise ValueError(f"{where}: expected at most {MAX_DEPTH} levels of maps and lists, got more")
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Mapping):
        wrong = next((key for key in value if not isinstance(key, str)), None)
        if wrong is not None:
            raise ValueError(f"{where}: expected names as keys, got {_shown(wrong)}")
        return {str(key): plain(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise ValueError(f"{where}: expected plain data (numbers, strings, bytes, lists, maps), got {_shown(value)}")


def check_names(kind: type[Any], values: Mapping[str, Any], what: str) -> None:
    """ValueError where `values` has a name that is no field of the dataclass, or lacks one that has no default."""
    fields = dataclasses.fields(kind)
    if unknown := [name for name in values if name not in {each.name for each in fields}]:
        expected = ", ".join(sorted(each.name for each in fields))
        raise ValueError(f"{what} has no {_shown(unknown[0])}: expected {expected}")
    required = [each for each in fields if each.init and _has_no_default(each)]
    if missing := [each.name for each in required if each.name not in values]:
        raise ValueError(f"{what} lacks {', '.join(missing)}")


def check_types(kind: type[Any], values: Mapping[str, Any], what: str) -> None:
    """ValueError for the first value, of those that are fields of the dataclass, that is not of its field's type."""
    for name, annotation in _annotations(kind).items():
        if name in values and not _fits(values[name], annotation):
            raise ValueError(f"{what}.{name}: expected {_named(annotation)}, got {_shown(values[name])}")


@functools.cache
def _annotations(kind: type[Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {each.name: hints[each.name] for each in dataclasses.fields(kind)}


def _fits(value: Any, annotation: Any) -> bool:
    origin = typing.get_origin(annotation)
    if annotation is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in typing.get_args(annotation))
    if origin is Literal:
        return any(value == each and type(value) is type(each) for each in typing.get_args(annotation))
    if origin is collections.abc.Mapping:
        _, item = typing.get_args(annotation)
        return isinstance(value, Mapping) and all(isinstance(k, str) and _fits(v, item) for k, v in value.items())
    if origin is collections.abc.Sequence:
        (item,) = typing.get_args(annotation)
        return isinstance(value, list | tuple) and all(_fits(each, item) for each in value)
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, types.NoneType if annotation is None else annotation)


def _has_no_default(each: dataclasses.Field[Any]) -> bool:
    return each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING


def _base(value: Any) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        return bytes(value)
    return int(value) if isinstance(value, int) else float(value)


def _named(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = "something that cannot be shown"
    return f"{text[:80]}{'…' if len(text) > 80 else ''} ({type(value).__name__})"
