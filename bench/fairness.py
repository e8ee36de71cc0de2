"""`replay-server bench fairness`: how soon a small request is answered while a learner streams 29 MB batches.

A learner samples without a pause: over TCP, over the unix socket, both into the same arrays each time, and through
shared memory. Beside it a PING is sent every millisecond on a connection of its own. Then each learner is alone. Within
a round all of this comes once, with what NumPy's gather of the same blocks reaches in one process (the most that a
sampled batch can cost when nothing but its bytes is moved), so that a slow minute of the machine touches all of it.

The same PING is then sent beside a client that does one large batch after another: adds a million numbers, sets their
priorities, draws, reads or deletes them, appends steps, makes items of steps, or has a script reply a million numbers
(`large.add.…` and so on, with the longest turn of the server's loop).

With `--transport` it measures what bulk readers leave to a push and a PING, and to each other, over that transport
instead, in network namespaces: see `sharing`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import replay_server as rs
from replay_server.arguments import Parser
from replay_server.bench import result, sharing
from replay_server.bench.items import KINDS, ItemKind
from replay_server.connection import Address

WAYS = ("tcp", "unix", "shared")
"""How the learner's batches travel."""
LARGE = ("add", "update", "sample", "get", "delete", "append", "item", "script")
"""What is done with large batches: of items, and steps that are appended, items made of steps, numbers that a script
replies. Whoever deletes adds the items first, and whoever makes items appends their steps."""


# ---- the learner's process -------------------------------------------------------------------------------------------


def repeat(call: Callable[[], Any], seconds: float, shared: bool = False) -> int:
    """Calls for so long after the first line on its input; prints how many batches came in how many seconds."""
    print("ready", flush=True)
    if not sys.stdin.readline():
        return 1
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        call()
        count += 1
    elapsed = time.perf_counter() - begin
    print(json.dumps({"batches": count, "seconds": elapsed, "shared": shared}), flush=True)
    return 0


def learn(url: str, way: str, batch_size: int, seconds: float) -> int:
    """Samples one batch after the other."""
    with rs.Client(url, shared_memory=way == "shared") as client:
        batch = client.sample("bench", batch_size)

        def sample() -> None:
            nonlocal batch
            batch = client.sample("bench", batch_size, out=None if way == "shared" else batch)

        for _ in range(3):
            sample()
        return repeat(sample, seconds, batch.lease is not None)


KEPT = 65536
"""Steps of the longest history that a stream can have."""


def append(client: rs.Client, steps: int) -> None:
    """Appends so many steps of 64 bytes to one stream, the last of which ends an episode."""
    streams, flags = bytes(4 * steps), bytes(steps - 1) + b"\2"
    command = (
        "REPLAY.APPEND",
        "steps",
        steps,
        streams,
        flags,
        "HISTORY",
        KEPT,
        "COLUMNS",
        1,
        "frame",
        bytes(64 * steps),
    )
    client.redis.execute_command(*command)


def make_items(client: rs.Client, items: int, appended: int) -> None:
    """Makes items that see the last of the steps appended, each of them four."""
    numbers = np.arange(appended - items, appended, dtype=np.uint64).tobytes()
    client.redis.execute_command("REPLAY.ITEM", "steps", items, bytes(4 * items), numbers, b"", "COLUMNS", 0)


def do_large(url: str, command: str, items: int, seconds: float) -> int:
    """Does one large batch after the other."""
    values = {"x": np.zeros(items, np.float32)}
    priorities = np.random.default_rng(1).random(items) + 0.01
    with rs.Client(url) as client:
        client.reset("large")
        ids = client.add("large", values, priorities)
        appended = 0

        def append_and_make() -> None:
            nonlocal appended
            append(client, min(items, KEPT))
            appended += min(items, KEPT)
            make_items(client, min(items, KEPT), appended)

        script = f"local t = {{}} for i = 1, {items} do t[i] = i end return t"
        once: dict[str, Callable[[], Any]] = {
            "add": lambda: client.add("large", values, priorities),
            "update": lambda: client.update_priorities("large", ids, priorities),
            "sample": lambda: client.sample("large", items),
            "get": lambda: client.get("large", ids),
            "delete": lambda: client.delete("large", client.add("large", values, priorities)),
            "append": lambda: append(client, items),
            "item": append_and_make,
            "script": lambda: client.redis.eval(script, 0),
        }
        once[command]()
        return repeat(once[command], seconds)


