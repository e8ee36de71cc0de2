"""`replay-server bench link`: a learner on another host, over a line of 1 Gb/s, with real Breakout frames.

Server and learner are in two network namespaces joined by a line that token bucket filters hold to its rate in both
directions. The table's frames are compressed. In turns the learner samples with CODED (each distinct step of a batch
once, compressed as it is stored) and without it; beside the batches a second stands what the line could carry of plain
windows if nothing but their bytes were on it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import replay_server as rs
from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.namespace import Namespace, connect, program
from replay_server.connection import PASSWORD_VARIABLE

TABLE = "link"
PORT = 6399
ADDRESSES = {"server": "10.78.0.1", "learner": "10.78.0.2"}
WAYS = {"coded": True, "plain": False}
BURST_BYTES = 256 * 1024
"""Of the token bucket: what may pass at once before the rate holds."""


# ---- the line --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def line(rate_mbit: int) -> Iterator[dict[str, list[str]]]:
    """Two hosts on a line of that rate; for each, what to put before a command that is to run there."""
    tc = program("tc", "iproute2")
    limits = ("rate", f"{rate_mbit}mbit", "burst", str(BURST_BYTES), "latency", "20ms")
    with Namespace("server") as server, Namespace("learner", server) as learner:
        hosts = {"server": server, "learner": learner}
        connect(server, "eth0", learner, "eth0")
        for name, host in hosts.items():
            host.set_up("eth0", f"{ADDRESSES[name]}/24")
            host.run(tc, "qdisc", "add", "dev", "eth0", "root", "tbf", *limits)
        yield {name: host.command for name, host in hosts.items()}


# ---- the table -------------------------------------------------------------------------------------------------------


def table(capacity: int, compression: str) -> rs.Table:
    """Transitions over 3 steps, of stacks of 4 frames."""
    signature = {
        "frame": rs.Column("uint8", (84, 84), step_only=True),
        "obs": rs.Window("frame", length=4),
        "action": rs.Column("int64"),
        "reward": rs.Column("float32"),
        "next_obs": rs.Window("frame", length=4, offset=3),
        "discount": rs.Column("float32"),
    }
    return rs.Table(TABLE, capacity, signature, compression=compression)


def fill(client: rs.Client, transitions: int, environments: int = 8) -> None:
    """Plays Breakout by chance, and writes what comes."""
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    games: Any = gymnasium.make_vec(
        "ALE/Breakout-v5", num_envs=environments, vectorization_mode="vector_entry_point", stack_num=1,
        img_height=84, img_width=84, num_threads=1,
    )  # fmt: skip
    generator = np.random.default_rng(1)
    observations, _ = games.reset(seed=np.arange(environments))
    ones = np.ones(environments, np.float32)
    with client.vector_writer(TABLE, environments) as writer:
        for _ in range(transitions // environments):
            actions = generator.integers(0, games.single_action_space.n, environments)
            ended = generator.random(environments) < 0.002
            writer.append({"frame": observations[:, 0]}, final=ended)
            columns = {"action": actions, "reward": ones, "discount": ones}
            writer.create_items(generator.random(environments) + 0.1, columns=columns)
            observations, *_ = games.step(actions)
    games.close()


# ---- the learner's process -------------------------------------------------------------------------------------------


def received_bytes() -> int:
    """What this namespace's eth0 has received."""
    for row in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = row.partition(":")
        if name.strip() == "eth0":
            return int(counters.split()[0])
    raise RuntimeError("no eth0 here")


