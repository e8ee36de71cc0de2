"""`replay-server bench peers`: the same work done by this project and by its peers, in turns, in one run.

Every peer has an environment of its own (`--setup` makes them). Within a round all sides do a thing one after the
other, another one first in each round; ratios are taken within a round, and medians over the rounds are given. What the
sides do not do alike is said in docs/benchmarks.md, and beside each program in `programs/`.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.environments import ENVIRONMENTS, is_ready, set_up
from replay_server.bench.items import KINDS
from replay_server.bench.peers import claims, in_process
from replay_server.bench.peers.across import measure_loads
from replay_server.bench.peers.experience import measure_experience
from replay_server.bench.peers.ragged import measure_ragged
from replay_server.bench.peers.systems import SYSTEMS
from replay_server.bench.peers.table import is_own, markdown, rows

MADE_HERE = [name for name, environment in ENVIRONMENTS.items() if "bench peers" in environment.made_by]
ENVIRONMENT_OF = {side.name: side.environment for side in (*in_process.PEERS, *SYSTEMS)}
SECTIONS = ("trees", "buffers", "loads", "experience", "ragged")


def _parser() -> argparse.ArgumentParser:
    parser = Parser("replay-server bench peers", description=__doc__)
    parser.add_argument(
        "--setup", action="store_true", help="make the environments that are missing, of each --peer or of all, and end"
    )
    parser.add_argument("--pip-options", default="", help="further options of pip with --setup, as one word")
    parser.add_argument("--section", choices=SECTIONS, action="append", help="may be repeated (all)")
    parser.add_argument(
        "--peer",
        action="append",
        help="may be repeated (all that are set up); this project is a side unless one of its ways is named",
    )
    parser.add_argument("--item", choices=sorted(KINDS), action="append", help="may be repeated (atari, hopper)")
    parser.add_argument("--leaves", type=int, nargs="+", default=[10**5, 10**6, 10**7], help="sizes of trees")
    parser.add_argument("--batch", type=int, default=512, help="items a sampled batch (512)")
    parser.add_argument("--push", type=int, default=50, help="items a push (50)")
    parser.add_argument("--pushers", type=int, nargs="+", default=[1, 4, 8], help="how many push at once (1 4 8)")
    parser.add_argument("--alone", type=int, nargs="*", default=[1, 4], help="likewise with no learner (1 4)")
    parser.add_argument("--capacity", type=int, help="items in a buffer or table")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds a load is timed (3)")
    parser.add_argument("--short-seconds", type=float, default=0.4, help="seconds a call in process is timed (0.4)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of everything (5)")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the results there")
    parser.add_argument("--table", metavar="FILE.md", help="write the tables there, too")
    return parser


def environments_to_make(asked: Sequence[str] | None) -> list[str]:
    """Those of the sides asked for; by default all that this benchmark makes.

    Raises RuntimeError for a peer that is not known.
    """
    if not asked:
        return MADE_HERE
    needed = {ENVIRONMENT_OF[name] for name in chosen_peers(asked)}
    return [name for name in MADE_HERE if name in needed]


def chosen_peers(asked: Sequence[str] | None) -> list[str]:
    """The sides asked for, with this project's where none of them is; by default all that can run.

    Raises RuntimeError for a peer that is not known.
    """
    unknown = [name for name in asked or () if name not in ENVIRONMENT_OF]
    if unknown:
        raise RuntimeError(f"no peer is called {unknown[0]!r}: expected some of {', '.join(sorted(ENVIRONMENT_OF))}")
    if asked and any(is_own(name) for name in asked):
        return list(asked)
    if asked:
        return [*(name for name in ENVIRONMENT_OF if is_own(name)), *asked]
    return [name for name, environment in ENVIRONMENT_OF.items() if environment is None or is_ready(environment)]


def main(argv: list[str], folder: str, say: Callable[[str], None] = print) -> int:
    options = _parser().parse_args(argv)
    if options.setup:
        for name in environments_to_make(options.peer):
            set_up(name, shlex.split(options.pip_options), say)
        return 0
    options.peer, options.item = chosen_peers(options.peer), options.item or ["atari", "hopper"]
    options.section = options.section or list(SECTIONS)
    host = result.machine() | {"peers": in_process.versions(options)}
    rounds: list[dict[str, float]] = [{} for _ in range(options.rounds)]
    for section in options.section:
        if section == "trees":
            found = in_process.measure_trees(options, say)
        elif section == "buffers":
            found = in_process.measure_buffers(options, say)
        elif section == "loads":
            found = measure_loads(options, say, folder)
        elif section == "ragged":
            found = measure_ragged(options, say)
        else:
            found = measure_experience(options, say, folder)
        for measured, more in zip(rounds, found, strict=True):
            measured |= more
    command = " ".join(["replay-server bench peers", *argv])
    content = result.document("peers", command, host, vars(options), rounds, ratios(rounds[0]))
    tables = f"{claims.markdown(claims.findings(rounds))}\n{markdown(content)}"
    say(tables)
    if options.json:
        result.write(options.json, content)
    if options.table:
        Path(options.table).write_text(tables)
    if options.plot:
        from replay_server.bench.plot import plot_peers

        plot_peers(rows(content), content, options.plot)
    return 0


def ratios(measured: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Each way of using this project over each peer, for every measurement that both have."""
    names = set(measured)
    found = {}
    for name in measured:
        section, kind, side, what = name.split(".", 3)
        if not is_own(side):
            continue
        for peer in sorted({other.split(".")[2] for other in names}):
            if not is_own(peer) and f"{section}.{kind}.{peer}.{what}" in names:
                found[f"{section}.{kind}.{what} {side} / {peer}"] = (name, f"{section}.{kind}.{peer}.{what}")
    return found
