"""`replay-server bench durability`: what the append-only file and replicas cost, and how fast a server comes back.

Four sections, each in several rounds whose sides take turns. Actors' pushes are made beforehand, of recorded Breakout:
each frame once, LZ4 blocks unless told otherwise, into a table as `replay-server apex` makes it.

- `cost`: a server without a file, with `appendfsync everysec`, with `always`, and with `everysec` while it rewrites the
  file whenever that has doubled: transitions a second of pushers that push as fast as they can (`full`), or at a steady
  rate (`paced`); the server's processor time for each; PING on another connection meanwhile.
- `sets`: redis-benchmark's SET with `appendfsync everysec`, beside Redis. Both have the same processor, threads that
  write files included.
- `replica`: a new replica gets a full table, beside a plain copy of as many bytes through a socket of this machine;
  PING at the primary meanwhile. Then its lag under a steady rate of pushes: from the reply to a push until WAIT says
  that the replica has it.
- `recovery`: a server starts from the append-only file of a full table, beside a plain program that reads that file,
  each with the file out of the system's memory (cold) and in it (warm).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from replay_server.arguments import Parser
from replay_server.bench import result, store
from replay_server.bench.durability import cost, recovery, replica, sets
from replay_server.bench.durability.pushes import Pushes

SECTIONS = ("cost", "sets", "replica", "recovery")


def measure(options: argparse.Namespace, folder: Path, say: Callable[[str], None]) -> list[dict[str, float]]:
    """All rounds, of all chosen sections: measurement → value."""
    found: list[list[dict[str, float]]] = []
    pushes = None
    if any(section != "sets" for section in options.section):
        (folder / "recorded").mkdir()
        pushes = Pushes.record(str(folder / "recorded"), options.compression)
    for section in options.section:
        own = folder / section
        own.mkdir()
        if section == "sets":
            found.append(sets.measure(options, own, say))
            continue
        assert pushes is not None
        found.append(
            {"cost": cost, "replica": replica, "recovery": recovery}[section].measure(options, pushes, own, say)
        )
    return [
        {name: round(value, 3) for part in parts for name, value in part.items()} for parts in zip(*found, strict=True)
    ]


def ratios(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Of what was measured."""
    found = {**cost.RATIOS, **store.ratios(names), **replica.RATIOS, **recovery.RATIOS}
    return {name: pair for name, pair in found.items() if set(pair) <= set(names)}


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    parser = Parser(
        "replay-server bench durability", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--section", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="only these")
    parser.add_argument("--compression", choices=("lz4", "zstd", "none"), default="lz4", help="of frames (lz4)")
    parser.add_argument("--capacity", type=int, default=20_000, help="cost: transitions in the table (20000)")
    parser.add_argument("--pushers", type=int, default=4, help="connections that push (4)")
    parser.add_argument(
        "--rate", type=float, default=20_000.0, help="transitions a second, where that is steady (20000)"
    )
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[512, 30_000], help="sets: bytes of a value (512 30000)"
    )
    parser.add_argument(
        "--pipelines", type=int, nargs="+", default=[1, 16], help="sets: requests sent at a time (1 16)"
    )
    parser.add_argument("--requests", type=int, default=200_000, help="sets: of a turn, for 1 GB at most (200000)")
    parser.add_argument("--gigabytes", type=float, default=0.5, help="replica, recovery: size of the table (0.5)")
    parser.add_argument("--folder", help="where servers write, on the disk that is meant (default: a temporary one)")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds that each load is timed (5)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each section (3)")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--part", metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--ping", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.part is not None:
        replica.receive(options.part)
        return 0
    if options.ping is not None:
        replica.ping(options.ping)
        return 0
    host = result.machine()
    rounds = measure(options, Path(options.folder or folder), say)
    result.conclude("durability", argv, options, host, rounds, ratios(list(rounds[0])), say, width=48)
    return 0
