"""`replay-server bench disk`: a table on disk that is larger than memory, beside what the disk itself can do.

A table with `storage="disk"` is filled, while the server runs in a cgroup that lets it have a part of the table's
size, its file's pages included. In each round a plain program first reads as many whole pages as an item has at
random places of a file on the same disk, past the cache, many at a time: a rate that the disk has at least, since a
faster program may find it has more. Then learners sample uniformly, one batch after the other, and a PING is sent
every millisecond on a connection of its own; then the same beside a pusher, whose items take the places of the
oldest. How many pages were absent is the server's own count. Needs root, for the cgroup.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
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
from replay_server.bench.snapshot import ping_while

MEMORY_V1, MEMORY_V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
PAGE_BYTES = mmap.PAGESIZE
FILL_BYTES = 8 << 20


def table(items: int, item_bytes: int) -> rs.Table:
    """Transitions with one large column."""
    columns = {
        "observation": rs.Column("uint8", (item_bytes,)),
        "action": rs.Column("int64"),
        "reward": rs.Column("float32"),
    }
    return rs.Table("bench", items, columns, sampler=rs.Uniform(), storage="disk")


def block(items: int, item_bytes: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(os.getpid())
    return {
        "observation": generator.integers(0, 256, (items, item_bytes), np.uint8),
        "action": np.arange(items),
        "reward": np.ones(items, np.float32),
    }


# ---- the load's processes --------------------------------------------------------------------------------------------


def learn(url: str, size: int) -> None:
    """Samples without a pause, until it is ended; a line on standard output for each batch."""
    with rs.Client(url) as client:
        batch = None
        while True:
            batch = client.sample("bench", size, out=batch)
            print(flush=True)


def push(url: str, items_per_s: float, item_bytes: int) -> None:
    """Adds 50 items at a time at a steady rate, until it is ended."""
    items = block(50, item_bytes)
    with rs.Client(url) as client:
        due = time.perf_counter()
        while True:
            client.add("bench", items)
            due += 50 / items_per_s
            time.sleep(max(0.0, due - time.perf_counter()))


@contextmanager
def load(server: rs.Server, learners: int, size: int, push_rate: float, item_bytes: int) -> Iterator[list[int]]:
    """Learners, and a pusher if its rate is not 0; how many batches they have had."""
    counts = [0]
    parts = [("learn", size, 0)] * learners + [("push", push_rate, item_bytes)] * (push_rate > 0)
    command = [sys.executable, "-m", "replay_server.bench.disk", "--part"]
    processes = [
        subprocess.Popen([*command, part, server.url, str(first), str(second)], stdout=subprocess.PIPE)
        for part, first, second in parts
    ]

    def count(process: subprocess.Popen[bytes]) -> None:
        for _ in process.stdout or ():
            counts[0] += 1

    threads = [threading.Thread(target=count, args=(process,), daemon=True) for process in processes]
    for thread in threads:
        thread.start()
    try:
        while counts[0] < learners:
            if any(process.poll() is not None for process in processes):
                raise RuntimeError("a process of the load ended early")
            time.sleep(0.05)
        yield counts
        if any(process.poll() is not None for process in processes):
            raise RuntimeError("a process of the load ended early")
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


# ---- the machine -----------------------------------------------------------------------------------------------------


@contextmanager
def limited(pid: int, limit_bytes: int) -> Iterator[Path]:
    """The process in a cgroup that lets it have so much memory, pages of files included; the group's folder."""
    first = (MEMORY_V1 / "memory.limit_in_bytes").exists()
    group = (MEMORY_V1 if first else MEMORY_V2) / f"replay-server-bench-{pid}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(limit_bytes))
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        raise RuntimeError(f"no memory limit can be set here: {error}; run as root, on a host with cgroups") from error
    try:
        yield group
    finally:
        root = group.parent / "cgroup.procs"
        while group.exists():
            for process in (group / "cgroup.procs").read_text().split():
                root.write_text(process)
            try:
                group.rmdir()
            except OSError:
                time.sleep(0.1)


