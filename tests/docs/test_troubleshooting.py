"""docs/troubleshooting.md: every error code is in it, and every message that it explains is one that can be said."""

from __future__ import annotations

import re

import pytest
from messages import is_said
from pages import REPOSITORY, all_pages

DOCUMENT = REPOSITORY / "docs/troubleshooting.md"
FOREIGN = ("error while loading shared libraries", "VFIO ", "Cannot open /dev/vfio", "Permission denied")
"""Begins of messages of the loader, the kernel and DPDK, which nic-host.md explains."""
EXAMPLES = re.compile(r"replay-server-dpdk|'dpdk'|\beth1\b|Cannot get hugepage information")
"""What stands where a value goes, in messages that are shown as they may come."""
TITLES = ("| message |", "| message, or what you see |", "| it says |")


def messages(text: str) -> list[str]:
    """What stands in backquotes at the begin of each row of a table of messages."""
    found, inside = [], False
    for line in text.splitlines():
        inside = line.startswith(TITLES) or (inside and line.startswith("|"))
        if inside and (first := re.match(r"\| `([^`]+)`", line)):
            found.append(first[1])
    return found


PAGES = [page for page in all_pages() if messages(page.text)]


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_every_message_that_is_explained_can_be_said(page) -> None:
    told = [message for message in messages(page.text) if not message.startswith(FOREIGN)]
    assert [message for message in told if not is_said(EXAMPLES.sub("…", message))] == []


def test_the_commonest_messages_are_explained() -> None:
    assert len(messages(DOCUMENT.read_text())) > 40
    assert len(PAGES) >= 3


def test_no_message_is_found_that_nobody_says() -> None:
    assert not is_said("a sentence that … nobody wrote")
    assert not is_said("…")


def test_every_code_is_told() -> None:
    text = DOCUMENT.read_text()
    codes = set(re.findall(r'\[ERROR_\w+\] = "([A-Z]+)"', (REPOSITORY / "native/base/error.c").read_text())) - {"OK"}
    for path in (REPOSITORY / "native/server").rglob("*.c"):
        codes |= set(re.findall(r'(?:reply_error\([^"]*"|"-)([A-Z]{3,}) ', path.read_text()))
    assert len(codes) > 20
    assert [code for code in sorted(codes) if f"`{code}`" not in text] == []
