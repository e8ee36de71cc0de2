"""Sequences of their own length, as a ragged column and padded to the longest: samples a second, and what they take.

Both sides are this project and hold the same sequences: one in a ragged column, the other in a column of the greatest
length beside a column of lengths. Batches of 64 are received into the last batch's memory, in process and over TCP.
Where the machine has other work, processor time tells more than batches a second. `replay_as_padded` makes a padded
array of each ragged batch, which `padded` has without more ado.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import replay_server as rs
from replay_server.bench.peers.in_process import Say, in_turn
from replay_server.bench.snapshot import anonymous_bytes

MOST_TOKENS = 4096
SEQUENCES = 4000
BATCH = 64
PUSH = 100


def tables(capacity: int) -> dict[str, rs.Table]:
    """A ragged table and a padded one."""
    ragged = {"tokens": rs.Column("int32", (None,), max_length=MOST_TOKENS)}
    padded = {"tokens": rs.Column("int32", (MOST_TOKENS,)), "length": rs.Column("int32")}
    return {
        "replay": rs.Table("sequences", capacity, ragged, rs.Uniform(), seed=1),
        "padded": rs.Table("sequences", capacity, padded, rs.Uniform(), seed=1),
    }


def fill(handle: Any, name: str, lengths: np.ndarray) -> None:
    """Adds sequences of these lengths."""
    generator = np.random.default_rng(2)
    for part in np.split(lengths, len(lengths) // PUSH):
        rows = [generator.integers(0, 50_000, length, np.int32) for length in part]
        if name == "padded":
            tokens = np.zeros((len(part), MOST_TOKENS), np.int32)
            for place, row in zip(tokens, rows, strict=True):
                place[: len(row)] = row
            handle.add({"tokens": tokens, "length": part.astype(np.int32)})
        else:
            handle.add({"tokens": rows})


@dataclass
class Held:
    """A filled table: its handle, processor time of its server so far, and memory that the server took for it."""

    handle: Any
    server_s: Callable[[], float] = lambda: 0.0
    server_bytes: int = 0


@contextmanager
def in_process(name: str, lengths: np.ndarray) -> Iterator[Held]:
    buffer = rs.Buffer(tables(len(lengths))[name])
    fill(buffer, name, lengths)
    yield Held(buffer)


def processor_s(pid: int) -> float:
    """Processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def over_tcp(name: str, lengths: np.ndarray) -> Iterator[Held]:
    with rs.Server([tables(len(lengths))[name]]) as server, rs.Client(server.url) as client:
        before = anonymous_bytes(server.pid)
        fill(client["sequences"], name, lengths)
        took = anonymous_bytes(server.pid) - before
        yield Held(client["sequences"], lambda: processor_s(server.pid), took)


WAYS = {"in_process": in_process, "tcp": over_tcp}


def measure_side(held: Held, pads: bool, seconds: float) -> dict[str, float]:
    """Batches of 64 sequences a second, and microseconds of processor time for each, the server's included."""
    batch, count = held.handle.sample(BATCH), 0
    used, begin = time.process_time() + held.server_s(), time.perf_counter()
    while (now := time.perf_counter()) - begin < seconds:
        batch = held.handle.sample(BATCH, out=batch)
        if pads:
            batch.data["tokens"].padded()
        count += 1
    used = time.process_time() + held.server_s() - used
    return {"samples_per_s": round(count / (now - begin), 1), "cpu_us": round(used / count * 1e6, 1)}


def measure_ragged(options: argparse.Namespace, say: Say) -> list[dict[str, float]]:
    """Rounds of `ragged.WAY.SIDE.samples_per_s`, `cpu_us`, `table_bytes`, and over TCP `server_bytes`."""
    rounds: list[dict[str, float]] = [{} for _ in range(options.rounds)]
    lengths = np.random.default_rng(1).integers(1, MOST_TOKENS + 1, options.capacity or SEQUENCES)
    for way, opened in WAYS.items():
        with ExitStack() as stack:
            held = {name: stack.enter_context(opened(name, lengths)) for name in ("replay", "padded")}
            sides = [("replay", "replay", False), ("replay_as_padded", "replay", True), ("padded", "padded", False)]
            for number, measured in enumerate(rounds):
                for side, name, pads in in_turn(sides, number):
                    found = measure_side(held[name], pads, options.short_seconds)
                    if not pads:
                        found["table_bytes"] = held[name].handle.info()["bytes"]
                    if not pads and held[name].server_bytes:
                        found["server_bytes"] = held[name].server_bytes
                    measured |= {f"ragged.{way}.{side}.{what}": value for what, value in found.items()}
                    rate, used = found["samples_per_s"], found["cpu_us"]
                    what = f"{way:10} {side:17} {rate:8,.0f} batches/s {used:7,.0f} us of CPU each"
                    say(f"round {number + 1} ragged {what}")
    for measured in rounds:
        measured["ragged.tokens.ceiling.value_bytes"] = int(lengths.sum()) * 4
    return rounds
