"""How fast a new replica gets everything, beside a plain copy through a socket; then how far behind it is."""

from __future__ import annotations

import argparse
import contextlib
import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import replay_server as rs
from replay_server.bench.client import Role, request
from replay_server.bench.durability.beside import QUANTILES, fill, load, pushing
from replay_server.bench.durability.pushes import Pushes
from replay_server.bench.snapshot import ping_while

BACKLOG_BYTES = 256 << 20
PIECE_BYTES = 1 << 20
LOOK_S = 0.005
PROBE_US = 5000
PATIENCE_S = 600
PHASES = {"wait_bgsave": "snapshot", "send_bulk": "transfer", "online": "load"}
"""How the primary names what it does for a replica, and what goes on meanwhile. When all is sent, the replica reads."""


# ---- the plain copy --------------------------------------------------------------------------------------------------


def receive(path: str) -> None:
    """Receives on a port that is printed until the connection ends, into a file where a path is given."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        connection, _ = listening.accept()
    buffer = memoryview(bytearray(PIECE_BYTES))
    with connection, open(path or "/dev/null", "wb", buffering=0) as file:
        while count := connection.recv_into(buffer):
            if path:
                file.write(buffer[:count])
    print("done", flush=True)


def line_mb_per_s(size_bytes: int, path: str = "") -> float:
    """What a plain socket of this machine carries: one process sends as many bytes, another receives them."""
    command = [sys.executable, "-m", "replay_server.bench.durability", "--part", path]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    piece, left = bytes(PIECE_BYTES), size_bytes
    try:
        with socket.create_connection(("127.0.0.1", int(process.stdout.readline()))) as connection:
            begin = time.perf_counter()
            while left > 0:
                connection.sendall(piece[: min(left, PIECE_BYTES)])
                left -= PIECE_BYTES
        if process.stdout.readline() != "done\n":
            raise RuntimeError("the plain copy failed")
        return size_bytes / (time.perf_counter() - begin) / 1e6
    finally:
        process.communicate()


# ---- PING ------------------------------------------------------------------------------------------------------------


def ping(url: str) -> None:
    """Sends PINGs until standard input ends, then prints what they took. Says when it has begun."""
    has_begun = False

    def goes_on() -> bool:
        nonlocal has_begun
        if has_begun:
            return not select.select([sys.stdin], [], [], 0)[0]
        print("ready", flush=True)
        has_begun = True
        return True

    print(json.dumps(ping_while(url, goes_on)[0]), flush=True)


@contextlib.contextmanager
def pinging(url: str) -> Iterator[dict[str, float]]:
    """What PINGs took meanwhile, once it has ended. They come from a process of its own: a thread of this one would
    wait for its other threads."""
    command = [sys.executable, "-m", "replay_server.bench.durability", "--ping", url]
    told: dict[str, float] = {}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("the process that sends PINGs failed")
        yield told
        process.stdin.close()
        told |= json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


# ---- the replica -----------------------------------------------------------------------------------------------------


def follow(primary: rs.Client, replica: rs.Client, url: str) -> dict[str, float]:
    """Lets a replica follow, and returns the seconds until it has everything, and those of each phase."""
    redis: Any = replica.redis
    host, _, port = url.partition("//")[2].rpartition(":")
    took = dict.fromkeys(PHASES.values(), 0.0)
    begin = at = time.perf_counter()
    redis.execute_command("REPLICAOF", host, port)
    while redis.info("replication")["master_link_status"] != "up":
        told: Any = primary.redis.info("replication")
        time.sleep(LOOK_S)
        now = time.perf_counter()
        if "slave0" in told:
            took[PHASES[told["slave0"]["state"]]] += now - at
        at = now
        if now > begin + PATIENCE_S:
            raise RuntimeError(f"the replica had not everything after {PATIENCE_S} s")
    return {"seconds": time.perf_counter() - begin, **{f"{phase}_s": seconds for phase, seconds in took.items()}}


def synchronised(
    primary: rs.Server, client: rs.Client, replica: rs.Server, table: str, table_bytes: int
) -> dict[str, float]:
    """MB/s of the table until the replica serves it, and PING at the primary meanwhile."""
    with rs.Client(replica.url) as replica_client:
        with pinging(primary.url) as pings:
            took = follow(client, replica_client, primary.url)
        if replica_client.info(table)["size"] != client.info(table)["size"]:
            raise RuntimeError("the replica lacks items of its primary")
    return {"mb_per_s": table_bytes / took["seconds"] / 1e6, **took, **pings}


def lag(
    server: rs.Server, client: rs.Client, pushes: Pushes, options: argparse.Namespace, folder: Path
) -> dict[str, float]:
    """Pushers at a steady rate; beside them pushes of single transitions, each followed by WAIT.

    WAIT is answered when the replica has acknowledged, and so run, all up to the push: it asks the replica, so the way
    back is part of what is measured.
    """
    redis: Any = client.redis
    requests = pushes.requests(client)
    probe = {"push": pushes.single(client), "wait": request(["WAIT", "1", "0"])}
    before = redis.info("stats")
    roles = [
        pushing(requests, pushes.transitions, options.pushers, options.rate),
        Role("probe", probe, pause_us=PROBE_US),
    ]
    measured, pings = load(server, roles, folder, options.seconds)
    after = redis.info("stats")
    if any(before[name] != after[name] for name in ("sync_full", "sync_partial_ok")):
        raise RuntimeError("the replica lost its primary under the load")
    return {
        "transitions_per_s": measured.rounds_per_s("pusher") * pushes.transitions,
        **{f"us_{quantile}": measured.latency_us("probe", "wait", quantile) for quantile in QUANTILES},
        **pings,
    }


def measure(
    options: argparse.Namespace, pushes: Pushes, folder: Path, say: Callable[[str], None]
) -> list[dict[str, float]]:
    """Rounds of `line.mb_per_s`, `sync.WHAT`, `lag.WHAT`."""
    rounds = []
    capacity = pushes.in_gigabytes(options.gigabytes)
    name, own = pushes.settings.table, folder / "primary"
    own.mkdir()
    config = {"repl-backlog-size": BACKLOG_BYTES}
    with (
        rs.Server([pushes.table(capacity)], directory=own, config=config) as primary,
        rs.Client(primary.url) as client,
    ):
        fill(primary, pushes.requests(client), pushes.transitions, capacity, own)
        table_bytes = client.info(name)["bytes"]
        say(f"replica: a table of {capacity:,} transitions, {table_bytes / 1e6:,.0f} MB")
        for number in range(options.rounds):
            measured = {"line.mb_per_s": line_mb_per_s(table_bytes)}
            measured["line_to_file.mb_per_s"] = line_mb_per_s(table_bytes, str(folder / "plain"))
            (folder / "plain").unlink()
            replica_folder = folder / f"replica-{number}"
            replica_folder.mkdir()
            with rs.Server(directory=replica_folder, config=config) as replica:
                told = synchronised(primary, client, replica, name, table_bytes)
                measured |= {f"sync.{what}": value for what, value in told.items()}
                told = lag(primary, client, pushes, options, own)
                measured |= {f"lag.{what}": value for what, value in told.items()}
            rounds.append({"table_mb": table_bytes / 1e6, **measured})
            say(
                f"round {number + 1}/{options.rounds}  sync {measured['sync.mb_per_s']:.0f} MB/s (line "
                f"{measured['line.mb_per_s']:.0f}, into a file {measured['line_to_file.mb_per_s']:.0f}; snapshot "
                f"{measured['sync.snapshot_s']:.2f} s, transfer {measured['sync.transfer_s']:.2f} s, load "
                f"{measured['sync.load_s']:.2f} s), ping p99.9 {measured['sync.ping_us_p99.9'] / 1e3:.2f} ms; "
                f"lag p50 {measured['lag.us_p50'] / 1e3:.2f} ms, p99 {measured['lag.us_p99'] / 1e3:.2f} ms under "
                f"{measured['lag.transitions_per_s']:,.0f} transitions/s"
            )
    return rounds


RATIOS = {
    "sync / line": ("sync.mb_per_s", "line.mb_per_s"),
    "sync / line into a file": ("sync.mb_per_s", "line_to_file.mb_per_s"),
}