class Worker:
    """A process that samples, or does large batches; started with `go`."""

    def __init__(self, *arguments: str, seconds: float, shared: bool = False) -> None:
        arguments += ("--seconds", str(seconds))
        self._shared = shared
        self._process = subprocess.Popen(
            [sys.executable, "-m", "replay_server.bench.fairness", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._line() != "ready":
            raise RuntimeError("the client beside did not start")

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def batches_per_s(self) -> float:
        """Waits for its end."""
        line = self._line()
        self._process.communicate(timeout=30)
        if not line:
            raise RuntimeError("the client beside failed")
        counted = json.loads(line)
        if counted["shared"] is not self._shared:
            raise RuntimeError("the learner's batches did not come through shared memory")
        return counted["batches"] / counted["seconds"]


# ---- measuring -------------------------------------------------------------------------------------------------------


def ping(url: str, seconds: float, interval_s: float = 0.001) -> dict[str, float]:
    """Round trips of a PING, in microseconds."""
    latencies = []
    with Address.parse(url).open_socket(5) as connection:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            begin = time.perf_counter_ns()
            connection.sendall(b"PING\r\n")
            if connection.recv(16) != b"+PONG\r\n":
                raise RuntimeError("a PING was not answered with PONG")
            latencies.append((time.perf_counter_ns() - begin) / 1e3)
            time.sleep(interval_s)
    return {f"ping_us_p{quantile:g}": float(np.percentile(latencies, quantile)) for quantile in (50, 99, 99.9)}


class Ceiling:
    """The table's bytes in this process, and the gather of a batch of them by NumPy, one memcpy an item."""

    def __init__(self, kind: ItemKind, capacity: int, batch_size: int) -> None:
        self._columns = list(kind.random(capacity, np.random.default_rng(1)).values())
        self._out = [np.empty((batch_size, *column.shape[1:]), column.dtype) for column in self._columns]
        self._generator = np.random.default_rng(2)

    def batches_per_s(self, seconds: float) -> float:
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            indices = self._generator.integers(0, len(self._columns[0]), len(self._out[0]))
            for column, out in zip(self._columns, self._out, strict=True):
                np.take(column, indices, axis=0, out=out, mode="clip")
            count += 1
        return count / (time.perf_counter() - begin)


def one_round(urls: dict[str, str], ceiling: Ceiling, batch_size: int, large: int, seconds: float) -> dict[str, float]:
    """Everything once: measurement, named way.what, → value."""
    measured = {f"idle.{name}": value for name, value in ping(urls["tcp"], seconds).items()}
    measured["memcpy.batches_per_s"] = ceiling.batches_per_s(seconds)
    for way in WAYS:
        arguments = ("--learner", urls[way], way, "--batch", str(batch_size))
        learner = Worker(*arguments, seconds=seconds, shared=way == "shared")
        learner.go()
        measured[f"{way}.batches_per_s"] = learner.batches_per_s()
        learner = Worker(*arguments, seconds=seconds + 0.5, shared=way == "shared")
        learner.go()
        measured |= {f"{way}.{name}": value for name, value in ping(urls["tcp"], seconds).items()}
        learner.batches_per_s()
    for command in LARGE:
        worker = Worker("--doing", urls["tcp"], command, "--large", str(large), seconds=seconds + 0.5)
        with rs.Client(urls["tcp"]) as client:
            client.redis.config_resetstat()
            worker.go()
            measured |= {f"large.{command}.{name}": value for name, value in ping(urls["tcp"], seconds).items()}
            measured[f"large.{command}.loop_turn_us_max"] = client.redis.info("stats")["loop_turn_us_max"]
        measured[f"large.{command}.batches_per_s"] = worker.batches_per_s()
    return {name: round(value, 2) for name, value in measured.items()}


def fill(client: rs.Client, kind: ItemKind, capacity: int) -> None:
    """Adds random items until the table is full."""
    generator = np.random.default_rng(1)
    block = kind.random(500, generator)
    for begin in range(0, capacity, 500):
        count = min(500, capacity - begin)
        client.add("bench", {name: array[:count] for name, array in block.items()}, generator.random(count) + 0.01)


def measure(options: argparse.Namespace, folder: str, say: Callable[[str], None]) -> list[dict[str, float]]:
    kind = KINDS["atari"]
    ceiling = Ceiling(kind, options.capacity, options.batch)
    rounds = []
    large = rs.Table("large", 2 * options.large, {"x": rs.Column("float32")})
    signature = {"frame": rs.Column("uint8", (64,), step_only=True), "seen": rs.Window("frame", length=4)}
    steps = rs.Table("steps", KEPT, signature)
    with rs.Server([kind.table(options.capacity), large, steps], unix=f"{folder}/fairness.sock") as server:
        assert server.unix_url is not None
        urls = {"tcp": server.url, "unix": server.unix_url, "shared": server.url}
        with rs.Client(server.url) as client:
            fill(client, kind, options.capacity)
        for number in range(options.rounds):
            measured = one_round(urls, ceiling, options.batch, options.large, options.seconds)
            rounds.append(measured)
            rates = "  ".join(f"{way} {measured[f'{way}.batches_per_s']:.0f}/s" for way in (*WAYS, "memcpy"))
            pings = "  ".join(f"{way} {measured[f'{way}.ping_us_p99'] / 1e3:.2f} ms" for way in ("idle", *WAYS))
            say(f"round {number + 1}/{options.rounds}  batches {rates}  ping p99 {pings}")
            beside = "  ".join(f"{what} {measured[f'large.{what}.ping_us_p99.9'] / 1e3:.2f} ms" for what in LARGE)
            say(f"           ping p99.9 beside batches of {options.large}: {beside}")
    return rounds


RATIOS = {f"{way} / memcpy": (f"{way}.batches_per_s", "memcpy.batches_per_s") for way in WAYS}


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    parser = Parser("replay-server bench fairness", description=__doc__)
    parser.add_argument("--batch", type=int, default=512, help="items a sampled batch (512 Atari transitions: 29 MB)")
    parser.add_argument("--capacity", type=int, default=8000, help="items in the table (8000: 450 MB)")
    parser.add_argument("--large", type=int, default=1 << 20, help="numbers in a large batch (1048576)")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds that each thing is timed (3)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of everything (3)")
    parser.add_argument(
        "--transport", nargs="+", choices=sharing.TRANSPORTS, help="what bulk readers leave to others over these"
    )
    parser.add_argument("--device", choices=sharing.DEVICES, help="of transports in user space (af_xdp as root)")
    parser.add_argument("--readers", type=int, nargs="+", default=[1, 4, 16], help="bulk readers (1 4 16)")
    parser.add_argument("--push", type=int, default=50, help="transitions in a push (50: 2.8 MB)")
    parser.add_argument("--push-every-s", type=float, default=0.02, help="from a push's end to the next (0.02)")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--learner", nargs=2, metavar=("URL", "WAY"), help=argparse.SUPPRESS)
    parser.add_argument("--doing", nargs=2, metavar=("URL", "COMMAND"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.doing:
        url, command = options.doing
        return do_large(url, command, options.large, options.seconds)
    if options.learner:
        url, way = options.learner
        return learn(url, way, options.batch, options.seconds)
    if options.transport:
        return sharing.main(options, argv, say)
    host = result.machine()
    rounds = measure(options, folder, say)
    settings = {name: getattr(options, name) for name in ("batch", "capacity", "large", "seconds", "rounds", "json")}
    content: dict[str, Any] = result.document(
        "fairness", " ".join(["replay-server bench fairness", *argv]), host, settings, rounds, RATIOS
    )
    result.tell(content, say)
    if options.json:
        result.write(options.json, content)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
