"""Scripts while more is held than maxmemory allows: what they may do is what Redis 7.0 lets them do."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

SCRIPTS: dict[str, bytes] = {
    "reads": b"return redis.call('get','x')",
    "writes": b"return redis.call('set','x','1')",
    "removes": b"return redis.call('del','x')",
    "removes, then writes": b"redis.call('del','x') return redis.call('set','x','1')",
    "writes, then removes": b"redis.pcall('set','x','1') return redis.call('del','x')",
    "writes twice": b"redis.pcall('set','x','1') return redis.call('set','y','1')",
    "declared reads": b"#!lua\nreturn redis.call('get','x')",
    "declared writes": b"#!lua\nreturn redis.call('set','x','1')",
    "declared removes": b"#!lua\nreturn redis.call('del','x')",
    "allowed writes": b"#!lua flags=allow-oom\nreturn redis.call('set','x','1')",
    "allowed writes twice": b"#!lua flags=allow-oom\nredis.call('set','x','1') return redis.call('set','y','1')",
    "no writes reads": b"#!lua flags=no-writes\nreturn redis.call('get','x')",
    "no writes writes": b"#!lua flags=no-writes\nreturn redis.call('set','x','1')",
    "no writes, allowed": b"#!lua flags=no-writes,allow-oom\nreturn redis.call('set','x','1')",
    "faulty": b"#!lua flags=none\nreturn redis.call('set','x','1')",
}


def sha(script: bytes) -> bytes:
    return hashlib.sha1(script).hexdigest().encode()


@pytest.fixture
def full(pair: Any) -> Iterator[Any]:
    """Both servers hold more than they may, and nothing may go."""
    pair.words("FLUSHALL")
    pair.words("SCRIPT FLUSH")
    pair.words("SET x 0")
    pair.words("CONFIG SET maxmemory 1")
    yield pair
    pair.words("CONFIG SET maxmemory 0")
    pair.words("DEL x y")


@pytest.mark.parametrize("command", [b"EVAL", b"EVAL_RO"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_may_do_what_redis_lets_them_do(full: Any, name: str, command: bytes) -> None:
    kind, text = full.run((command, SCRIPTS[name], b"0"))[0]
    if name.startswith("allowed") and command == b"EVAL":
        assert kind == "+"
    if name == "declared reads" and command == b"EVAL":
        assert (kind, text[:4]) == ("-", b"OOM ")
    full.run((b"GET", b"x"), (b"GET", b"y"))


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "faulty"])
def test_scripts_of_the_cache_are_refused_as_others_are(full: Any, name: str) -> None:
    full.run((b"SCRIPT", b"LOAD", SCRIPTS[name]))
    for command in (b"EVALSHA", b"EVALSHA_RO"):
        full.run((command, sha(SCRIPTS[name]), b"0"), (b"GET", b"x"), (b"GET", b"y"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_transaction_with_a_script_is_refused_as_in_redis(pair: Any, name: str) -> None:
    pair.words("FLUSHALL")
    pair.words("SCRIPT FLUSH")
    pair.words("MULTI")
    pair.run((b"EVAL", SCRIPTS[name], b"0"))
    other = type(pair)(pair.peers, 2)
    try:
        other.words("CONFIG SET maxmemory 1")
        pair.words("EXEC")
    finally:
        other.words("CONFIG SET maxmemory 0")
        other.close()
    pair.words("GET x")


def test_a_script_that_was_loaded_after_it_was_queued_is_refused_before_it_starts(full: Any) -> None:
    script = SCRIPTS["declared removes"]
    full.words("CONFIG SET maxmemory 0")
    full.words("MULTI")
    full.run((b"EVALSHA", sha(script), b"0"))
    other = type(full)(full.peers, 2)
    other.run((b"SCRIPT", b"LOAD", script))
    other.words("CONFIG SET maxmemory 1")
    other.close()
    assert full.words("EXEC")[1][0][1].startswith(b"OOM allow-oom flag is not set on the script")
    full.words("GET x")
