"""Every message that the sources can say, as text with … where a value goes."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from pages import REPOSITORY

C_FOLDERS = ("native",)
PYTHON_FOLDERS = ("replay_server", "actors", "learner", "serverless", "bench")
SHELL_FILES = ("setup_dpdk.sh", "native/net/lwip/fetch", "Makefile")
STRING = r'"(?:[^"\\\n]|\\.)*"'
PIECE = rf"(?:{STRING}|PRI\w+)"
FORMAT = re.compile(r"%[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|z|j)?[a-zA-Z]")


@functools.cache
def said() -> str:
    """All of them, a line each."""
    found: list[str] = []
    for folder in C_FOLDERS:
        for path in sorted((REPOSITORY / folder).rglob("*.[ch]")):
            found += _of_c(path.read_text(errors="replace"))
    for folder in PYTHON_FOLDERS:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            found += _of_python(path)
    for path in [*map(REPOSITORY.joinpath, SHELL_FILES), *(REPOSITORY / "native/net").rglob("*.sh")]:
        found.append(re.sub(r"\$\(\(.*?\)\)|\$\{?[\w@#]+\}?", "…", path.read_text()))
    return "\n".join(" ".join(text.split()) for text in found)


def is_said(message: str) -> bool:
    """Whether the parts of a message between its … stand in one message of a source, in this order; or, where it is put
    together from several, whether each of them that is longer than a word stands in one."""
    parts = [part.strip() for part in message.split("…") if part.strip()]
    if not parts:
        return False
    if re.search(".*?".join(map(re.escape, parts)), said()):
        return True
    long = [part.strip(" :;,()'") for part in parts if " " in part.strip(" :;,()'")]
    return bool(long) and all(part in said() for part in long)


def _of_c(text: str) -> list[str]:
    found = []
    for run in re.findall(rf"{PIECE}(?:\s*{PIECE})*", text):
        pieces = re.findall(PIECE, run)
        joined = "".join(piece[1:-1] if piece.startswith('"') else "d" for piece in pieces)
        if len(joined) > 8:
            found.append(FORMAT.sub("…", joined.replace('\\"', '"').replace("\\r\\n", "").replace("\\n", "")))
    return found


def _of_python(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) > 8:
            found.append(node.value)
    return found
