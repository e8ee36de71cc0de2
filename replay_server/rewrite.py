"""CONFIG REWRITE: the text of a configuration file with the settings that CONFIG SET has changed.

Comments, order and everything else in the file stay. The new text is read and compared before it takes the place of
the old one, which it does in one step.

tomlkit 0.15 does not do: it puts a new setting at the end of its table, behind the comment that introduces the next
table, and not below the line that shows the setting as a comment.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .config import ConfigError, tomllib
from .whole_file import sync_folder

ALIASES = (
    ("busy-reply-threshold", "lua-time-limit"),
    ("log-level", "loglevel"),
    ("min-replicas-max-lag", "min-slaves-max-lag"),
    ("min-replicas-to-write", "min-slaves-to-write"),
    ("replicaof", "slaveof"),
)
"""Names of one setting, of which the later in the file counts: the first is written where none is there."""

_TOP = ("maxmemory", "maxclients")
"""What can change while the server runs and has its place above [config]."""

_ABSENT_IF_EMPTY = ("replicaof", "slaveof")
"""What is taken out of the file where nothing is set."""

_HEADER = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]?\]\s*(?:#.*)?$")
_VALUE = r"""("(?:[^"\\]|\\.)*"|'[^']*'|[^\s#"'\[{][^\s#]*)(\s*(?:#.*)?)$"""


def _as_toml(value: str) -> int | str:
    return int(value) if re.fullmatch(r"0|-?[1-9]\d*", value) else value


def _literal(value: int | str) -> str:
    # JSON's strings are TOML's, once no control character is left as it is.
    return str(value) if isinstance(value, int) else json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _part(lines: Sequence[str], name: str) -> tuple[int, int] | None:
    """The lines of a table, those above all tables for ""; None = there is no such table."""
    first = 0 if name == "" else None
    for number, line in enumerate(lines):
        if match := _HEADER.match(line):
            if first is not None:
                return first, number
            if match[1].strip("\"'") == name and not line.lstrip().startswith("[["):
                first = number + 1
    return None if first is None else (first, len(lines))


def names_of(name: str) -> tuple[str, ...]:
    """The names of a setting, itself among them."""
    return next((group for group in ALIASES if name in group), (name,))


def _put(lines: list[str], table: str, name: str, value: int | str) -> None:
    """Sets one key of one table, in its line where it has one."""
    part = _part(lines, table)
    if part is None:
        lines += [*([""] if lines and lines[-1] else []), f"[{table}]", f"{name} = {_literal(value)}"]
        return
    begin, end = part
    key = re.compile(rf"""(\s*(?:{re.escape(name)}|"{re.escape(name)}"|'{re.escape(name)}')\s*=\s*){_VALUE}""")
    for number in range(begin, end):
        if match := key.match(lines[number]):
            lines[number] = f"{match[1]}{_literal(value)}{match[3]}"
            return
    # Below the line that shows it as a comment, else behind what the table has, else at its beginning.
    shown = re.compile(rf"\s*#\s*{re.escape(name)}\s*=")
    places = [number for number in range(begin, end) if shown.match(lines[number])]
    if not places:
        places = [number for number in range(begin, end) if re.match(r"\s*[\w\"'-]+\s*=.*[^\[{,(]\s*$", lines[number])]
    lines.insert(places[-1] + 1 if places else begin, f"{name} = {_literal(value)}")


def rewritten(text: str, changes: dict[str, str]) -> str:
    """The text of a configuration file with other values.

    Args:
        text: as it is.
        changes: values by the names of CONFIG, as CONFIG GET writes them.

    Raises:
        ConfigError: it is written in a way that this cannot change; the message says what to write by hand.
    """
    before = tomllib.loads(text)
    wanted: dict[str, Any] = {**before, "config": {**before.get("config", {})}}
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    for name, changed in changes.items():
        names = names_of(name)
        present = [one for one in names if one in wanted["config"]]
        if name not in present and (present or name != names[0]):
            continue  # told by its other name
        value = _as_toml(changed)
        table = "" if name in _TOP and name not in wanted["config"] else "config"
        part = wanted if table == "" else wanted["config"]
        if part.get(name) == value:
            continue
        if value == "" and name in _ABSENT_IF_EMPTY:
            part.pop(name, None)
            lines = [line for line in lines if not re.match(rf"\s*{re.escape(name)}\s*=", line)]
        else:
            part[name] = value
            _put(lines, table, name, value)
    new = "\n".join(lines) + "\n"
    try:
        found = tomllib.loads(new)
    except tomllib.TOMLDecodeError:
        found = {}
    if {"config": {}, **found} != wanted:
        by_hand = ", ".join(f"{name} = {_literal(_as_toml(value))}" for name, value in changes.items())
        raise ConfigError(f"this file cannot be changed automatically; change it by hand: {by_hand}")
    return new


def replace_text(path: Path, text: str) -> None:
    """Another text under that name: the old file or the new one is there at any time, the new one with its rights."""
    path = path.resolve()
    status = path.stat()
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fchmod(descriptor, status.st_mode & 0o7777)
            with contextlib.suppress(PermissionError):
                os.fchown(descriptor, status.st_uid, status.st_gid)
            os.fsync(descriptor)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    sync_folder(path.parent)
