"""Commands of tables, weights and gradients in scripts and transactions: what they answer there is what they do alone,
whatever a table stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import replay_server as rs
from replay_server.codec import pack

STEPS, ITEMS = 60, 40
CALL = "return redis.call(unpack(ARGV))"


@pytest.fixture(scope="module")
def server() -> Iterator[rs.Server]:
    with rs.Server() as running:
        yield running
        assert running.running, running.log()


@pytest.fixture
def raw(server: rs.Server, open_raw: Callable[[str], Any]) -> Iterator[Any]:
    made = open_raw(server.url)
    assert made.command("REPLAY.LIST") == []
    yield made
    assert server.running, server.log()
    for name in made.command("REPLAY.LIST"):
        made.command("REPLAY.DROP", name)


def fill_windows(raw: Any, step_bytes: int, compression: str) -> bytes:
    """Items that see four frames of so many bytes, now and two later; their ids."""
    signature = {
        "frame": {"dtype": "uint8", "shape": [step_bytes], "step_only": True},
        "reward": {"dtype": "float32", "shape": []},
        "obs": {"window": "frame", "length": 4, "offset": 0},
        "next_obs": {"window": "frame", "length": 4, "offset": 2},
    }
    spec = {"capacity": 1000, "signature": signature, "sampler": "uniform", "compression": compression}
    assert raw.command("REPLAY.CREATE", "t", pack(spec)) == "OK"
    frames = np.random.default_rng(1).integers(0, 4, (STEPS, step_bytes), np.uint8)
    streams = np.zeros(STEPS, np.uint32).tobytes()
    assert raw.command("REPLAY.APPEND", "t", STEPS, streams, b"", "COLUMNS", 1, "frame", frames.tobytes()) == STEPS
    return raw.command(
        "REPLAY.ITEM", "t", ITEMS, streams[: 4 * ITEMS], np.arange(ITEMS, dtype=np.uint64).tobytes(), b"",
        "COLUMNS", 1, "reward", np.arange(ITEMS, dtype=np.float32).tobytes(),
    )  # fmt: skip


def fill_plain(raw: Any, item_bytes: int) -> bytes:
    spec = {"capacity": 1000, "signature": {"x": ["uint8", [item_bytes]]}, "sampler": "uniform"}
    assert raw.command("REPLAY.CREATE", "t", pack(spec)) == "OK"
    values = np.random.default_rng(1).integers(0, 256, (ITEMS, item_bytes), np.uint8)
    return raw.command("REPLAY.ADD", "t", ITEMS, b"", "COLUMNS", 1, "x", values.tobytes())


def everywhere(raw: Any, *words: Any) -> list[Any]:
    """The answers alone, in a transaction, in a script, and in a script of a transaction."""
    answers = [raw.command(*words)]
    for inside in (words, ("EVAL", CALL, 0, *words)):
        if inside is not words:
            answers.append(raw.command(*inside))
        assert raw.command("MULTI") == "OK"
        assert raw.command(*inside) == "QUEUED"
        answers += raw.command("EXEC")
    return answers


@pytest.mark.parametrize("storage", [
    ("plain", 100), ("plain", 5000), ("plain", 100_000),
    *[(compression, size) for compression in ("none", "lz4", "zstd") for size in (50, 700, 2048, 28_224)],
])  # fmt: skip
def test_items_are_read_the_same_alone_in_transactions_and_in_scripts(raw, storage):
    kind, size = storage
    ids = fill_plain(raw, size) if kind == "plain" else fill_windows(raw, size, kind)
    many = np.tile(np.frombuffer(ids, np.uint64), 4).tobytes()
    for options in ((), ("CODED",)):
        answers = everywhere(raw, "REPLAY.GET", "t", many, *options)
        assert isinstance(answers[0], list), answers[0]
        assert [answer == answers[0] for answer in answers] == [True] * 4, options
    lengths = [len(value) for value in raw.command("REPLAY.GET", "t", ids[: 8 * 20])]
    for options in ((), ("SHARED",)):
        for answer in everywhere(raw, "REPLAY.SAMPLE", "t", 20, *options):
            assert [len(value) for value in answer] == lengths, options
    for answer in everywhere(raw, "REPLAY.SAMPLE", "t", 20, "CODED"):
        assert len(answer[0]) == 8 * 20
        assert set(np.frombuffer(answer[0], np.uint64)) <= set(np.frombuffer(ids, np.uint64))
    assert dict(zip(*[iter(raw.command("REPLAY.INFO", "t"))] * 2, strict=True))[b"pinned_slots"] == 0


IN_SCRIPTS = """
REPLAY.CREATE t2 SPEC | REPLAY.SPEC t | REPLAY.INFO t | REPLAY.LIST | REPLAY.AWAIT t SINCE 0 | REPLAY.SAMPLE t 3
REPLAY.GET t IDS | REPLAY.UPDATE t IDS PRIORITIES | REPLAY.DEL t IDS | REPLAY.CONFIG t CHANGE | REPLAY.RESET t
REPLAY.END t STREAM | REPLAY.CLOSE t STREAM | REPLAY.CLOSETABLE t | REPLAY.OPENTABLE t | REPLAY.DROP t
WEIGHTS.PUBLISH w * blob | WEIGHTS.GET w | WEIGHTS.INFO w | WEIGHTS.LIST | WEIGHTS.DEL w
GRAD.PUSH g 1 name float32 VECTOR | GRAD.TAKE g 1 | GRAD.STATE g name | GRAD.AWAIT g 5 1 name | GRAD.INFO g | GRAD.LIST
GRAD.PUBLISH g 3 1 name w blob | GRAD.DROP g name | GRAD.DEL g
"""


def test_every_command_of_ours_that_scripts_may_call_runs_in_one(raw):
    ids = fill_windows(raw, 700, "lz4")
    bytes_of = {
        "SPEC": pack({"capacity": 5, "signature": {"x": ["uint8", []]}, "sampler": "uniform"}),
        "IDS": ids[:16],
        "PRIORITIES": np.ones(2).tobytes(),
        "CHANGE": pack({"sampler": "fifo"}),
        "STREAM": np.zeros(1, np.uint32).tobytes(),
        "VECTOR": np.ones(4, np.float32).tobytes(),
    }
    ran = set()
    for line in IN_SCRIPTS.strip().replace("\n", "|").split("|"):
        words = [bytes_of.get(word, word) for word in line.split()]
        answer = raw.command("EVAL", CALL, 0, *words)
        if words[0] in ("REPLAY.END", "REPLAY.CLOSE"):  # streams are a connection's, and a script has none
            assert answer == 0 or "is not open on this connection" in str(answer), (line, answer)
        else:
            assert not isinstance(answer, Exception), (line, answer)
        ran.add(line.split()[0].lower())
    may = set()
    for row in raw.command("COMMAND"):
        flags = {flag if isinstance(flag, str) else flag.decode() for flag in row[2]}
        if row[0].startswith((b"replay.", b"weights.", b"grad.")) and not flags & {"noscript", "no_multi"}:
            may.add(row[0].decode())
    assert ran == may
