"""docs/compatibility.md says what is there: no command more, none less."""

from __future__ import annotations

import json
import re
from typing import Any

import redis
from compatibility import DOCUMENT, FAMILIES, documented, suite
from differences import DIFFERENCES
from redis_suite import FILES
from redis_suite import RECORD as SUITE_RECORD

WRITE_IT = "run: python tests/conformance/compatibility.py"


def listed(title: str) -> set[str]:
    found = re.findall(rf"^\*\*{title}\*\*: (.*)\.$", DOCUMENT.read_text(), re.MULTILINE)
    return {name.lower().replace(" ", "|") for line in found for name in re.findall("`([^`]*)`", line)}


def commands(peer: Any) -> dict[str, str]:
    with redis.Redis(unix_socket_path=str(peer.unix_path)) as client:
        return documented(client)


def test_the_document_lists_the_commands_of_both_servers(our_peer: Any, redis_peer: Any) -> None:
    ours, theirs = commands(our_peer), commands(redis_peer)
    assert set(theirs.values()) <= set(FAMILIES), "a family without a title"
    assert listed("Compared") | listed("Here") == set(ours), WRITE_IT
    assert listed("Not here") == set(theirs) - set(ours), WRITE_IT


def test_what_is_told_of_differences_is_of_commands_that_are_there(our_peer: Any, redis_peer: Any) -> None:
    assert set(DIFFERENCES) <= set(commands(our_peer)) | set(commands(redis_peer))


def test_the_document_tells_what_was_recorded_of_redis_own_tests() -> None:
    record = json.loads(SUITE_RECORD.read_text())
    assert list(record["files"]["ours"]) == list(record["files"]["redis"]) == FILES
    assert "\n".join(suite(record)) in DOCUMENT.read_text() + "\n", WRITE_IT
