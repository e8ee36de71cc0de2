"""`replay-server bench transferqueue`: TransferQueue's puts and gets with its own storage and with this server's.

The sides are TransferQueue's `SimpleStorage` (two units, its default), and this project's storage for it on a server
without an append-only file (`memory`) and with one (`everysec`, the default of `appendfsync`). Each side is a process
with a controller and a Ray of its own; the others stand still in the meantime. Within a round every side takes its
turn, another one first in each.

- `bulk`: a batch of samples with fields of tensors, put and got through `kv_batch_put` and `kv_batch_get`: GB/s of the
  tensors' bytes.
- `small`: one sample of one field of 64 numbers at a time: puts and gets a second.

Every batch that was got is compared with what was put, outside of the time.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import multiprocessing
import multiprocessing.connection
from collections.abc import Callable, Iterator
from pathlib import Path

import replay_server as rs
from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.programs.transferqueue_side import run_side

SIDES = ("simple_storage", "memory", "everysec")
RATIOS = {
    f"{side}, {what} / SimpleStorage": (f"{side}.{what}", f"simple_storage.{what}")
    for side in SIDES[1:]
    for what in ("put_gb_per_s", "get_gb_per_s", "small_puts_per_s", "small_gets_per_s")
}
NEEDS = "TransferQueue is not installed beside replay-server: pip install TransferQueue==0.1.11"


def _parser() -> Parser:
    parser = Parser("replay-server bench transferqueue", description=__doc__)
    parser.add_argument("--samples", type=int, default=256, metavar="N", help="of a batch (256)")
    parser.add_argument("--fields", type=int, default=4, metavar="N", help="of a sample (4)")
    parser.add_argument("--field-bytes", type=int, default=65536, metavar="N", help="of a field (65536)")
    parser.add_argument("--small", type=int, default=100, metavar="N", help="single puts and gets of a round (100)")
    parser.add_argument("--rounds", type=int, default=5, help="of every side, after one that warms up (5)")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    return parser


# ---- all of them, in turns -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _started(side: str, options: argparse.Namespace, folder: Path) -> Iterator[multiprocessing.connection.Connection]:
    """A side that is ready; the other end of its pipe."""
    with contextlib.ExitStack() as stack:
        url = None
        if side != "simple_storage":
            own = folder / side
            own.mkdir()
            log = {"appendonly": "yes" if side == "everysec" else "no"}
            url = stack.enter_context(rs.Server(directory=own, config=log)).url
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=run_side, args=(theirs, options, url))
        process.start()
        theirs.close()
        try:
            ours.recv()  # EOFError: it said why it ended
            yield ours
            ours.send(None)
        finally:
            process.join(30)
            if process.is_alive():
                process.terminate()
                process.join()
            ours.close()


def measure(options: argparse.Namespace, folder: Path, say: Callable[[str], None]) -> list[dict[str, float]]:
    """All rounds: measurement → value. The first, which warms everything up, is left out."""
    rounds: list[dict[str, float]] = []
    with contextlib.ExitStack() as stack:
        sides = {side: stack.enter_context(_started(side, options, folder)) for side in SIDES}
        for number in range(options.rounds + 1):
            measured = {}
            for turn in range(len(SIDES)):
                side = SIDES[(turn + number) % len(SIDES)]
                sides[side].send(number)
                measured |= {f"{side}.{what}": round(value, 4) for what, value in sides[side].recv().items()}
            if number:
                rounds.append(measured)
                say(f"round {number}: {json.dumps(measured)}")
    return rounds


def main(argv: list[str], folder: str, say: Callable[[str], None] = print) -> int:
    """Runs it. Returns the exit status."""
    options = _parser().parse_args(argv)
    if importlib.util.find_spec("transfer_queue") is None:
        say(NEEDS)
        return 1
    host = result.machine()
    rounds = measure(options, Path(folder), say)
    result.conclude("transferqueue", argv, options, host, rounds, RATIOS, say, width=44)
    return 0
