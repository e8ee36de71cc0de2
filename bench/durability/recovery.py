"""How fast a server reads its append-only file when it starts, beside a plain program that reads the same bytes."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import replay_server as rs
from replay_server.bench.durability.beside import fill
from replay_server.bench.durability.cost import SIDES
from replay_server.bench.durability.pushes import Pushes

CONFIG = SIDES["everysec"]
PIECE_BYTES = 1 << 20
START_TIMEOUT_S = 600.0
SOURCES = ("cold", "warm")
"""Whether the file comes from the disk, or from memory."""


def files_of(folder: Path) -> list[Path]:
    return [path for path in (folder / "appendonlydir").iterdir() if path.is_file()]


def forget(paths: list[Path]) -> None:
    """Takes files out of the system's memory, so that the next reader waits for the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def read(paths: list[Path]) -> None:
    buffer = bytearray(PIECE_BYTES)
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def started(folder: Path, table: str, size: int) -> float:
    """Seconds until a server has read its file and serves."""
    begin = time.perf_counter()
    with rs.Server(directory=folder, config=CONFIG, start_timeout=START_TIMEOUT_S) as server:
        seconds = time.perf_counter() - begin
        with rs.Client(server.url) as client:
            if client.info(table)["size"] != size:
                raise RuntimeError("the server did not read all of its table")
    return seconds


def one_round(folder: Path, table: str, size: int) -> dict[str, float]:
    paths = files_of(folder)
    file_bytes = sum(path.stat().st_size for path in paths)
    measured = {"log_mb": file_bytes / 1e6}
    for source in SOURCES:
        for what, run in (("plain", lambda: read(paths)), ("server", lambda: started(folder, table, size))):
            if source == "cold":
                forget(paths)
            begin = time.perf_counter()
            seconds = run() or time.perf_counter() - begin
            measured[f"recovery.{source}.{what}.mb_per_s"] = file_bytes / seconds / 1e6
            measured[f"recovery.{source}.{what}.seconds"] = seconds
    return measured


def measure(
    options: argparse.Namespace, pushes: Pushes, folder: Path, say: Callable[[str], None]
) -> list[dict[str, float]]:
    """Rounds of `recovery.SOURCE.WHO.WHAT`."""
    capacity = pushes.in_gigabytes(options.gigabytes)
    table, own = pushes.settings.table, folder / "recovery"
    own.mkdir()
    with (
        rs.Server([pushes.table(capacity)], directory=own, config=CONFIG) as server,
        rs.Client(server.url) as client,
    ):
        fill(server, pushes.requests(client), pushes.transitions, capacity, own)
        told: Any = client.info(table)
        size, items_bytes = told["size"], told["bytes"]
    say(f"recovery: a table of {size:,} transitions, {items_bytes / 1e6:,.0f} MB")
    rounds = []
    for number in range(options.rounds):
        rounds.append(measured := {"recovery.table_mb": items_bytes / 1e6, **one_round(own, table, size)})
        parts = [
            f"{source} {measured[f'recovery.{source}.server.mb_per_s']:.0f} MB/s (plain "
            f"{measured[f'recovery.{source}.plain.mb_per_s']:.0f})"
            for source in SOURCES
        ]
        say(f"round {number + 1}/{options.rounds}  recovery {', '.join(parts)}")
    return rounds


RATIOS = {
    f"recovery.{source} server / plain": (
        f"recovery.{source}.server.mb_per_s",
        f"recovery.{source}.plain.mb_per_s",
    )
    for source in SOURCES
}
