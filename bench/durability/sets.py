"""SETs under `appendonly yes, appendfsync everysec`: this store and Redis in turns, by redis-benchmark."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from pathlib import Path

from replay_server.bench import store
from replay_server.bench.durability.cost import SIDES, settle
from replay_server.bench.peers.in_process import in_turn
from replay_server.bench.sides import processors
from replay_server.bench.store import OURS, REDIS, Test

MOST_BYTES = 1_000_000_000
"""Of the values of a turn."""


class Side(store.Side):
    """A store with an append-only file, which holds nothing but a base when a turn begins."""

    def prepare(self, test: Test) -> None:
        super().prepare(test)
        settle(self.client)


def tests(options: argparse.Namespace) -> list[Test]:
    """A test for each size of values."""
    counts = {size: min(options.requests, MOST_BYTES // size) for size in options.sizes}
    return [Test(f"set_{size}", ("-t", "set"), max(100, count), data_bytes=size) for size, count in counts.items()]


def measure(options: argparse.Namespace, folder: Path, say: Callable[[str], None]) -> list[dict[str, float]]:
    """Rounds of `sets.SIZE.PIPELINE.SIDE.WHAT`."""
    rounds = []
    with contextlib.ExitStack() as stack:
        sides = [
            stack.enter_context(Side(name, str(folder), *processors(), SIDES["everysec"])) for name in (OURS, REDIS)
        ]
        say("sets: " + ", ".join(f"{side.name} {side.version}" for side in sides))
        for number in range(options.rounds):
            rounds.append(measured := {})
            for test in tests(options):
                for pipeline in options.pipelines:
                    name = f"sets.{test.data_bytes}.P{pipeline}"
                    for side in in_turn(sides, number):
                        told = side.turn(test, pipeline, test.requests)
                        measured |= {f"{name}.{side.name}.{what}": value for what, value in told.items()}
                    parts = [
                        f"{what} {measured[f'{name}.{OURS}.{what}'] / measured[f'{name}.{REDIS}.{what}']:.2f}"
                        for what in ("requests_per_s", "requests_per_cpu_s", "latency_us_p99")
                    ]
                    say(f"round {number + 1}/{options.rounds}  {name}: of Redis's, {', '.join(parts)}")
    return rounds
