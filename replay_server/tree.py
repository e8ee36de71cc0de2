"""Trees of columns: dicts and tuples in Python, names that are paths on the wire, such as `obs/image` and `obs/0`.

A path alone tells which tree it is from, so a table's spec keeps no structure beside its names. What is between slashes
is a key of a dict. Only where the keys of a place are 0, 1, …, k - 1, in this order, it is a tuple. So a dict within a
dict may not have these keys, and no key has a slash or is empty. The outermost is always a dict.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .errors import SchemaError

SEPARATOR = "/"


class Leaves(dict[str, Any]):
    """Values by path: data that has been taken apart already."""


def tree_from(given: Any, path: str = "") -> Any:
    """A tree of dicts and tuples: mappings become dicts, lists become tuples, everything else is a leaf.

    Raises:
        SchemaError: its paths would not lead back to it.
    """
    if isinstance(given, Mapping):
        parts = {_key(key): tree_from(part, f"{path}{key}{SEPARATOR}") for key, part in given.items()}
        if path and parts and _are_places(parts):
            raise SchemaError(
                f"the dict {path[:-1]!r} has the keys {', '.join(parts)}, which are places of a tuple in paths: use a "
                "tuple, or other keys"
            )
    elif isinstance(given, list | tuple):
        parts = tuple(tree_from(part, f"{path}{place}{SEPARATOR}") for place, part in enumerate(given))
    elif given is None:
        raise SchemaError(
            f"column {path[:-1]!r} must be an rs.Column or an rs.Window, or a dict or tuple of them, got None"
        )
    else:
        return given
    if not parts:
        raise SchemaError(f"expected columns in {path[:-1]!r}, got an empty {type(given).__name__}")
    return parts


def _key(key: Any) -> str:
    if not isinstance(key, str) or not key:
        raise SchemaError(f"a column's name must be a string of at least one letter, got {key!r}")
    if SEPARATOR in key:
        raise SchemaError(
            f"a column's name may have no slash, got {key!r}: slashes stand between the parts of a path; use a dict in "
            f"the dict, {_nested(key)}"
        )
    return key


def _are_places(keys: Iterable[str]) -> bool:
    """Whether they count 0, 1, …"""
    return all(key == str(place) for place, key in enumerate(keys))


def _nested(path: str) -> str:
    first, *others = path.split(SEPARATOR)
    return f"{{{first!r}: " + "".join(f"{{{part!r}: " for part in others) + "…" + "}" * (len(others) + 1)


def tree_of(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The tree that values by path are from.

    Raises:
        SchemaError: a path is also the beginning of another one.
    """
    tree: dict[str, Any] = {}
    for path, value in leaves.items():
        *within, last = path.split(SEPARATOR)
        node = tree
        for part in within:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise SchemaError(f"{path!r} cannot be a column: {part!r} is a column, not a dict of columns")
        if last in node:
            raise SchemaError(f"column {path!r} is also a dict of columns")
        node[last] = value
    return {name: _with_tuples(part) for name, part in tree.items()}


