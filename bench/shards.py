"""`replay-server bench shards`: what sampling and adding over several shards cost the servers, beside one server.

One server and clusters of several shards hold the same Atari transitions, in the same process tree, and are used in
turns: each turn draws some batches, or adds some, by one client over TCP without shared memory. Processor time is what
the servers' processes have used (user and system, `INFO cpu`), all shards of a cluster together. So it does not tell of
other work on the machine, but for what that does to caches and clocks; the load is in the file. Bytes are those sent by
the servers, counted batch by batch.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

import replay_server as rs
from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.items import KINDS, ItemKind
from replay_server.bench.server import fill

EXTRA_MOST = {4: 1.15, 8: 1.3}
"""Processor time of a batch, against one server's, that is wanted at most."""
BYTES_MOST = 1.06


class Side:
    """One server, or a cluster, and a client of it."""

    def __init__(self, shards: int, kind: ItemKind, capacity: int, stack: contextlib.ExitStack) -> None:
        self.shards, self.kind = shards, kind
        servers = [stack.enter_context(rs.Server(config={"shard": number})) for number in range(shards)]
        hosts = [server.url.removeprefix("redis://") for server in servers]
        url = servers[0].url if shards == 1 else "redis+cluster://" + ",".join(hosts)
        self.each = [stack.enter_context(rs.Client(server.url)) for server in servers]
        self.client = stack.enter_context(rs.Client(url, shared_memory=False))
        self.client.create_table(kind.table(capacity))
        fill(url, kind, capacity)
        self.out = self.client.sample("bench", kind.batch_size)

    def _told(self, section: str, *names: str) -> float:
        """The sum of such numbers of all shards' INFO."""
        total = 0.0
        for one in self.each:
            info = one.command("INFO", section, repeatable=True)
            lines = (info.decode() if isinstance(info, bytes) else info).splitlines()
            fields = dict(line.split(":", 1) for line in lines if ":" in line)
            total += sum(float(fields[name]) for name in names)
        return total

    def _cpu_us(self) -> float:
        return 1e6 * self._told("cpu", "used_cpu_user", "used_cpu_sys")

    def sampled_us(self, batches: int) -> float:
        """Processor time of the servers for a batch."""
        before = self._cpu_us()
        for _ in range(batches):
            self.client.sample("bench", self.kind.batch_size, out=self.out)
        return (self._cpu_us() - before) / batches

    def added_us(self, block: dict[str, np.ndarray], batches: int) -> float:
        """Processor time of the servers for a transition."""
        before = self._cpu_us()
        for _ in range(batches):
            self.client.add("bench", block)
        return (self._cpu_us() - before) / (batches * self.kind.push_size)

    def sent_bytes(self, batches: int) -> float:
        """Bytes that the servers send for a batch, the median. (What is asked in between is counted off.)"""
        asked = -self._told("stats", "total_net_output_bytes") + self._told("stats", "total_net_output_bytes")
        counts = []
        for _ in range(batches):
            before = self._told("stats", "total_net_output_bytes")
            self.client.sample("bench", self.kind.batch_size, out=self.out)
            counts.append(self._told("stats", "total_net_output_bytes") - before - asked)
        return statistics.median(counts)


def turn(sides: list[Side], options: argparse.Namespace, block: dict[str, np.ndarray]) -> dict[str, float]:
    """One round: every side in turn."""
    measured: dict[str, float] = {}
    for side in sides:
        name = f"{side.shards}_shards"
        measured[f"{name}.sample_server_us"] = side.sampled_us(options.batches)
        measured[f"{name}.add_server_us_per_item"] = side.added_us(block, options.batches)
        measured[f"{name}.sent_bytes_per_batch"] = side.sent_bytes(options.counted)
    return {key: round(value, 2) for key, value in measured.items()}


def verdicts(content: dict[str, Any], shards: list[int]) -> list[str]:
    """What is to be said of each number of shards."""
    lines = []
    for many in shards:
        cost, added, sent = (content["ratio"][f"{many} shards / 1: {what}"] for what in ("sample", "add", "bytes"))
        most = f", at most {EXTRA_MOST[many]} wanted" if many in EXTRA_MOST else ""
        lines.append(
            f"{many} shards against one server: {cost:.2f} of its processor time a batch{most}; {added:.2f} a pushed "
            f"transition; {sent:.3f} of its bytes, at most {BYTES_MOST} wanted"
        )
    return lines


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    """Runs it. Returns the exit status."""
    parser = Parser("replay-server bench shards", description=__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=[4, 8], help="of the clusters (4 8)")
    parser.add_argument("--capacity", type=int, default=4000, help="transitions that each side holds (4000)")
    parser.add_argument("--batches", type=int, default=100, help="of a turn, sampled and added (100)")
    parser.add_argument("--counted", type=int, default=30, help="batches of a turn whose bytes are counted (30)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, each of them a turn of every side (5)")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    options = parser.parse_args(argv)
    host, kind, rounds = result.machine(), KINDS["atari"], []
    block = kind.random(kind.push_size, np.random.default_rng(1))
    with contextlib.ExitStack() as stack:
        sides = [Side(shards, kind, options.capacity, stack) for shards in (1, *options.shards)]
        for number in range(options.rounds):
            rounds.append(turn(sides, options, block))
            say(f"round {number + 1}/{options.rounds} done, load {os.getloadavg()[0]:.1f}")
    ratios = {
        f"{many} shards / 1: {what}": (f"{many}_shards.{measured}", f"1_shards.{measured}")
        for many in options.shards
        for what, measured in (
            ("sample", "sample_server_us"),
            ("add", "add_server_us_per_item"),
            ("bytes", "sent_bytes_per_batch"),
        )
    }
    command = " ".join(["replay-server bench shards", *argv])
    content = result.document("shards", command, host, vars(options), rounds, ratios)
    result.tell(content, say, ratio_digits=3)
    for line in verdicts(content, options.shards):
        say(line)
    if options.json:
        result.write(options.json, content)
    return 0