def learn(url: str, way: str, batch_size: int, seconds: float) -> int:
    """Samples ahead for so long; prints batches and bytes a second."""
    with rs.Client(url) as client, client.sampler(TABLE, batch_size, coded=WAYS[way]) as batches:
        for _ in range(2):
            next(batches)
        begin, count, bytes_before = time.perf_counter(), 0, received_bytes()
        while time.perf_counter() - begin < seconds:
            next(batches)
            count += 1
        elapsed = time.perf_counter() - begin
        print(json.dumps({"batches_per_s": count / elapsed, "bytes": (received_bytes() - bytes_before) / elapsed}))
    return 0


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure(host: list[str], url: str, way: str, batch_size: int, seconds: float) -> dict[str, float]:
    """One turn of one learner."""
    arguments = ["--learner", url, "--way", way, "--batch", str(batch_size), "--seconds", str(seconds)]
    command = [*host, sys.executable, "-m", "replay_server.bench.link", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 120)
    if done.returncode != 0:
        raise RuntimeError(f"the learner failed: {done.stderr[-2000:]}")
    counted = json.loads(done.stdout)
    return {
        f"{way}_batches_per_s": counted["batches_per_s"],
        f"{way}_received_mbit_per_s": counted["bytes"] * 8e-6,
        f"{way}_bytes_per_batch": counted["bytes"] / counted["batches_per_s"],
    }


@contextlib.contextmanager
def serving(host: list[str], socket: Path, password: str) -> Iterator[None]:
    """A server on its host, which this process reaches through a unix socket."""
    command = [*host, sys.executable, "-m", "replay_server", "serve", "--host", ADDRESSES["server"]]
    command += ["--port", str(PORT), "--unixsocket", str(socket)]
    environment = {**os.environ, PASSWORD_VARIABLE: password}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        if "ready url=" not in process.stdout.readline():
            raise RuntimeError("the server did not start")
        yield
    finally:
        process.terminate()
        process.wait(timeout=20)


def main(argv: list[str], folder: str) -> int:
    """Measures, prints, writes. Returns the exit status."""
    parser = Parser(prog="replay-server bench link", description=__doc__)
    parser.add_argument("--rate", type=int, default=1000, help="of the line, in Mb/s (%(default)s)")
    parser.add_argument("--batch", type=int, default=512, help="items of a batch (%(default)s)")
    parser.add_argument("--transitions", type=int, default=20_000, help="in the table (%(default)s)")
    parser.add_argument("--compression", choices=("none", "lz4", "zstd"), default="lz4", help="(%(default)s)")
    parser.add_argument("--seconds", type=float, default=5, help="of each turn (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="where to write the result")
    parser.add_argument("--learner", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--way", choices=sorted(WAYS), default="coded", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.learner:
        return learn(arguments.learner, arguments.way, arguments.batch, arguments.seconds)
    host, password, socket = result.machine(), secrets.token_hex(8), Path(folder) / "s"
    url = f"redis://:{password}@{ADDRESSES['server']}:{PORT}"
    rounds: list[dict[str, float]] = []
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(line(arguments.rate))
        stack.enter_context(serving(hosts["server"], socket, password))
        client = stack.enter_context(rs.Client(f"unix://:{password}@{socket}"))
        made = table(arguments.transitions, arguments.compression)
        client.create_table(made)
        fill(client, arguments.transitions)
        line_batches_per_s = arguments.rate * 1e6 / 8 / (made.item_bytes * arguments.batch)
        for _ in range(arguments.rounds):
            measured = {"line_plain_batches_per_s": line_batches_per_s}
            for way in WAYS:
                measured |= measure(hosts["learner"], url, way, arguments.batch, arguments.seconds)
            rounds.append(measured)
            print("  ".join(f"{name} {value:.3g}" for name, value in measured.items()), flush=True)
        info = client.info(TABLE)
    ratios = {
        "coded_above_line": ("coded_batches_per_s", "line_plain_batches_per_s"),
        "coded_above_plain": ("coded_batches_per_s", "plain_batches_per_s"),
    }
    settings = {key: value for key, value in vars(arguments).items() if key not in ("json", "learner", "way")}
    settings |= {"bytes_per_transition": info["bytes"] / info["size"], "batch_bytes": made.item_bytes * arguments.batch}
    command = "replay-server bench link " + " ".join(argv)
    content = result.document("link", command.strip(), host, settings, rounds, ratios)
    for name, ratio in content["ratio"].items():
        print(f"{name}: {ratio:.2f}")
    if arguments.json:
        result.write(arguments.json, content)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:], ""))
