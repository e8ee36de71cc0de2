"""`replay-server bench store`: this store and Redis side by side, by redis-benchmark's tests.

Both servers run on the same processor, one of them stopped while the other has its turn, and each test is run on both
before the next begins. Beside requests a second, which the client limits where processors are few, stands what the
server's own processor time buys: requests per second of user and system time of all its threads. `client_cpu_share` is
the share of its processor that redis-benchmark took: near 1 no server can be faster. Memory per key, or per
entry of a stream, is that of the whole process, over hundreds of thousands of them.
"""

from __future__ import annotations

import contextlib
import csv
import math
import os
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

import replay_server as rs
from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.load import cpu_seconds, resident_bytes
from replay_server.bench.process import end_process
from replay_server.bench.sides import Waker, processors

OURS, REDIS = "replay", "redis"
CLIENTS = 50
DATA_BYTES = 64
KEYSPACE = 100_000
VALUES_BYTES = 52_000_000
"""Of large values there are fewer keys, so that they take no more than this, or 50 keys."""
LARGE_BYTES = 1 << 20
WEIGHTS_BYTES = 13_000_000
WEIGHTS_READERS = 8
LIST = "mylist"
LIST_ITEMS = 600
HASH = "myhash"
HASH_FIELDS = 20
PLACES = "places"
STREAM = "events"
GROUP = "readers"
FUNCTION = "add"
LIBRARY = f"""#!lua name=bench
redis.register_function('{FUNCTION}', function(keys, arguments) return redis.call('INCRBY', keys[1], arguments[1]) end)
"""
RANDOM = "__rand_int__"
"""What redis-benchmark puts a number of twelve digits in place of."""
KEY_COUNT = 200_000
PORTION = 1000
"""Keys that are set in one go where memory is measured."""


@dataclass(frozen=True)
class Test:
    """One load of redis-benchmark.

    Attributes:
        command: what redis-benchmark is told to do.
        requests: without a pipeline; with one there are four times as many.
        heavy: mostly work in proportion to what is sent, rather than work for each request.
    """

    name: str
    command: tuple[str, ...]
    requests: int = 100_000
    clients: int = CLIENTS
    data_bytes: int = DATA_BYTES
    heavy: bool = False
    pipelined: bool = True


def _usual(*names: str) -> list[Test]:
    return [Test(name, ("-t", name)) for name in names]


