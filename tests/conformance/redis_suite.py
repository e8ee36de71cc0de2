"""Redis's own test suite, as its authors wrote it, against this server.

    REDIS_SOURCE=redis-7.0.15 python tests/conformance/redis_suite.py              all that can run
    REDIS_SOURCE=redis-7.0.15 python tests/conformance/redis_suite.py unit/multi   these files
    REDIS_SOURCE=redis-7.0.15 python tests/conformance/redis_suite.py --record     all, on Redis as well

REDIS_SOURCE is the folder of an unpacked Redis 7.0 source tree, of which only `tests` is read. Nothing in it is
changed: the suite runs in a copy, with a fresh server for each file, as against any server that is already running
(`--host`, `--port`). It needs `tclsh`. The suite skips by itself what needs a server that it may start and stop.
`--redis` runs it against `redis-server` instead. `--record` leaves what came of both in
docs/benchmarks/redis-suite.json, from which compatibility.py writes a table.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis

import replay_server as rs

SOURCE = "REDIS_SOURCE"
VERSION = "7.0"

RECORD = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "redis-suite.json"

FILES = [
    "unit/dump",
    "unit/protocol",
    "unit/keyspace",
    "unit/scan",
    "unit/info-command",
    "unit/type/string",
    "unit/type/incr",
    "unit/type/list",
    "unit/type/list-2",
    "unit/type/list-3",
    "unit/type/set",
    "unit/type/zset",
    "unit/type/hash",
    "unit/type/stream",
    "unit/type/stream-cgroups",
    "unit/sort",
    "unit/expire",
    "unit/other",
    "unit/multi",
    "unit/quit",
    "unit/latency-monitor",
    "integration/replication-buffer",
    "integration/redis-cli",
    "unit/pubsub",
    "unit/slowlog",
    "unit/scripting",
    "unit/functions",
    "unit/introspection",
    "unit/introspection-2",
    "unit/bitops",
    "unit/bitfield",
    "unit/geo",
    "unit/hyperloglog",
    "unit/lazyfree",
    "unit/pause",
    "unit/querybuf",
    "unit/tracking",
    "unit/violations",
    "unit/replybufsize",
]
"""Those of which at least one test runs against a server that the suite did not start."""

OPTIONS = ["--singledb", "--ignore-encoding", "--durable"]
FILE_TIMEOUT_S = 600
START_TIMEOUT_S = 60.0
FOLDER = "redis-suite-server-"


class NotHere(Exception):
    """The suite cannot run here; the message says why."""


@dataclasses.dataclass
class Result:
    """What one file of the suite came to."""

    unit: str
    ok: int
    failed: list[str]
    skipped: int
    ended: str
    """How the file ended: "" = it was run to its end."""

    @property
    def row(self) -> str:
        return f"{self.unit:<28} {self.ok:>5} {len(self.failed):>5} {self.skipped:>5}  {self.ended}".rstrip()


def find_source() -> Path:
    """The Redis source tree that the environment names. Raises NotHere."""
    named = os.environ.get(SOURCE)
    if not named:
        raise NotHere(f"{SOURCE} names no source tree of Redis {VERSION}: apt-get source redis")
    tree = Path(named).resolve()
    version = re.search(r'REDIS_VERSION "([^"]*)"', _text(tree / "src" / "version.h"))
    if not (tree / "tests" / "test_helper.tcl").is_file() or version is None or not version[1].startswith(VERSION):
        raise NotHere(f"{SOURCE}={named} is no source tree of Redis {VERSION}")
    if shutil.which("tclsh") is None:
        raise NotHere("the suite needs tclsh: apt-get install tcl")
    return tree


def _text(file: Path) -> str:
    return file.read_text() if file.is_file() else ""


@contextlib.contextmanager
def _copy(source: Path) -> Iterator[Path]:
    """A folder that the suite takes for Redis's own: its tests, and the programs that some of them start."""
    with tempfile.TemporaryDirectory(prefix="redis-suite-") as folder:
        copy = Path(folder)
        shutil.copytree(source / "tests", copy / "tests", symlinks=True)
        (copy / "tests" / "tmp").mkdir(exist_ok=True)
        (copy / "src").mkdir()
        for program in ("redis-cli", "redis-benchmark"):
            if found := shutil.which(program):
                (copy / "src" / program).symlink_to(found)
        yield copy


@dataclasses.dataclass
class Tested:
    """A server that a file runs against."""

    port: int
    why_ended: Callable[[], str]
    """Why it is not running any more; "" = it is."""


