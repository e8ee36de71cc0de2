"""docs/reference/python.md: the public names of `replay_server`, from their signatures and docstrings."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import replay_server as rs
from replay_server import aio, client, errors, n_step_writer, sampler, writer

GROUPS: dict[str, tuple[str, ...]] = {
    "Tables": ("Table", "Column", "Window", "signature_of"),
    "Samplers and removers": ("Prioritized", "Uniform", "Fifo", "Lifo", "MaxHeap", "MinHeap"),
    "Rate limiters": ("MinSize", "SampleToInsertRatio", "Queue"),
    "In process": ("Buffer", "SumTree"),
    "Server and client": (
        "Server", "Cluster", "Client", "TableHandle", "Batch", "Ragged", "Sampler", "Updater", "Gradients",
    ),
    "Language models": ("Rollouts", "Task", "Lease", "Segment", "RolloutBatch", "TaskBatch"),
    "Writers": ("Writer", "VectorWriter", "NStepWriter", "VectorNStepWriter"),
    "With asyncio": (
        "aio.Client", "aio.AsyncTableHandle", "aio.AsyncSampler", "aio.AsyncRollouts",
        "aio.AsyncWriter", "aio.AsyncVectorWriter", "aio.AsyncNStepWriter", "aio.AsyncVectorNStepWriter",
    ),
    "Errors": (
        "ReplayError", "ConnectionLost", "Timeout", "TableNotFound", "TableClosed", "SchemaError", "PriorityError",
        "LimitExceeded", "ServerError", "NotPrimary", "StaleVersion", "GradientNotWaiting", "LeaseExpired",
        "BatchNotTaken",
    ),
}  # fmt: skip
"""Title → names, as one writes them behind `rs.`; writers are made by clients and buffers."""

MADE_BY = {
    "Writer": "Made by `Client.writer` and `Buffer.writer`; a context manager.",
    "VectorWriter": "Made by `Client.vector_writer` and `Buffer.vector_writer`; a context manager.",
    "NStepWriter": "Made by `Client.writer` and `Buffer.writer` with n_step; a context manager.",
    "VectorNStepWriter": "Made by `Client.vector_writer` and `Buffer.vector_writer` with n_step; a context manager.",
    "Sampler": "",
    "Updater": "Made by `Client.updater`; a context manager.",
    "TableHandle": "Made by `Client[name]`.",
    "aio.AsyncTableHandle": "Made by `aio.Client[name]`.",
    "aio.AsyncSampler": "Made by `aio.Client.sampler`; an asynchronous context manager.",
    "Gradients": "Made by `Client.take_gradients` and `Client.gradient_headers`.",
    "Lease": "Made by `Rollouts.lease`.",
    "Segment": "Made by `Rollouts.segments`.",
    "RolloutBatch": "Made by `Rollouts.take`.",
    "TaskBatch": "Made by `Rollouts.take_samples`.",
    "aio.AsyncWriter": "Made by `aio.Client.writer`; an asynchronous context manager.",
    "aio.AsyncVectorWriter": "Made by `aio.Client.vector_writer`; an asynchronous context manager.",
    "aio.AsyncNStepWriter": "Made by `aio.Client.writer` with n_step; an asynchronous context manager.",
    "aio.AsyncVectorNStepWriter": "Made by `aio.Client.vector_writer` with n_step; an asynchronous context manager.",
}
"""Classes that nobody calls: what makes them is told in the place of their arguments."""
TWINS = {
    "aio.Client": "Client",
    "TableHandle": "Client",
    "aio.AsyncTableHandle": "Client",
    "aio.AsyncWriter": "Writer",
    "aio.AsyncVectorWriter": "VectorWriter",
    "aio.AsyncNStepWriter": "NStepWriter",
    "aio.AsyncVectorNStepWriter": "VectorNStepWriter",
    "aio.AsyncRollouts": "Rollouts",
}
"""Classes whose methods are those of another one."""
INNER = ("table", "sink", "environments", "client", "writer")
"""Arguments that makers give them."""
HIDDEN = ((rs.Batch, "lease"), (rs.Batch, "landing"))
"""Arguments of a class that nobody gives."""

HEAD = """# Python

`import replay_server as rs`: every public name, from its docstring. Arrays are NumPy's; N is the number of items
of a batch. A worked example of most of it: [the guide](../how-to/use-from-python.md). Error messages:
[troubleshooting](../troubleshooting.md).
"""


def page() -> str:
    """The whole page."""
    text = HEAD + "\n| | |\n|---|---|\n"
    for title, names in GROUPS.items():
        text += f"| [{title}](#{_slug(title)}) | {' · '.join(_linked(f'`{name}`') for name in names)} |\n"
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
    for module in (rs, client, writer, n_step_writer, sampler, errors):
        if hasattr(module, name):
            return getattr(module, name)
    raise KeyError(f"no public name {name}")


def _shown(name: str) -> str:
    return name if name in (*GROUPS["Writers"], "TableHandle") else f"rs.{name}"


def _slug(heading: str) -> str:
    """What a link names behind #, as GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@functools.cache
