"""`replay-server bench invocations`: what it costs the orchestrator to have 1,000 functions under way at a time.

A service on loopback stands for the platform. It speaks HTTP over TLS, as CloudEvents and as AWS Lambda's Invoke API,
and answers a round's invocations only once all of them are there. Each side calls it from a process of its own, which
tells its processor time and its memory:

`uvloop` is the product: all invocations of a platform on one event loop, over connections that are kept. `asyncio` is
the same on Python's own event loop. `threads` has a thread for each invocation, over HTTP with a connection and a
handshake for each; through botocore's blocking client it has two threads each, over connections that are kept.

A round before those that count opens what is kept. Memory is the process's at its peak, less what it had when its
platform was made. The service's own processor time is not in any figure, but on few cores it slows the wall clock.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.environments import PROGRAMS

PLATFORMS = ("http", "lambda")
WAYS = ("uvloop", "asyncio", "threads")
TIMEOUT_S = 600.0


def make_certificate(folder: str) -> str:
    """A file with a key and a certificate of 127.0.0.1."""
    done = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "-", "-out", "-"],
        check=True, capture_output=True,
    )  # fmt: skip
    file = Path(folder) / "certificate.pem"
    file.write_bytes(done.stdout)
    return str(file)


def measure_side(certificate: str, platform: str, way: str, invocations: int, rounds: int) -> dict[str, Any]:
    """What `functions_caller.py` tells, calling a service of its own."""
    service = subprocess.Popen(
        [sys.executable, str(PROGRAMS / "functions_service.py"), certificate, str(invocations)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert service.stdout is not None
        url = f"https://127.0.0.1:{int(service.stdout.readline())}"
        caller = [sys.executable, str(PROGRAMS / "functions_caller.py")]
        done = subprocess.run(
            [*caller, platform, way, url, certificate, str(invocations), str(rounds)],
            stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
    finally:
        service.kill()
        service.communicate()
    if done.returncode != 0:
        raise RuntimeError(f"the calls of {platform} by {way} failed: exit status {done.returncode}, see above")
    return json.loads(done.stdout)


def measure(options: argparse.Namespace, folder: str, say: Callable[[str], None]) -> list[dict[str, float]]:
    """Measurements by name, a map for each round; the sides take turns."""
    certificate = make_certificate(folder)
    rounds: list[dict[str, float]] = []
    for turn in range(options.turns):
        found: dict[str, Any] = {}
        for platform in options.platform:
            for way in options.way:
                side = f"{platform}.{way}"
                found[side] = told = measure_side(certificate, platform, way, options.invocations, options.rounds)
                say(
                    f"turn {turn + 1}/{options.turns}  {side:15} {sum(told['cpu_s'][1:]):7.2f} CPU-s in "
                    f"{options.rounds} rounds, {told['threads']} threads, peak {told['peak_bytes'] / 2**20:.0f} MiB"
                )
        for number in range(1, options.rounds + 1):
            rounds.append({})
            for side, told in found.items():
                rounds[-1] |= {
                    f"{side}.cpu_us_per_call": told["cpu_s"][number] / options.invocations * 1e6,
                    f"{side}.first_cpu_us_per_call": told["cpu_s"][0] / options.invocations * 1e6,
                    f"{side}.round_ms": told["wall_s"][number] * 1e3,
                    f"{side}.memory_mib": (told["peak_bytes"] - told["memory_bytes"]) / 2**20,
                    f"{side}.peak_mib": told["peak_bytes"] / 2**20,
                    f"{side}.threads": told["threads"],
                }
    return rounds


def main(argv: list[str], folder: str, say: Callable[[str], None] = print) -> int:
    """Runs the benchmark; returns the exit status."""
    parser = Parser(
        prog="replay-server bench invocations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--platform", nargs="+", choices=PLATFORMS, default=list(PLATFORMS), help="which ones (both)")
    parser.add_argument("--way", nargs="+", choices=WAYS, default=list(WAYS), help="which sides (all)")
    parser.add_argument("--invocations", type=int, default=1000, help="under way at a time (1000)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count, of each side in a turn (5)")
    parser.add_argument("--turns", type=int, default=3, help="times that all sides are measured (3)")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    options = parser.parse_args(argv)
    for name in ("invocations", "rounds", "turns"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: expected at least 1, got {getattr(options, name)}")
    host = result.machine()
    rounds = measure(options, folder, say)
    ratios = {
        f"{platform}: {what}, threads / {way}": (f"{platform}.threads.{what}", f"{platform}.{way}.{what}")
        for platform in options.platform
        for way in options.way
        if way != "threads"
        for what in ("cpu_us_per_call", "memory_mib")
    }
    content = result.document(
        "invocations",
        shlex.join(["replay-server", "bench", "invocations", *argv]),
        host,
        vars(options),
        rounds,
        ratios,
    )
    say("")
    result.tell(content, say, width=44)
    if options.json:
        result.write(options.json, content)
    return 0
