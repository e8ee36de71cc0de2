"""docs/reference/python.md: the public names of `replay_server`, from their signatures and docstrings."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import replay_server as rs
from replay_server import aio, errors, sampler, writer

GROUPS: dict[str, tuple[str, ...]] = {
    "Tables": ("Table", "Column", "Window"),
    "Samplers and removers": ("Prioritized", "Uniform", "Fifo", "Lifo", "MaxHeap", "MinHeap"),
    "Rate limiters": ("MinSize", "SampleToInsertRatio", "Queue"),
    "In process": ("Buffer", "SumTree"),
    "Server and client": ("Server", "Client", "Batch", "Sampler", "Gradients"),
    "Writers": ("Writer", "VectorWriter"),
    "With asyncio": ("aio.Client", "aio.AsyncWriter", "aio.AsyncVectorWriter"),
    "Errors": (
        "ReplayError", "ConnectionLost", "Timeout", "TableNotFound", "SchemaError", "PriorityError", "LimitExceeded",
        "ServerError", "StaleVersion", "GradientNotWaiting",
    ),
}  # fmt: skip
"""Title → names, as one writes them behind `rs.`; writers are made by clients and buffers."""

HEAD = """# Python

`import replay_server as rs`: every public name, from its docstring. Arrays are NumPy's; N is the number of items
of a batch. A worked example of most of it: [README](../../README.md#from-python). Which errors there are, by message:
[troubleshooting](../troubleshooting.md).
"""


def page() -> str:
    """The whole page."""
    text = HEAD
    for title, names in GROUPS.items():
        text += f"\n## {title}\n"
        for name in names:
            text += "\n" + _section(name, _named(name))
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def public_names() -> set[str]:
    """What `replay_server` offers, modules left out."""
    return {name for name in rs.__all__ if not inspect.ismodule(getattr(rs, name))}


def _named(name: str) -> Any:
    first, _, rest = name.partition(".")
    if first == "aio" and rest:
        return getattr(aio, rest)
    for module in (rs, writer, sampler, errors):
        if hasattr(module, name):
            return getattr(module, name)
    raise KeyError(f"no public name {name}")


def _section(name: str, thing: type) -> str:
    shown = name if name in ("Writer", "VectorWriter") else f"rs.{name}"
    text = f"### {shown}\n\n"
    if not issubclass(thing, BaseException):
        text += _code(f"{shown}{_signature(thing)}")
    elif bases := [base.__name__ for base in thing.__bases__]:
        text += f"Is a {', '.join(f'`{base}`' for base in bases)}.\n\n"
    text += _prose(inspect.cleandoc(thing.__doc__ or ""))
    for method, function, is_property in _methods(thing):
        if is_property:
            text += f"\n#### {shown}.{method}\n\n" + _prose(inspect.getdoc(function) or "")
        else:
            text += f"\n#### {shown}.{method}()\n\n" + _code(f"{method}{_signature(function, bound=True)}", function)
            text += _prose(inspect.getdoc(function) or "")
    return text


def _methods(thing: type) -> Iterator[tuple[str, Any, bool]]:
    """Public methods and properties with a docstring, own ones and those of bases of this package, in their order."""
    seen: set[str] = set()
    for base in thing.__mro__:
        if not base.__module__.startswith("replay_server") or base.__module__ == "replay_server.table":
            continue
        if issubclass(thing, BaseException):
            continue
        for name, value in vars(base).items():
            function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            is_property = isinstance(value, property)
            if name.startswith("_") or name in seen or not (inspect.isfunction(function) or is_property):
                continue
            seen.add(name)
            if inspect.getdoc(function):
                yield name, function, is_property


def _signature(thing: Any, bound: bool = False) -> str:
    """As the source has it: defaults as written, annotations as written."""
    signature = inspect.signature(thing)
    parameters = list(signature.parameters.values())
    if bound and parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    parameters = [each for each in parameters if each.name not in ("lease", "landing")]
    cleaned = [
        each.replace(annotation=_annotation(each.annotation), default=_Shown.of(each.default)) for each in parameters
    ]
    returns = _annotation(signature.return_annotation) if bound else inspect.Signature.empty
    text = str(signature.replace(parameters=cleaned, return_annotation=inspect.Signature.empty))
    return text if returns is inspect.Signature.empty else f"{text} -> {returns}"


class _Shown(str):
    """Text that stands for itself in a signature."""

    def __repr__(self) -> str:
        return str(self)

    @staticmethod
    def of(default: Any) -> Any:
        if default is inspect.Parameter.empty or isinstance(default, str):
            return default
        return _Shown(re.sub(r"\b(priority_exponent|min_size_to_sample)=", "", repr(default)))


def _annotation(annotation: Any) -> Any:
    if annotation is inspect.Parameter.empty:
        return annotation
    return _Shown(annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation)))


def _code(text: str, function: Any = None) -> str:
    text = ("async " if inspect.iscoroutinefunction(function) else "") + text
    if len(text) > 110:
        text = _broken(text)
    return f"```text\n{text}\n```\n\n"


def _broken(text: str) -> str:
    """A signature with a parameter a line."""
    head, _, rest = text.partition("(")
    depth, parts, part, length = 1, [], "", 0
    for length, letter in enumerate(rest):  # noqa: B007 - where it stopped is what comes behind
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0:
            break
        if letter == "," and depth == 1:
            parts.append(part.strip())
            part = ""
        else:
            part += letter
    parts.append(part.strip())
    return f"{head}(\n" + "".join(f"    {each},\n" for each in parts if each) + ")" + rest[length + 1 :]


def _prose(text: str) -> str:
    """A docstring: paragraphs as they are, the entries of Args, Returns, Raises and Attributes as a list."""
    out: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.splitlines()
        out += _paragraph(lines)
    return "".join(out)


def _paragraph(lines: list[str]) -> list[str]:
    title = re.fullmatch(r"(Args|Returns|Raises|Attributes|Yields):\s*(.*)", lines[0]) if lines else None
    if title is None:
        return [_escaped(" ".join(line.strip() for line in lines)) + "\n\n"] if lines else []
    if title[2]:
        return [f"**{title[1]}:** " + _escaped(" ".join([title[2], *(line.strip() for line in lines[1:])])) + "\n\n"]
    out = [f"**{title[1]}**\n\n"]
    entries: list[str] = []
    for line in textwrap.dedent("\n".join(lines[1:])).splitlines():
        if line.startswith(" ") and entries:
            entries[-1] += " " + line.strip()
        else:
            entries.append(line.strip())
    if title[1] in ("Returns", "Yields"):
        return [*out, _escaped(" ".join(entries)) + "\n\n"]
    for entry in entries:
        name, colon, meaning = entry.partition(":")
        out.append(f"- `{name}`:{_escaped(meaning)}\n" if colon else f"- {_escaped(entry)}\n")
    return [*out, "\n"]


def _escaped(text: str) -> str:
    return re.sub(r"<(?=[a-zA-Z/])", "&lt;", text).replace(" *column", " \\*column").replace(" *source", " \\*source")
