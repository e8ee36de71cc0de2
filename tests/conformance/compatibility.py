"""Writes docs/compatibility.md: which commands of Redis 7.0 are here, as both servers say, and which of them the
differential tests compared, as a run of them says.

    python tests/conformance/compatibility.py        runs the tests of this folder and writes the document
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis
from differences import BEYOND, DIFFERENCES, LEFT_OPEN, NOT_WANTED, SUITE
from redis_suite import RECORD as SUITE_RECORD

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
DOCUMENT = REPOSITORY / "docs" / "compatibility.md"
RECORD = "CONFORMANCE_RECORD"
"""Environment variable: the file that a run of the tests leaves the names of the compared commands in."""

FAMILIES = {
    "string": "Strings",
    "bitmap": "Bits",
    "list": "Lists",
    "hash": "Hashes",
    "set": "Sets",
    "sorted-set": "Sorted sets",
    "generic": "Keys",
    "transactions": "Transactions",
    "scripting": "Scripts",
    "pubsub": "Publishing and subscribing",
    "connection": "Connections",
    "server": "Server",
    "hyperloglog": "HyperLogLog",
    "geo": "Geo",
    "stream": "Streams",
    "cluster": "Cluster",
    "sentinel": "Sentinel",
}


def documented(client: redis.Redis) -> dict[str, str]:
    """Commands and subcommands (``config|get``) of a server, each with its family."""
    found: dict[str, str] = {}
    for name, docs in _pairs(client.execute_command("COMMAND DOCS")).items():
        told = _pairs(docs)
        found[name] = told["group"].decode()
        for subcommand in _pairs(told.get("subcommands", [])):
            found[subcommand] = found[name]
    return found


def _pairs(flat: Any) -> dict[str, Any]:
    if isinstance(flat, Mapping):
        return {_text(name): value for name, value in flat.items()}
    return {_text(flat[at]): flat[at + 1] for at in range(0, len(flat), 2)}


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def write(theirs: Mapping[str, str], ours: Mapping[str, str], compared: set[str]) -> str:
    """The document."""
    lines = [
        "# What of Redis is here",
        "",
        "`python tests/conformance/compatibility.py` wrote this page from two sources: the lists of `COMMAND DOCS` of",
        "Redis 7.0.15 and of this server, and a run of the tests that send the same commands to both, over RESP2 and",
        "RESP3. **Compared** commands got the same replies in those tests. Commands listed as **here** are tested, but",
        "without a real Redis beside them. Known differences stand below each family.",
        "",
        "## Left open by the comparison",
        "",
        *(f"- {text}" for text in LEFT_OPEN),
        "",
    ]
    for family, title in FAMILIES.items():
        names = sorted(name for name, group in theirs.items() if group == family)
        if not names:
            continue
        here = [name for name in names if name in ours]
        lines += [f"## {title}", ""]
        lines += _listed("Compared", [name for name in here if name in compared])
        lines += _listed("Here", [name for name in here if name not in compared])
        lines += _listed("Not here", [name for name in names if name not in ours])
        if family in NOT_WANTED:
            lines += [NOT_WANTED[family], ""]
        told = [(name, DIFFERENCES[name]) for name in names if name in DIFFERENCES]
        lines += [f"- `{_shown(name)}`: {text}" for name, text in told]
        if told:
            lines.append("")
    own = sorted(name for name in ours if name not in theirs)
    lines += ["## Beyond Redis", "", BEYOND, ""]
    lines += _listed("Here", own)
    lines += suite(json.loads(SUITE_RECORD.read_text()))
    return "\n".join(lines).rstrip() + "\n"


def suite(record: Mapping[str, Any]) -> list[str]:
    """What came of Redis's own tests. Raises ValueError for a failure whose reason differences.py does not tell."""
    ours, theirs = record["files"]["ours"], record["files"]["redis"]
    lines = [
        "## Redis's own tests",
        "",
        f"The test suite of Redis {record['source']}, unchanged, against a server that is already running "
        f"(`{' '.join(record['options'])}`)",
        "with `enable-debug-command yes`. These are all files of which at least one test runs so. The others start",
        "servers of their own, by Redis's command line. One test of `type/string` runs only if the allocator is",
        "jemalloc.",
        f"[All that was recorded](benchmarks/{SUITE_RECORD.name}); `{record['command']}` does it again.",
        "",
        "| file | passed on Redis | passed here | failed here |",
        "|---|---|---|---|",
    ]
    rows = {unit: (theirs[unit]["passed"], told["passed"], len(told["failed"])) for unit, told in ours.items()}
    rows["all"] = tuple(sum(row[at] for row in rows.values()) for at in range(3))
    lines += [f"| {unit.removeprefix('unit/')} | {' | '.join(f'{n:,}' for n in row)} |" for unit, row in rows.items()]
    reasons = dict.fromkeys((why for _, why in SUITE), 0)
    for failure in (failure for told in ours.values() for failure in told["failed"]):
        reasons[_reason(failure)] += 1
    lines += ["", "What fails:", "", *(f"- {count}: {why}" for why, count in reasons.items() if count), ""]
    return lines


def _reason(failure: str) -> str:
    for part, why in SUITE:
        if part in failure:
            return why
    raise ValueError(f"say in differences.py why this fails: {failure}")


def _listed(title: str, names: list[str]) -> list[str]:
    return [f"**{title}**: " + ", ".join(f"`{_shown(name)}`" for name in names) + ".", ""] if names else []


def _shown(name: str) -> str:
    return name.upper().replace("|", " ")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "compared.json"
        outdated = HERE / "test_compatibility.py"  # about the document that is to be written
        tests = [sys.executable, "-m", "pytest", "-q", str(HERE), f"--ignore={outdated}"]
        status = subprocess.run(tests, env={**os.environ, RECORD: str(record)}).returncode
        if status != 0:
            print("tests failed: the document is as it was", file=sys.stderr)
            return 1
        told = json.loads(record.read_text())
    DOCUMENT.write_text(write(told["theirs"], told["ours"], set(told["compared"])))
    print(DOCUMENT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
