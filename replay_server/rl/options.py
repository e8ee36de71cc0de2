"""Command-line options made from the fields of a dataclass: one source for names, types, defaults and help."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import itertools
import textwrap
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any


def option_of(field: str) -> str:
    """The option of a field: ``--field-name``."""
    return f"--{field.replace('_', '-')}"


def add_options(group: argparse._ArgumentGroup, settings: type, leave_out: Collection[str] = ()) -> None:
    """Adds one option per field of the dataclass `settings` (``--field-name``), explained by the string after it.

    The string may say itself what happens by default: "(default: …)".

    Fields that are not given leave no trace in the result. A field that is a map of strings takes ``NAME=VALUE``, as
    often as one likes.
    """
    types_of = typing.get_type_hints(settings)
    docs = _field_docs(settings)
    for field in dataclasses.fields(settings):
        if field.name in leave_out:
            continue
        text = docs.get(field.name, "").replace("%", "%%")
        default = "none" if field.default is None else field.default
        words = text if "(default: " in text else f"{text} (default: {default})".strip()
        flag = option_of(field.name)
        kind = types_of[field.name]
        if kind is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=words)
        elif typing.get_origin(kind) is typing.Literal:
            group.add_argument(flag, choices=typing.get_args(kind), default=argparse.SUPPRESS, help=words)
        elif typing.get_origin(kind) is dict:
            group.add_argument(
                flag, action=_Pairs, type=_pair, metavar="NAME=VALUE", default=argparse.SUPPRESS, help=text
            )
        else:
            group.add_argument(
                flag, type=_converter(kind), metavar=_metavar(kind), default=argparse.SUPPRESS, help=words
            )


def given_options(namespace: argparse.Namespace, settings: type) -> dict[str, Any]:
    """Returns the fields of the dataclass `settings` that the user gave on the command line, by name."""
    names = {field.name for field in dataclasses.fields(settings)}
    return {name: value for name, value in vars(namespace).items() if name in names}


def typed_values(settings: type, words: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the dataclass `settings` from words, as a command line or a configuration file has them.

    ValueError for a field that there is not, or a word that is none of its type; what is no string stays as it is.
    """
    types_of = typing.get_type_hints(settings)
    names = {field.name for field in dataclasses.fields(settings)}
    if unknown := sorted(set(words) - names):
        raise ValueError(f"no setting {unknown[0]!r}: expected one of {', '.join(sorted(names))}")
    return {name: _typed(name, types_of[name], word) for name, word in words.items()}


def check_values(settings: type, values: Mapping[str, Any]) -> None:
    """Raises ValueError for a name that is no field of the dataclass `settings`, or a value of another type."""
    types_of = typing.get_type_hints(settings)
    if unknown := sorted(set(values) - types_of.keys()):
        raise ValueError(f"no setting {unknown[0]!r}")
    for name, value in values.items():
        kind = types_of[name]
        if not any(_is_of(each, value) for each in _union(kind)):
            raise ValueError(f"{name}: expected {kind.__name__ if isinstance(kind, type) else kind}, got {value!r}")


def _is_of(kind: Any, value: Any) -> bool:
    """As JSON has it: 1 is a float, too, and True no number."""
    if typing.get_origin(kind) is typing.Literal:
        return value in typing.get_args(kind)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is kind


def _typed(name: str, kind: Any, word: Any) -> Any:
    if not isinstance(word, str):
        return word
    if kind is bool:
        values = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if word.lower() not in values:
            raise ValueError(f"{name}: expected true or false, got {word!r}")
        return values[word.lower()]
    if typing.get_origin(kind) is typing.Literal:
        if word not in typing.get_args(kind):
            raise ValueError(f"{name}: expected one of {', '.join(typing.get_args(kind))}, got {word!r}")
        return word
    convert = _converter(kind)
    try:
        return convert(word)
    except ValueError:
        raise ValueError(f"{name}: expected {convert.__name__}, got {word!r}") from None


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    return name.replace("-", "_"), value


class _Pairs(argparse.Action):
    """Gathers pairs in one map."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        name, value = values
        setattr(namespace, self.dest, {**(getattr(namespace, self.dest, None) or {}), name: value})


def _field_docs(settings: type) -> dict[str, str]:
    """Returns the string that follows each field in the class's source, on one line."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(settings)))
    body = typing.cast(ast.ClassDef, tree.body[0]).body
    docs: dict[str, str] = {}
    for before, after in itertools.pairwise(body):
        if (
            isinstance(before, ast.AnnAssign)
            and isinstance(before.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            docs[before.target.id] = " ".join(after.value.value.split())
    return docs


def _union(kind: Any) -> list[Any]:
    """The types of a union; a plain type is a union of one."""
    return list(typing.get_args(kind)) if typing.get_origin(kind) in (types.UnionType, typing.Union) else [kind]


def _members(kind: Any) -> list[Any]:
    """The types of a union without None."""
    return [member for member in _union(kind) if member is not type(None)]


def _converter(kind: Any) -> Any:
    optional = type(None) in typing.get_args(kind)
    base, words = _members(kind)[0], _words(kind)

    def convert(text: str) -> Any:
        if text in words:
            return text
        if optional and text.lower() == "none":
            return None
        return base(text.replace("_", "")) if base is int else base(text)

    convert.__name__ = " or ".join([base.__name__, *words])  # argparse names it in "invalid … value"
    return convert


def _words(kind: Any) -> list[str]:
    """What is said in place of a value: "auto" of `int | Literal["auto"]`."""
    literals = [each for each in _members(kind) if typing.get_origin(each) is typing.Literal]
    return [word for literal in literals for word in typing.get_args(literal)]


def _metavar(kind: Any) -> str:
    name = {int: "N", float: "X", str: "TEXT"}.get(_members(kind)[0], "VALUE")
    return "|".join([name, *_words(kind)])