def pages_of(item_bytes: int) -> int:
    return -(-item_bytes // PAGE_BYTES)


def read_rate(path: Path, item_bytes: int, seconds: float, depth: int = 32) -> float:
    """Items a second whose pages threads read from random places of a file, past the cache."""
    item_bytes = pages_of(item_bytes) * PAGE_BYTES
    places = path.stat().st_size // item_bytes
    ends, counts = time.perf_counter() + seconds, [0] * depth

    def read(number: int) -> None:
        generator, buffer = random.Random(number), mmap.mmap(-1, item_bytes)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        while time.perf_counter() < ends:
            os.preadv(descriptor, [buffer], generator.randrange(places) * item_bytes)
            counts[number] += 1
        os.close(descriptor)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(depth)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


def make_file(path: Path, size_bytes: int) -> None:
    piece = np.random.default_rng(1).bytes(1 << 20)
    with open(path, "wb", buffering=0) as file:
        for _ in range(size_bytes >> 20):
            file.write(piece)
        os.fsync(file.fileno())


# ---- measuring -------------------------------------------------------------------------------------------------------


def sampled(server: rs.Server, options: argparse.Namespace, push_rate: float) -> dict[str, float]:
    """Batches a second, what share of their pages was absent, and PING, while learners sample."""
    size, pages = options.batch, pages_of(options.item_bytes)
    with rs.Client(server.url) as client, load(server, options.learners, size, push_rate, options.item_bytes) as counts:
        time.sleep(1.0)
        cold, batches, begin = client.info("bench")["cold_pages"], counts[0], time.perf_counter()
        pings, own = ping_while(server.url, lambda: time.perf_counter() < begin + options.seconds, server.pid)
        elapsed = time.perf_counter() - begin
        batches, cold = counts[0] - batches, client.info("bench")["cold_pages"] - cold
        assert batches > 0, "no batch came in time"
        return {
            "batches_per_s": batches / elapsed,
            "items_per_s": batches * size / elapsed,
            "cold_share": cold / (batches * size * pages),
            "cold_mb_per_s": cold * PAGE_BYTES / elapsed / 1e6,
            "server_own_mb": own / 1e6,
            **pings,
        }


def one_round(server: rs.Server, folder: Path, options: argparse.Namespace) -> dict[str, float]:
    measured = {"disk.items_per_s": read_rate(folder / "plain", options.item_bytes, options.seconds)}
    measured["disk.batches_per_s"] = measured["disk.items_per_s"] / options.batch
    for name, rate in (("sampling", 0.0), ("pushing", options.push_rate)):
        measured |= {f"{name}.{key}": value for key, value in sampled(server, options, rate).items()}
    # Batches of which this share is cold ask the disk for this many.
    measured["disk.cold_batches_per_s"] = measured["disk.batches_per_s"] / max(0.01, measured["sampling.cold_share"])
    return {name: round(value, 3) for name, value in measured.items()}


def measure(options: argparse.Namespace, folder: Path, say: Callable[[str], None]) -> list[dict[str, float]]:
    items = int(options.gigabytes * 1e9 / options.item_bytes)
    rounds = []
    make_file(folder / "plain", min(int(options.gigabytes * 1e9), 4 << 30))
    try:
        with (
            rs.Server([table(items, options.item_bytes)], directory=folder) as server,
            limited(server.pid, int(options.memory_gigabytes * 1e9)),
            rs.Client(server.url) as client,
        ):
            at_once = max(1, FILL_BYTES // options.item_bytes)
            filling, begin = block(at_once, options.item_bytes), time.perf_counter()
            for _ in range(0, items, at_once):
                client.add("bench", filling)
            filled_mb_per_s = items * options.item_bytes / (time.perf_counter() - begin) / 1e6
            say(f"filled with {items} items at {filled_mb_per_s:.0f} MB/s")
            for number in range(options.rounds):
                rounds.append(measured := one_round(server, folder, options))
                say(
                    f"round {number + 1}/{options.rounds}  disk {measured['disk.cold_batches_per_s']:.1f} batches/s  "
                    f"server {measured['sampling.batches_per_s']:.1f}, {100 * measured['sampling.cold_share']:.0f} % "
                    f"cold, ping p99 {measured['sampling.ping_us_p99'] / 1e3:.2f} ms  beside a pusher "
                    f"{measured['pushing.batches_per_s']:.1f}, ping p99 {measured['pushing.ping_us_p99'] / 1e3:.2f} ms"
                )
    finally:
        (folder / "plain").unlink()
    return rounds


RATIOS = {
    "batches / the disk's": ("sampling.batches_per_s", "disk.cold_batches_per_s"),
    "batches beside a pusher / without": ("pushing.batches_per_s", "sampling.batches_per_s"),
}


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    parser = Parser("replay-server bench disk", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=8.0, help="size of the table (8)")
    parser.add_argument("--memory-gigabytes", type=float, default=0.8, help="memory of the server (0.8)")
    parser.add_argument("--item-bytes", type=int, default=8192, help="bytes of an item's large column (8192)")
    parser.add_argument("--folder", help="where the table lies, on the disk that is meant (default: a temporary one)")
    parser.add_argument("--learners", type=int, default=2, help="processes that sample (2)")
    parser.add_argument("--batch", type=int, default=512, help="items a batch (512)")
    parser.add_argument("--push-rate", type=float, default=2000.0, help="items added a second (2000)")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of each measurement (10)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of everything (3)")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--part", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.part:
        part, url, first, second = options.part
        learn(url, int(first)) if part == "learn" else push(url, float(first), int(second))
    host = result.machine()
    rounds = measure(options, Path(options.folder or folder), say)
    result.conclude("disk", argv, options, host, rounds, RATIOS, say)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
