"""Names that running text puts in backquotes are there: modules, classes, methods, settings, files."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
import reference_configuration
from pages import REPOSITORY, all_pages

import replay_server as rs
from replay_server import aio

pytest.importorskip("torch", reason="modules of training need torch (make setup installs it)")

PAGES = all_pages()
INSTANCES = {"client": (rs.Client, aio.Client), "server": (rs.Server,), "batch": (rs.Batch,)}
"""What pages call an object of the class, in calls such as `client.info(name)`."""


def inline(pattern: str) -> list[tuple[str, re.Match[str]]]:
    """(place, match) of every piece of inline code that begins with a pattern."""
    found = []
    for page in PAGES:
        for line, code in page.inline_code():
            if match := re.match(pattern, code):
                found.append((f"{page.name}:{line}", match))
    return found


def resolved(dotted: str) -> Any:
    """What a dotted name means: a module, or something in one. None where it means nothing."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for name in parts[length:]:
            thing = getattr(thing, name, None)
        return thing
    return None


def test_modules_and_what_is_in_them() -> None:
    found = inline(r"(replay_server(?:\.\w+)+)")
    assert len(found) > 5
    assert [f"{place}: {match[1]}" for place, match in found if resolved(match[1]) is None] == []


def test_public_names() -> None:
    found = inline(r"rs\.(\w+(?:\.\w+)*)")
    assert len(found) > 10
    missing = []
    for place, match in found:
        thing: Any = rs
        for name in match[1].split("."):
            fields = getattr(thing, "__annotations__", {})
            thing = getattr(thing, name, fields.get(name))
        if thing is None:
            missing.append(f"{place}: rs.{match[1]}")
    assert missing == []


def test_methods_of_what_pages_call_client_and_so_on() -> None:
    found = inline(r"(client|server|batch)\.(\w+)\(")
    assert len(found) > 10
    assert [
        f"{place}: {match[0]}"
        for place, match in found
        if not any(hasattr(kind, match[2]) for kind in INSTANCES[match[1]])
    ] == []


def test_files_of_the_repository() -> None:
    code, others = "replay_server|actors|learner|serverless|bench", "native|tests|docs|examples|deploy"
    found = inline(rf"((?:{code})/[\w/-]+\.\w+|(?:{others})/[\w/.-]+\w)$")  # learner/step is a metric
    assert len(found) > 10
    missing = [
        f"{place}: {match[1]}"
        for place, match in found
        if not (REPOSITORY / match[1]).exists() and not list(REPOSITORY.glob(match[1] + "*"))
    ]
    assert missing == []


def test_settings_that_are_set_in_words() -> None:
    """`CONFIG SET name …`, and settings that the text calls settings."""
    source = reference_configuration.SOURCE.read_text()
    known = set(re.findall(r'(?:[A-Z]+\(|\{)"([a-z-]+)"', source))
    named = inline(r"CONFIG SET ([a-z-]+)")
    assert named
    assert [f"{place}: {match[1]}" for place, match in named if match[1] not in known] == []
