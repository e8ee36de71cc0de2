"""`replay-server bench snapshot`: what saving costs those who are served meanwhile.

A table of Atari transitions is full; a pusher adds at a steady rate, each item in the place of the oldest, and a
learner samples. In each round a plain program first writes as many bytes to the same folder and syncs them, which is
the disk's rate; then a PING is sent every millisecond on a connection of its own, for some seconds as things are, and
from the start of a snapshot to its end. The server's memory is read all the while. At the end the last snapshot is
restored by a new server, which is timed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import replay_server as rs
from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.fairness import fill
from replay_server.bench.items import KINDS
from replay_server.connection import Address

QUANTILES = (50, 99, 99.9, 100)


# ---- the load's processes --------------------------------------------------------------------------------------------


def push(url: str, items_per_s: float, size: int) -> None:
    """Adds batches of `size` at a steady rate, until it is ended."""
    block = KINDS["atari"].random(size, np.random.default_rng(os.getpid()))
    with rs.Client(url) as client:
        due = time.perf_counter()
        while True:
            client.add("bench", block)
            due += size / items_per_s
            time.sleep(max(0.0, due - time.perf_counter()))


def learn(url: str, batches_per_s: float, size: int) -> None:
    """Samples and updates priorities at a steady rate, until it is ended."""
    generator = np.random.default_rng(1)
    with rs.Client(url) as client:
        due, batch = time.perf_counter(), None
        while True:
            batch = client.sample("bench", size, out=batch)
            client.update_priorities("bench", batch.ids, generator.random(size) + 0.01)
            due += 1 / batches_per_s
            time.sleep(max(0.0, due - time.perf_counter()))


@contextmanager
def load(url: str, options: argparse.Namespace) -> Iterator[None]:
    """The pusher and the learner as processes."""
    parts = [("push", options.push_rate, options.push), ("learn", options.learn_rate, options.batch)]
    processes = []
    for part, rate, size in parts:
        if rate > 0:
            command = [sys.executable, "-m", "replay_server.bench.snapshot", "--part", part, url, str(rate), str(size)]
            processes.append(subprocess.Popen(command))
    try:
        time.sleep(1.0)
        yield
        if any(process.poll() is not None for process in processes):
            raise RuntimeError("a process of the load ended early")
    finally:
        for process in processes:
            process.terminate()
            process.wait()


# ---- measuring -------------------------------------------------------------------------------------------------------


def write_rate(folder: Path, size_bytes: int) -> float:
    """Bytes a second of a plain program that writes a file in pieces of 1 MB and syncs it."""
    piece = np.random.default_rng(1).bytes(1 << 20)
    path = folder / "plain"
    begin = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        for _ in range(max(1, size_bytes >> 20)):
            file.write(piece)
        os.fsync(file.fileno())
    elapsed = time.perf_counter() - begin
    path.unlink()
    return (size_bytes >> 20 << 20) / elapsed


def anonymous_bytes(pid: int) -> int:
    """Memory of a process that is its own, the file cache apart."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this kernel does not tell a process's anonymous memory")


def ping_while(url: str, goes_on: Callable[[], bool], pid: int = 0) -> tuple[dict[str, float], int]:
    """Quantiles of PING in microseconds, and the most memory that process `pid` had."""
    latencies, most = [], 0
    with Address.parse(url).open_socket(60) as connection:
        while goes_on():
            begin = time.perf_counter_ns()
            connection.sendall(b"PING\r\n")
            if connection.recv(16) != b"+PONG\r\n":
                raise RuntimeError("a PING was not answered with PONG")
            latencies.append((time.perf_counter_ns() - begin) / 1e3)
            if pid and len(latencies) % 16 == 0:
                most = max(most, anonymous_bytes(pid))
            time.sleep(0.001)
    names = [f"ping_us_p{quantile:g}" if quantile < 100 else "ping_us_max" for quantile in QUANTILES]
    return dict(zip(names, map(float, np.percentile(latencies, QUANTILES)), strict=True)), most


