"""`replay-server bench server`: rates and latencies for 1, 2, 4, 8 pushers and a learner; memory an item.

Each round runs every load once, so that a slow minute of the machine touches all of them; medians over the rounds are
given, with the lowest and the highest. The table is full before anything is timed. `--shards 1 2 4 8` does so with a
server, then with clusters of so many shards, each on a core of its own where there are more cores than shards.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import replay_server as rs
from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.items import KINDS, ItemKind
from replay_server.bench.load import Crew, Load, Target, resident_bytes, run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that every comparison under load has."""
    parser.add_argument(
        "--item", choices=sorted(KINDS), action="append", help="kind of transition; may be repeated (atari, hopper)"
    )
    parser.add_argument("--pushers", type=int, nargs="+", default=[1, 2, 4, 8], help="how many push at once (1 2 4 8)")
    parser.add_argument("--push", type=int, help="items a push (50; float-frames: 200)")
    parser.add_argument("--batch", type=int, help="items a sampled batch (512)")
    parser.add_argument("--capacity", type=int, help="items in the table")
    parser.add_argument("--shards", type=int, nargs="+", default=[1], help="how many servers hold the table (1)")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds a load is timed (3)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all loads (3)")
    parser.add_argument(
        "--socket", choices=("tcp", "unix"), default="tcp", help="how clients connect (tcp, over loopback)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the results there")


def loads(options: argparse.Namespace, kind: ItemKind) -> list[Load]:
    """The learner alone, then so many pushers beside the learner, then pushers alone."""

    def load(pushers: int, learner: bool) -> Load:
        return Load(
            pushers,
            learner,
            push_size=options.push or kind.push_size,
            batch_size=options.batch or kind.batch_size,
            seconds=options.seconds,
            capacity=options.capacity or kind.capacity,
        )

    return [load(0, True), *(load(n, True) for n in options.pushers), load(1, False)]


@contextlib.contextmanager
def start(kind: ItemKind, capacity: int, socket: str, folder: str, shards: int = 1) -> Iterator[Target]:
    """A replay server with the table of a kind, empty; or a cluster, of several shards."""
    tables = [kind.table(capacity)]
    if shards > 1:
        with rs.Cluster(tables, shards) as cluster:
            yield Target("replay", cluster.url, tuple(server.pid for server in cluster.servers))
        return
    unix = f"{folder}/replay-{kind.name}.sock" if socket == "unix" else None
    with rs.Server(tables, host="127.0.0.1", port=0, unix=unix) as server:
        yield Target("replay", server.unix_url or server.url, (server.pid,))


def fill(url: str, kind: ItemKind, capacity: int, seed: int = 1) -> None:
    """Adds random items until the table is full."""
    generator = np.random.default_rng(seed)
    client = rs.Client(url)
    size = max(1, min(500, capacity, (64 << 20) // kind.item_bytes))
    block = kind.random(size, generator)
    for begin in range(0, capacity, size):
        count = min(size, capacity - begin)
        client.add("bench", {name: array[:count] for name, array in block.items()}, generator.random(count) + 0.01)
    client.close()


def measure(options: argparse.Namespace, say: Callable[[str], None], folder: str) -> list[dict[str, float]]:
    """All rounds: measurement, named item.load.what, → value."""
    kinds = [KINDS[name] for name in options.item or ["atari", "hopper"]]
    rounds: list[dict[str, float]] = []
    for number in range(options.rounds):
        measured: dict[str, float] = {}
        for kind, shards in itertools.product(kinds, options.shards):
            capacity = options.capacity or kind.capacity
            side = kind.name if shards == 1 else f"{kind.name}-{shards}-shards"
            with start(kind, capacity, options.socket, folder, shards) as target, Crew("replay") as crew:
                empty = _resident_bytes(target)
                fill(target.url, kind, capacity)
                measured[f"{side}.memory_bytes_per_item"] = round((_resident_bytes(target) - empty) / capacity, 1)
                for load in loads(options, kind):
                    values = run(crew, target, kind, load, seed=1 + 100 * number)
                    measured |= {f"{side}.{load.name}.{what}": value for what, value in values.items()}
                    say(f"round {number + 1}/{options.rounds} {side:12} {load.name:16} {line(values)}")
        rounds.append(measured)
    return rounds


def _resident_bytes(target: Target) -> int:
    return sum(map(resident_bytes, target.pids))


def line(values: dict[str, float]) -> str:
    """The measurements of one load for people."""
    parts = []
    if "push_items_per_s" in values:
        parts.append(
            f"push {values['push_items_per_s']:9,.0f} items/s (p50 {values['push_latency_us_p50'] / 1e3:.2f} ms)"
        )
    if "sample_batches_per_s" in values:
        latency_ms = values["sample_latency_us_p50"] / 1e3
        parts.append(f"sample {values['sample_batches_per_s']:7,.1f} batches/s (p50 {latency_ms:.2f} ms)")
    return "  ".join(parts)


def ratios(rounds: list[dict[str, float]]) -> dict[str, tuple[str, str]]:
    """Every load beside the learner against one pusher: how the server stands up to more of them."""
    found = {}
    for name in rounds[0]:
        kind, _, rest = name.partition(".")
        load, _, what = rest.partition(".")
        if load.startswith("pushers=") and "alone" not in load and load not in ("pushers=0", "pushers=1"):
            found[f"{name} / pushers=1"] = (name, f"{kind}.pushers=1.{what}")
    return found


def main(argv: list[str], folder: str, say: Callable[[str], None] = print) -> int:
    parser = Parser("replay-server bench server", description=__doc__)
    add_arguments(parser)
    options = parser.parse_args(argv)
    host = result.machine()
    rounds = measure(options, say, folder)
    content: dict[str, Any] = result.document(
        "server", " ".join(["replay-server bench server", *argv]), host, vars(options), rounds, ratios(rounds)
    )
    result.tell(content, say, width=58, ratio_digits=None)
    if options.json:
        result.write(options.json, content)
    if options.plot:
        from replay_server.bench.plot import plot_loads

        plot_loads(content, options.plot)
    return 0