def _places() -> dict[str, str]:
    """What docstrings call a class or a method → the heading that it has here."""
    found = {}
    for names in GROUPS.values():
        for name in names:
            found[name] = _shown(name)
            found.update({f"{name}.{method}": f"{_shown(name)}.{method}" for method, _, _ in _methods(_named(name))})
    return found


def _linked(text: str) -> str:
    """With links to what the page has a heading of."""

    def link(code: re.Match[str]) -> str:
        name = re.sub(r"^(?:replay_server|rs)\.(?:writer\.|n_step_writer\.)?", "", code[1])
        place = _places().get(name)
        return f"[`{name}`](#{_slug(place)})" if place else code[0]

    return re.sub(r"(?<!\[)`([\w.]+)`", link, text)


def _section(name: str, thing: type) -> str:
    shown = _shown(name)
    text = f"### {shown}\n\n"
    if isinstance(thing, type) and issubclass(thing, BaseException):
        bases = ", ".join(_linked(f"`{base.__name__}`") for base in thing.__bases__)
        text += f"Is {'an' if re.match('[^a-z]*[aeiou]', bases, re.IGNORECASE) else 'a'} {bases}.\n\n"
    elif name not in MADE_BY:
        text += _code(f"{shown}{_signature(thing)}")
    about = inspect.cleandoc(thing.__doc__ or "")
    if name in MADE_BY:
        about = re.sub(rf"^    (?:{'|'.join(INNER)}): .*\n", "", about, flags=re.MULTILINE)
        first, *others = about.split("\n\n")
        about = "\n\n".join([first, MADE_BY[name], *others])
    text += _prose(about)
    for method, function, is_property in _methods(thing):
        if is_property:
            text += f"\n#### {shown}.{method}\n\n" + _prose(_told(name, method, function))
        else:
            text += f"\n#### {shown}.{method}()\n\n" + _code(f"{method}{_signature(function, bound=True)}", function)
            text += _prose(_told(name, method, function))
    return text


def _told(name: str, method: str, function: Any) -> str:
    """A method's docstring; of a twin's, where it is told."""
    told = inspect.getdoc(function) or ""
    is_told_there = name in TWINS and hasattr(_named(TWINS[name]), method) and "\n" in told
    return f"See `{TWINS[name]}.{method}`." if is_told_there else told


def _methods(thing: type) -> Iterator[tuple[str, Any, bool]]:
    """Public methods and properties with a docstring, own ones and those of bases of this package, in their order."""
    seen: set[str] = set()
    for base in getattr(thing, "__mro__", ()):  # of a function none
        plain = ("replay_server.table", "replay_server.selectors")
        if not base.__module__.startswith("replay_server") or base.__module__ in plain:
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
    parameters = [_with_its_default(thing, each) for each in parameters if (thing, each.name) not in HIDDEN]
    cleaned = [
        each.replace(annotation=_annotation(each.annotation), default=_Shown.of(each.default)) for each in parameters
    ]
    returns = _annotation(signature.return_annotation) if bound else inspect.Signature.empty
    if inspect.isasyncgenfunction(inspect.unwrap(thing)):  # made one by contextlib.asynccontextmanager
        returns = re.sub(r"^AsyncIterator\[(.*)\]$", r"AbstractAsyncContextManager[\1]", returns)
    text = str(signature.replace(parameters=cleaned, return_annotation=inspect.Signature.empty))
    return text if returns is inspect.Signature.empty else f"{text} -> {returns}"


def _with_its_default(thing: Any, parameter: inspect.Parameter) -> inspect.Parameter:
    """A field that begins as an empty list has that as its default, not the mark of dataclasses."""
    fields = {each.name: each for each in dataclasses.fields(thing)} if dataclasses.is_dataclass(thing) else {}
    factory = fields[parameter.name].default_factory if parameter.name in fields else dataclasses.MISSING
    return parameter if factory is dataclasses.MISSING else parameter.replace(default=factory())


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
        names = ", ".join(f"`{each}`" for each in name.split(", "))
        names = _linked(names) if title[1] == "Raises" else names
        out.append(f"- {names}:{_escaped(meaning)}\n" if colon else f"- {_escaped(entry)}\n")
    return [*out, "\n"]


def _escaped(text: str) -> str:
    """Prose as Markdown: stars and brackets outside of code stand for themselves, and names become links."""
    pieces = re.split(r"(`[^`]*`)", text)
    pieces[::2] = [re.sub(r"<(?=[a-zA-Z/])", "&lt;", piece).replace("*", "\\*") for piece in pieces[::2]]
    return _linked("".join(pieces))