def _range(items: int) -> Test:
    command = ("LRANGE", LIST, "0", str(items - 1))
    return Test(f"lrange_{items}", command, requests=max(5000, 3_000_000 // items), heavy=True)


TESTS = [
    *_usual(
        "ping_inline", "ping_mbulk", "set", "get", "incr", "lpush", "rpush", "lpop", "rpop", "sadd", "hset", "spop"
    ),
    *_usual("zadd", "zpopmin"),
    *(_range(items) for items in (100, 300, 500, 600)),
    Test("pfadd", ("PFADD", "sketch:__rand_int__", "element:__rand_int__")),
    Test("pfadd_dense", ("PFADD", "sketch", "element:__rand_int__")),
    Test("geoadd", ("GEOADD", PLACES, "__rand_int__e-3", "12.5", "place:__rand_int__")),
    Test(
        "geosearch",
        ("GEOSEARCH", PLACES, "FROMLONLAT", "50", "12.5", "BYRADIUS", "50", "km", "COUNT", "10"),
        requests=20_000,
        heavy=True,
    ),
    Test("dump", ("DUMP", HASH)),
    Test("xadd", ("XADD", STREAM, "*", "number", "__rand_int__")),
    Test("xrange_100", ("XRANGE", STREAM, "-", "+", "COUNT", "100"), requests=30_000, heavy=True),
    Test(
        "xreadgroup",
        ("XREADGROUP", "GROUP", GROUP, "one", "COUNT", "1", "STREAMS", STREAM, ">"),
        requests=25_000,
    ),
    Test("fcall", ("FCALL", FUNCTION, "1", "counter:__rand_int__", "1")),
    Test("mset", ("-t", "mset"), requests=50_000, heavy=True),
    Test("set_1mb", ("-t", "set"), 3000, data_bytes=LARGE_BYTES, heavy=True, pipelined=False),
    Test("get_1mb", ("GET", "large"), 6000, heavy=True, pipelined=False),
    Test("weights_13mb", ("GET", "weights"), 400, WEIGHTS_READERS, heavy=True, pipelined=False),
]
"""Every test of redis-benchmark, one command each; sketches, places, dumps, streams and functions; and large values."""

BY_NAME = {test.name: test for test in TESTS}
VALUES = {"integer": b"123456", "8b": b"valuexyz", "64b": b"x" * 64}
"""What keys hold where memory is measured."""
ENTRIES = "stream"
"""Not keys but entries of one stream, where memory is measured."""


class Side:
    """One of the two servers, stopped but for its turns. A context manager.

    Its files lie in a folder of its name in `folder`; `config` are settings, by the names that both have for them.
    """

    def __init__(
        self,
        name: str,
        folder: str,
        server_processor: int,
        client_processor: int,
        config: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        own = Path(folder) / name
        own.mkdir(exist_ok=True)
        self._client_processor = client_processor
        self._stack = contextlib.ExitStack()
        try:
            if name == REDIS:
                self.port, self.pid = self._start_redis(own, config or {})
            else:
                config = {"proto-max-bulk-len": str(512 << 20), **(config or {})}
                server = self._stack.enter_context(rs.Server([], directory=own, config=config))
                self.port, self.pid = int(server.url.rpartition(":")[2]), server.pid
            for task in Path(f"/proc/{self.pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), {server_processor})
            self.client = redis.Redis(port=self.port, socket_timeout=60)
            self._stack.callback(self.client.close)
            self._wait_until_ready()
            told: Any = self.client.info("server")
            self.version = str(told["redis_version" if name == REDIS else "replay_server_version"])
            self._stack.callback(os.kill, self.pid, signal.SIGCONT)
            self._stack.callback(Waker(self.pid).dismiss)
            os.kill(self.pid, signal.SIGSTOP)
        except BaseException:
            self._stack.close()
            raise

    def _start_redis(self, folder: Path, config: Mapping[str, str]) -> tuple[int, int]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = {"port": str(port), "save": "", "appendonly": "no", "dir": str(folder), **config}
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        process = subprocess.Popen(["redis-server", *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self._stack.callback(end_process, process)
        return port, process.pid

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + 20
        while True:
            try:
                self.client.ping()
                return
            except redis.ConnectionError:
                if time.monotonic() > end:
                    raise RuntimeError(f"{self.name} did not answer in 20 s") from None
                time.sleep(0.02)

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        os.kill(self.pid, signal.SIGCONT)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGSTOP)

    def prepare(self, test: Test) -> None:
        """An empty store, but for what the test reads or replaces."""
        self.client.flushall()
        if LIST in test.command:
            self.client.rpush(LIST, *([b"x" * DATA_BYTES] * LIST_ITEMS))
        if HASH in test.command:
            self.client.hset(HASH, mapping={f"field:{at}": f"value:{at * at}" for at in range(HASH_FIELDS)})
        if test.name == "geosearch":
            self.load(BY_NAME["geoadd"], 16, KEYSPACE)
        if STREAM in test.command and test.name != "xadd":
            self.load(BY_NAME["xadd"], 16, KEYSPACE)
        if GROUP in test.command:
            self.client.xgroup_create(STREAM, GROUP, id="0")
        if FUNCTION in test.command:
            self.client.function_load(LIBRARY, replace=True)
        if "large" in test.command:
            self.client.set("large", b"x" * LARGE_BYTES)
        if "weights" in test.command:
            self.client.set("weights", b"x" * WEIGHTS_BYTES)
        if test.data_bytes > DATA_BYTES:  # so that the memory is there, as in a server that has run for a while
            self.load(test, 1, 4 * CLIENTS)
        if test.name in ("get", "lpop", "rpop", "spop", "zpopmin"):
            fill = {"get": "set", "lpop": "lpush", "rpop": "lpush", "spop": "sadd", "zpopmin": "zadd"}[test.name]
            self.load(Test(fill, ("-t", fill)), 16, 2 * KEYSPACE)

    def load(self, test: Test, pipeline: int, requests: int) -> dict[str, str]:
        """What redis-benchmark says of one run."""
        command = ["taskset", "--cpu-list", str(self._client_processor), "redis-benchmark", "--csv"]
        options = {"-p": self.port, "-c": test.clients, "-n": requests, "-P": pipeline, "-d": test.data_bytes}
        if test.command[0] == "-t" or any(RANDOM in word for word in test.command):
            options["-r"] = min(KEYSPACE, max(50, VALUES_BYTES // test.data_bytes))
        command += [str(word) for pair in options.items() for word in pair]
        done = subprocess.run([*command, *test.command], capture_output=True, text=True, timeout=600)
        rows = list(csv.DictReader(done.stdout.splitlines()))
        if done.returncode != 0 or not rows:
            raise RuntimeError(f"redis-benchmark {' '.join(test.command)} failed: {done.stderr or done.stdout}")
        return rows[-1]

    def turn(self, test: Test, pipeline: int, requests: int) -> dict[str, float]:
        """One measurement of one test."""
        with self.awake():
            self.prepare(test)
            before, client_before, began = cpu_seconds(self.pid), _children_cpu_s(), time.perf_counter()
            row = self.load(test, pipeline, requests)
            cpu_s = cpu_seconds(self.pid) - before
            client_share = (_children_cpu_s() - client_before) / (time.perf_counter() - began)
        return {
            "requests_per_s": float(row["rps"]),
            "requests_per_cpu_s": round(requests / cpu_s, 1),
            "latency_us_p50": float(row["p50_latency_ms"]) * 1000,
            "latency_us_p99": float(row["p99_latency_ms"]) * 1000,
            "client_cpu_share": round(client_share, 3),
        }

    def bytes_each(self, kind: str, count: int) -> float:
        """Resident memory that each of so many takes, in a store that was never filled before.

        They are keys of 16 bytes with one of VALUES, or entries of a stream with a field of 5 bytes and a value of 8.
        """
        with self.awake(), socket.create_connection(("127.0.0.1", self.port)) as connection:
            before = resident_bytes(self.pid)
            replies = connection.makefile("rb")
            for first in range(0, count, PORTION):
                requests = [memory_request(kind, at) for at in range(first, min(first + PORTION, count))]
                connection.sendall(b"".join(request for request, _ in requests))
                expected = b"".join(reply for _, reply in requests)
                if replies.read(len(expected)) != expected:
                    raise RuntimeError(f"{self.name} did not store all that was sent")
            return (resident_bytes(self.pid) - before) / count

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def memory_request(kind: str, at: int) -> tuple[bytes, bytes]:
    """What stores the one with this number, and its reply."""
    if kind == ENTRIES:
        entry_id = b"%d-0" % (at + 1)
        entry = b"$%d\r\n%s\r\n" % (len(entry_id), entry_id)
        return b"*5\r\n$4\r\nXADD\r\n$6\r\nstream\r\n" + entry + b"$5\r\nfield\r\n$8\r\nvaluexyz\r\n", entry
    value = VALUES[kind]
    return b"*3\r\n$3\r\nSET\r\n$16\r\nkey:%012d\r\n$%d\r\n%s\r\n" % (at, len(value), value), b"+OK\r\n"


def _children_cpu_s() -> float:
    """Processor seconds of child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def summary(measured: dict[str, float], tests: Sequence[Test], pipelines: Sequence[int]) -> dict[str, float]:
    """Geometric means of this store over Redis, by pipeline; of processor time for heavy tests and for light ones."""
    found: dict[str, float] = {}
    for pipeline in pipelines:
        for what, heavy in (("requests_per_s", None), ("requests_per_cpu_s", False), ("requests_per_cpu_s", True)):
            ratios = [
                measured[f"{test.name}.P{pipeline}.{OURS}.{what}"] / measured[f"{test.name}.P{pipeline}.{REDIS}.{what}"]
                for test in tests
                if test.pipelined and heavy in (None, test.heavy)
            ]
            label = "" if heavy is None else ".heavy" if heavy else ".light"
            if ratios:
                found[f"geometric_mean{label}.P{pipeline}.{what}_ratio"] = round(geometric_mean(ratios), 4)
    return found


def ratios(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """This store over Redis, of every measurement that both have."""
    return {
        name.replace(f".{OURS}.", "."): (name, name.replace(f".{OURS}.", f".{REDIS}."))
        for name in names
        if f".{OURS}." in name and not name.endswith("client_cpu_share")
    }


def measure(
    sides: Sequence[Side],
    tests: Sequence[Test],
    pipelines: Sequence[int],
    rounds: int,
    scale: float,
    say: Callable[[str], None],
) -> list[dict[str, float]]:
    """All rounds: measurement, named test.pipeline.side.what, → value. Another side is first in each."""
    found: list[dict[str, float]] = []
    for number in range(rounds):
        order = [*sides[number % len(sides) :], *sides[: number % len(sides)]]
        measured: dict[str, float] = {}
        for test in tests:
            for pipeline in pipelines if test.pipelined else [1]:
                requests = max(100, int(test.requests * scale * (4 if pipeline > 1 else 1)))
                for side in order:
                    values = side.turn(test, pipeline, requests)
                    measured |= {f"{test.name}.P{pipeline}.{side.name}.{what}": v for what, v in values.items()}
                ours, theirs = (f"{test.name}.P{pipeline}.{side}." for side in (OURS, REDIS))
                say(
                    f"round {number + 1}/{rounds} {test.name:12} -P {pipeline:<3}"
                    f" {measured[ours + 'requests_per_s']:11,.0f}/s"
                    f" ({measured[ours + 'requests_per_s'] / measured[theirs + 'requests_per_s']:.2f} of Redis),"
                    f" {measured[ours + 'requests_per_cpu_s']:11,.0f} per CPU s"
                    f" ({measured[ours + 'requests_per_cpu_s'] / measured[theirs + 'requests_per_cpu_s']:.2f}),"
                    f" p99 {measured[ours + 'latency_us_p99']:,.0f} and {measured[theirs + 'latency_us_p99']:,.0f} µs"
                )
        measured |= summary(measured, tests, pipelines)
        found.append(measured)
    return found


def measure_memory(folder: str, keys: int) -> dict[str, float]:
    """Bytes a key, or an entry of a stream, of a fresh server for each kind."""
    found = {}
    for kind in (*VALUES, ENTRIES):
        what = "bytes_per_entry" if kind == ENTRIES else "bytes_per_key"
        for side_name in (OURS, REDIS):
            with Side(side_name, folder, *processors()) as side:
                found[f"memory_{kind}.{side_name}.{what}"] = round(side.bytes_each(kind, keys), 1)
    return found


def main(argv: list[str], folder: str, say: Callable[[str], None] = print) -> int:
    parser = Parser("replay-server bench store", description=__doc__)
    parser.add_argument("--tests", nargs="+", choices=sorted(BY_NAME), help="only these")
    parser.add_argument("--pipelines", type=int, nargs="+", default=[1, 16], help="requests sent at a time (1 16)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all tests (3)")
    parser.add_argument("--scale", type=float, default=1.0, help="times as many requests (1)")
    parser.add_argument(
        "--keys",
        type=int,
        default=KEY_COUNT,
        help=f"keys, and entries of a stream, for the memory of one ({KEY_COUNT}; 0: skip)",
    )
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    options = parser.parse_args(argv)
    for program in ("redis-server", "redis-benchmark", "taskset"):
        if shutil.which(program) is None:
            raise RuntimeError(f"needs {program}: apt-get install redis util-linux")
    host = result.machine()
    tests = [BY_NAME[name] for name in options.tests] if options.tests else TESTS
    server_processor, client_processor = processors()
    with contextlib.ExitStack() as stack:
        sides = [stack.enter_context(Side(name, folder, server_processor, client_processor)) for name in (OURS, REDIS)]
        versions = {side.name: side.version for side in sides}
        rounds = measure(sides, tests, options.pipelines, options.rounds, options.scale, say)
    for measured in rounds if options.keys else ():
        measured |= measure_memory(folder, options.keys)
    settings = {
        **vars(options),
        "versions": versions,
        "clients": CLIENTS,
        "data_bytes": DATA_BYTES,
        "keyspace": KEYSPACE,
    }
    content = result.document(
        "store", " ".join(["replay-server bench store", *argv]), host, settings, rounds, ratios(list(rounds[0]))
    )
    result.tell(content, say, width=52)
    if options.json:
        result.write(options.json, content)
    return 0
