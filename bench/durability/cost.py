"""What the append-only file costs a server that actors push to, beside the same server without it."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import replay_server as rs
from replay_server.bench.durability.beside import fill, load, pushing
from replay_server.bench.durability.pushes import Pushes
from replay_server.bench.load import cpu_seconds
from replay_server.bench.peers.in_process import in_turn

KEEPS = {"appendonly": "yes", "auto-aof-rewrite-percentage": "0"}
SIDES: dict[str, dict[str, str]] = {
    "off": {},
    "everysec": {**KEEPS, "appendfsync": "everysec"},
    "always": {**KEEPS, "appendfsync": "always"},
    "rewriting": {"appendonly": "yes", "appendfsync": "everysec", "auto-aof-rewrite-min-size": "1"},
}
"""Settings of each server. Only the last rewrites its file meanwhile: whenever that has doubled, as by default, so each
transition is written once more in a base."""
LOADS = ("full", "paced")


class Side:
    """A server with a full table."""

    def __init__(self, name: str, server: rs.Server, pushes: Pushes, folder: Path) -> None:
        self.name, self._server, self._folder, self._transitions = name, server, folder, pushes.transitions
        self._client = rs.Client(server.url)
        self._table = pushes.settings.table
        self._requests = pushes.requests(self._client)

    def fill(self, capacity: int) -> None:
        fill(self._server, self._requests, self._transitions, capacity, self._folder)

    def turn(self, pushers: int, per_s: float, seconds: float) -> dict[str, float]:
        """What pushers at a rate (0: as fast as they can) take of the server."""
        settle(self._client.redis)
        cpu, added = cpu_seconds(self._server.pid), self._client.info(self._table)["added"]
        roles = [pushing(self._requests, self._transitions, pushers, per_s)]
        measured, pings = load(self._server, roles, self._folder, seconds)
        cpu, added = cpu_seconds(self._server.pid) - cpu, self._client.info(self._table)["added"] - added
        return {
            "transitions_per_s": measured.rounds_per_s("pusher") * self._transitions,
            "cpu_us_per_transition": cpu / added * 1e6,
            **pings,
        }

    def close(self) -> None:
        self._client.close()


def settle(redis: Any) -> None:
    """Makes the file one base, and waits until the disk has it, so that a turn pays for nothing that came before.

    `redis` is a client of redis-py.
    """
    if redis.info("persistence")["aof_enabled"]:
        while redis.info("persistence")["aof_rewrite_in_progress"]:
            time.sleep(0.01)
        redis.bgrewriteaof()
        while (told := redis.info("persistence"))["aof_rewrite_in_progress"] or told["aof_rewrite_scheduled"]:
            time.sleep(0.01)
        if told["aof_last_bgrewrite_status"] != "ok":
            raise RuntimeError("the append-only file could not be rewritten")
    os.sync()


def measure(
    options: argparse.Namespace, pushes: Pushes, folder: Path, say: Callable[[str], None]
) -> list[dict[str, float]]:
    """Rounds of `cost.LOAD.SIDE.WHAT`."""
    rounds = []
    with contextlib.ExitStack() as stack:
        sides = []
        for name, config in SIDES.items():
            (folder / name).mkdir()
            table = pushes.table(options.capacity)
            server = stack.enter_context(rs.Server([table], directory=folder / name, config=config))
            sides.append(Side(name, server, pushes, folder / name))
            stack.callback(sides[-1].close)
            sides[-1].fill(options.capacity)
        for number in range(options.rounds):
            rounds.append(measured := {})
            for kind in LOADS:
                for side in in_turn(sides, number):
                    told = side.turn(options.pushers, options.rate if kind == "paced" else 0, options.seconds)
                    measured |= {f"cost.{kind}.{side.name}.{what}": value for what, value in told.items()}
                    rate, cpu = told["transitions_per_s"], told["cpu_us_per_transition"]
                    low, high = told["ping_us_p50"] / 1e3, told["ping_us_p99.9"] / 1e3
                    say(
                        f"round {number + 1}/{options.rounds}  {kind:5} {side.name:9} {rate:9,.0f} transitions/s, "
                        f"{cpu:6.2f} µs each,  ping p50 {low:.2f} ms, p99.9 {high:.2f} ms"
                    )
    return rounds


RATIOS = {
    f"cost.{kind}.{side} {what} / off": (f"cost.{kind}.{side}.{what}", f"cost.{kind}.off.{what}")
    for kind in LOADS
    for side in SIDES
    if side != "off"
    for what in ("transitions_per_s", "cpu_us_per_transition")
}
