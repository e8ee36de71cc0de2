"""Redis's own test suite, as its authors wrote it, against this server.

    REDIS_SOURCE=redis-7.0.15 python tests/conformance/redis_suite.py              the core: strings to SORT
    REDIS_SOURCE=redis-7.0.15 python tests/conformance/redis_suite.py unit/multi   these files

REDIS_SOURCE is the folder of an unpacked Redis 7.0 source tree, of which only `tests` is read. Nothing in it is
changed: the suite runs in a copy, with a fresh server for each file, as against any server that is already running
(`--host`, `--port`). It needs `tclsh`. The suite skips by itself what needs a server that it may start and stop.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import replay_server as rs

SOURCE = "REDIS_SOURCE"
VERSION = "7.0"

CORE = [
    "unit/type/string",
    "unit/type/list",
    "unit/type/list-2",
    "unit/type/list-3",
    "unit/type/hash",
    "unit/type/set",
    "unit/type/zset",
    "unit/keyspace",
    "unit/expire",
    "unit/scan",
    "unit/bitops",
    "unit/bitfield",
    "unit/sort",
]
"""Types and generic commands. The rest of the suite is about what is documented as absent, or its own set-up."""

OPTIONS = ["--singledb", "--ignore-encoding", "--durable"]
FILE_TIMEOUT_S = 600


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


def run_files(source: Path, units: list[str]) -> Iterator[Result]:
    """Runs these files one after the other, each against a server of its own."""
    with _copy(source) as folder:
        for unit in units:
            with tempfile.TemporaryDirectory(prefix="redis-suite-server-") as directory:
                config = {"enable-debug-command": "yes"}
                with rs.Server(directory=directory, config=config) as server:
                    yield _run_file(folder, unit, server)


def _run_file(folder: Path, unit: str, server: rs.Server) -> Result:
    port = server.url.rpartition(":")[2]
    base = 20000 + os.getpid() % 20000  # two runs at once take different ports for their own talk
    command = ["tclsh", "tests/test_helper.tcl", "--host", "127.0.0.1", "--port", port, "--baseport", str(base)]
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
    if not server.running:
        ended = f"the server ended: {server.log()[-500:]}"
    return Result(
        unit,
        ok=len(re.findall(r"^\[ok\]: ", text, re.MULTILINE)),
        failed=re.findall(r"^\[err\]: (.*(?:\n(?!\[).*){0,3})", text, re.MULTILINE),
        skipped=len(re.findall(r"^\[(?:skip|ignore)\]: ", text, re.MULTILINE)),
        ended=ended,
    )


def main(arguments: list[str]) -> int:
    try:
        source = find_source()
    except NotHere as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{'file':<28} {'ok':>5} {'err':>5} {'skip':>5}")
    total = Result("sum", 0, [], 0, "")
    for result in run_files(source, arguments or CORE):
        print(result.row, flush=True)
        for failure in result.failed:
            print("    " + failure.strip().replace("\n", "\n      "), flush=True)
        total.ok += result.ok
        total.failed += result.failed
        total.skipped += result.skipped
    print(total.row)
    return 0 if not total.failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
