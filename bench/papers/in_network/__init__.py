"""`replay-server bench figures`: the figures of in-network experience sampling (PDP 2022), kernel against bypass.

Furukawa and Matsutani put Redis, and then prioritized sampling, on a server that bypasses the kernel, and measured the
accesses of 1 to 8 Ape-X actors and a learner. Here the same is measured with this project's server over kernel sockets
and in user space, and with Redis over kernel sockets, all over virtual devices: the server has one processor,
everything else another. Each figure becomes FOLDER/NAME.json and FOLDER/NAME.png. docs/figures.md.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.papers.in_network.figure import Measured, Options
from replay_server.bench.sides import SIDES

FIGURES = ("access", "pull", "sampling", "frequency", "breakdown", "edge")
"""Each a module of its name, with TITLE, PAPER and `measure(options, say)`."""


def document(name: str, command: str, measured: Measured, machine: dict[str, Any], options: Options) -> dict[str, Any]:
    """A figure's file: as every benchmark's, with what the paper had and what was found."""
    module = importlib.import_module(f"{__name__}.{name}")
    settings = {
        "actors": list(options.actors),
        "sizes": list(options.sizes),
        "rounds": options.rounds,
        "seconds": options.seconds,
        "quick": options.quick,
        "sides": {side.name: side.about for side in SIDES.values()},
        **measured.settings,
    }
    content = result.document(f"figures.{name}", command, machine, settings, measured.rounds, measured.ratios)
    return {**content, "title": module.TITLE, "paper": module.PAPER, "findings": measured.findings}


def main(argv: list[str], folder: str, say: Callable[[str], None] = print) -> int:
    del folder  # every side has its own
    parser = Parser("replay-server bench figures", description=__doc__)
    parser.add_argument(
        "--figure", action="append", choices=(*FIGURES, "all"), help="may be repeated; all of them unless told"
    )
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 2, 4, 8], help="(1 2 4 8)")
    parser.add_argument("--sizes", action="append", choices=("faithful", "own"), help="of messages (both)")
    parser.add_argument("--side", action="append", help=f"may be repeated ({', '.join(SIDES)})")
    parser.add_argument("--rounds", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn, at least (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="one short round of small messages: that it works")
    parser.add_argument("--json", metavar="FOLDER", help="write FOLDER/NAME.json of each figure")
    parser.add_argument("--plot", metavar="FOLDER", help="draw FOLDER/NAME.png of each figure")
    given = parser.parse_args(argv)
    options = Options(
        given.side,
        given.actors if not given.quick else given.actors[:1],
        given.sizes or ("faithful", "own"),
        1 if given.quick else given.rounds,
        0.02 if given.quick else given.seconds,
        given.quick,
    )
    command = " ".join(["replay-server bench figures", *argv])
    wanted = given.figure or ["all"]
    for name in FIGURES:
        if name in wanted or "all" in wanted:
            machine, begin = result.machine(), time.monotonic()
            measured = importlib.import_module(f"{__name__}.{name}").measure(options, say)
            content = document(name, command, measured, machine, options)
            tell(content, say)
            say(f"{name}: {time.monotonic() - begin:.0f} s\n")
            write(name, content, measured, given.json, given.plot)
    return 0


def tell(content: dict[str, Any], say: Callable[[str], None]) -> None:
    """Says what was found, and what could not be measured."""
    say(content["title"])
    for side, reason in content["settings"].get("not_measured", {}).items():
        say(f"  not measured: {side}: {reason}")
    for line in content["findings"]:
        say(f"  {line}")


def write(name: str, content: dict[str, Any], measured: Measured, json: str | None, plot: str | None) -> None:
    if json:
        result.write(Path(json) / f"{name}.json", content)
    if plot:
        from replay_server.bench.papers.in_network.pictures import plot_bars

        plot_bars(content, measured.panels, str(Path(plot) / f"{name}.png"))