@contextlib.contextmanager
def ours() -> Iterator[Tested]:
    config = {"enable-debug-command": "yes"}
    with (
        tempfile.TemporaryDirectory(prefix=FOLDER) as directory,
        rs.Server(directory=directory, config=config) as server,
    ):
        port = int(server.url.rpartition(":")[2])
        yield Tested(port, lambda: "" if server.running else server.log()[-500:] or "without a word")


@contextlib.contextmanager
def theirs() -> Iterator[Tested]:
    """`redis-server`, with all else as in its own configuration."""
    with tempfile.TemporaryDirectory(prefix=FOLDER) as directory:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        command = ["redis-server", "--port", str(port), "--dir", directory, "--enable-debug-command", "yes"]
        with open(Path(directory) / "log", "w+") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            _wait_for(port)
            yield Tested(port, lambda: "" if process.poll() is None else f"with status {process.returncode}")
        finally:
            process.terminate()
            process.wait()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    with redis.Redis(port=port) as client:
        while True:
            try:
                client.ping()
                return
            except redis.ConnectionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


Start = Callable[[], contextlib.AbstractContextManager[Tested]]


def run_files(source: Path, units: list[str], start: Start = ours) -> Iterator[Result]:
    """Runs these files one after the other, each against a server of its own."""
    with _copy(source) as folder:
        for unit in units:
            with start() as server:
                yield _run_file(folder, unit, server)


def _run_file(folder: Path, unit: str, server: Tested) -> Result:
    base = 20000 + os.getpid() % 20000  # two runs at once take different ports for their own talk
    command = [
        "tclsh",
        "tests/test_helper.tcl",
        "--host",
        "127.0.0.1",
        "--port",
        str(server.port),
        "--baseport",
        str(base),
    ]
    environment = {**os.environ, "TERM": "dumb", "LC_ALL": "C"}
    with open(folder / "output", "w+", errors="replace") as output:
        process = subprocess.Popen(
            [*command, *OPTIONS, "--single", unit], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        ended = ""
        try:
            process.wait(timeout=FILE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            ended = f"given up after {FILE_TIMEOUT_S} s"
        finally:
            with contextlib.suppress(ProcessLookupError):  # it, and what it has started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        text = output.read()
    if not ended and "\n                   The End\n" not in text:
        ended = "broke off: " + " ".join(text.strip().splitlines()[-3:])[:200]
    if why := server.why_ended():
        ended = f"the server ended: {why}"
    return Result(
        unit,
        ok=len(re.findall(r"^\[ok\]: ", text, re.MULTILINE)),
        failed=re.findall(r"^\[err\]: (.*(?:\n(?!\[).*){0,3})", text, re.MULTILINE),
        skipped=len(re.findall(r"^\[(?:skip|ignore)\]: ", text, re.MULTILINE)),
        ended=ended,
    )


def _run_and_print(source: Path, units: list[str], start: Start) -> list[Result]:
    results = []
    print(f"{'file':<28} {'ok':>5} {'err':>5} {'skip':>5}")
    for result in run_files(source, units, start):
        print(result.row, flush=True)
        for failure in result.failed:
            print("    " + failure.strip().replace("\n", "\n      "), flush=True)
        results.append(result)
    failed = [failure for result in results for failure in result.failed]
    print(Result("sum", sum(r.ok for r in results), failed, sum(r.skipped for r in results), "").row)
    return results


def _recorded(result: Result) -> dict[str, Any]:
    failed = [" ".join(failure.split())[:300] for failure in result.failed]
    return {"passed": result.ok, "skipped": result.skipped, "failed": failed, "ended": result.ended}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("units", nargs="*", default=FILES)
    parser.add_argument("--redis", action="store_true", help="against redis-server")
    parser.add_argument("--record", action="store_true", help=f"against both, recorded in {RECORD.name}")
    options = parser.parse_args()
    try:
        source = find_source()
    except NotHere as error:
        print(error, file=sys.stderr)
        return 2
    sides: dict[str, Start] = {"ours": ours} if not options.redis else {}
    if options.redis or options.record:
        sides["redis"] = theirs
    results = {side: _run_and_print(source, options.units, start) for side, start in sides.items()}
    if options.record:
        record = {
            "name": "redis-suite",
            "time": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
            "command": "python tests/conformance/redis_suite.py --record",
            "source": re.findall(r'REDIS_VERSION "([^"]*)"', _text(source / "src" / "version.h"))[0],
            "options": OPTIONS,
            "files": {side: {r.unit: _recorded(r) for r in files} for side, files in results.items()},
        }
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if any(result.failed or result.ended for files in results.values() for result in files) else 0


if __name__ == "__main__":
    sys.exit(main())
