"""Runs replay-bench-client: a load on a server from one thread of C, and what it measured."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay_server.codec import Argument, encode_command
from replay_server.server import find_program


def request(*commands: Sequence[Argument]) -> bytes:
    """Commands as they go over the wire, one after another."""
    return b"".join(bytes(part) for arguments in commands for part in encode_command(arguments))


@dataclass(frozen=True)
class Role:
    """What some connections do, again and again.

    Attributes:
        name: in the results.
        requests: name → bytes, of one request or of several sent at once; taken in turns, which make a round.
        connections: how many do this.
        pause_us: from the end of a round to the next.
        rate_per_s: rounds begun each second by all connections together, where they can; 0 = one after another.
        rounds: of each connection; 0 = as long as the load lasts.
        spread: with `rate_per_s`, requests are spread over the time of a round instead of sent in a row.
    """

    name: str
    requests: Mapping[str, bytes]
    connections: int = 1
    pause_us: float = 0
    rate_per_s: float = 0
    rounds: int = 0
    spread: bool = False


@dataclass(frozen=True)
class Measured:
    """What a load was answered. `request(role, name)` holds count, errors, bytes and latency_us_p50 and so on."""

    content: dict[str, Any]

    def request(self, role: str, name: str) -> dict[str, Any]:
        return self.content["roles"][role]["requests"][name]

    def latency_us(self, role: str, name: str, quantile: str = "p50") -> float:
        return float(self.request(role, name)[f"latency_us_{quantile}"])

    def rounds_per_s(self, role: str) -> float:
        return float(self.content["roles"][role]["rounds_per_s"])

    def received_bytes(self, role: str) -> list[int]:
        """Of each connection of a role, between the warm-up and the end."""
        return [int(received) for received in self.content["roles"][role]["received_bytes_by_connection"]]

    def count(self) -> int:
        """Requests measured, of all roles."""
        return sum(made["count"] for role in self.content["roles"].values() for made in role["requests"].values())

    def errors(self) -> list[str]:
        """Which requests were answered with an error: the first one, and how often."""
        return [
            f"{role_name} {name}: {made['first_error']} ({made['errors']} times)"
            for role_name, role in self.content["roles"].items()
            for name, made in role["requests"].items()
            if made["errors"]
        ]


def run(
    address: str,
    roles: Sequence[Role],
    folder: str | Path,
    *,
    seconds: float = 0.0,
    warm_up_s: float = 0.0,
    processor: int | None = None,
    spin: bool = False,
    first: bytes = b"",
    prefix: Sequence[str] = (),
    device: Sequence[str] = (),
    patience_s: float = 30.0,
) -> Measured:
    """Loads the server at `address` ("10.0.0.2:6379") and waits for the end.

    Args:
        folder: where the requests are put for the client to read; they are removed again.
        seconds: how long, and until every connection has done a round that counts; 0 = until all rounds are done.
        processor: that the client runs on; None = any.
        spin: the client asks for replies again and again instead of sleeping.
        first: requests that each connection sends once, before anything is timed (a password).
        prefix: put before the command, to run it in another network namespace.
        device: the load client's own DPDK device, its address with a mask and its MTU, for a load without the kernel's
            stack; it cannot send `first`. Empty: over kernel sockets.

    Raises:
        RuntimeError: the client failed (connection lost, nothing moved for `patience_s`), or a reply was an error.
    """
    program = find_program("replay-bench-client-dpdk" if device else "replay-bench-client")
    arguments = [*prefix, str(program), *device, "--connect", address]
    arguments += ["--seconds", f"{seconds:g}", "--warm-up", f"{warm_up_s:g}", "--patience", f"{patience_s:g}"]
    if processor is not None:
        arguments += ["--processor", str(processor)]
    if spin:
        arguments.append("--spin")
    files: list[Path] = []

    def file(name: str, content: bytes) -> str:
        place = Path(folder) / f"{len(files)}"
        place.mkdir(exist_ok=True)
        files.append(place / name)
        files[-1].write_bytes(content)
        return str(files[-1])

    try:
        if first:
            arguments += ["--first", file("first", first)]
        for role in roles:
            arguments += ["--role", role.name, "--connections", str(role.connections)]
            arguments += ["--pause-us", f"{role.pause_us:.0f}"]
            if role.rate_per_s:
                arguments += ["--rate", f"{role.rate_per_s:g}", *(["--spread"] if role.spread else [])]
            if role.rounds:
                arguments += ["--rounds", str(role.rounds)]
            for name, content in role.requests.items():
                arguments += ["--request", file(name, content)]
        limit = seconds + warm_up_s + 2 * patience_s + 60
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=limit)
    finally:
        for path in files:
            path.unlink(missing_ok=True)
            path.parent.rmdir()
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip() or f"{program.name} ended with status {done.returncode}")
    measured = Measured(json.loads(done.stdout))
    if errors := measured.errors():
        raise RuntimeError("the server answered with errors: " + "; ".join(errors))
    return measured