def save(server: rs.Server) -> tuple[dict[str, float], Path]:
    """A snapshot, and what PING sees of it from its start to its end."""
    paths: list[str] = []
    times: list[float] = []

    def checkpoint() -> None:
        with rs.Client(server.url, socket_timeout=600) as client:
            begin = time.perf_counter()
            paths.append(client.checkpoint("bench.snapshot"))
            times.append(time.perf_counter() - begin)

    before = anonymous_bytes(server.pid)
    saver = threading.Thread(target=checkpoint)
    saver.start()
    pings, most = ping_while(server.url, saver.is_alive, server.pid)
    saver.join()
    if not paths:
        raise RuntimeError("the snapshot failed; " + server.log()[-500:])
    size = Path(paths[0]).stat().st_size
    measured = {f"save.{name}": value for name, value in pings.items()}
    measured |= {"save.seconds": times[0], "save.mb_per_s": size / times[0] / 1e6}
    measured |= {"save.extra_memory_mb": max(0, most - before) / 1e6, "file_mb": size / 1e6}
    return measured, Path(paths[0])


def one_round(server: rs.Server, folder: Path, options: argparse.Namespace, table_bytes: int) -> dict[str, float]:
    measured = {"disk.mb_per_s": write_rate(folder, table_bytes) / 1e6}
    with load(server.url, options):
        end = time.perf_counter() + options.seconds
        pings, _ = ping_while(server.url, lambda: time.perf_counter() < end, server.pid)
        measured |= {f"served.{name}": value for name, value in pings.items()}
        saved, _ = save(server)
    measured |= saved
    measured["table_mb"] = table_bytes / 1e6
    return {name: round(value, 2) for name, value in measured.items()}


def measure(options: argparse.Namespace, folder: Path, say: Callable[[str], None]) -> list[dict[str, float]]:
    kind = KINDS["atari"]
    capacity = max(options.push, int(options.gigabytes * 1e9 / kind.item_bytes))
    rounds = []
    with rs.Server([kind.table(capacity)], directory=folder) as server:
        with rs.Client(server.url) as client:
            fill(client, kind, capacity)
        for number in range(options.rounds):
            measured = one_round(server, folder, options, capacity * kind.item_bytes)
            rounds.append(measured)
            say(
                f"round {number + 1}/{options.rounds}  disk {measured['disk.mb_per_s']:.0f} MB/s  "
                f"snapshot {measured['save.mb_per_s']:.0f} MB/s  "
                f"extra memory {measured['save.extra_memory_mb']:.0f} MB  "
                f"ping p99.9 {measured['save.ping_us_p99.9'] / 1e3:.2f} ms, "
                f"without a snapshot {measured['served.ping_us_p99.9'] / 1e3:.2f} ms"
            )
    begin = time.perf_counter()
    with rs.Server(directory=folder, restore=folder / "bench.snapshot", start_timeout=600) as server:
        rounds[-1]["restore.seconds"] = round(time.perf_counter() - begin, 2)
        with rs.Client(server.url) as client:
            if client.info("bench")["size"] != capacity:
                raise RuntimeError("the restored table is not full")
    for measured in rounds:
        measured["restore.seconds"] = rounds[-1]["restore.seconds"]
    (folder / "bench.snapshot").unlink()
    return rounds


RATIOS = {
    "snapshot / disk": ("save.mb_per_s", "disk.mb_per_s"),
    "extra memory / table": ("save.extra_memory_mb", "table_mb"),
    "ping p99.9 with / without": ("save.ping_us_p99.9", "served.ping_us_p99.9"),
}


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    parser = Parser("replay-server bench snapshot", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=5.0, help="size of the table (5)")
    parser.add_argument("--folder", help="where to write, on the disk that is meant (default: a temporary one)")
    parser.add_argument("--push-rate", type=float, default=500.0, help="items added a second (500: 28 MB/s); 0: none")
    parser.add_argument("--push", type=int, default=50, help="items an add (50)")
    parser.add_argument("--learn-rate", type=float, default=20.0, help="batches sampled a second (20); 0: none")
    parser.add_argument("--batch", type=int, default=64, help="items a batch (64)")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of PINGs without a snapshot (5)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of everything (3)")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--part", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.part:
        part, url, rate, size = options.part
        (push if part == "push" else learn)(url, float(rate), int(size))
    host = result.machine()
    rounds = measure(options, Path(options.folder or folder), say)
    result.conclude("snapshot", argv, options, host, rounds, RATIOS, say)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