def _with_tuples(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    parts = {key: _with_tuples(part) for key, part in node.items()}
    return tuple(parts.values()) if _are_places(parts) else parts


def leaves_of(tree: Any) -> dict[str, Any]:
    """The leaves of a tree of dicts and tuples by path, in order. None is a place without a leaf."""
    if type(tree) is dict and not any(type(part) in (dict, tuple) for part in tree.values()):
        return tree
    leaves: dict[str, Any] = {}
    _collect(tree, "", leaves)
    return leaves


def _collect(node: Any, path: str, leaves: dict[str, Any]) -> None:
    parts = node.items() if type(node) is dict else enumerate(node)
    for key, part in parts:
        if type(part) in (dict, tuple):
            _collect(part, f"{path}{key}{SEPARATOR}", leaves)
        elif part is not None:
            leaves[f"{path}{key}"] = part


def shaped(tree: Any, leaves: Mapping[str, Any], path: str = "") -> Any:
    """Values by path in the form of a tree. What has no value is left out of dicts; in a tuple it is None, so that the
    others keep their places."""
    if type(tree) is dict:
        parts = {key: shaped(part, leaves, f"{path}{key}{SEPARATOR}") for key, part in tree.items()}
        return {key: part for key, part in parts.items() if part is not None} or (None if path else {})
    if type(tree) is tuple:
        places = tuple(shaped(part, leaves, f"{path}{place}{SEPARATOR}") for place, part in enumerate(tree))
        return None if all(part is None for part in places) else places
    return leaves.get(path[:-1])


def mapped(tree: Any, function: Callable[[Any], Any]) -> Any:
    """The same tree with a function's result in the place of each leaf."""
    if type(tree) is dict:
        return {key: mapped(part, function) for key, part in tree.items()}
    if type(tree) is tuple:
        return tuple(mapped(part, function) for part in tree)
    return None if tree is None else function(tree)


def taken_apart(tree: Any, data: Any) -> Leaves:
    """The values of data that has a tree's form, by path. What is missing is missing, and what the tree has not is
    there under its own path: both are for the caller to refuse.

    Raises:
        SchemaError: there is a dict, a tuple or a value where the tree has another of these.
    """
    leaves = Leaves()
    _take_apart(tree, data, "", leaves)
    return leaves


def _take_apart(tree: Any, data: Any, path: str, leaves: Leaves) -> None:
    if type(tree) is dict:
        if not isinstance(data, Mapping):
            raise SchemaError(f"{path[:-1]!r} expects a dict of {', '.join(tree)}, got {type(data).__name__}")
        for key, part in data.items():
            if isinstance(key, str) and SEPARATOR in key:
                raise SchemaError(f"got {key!r} as a key: expected a nested dict, {_nested(key)}")
            if key in tree:
                _take_apart(tree[key], part, f"{path}{key}{SEPARATOR}", leaves)
            else:
                leaves[f"{path}{key}"] = part
    elif type(tree) is tuple:
        if not isinstance(data, list | tuple) or len(data) != len(tree):
            got = f"{len(data)} values" if isinstance(data, list | tuple) else type(data).__name__
            raise SchemaError(f"{path[:-1]!r} expects a tuple of {len(tree)} values, got {got}")
        for place, part in enumerate(data):
            if part is not None:
                _take_apart(tree[place], part, f"{path}{place}{SEPARATOR}", leaves)
    else:
        leaves[path[:-1]] = data


def name_of_key(key: Any) -> str:
    """Any key as the name of a column, which has neither blanks nor slashes: percent-encoded."""
    return urllib.parse.quote(str(key), safe="")


def names_of(columns: Iterable[str]) -> tuple[str, ...]:
    """The names of columns that a caller chose.

    Raises:
        SchemaError: it is one string, whose letters would be taken for names, or an iterator, which is read only once,
            or something in it is no string.
    """
    if isinstance(columns, str | bytes):
        raise SchemaError(f"columns must be a list of names, got the string {columns!r}: write [{columns!r}]")
    if not isinstance(columns, Iterable) or isinstance(columns, Iterator):
        raise SchemaError(f"columns must be a list of names, got {columns!r}")
    names = tuple(columns)
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise SchemaError(f"columns must be a list of names, got {wrong[0]!r} in it")
    return names


def paths_under(names: Sequence[str], chosen: str) -> list[str]:
    """The paths that are `chosen`, or lie in it."""
    return [name for name in names if name == chosen or name.startswith(chosen + SEPARATOR)]


def part_of(tree: Any, path: str) -> Any:
    """What lies at a path, a leaf or a tree; None: nothing does."""
    for part in path.split(SEPARATOR):
        if type(tree) is dict:
            tree = tree.get(part)
        elif type(tree) is tuple and part.isdecimal() and int(part) < len(tree):
            tree = tree[int(part)]
        else:
            return None
    return tree
