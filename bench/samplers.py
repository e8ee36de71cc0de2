"""`replay-server bench samplers`: how many batches a second a learner gets, by the way that it takes them.

Nobody pushes, and each way takes its turn within a round, another one first in each. Atari batches of 512 transitions
(29 MB) unless told otherwise.

- `tcp` and `shared`: `client.sampler`, over TCP, and through memory shared with the server.
- `tcp_in_flight`: over TCP by `--workers` threads that keep `--in-flight` requests under way.
- `torch_tcp`, `torch_shared` and `torch_tcp_in_flight`: the same by `replay_server.torch.sampler` on the CPU.
- `tcp_once` and `shared_once`: `client.sampler` from a table that stores each frame once (Atari alone).
- `wire`: as many bytes from another process over a TCP connection of this machine, received by plain `recv_into` into
  memory that is used again. Nothing that uses one connection is faster.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import replay_server as rs
from replay_server.arguments import Parser
from replay_server.bench import result
from replay_server.bench.items import KINDS
from replay_server.bench.messages import FRAMES, N_STEP, frames_table
from replay_server.bench.server import fill

RATIOS = {
    "torch / NumPy, TCP": ("torch_tcp.batches_per_s", "tcp.batches_per_s"),
    "torch / NumPy, shared memory": ("torch_shared.batches_per_s", "shared.batches_per_s"),
    "torch / NumPy, in flight": ("torch_tcp_in_flight.batches_per_s", "tcp_in_flight.batches_per_s"),
    "frames once / whole, TCP": ("tcp_once.batches_per_s", "tcp.batches_per_s"),
    "frames once / whole, shared memory": ("shared_once.batches_per_s", "shared.batches_per_s"),
    "several in flight / one": ("tcp_in_flight.batches_per_s", "tcp.batches_per_s"),
    "several in flight / wire": ("tcp_in_flight.batches_per_s", "wire.batches_per_s"),
}
WARM_UP = 5
"""Batches before the clock starts."""
CHUNK_BYTES = 1 << 20


def _parser() -> Parser:
    parser = Parser("replay-server bench samplers", description=__doc__)
    parser.add_argument("--item", choices=sorted(KINDS), default="atari", help="what is sampled (atari)")
    parser.add_argument("--capacity", type=int, metavar="N", help="items of the table (by --item)")
    parser.add_argument("--batch", type=int, default=512, metavar="N", help="items of a batch (512)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="threads of the ways in flight (2)")
    parser.add_argument("--in-flight", type=int, default=4, metavar="N", help="their requests under way (4)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn (2)")
    parser.add_argument("--rounds", type=int, default=5, help="of every way (5)")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    return parser


def _fill_frames(client: rs.Client, capacity: int) -> None:
    """Steps of one endless episode with random frames, until the table is full of their items."""
    frames = np.random.default_rng(1).integers(256, size=(256, 84, 84), dtype=np.uint8)
    with client.writer(FRAMES, n_step=N_STEP, discount=0.99) as writer:
        for step in range(capacity + N_STEP):
            writer.append({"frame": frames[step % len(frames)], "action": step % 4, "reward": 1.0})


def _rate(take: Callable[[], Any], seconds: float) -> float:
    """Batches a second that a call takes; one at a time is kept."""
    for _ in range(WARM_UP):
        take()
    count, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        take()
        count += 1
    return count / (time.perf_counter() - begun)


def _sampled(made: Any, seconds: float) -> float:
    """The rate of a sampler, which is closed then. The learner lets go of a batch before it takes the next."""
    with made as sampler:
        return _rate(lambda: next(sampler) and None, seconds)


def _send(port: int) -> None:
    """Sends until the other side hangs up."""
    block = memoryview(bytes(CHUNK_BYTES))
    with socket.create_connection(("127.0.0.1", port)) as connection, contextlib.suppress(ConnectionError):
        while True:
            connection.sendall(block)


@contextlib.contextmanager
def _sender() -> Iterator[socket.socket]:
    """A connection from a process that sends all the time; it stands still while nobody receives."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = multiprocessing.get_context("spawn").Process(target=_send, args=(listener.getsockname()[1],))
        process.start()
        connection, _ = listener.accept()
    with connection:
        yield connection
    process.join()


def _receive(connection: socket.socket, into: memoryview) -> None:
    done = 0
    while done < len(into):
        done += connection.recv_into(into[done:])


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> list[dict[str, float]]:
    """All rounds: measurement → value."""
    import replay_server.torch as tensors

    kind = KINDS[options.item]
    capacity = options.capacity or kind.capacity
    several = {"workers": options.workers, "in_flight": options.in_flight}
    with contextlib.ExitStack() as stack:
        tables = [kind.table(capacity), *([frames_table(capacity)] if kind.name == "atari" else [])]
        server = stack.enter_context(rs.Server(tables))
        fill(server.url, kind, capacity)
        by_tcp = stack.enter_context(rs.Client(server.url, shared_memory=False))
        shared = stack.enter_context(rs.Client(server.url, shared_memory=True))
        wire = stack.enter_context(_sender())
        received = memoryview(bytearray(options.batch * kind.item_bytes))

        def by(client: rs.Client, torch: bool, table: str = "bench", **more: Any) -> Callable[[], float]:
            def rate() -> float:
                if torch:
                    return _sampled(tensors.sampler(client[table], options.batch, prefetch=2, **more), options.seconds)
                return _sampled(client.sampler(table, options.batch, **more), options.seconds)

            return rate

        ways: dict[str, Callable[[], float]] = {
            "tcp": by(by_tcp, torch=False),
            "torch_tcp": by(by_tcp, torch=True),
            "tcp_in_flight": by(by_tcp, torch=False, **several),
            "torch_tcp_in_flight": by(by_tcp, torch=True, **several),
            "shared": by(shared, torch=False),
            "torch_shared": by(shared, torch=True),
            "wire": lambda: _rate(lambda: _receive(wire, received), options.seconds),
        }
        if len(tables) > 1:
            _fill_frames(by_tcp, capacity)
            ways |= {"tcp_once": by(by_tcp, False, FRAMES), "shared_once": by(shared, False, FRAMES)}
        names, rounds = list(ways), []
        for number in range(options.rounds):
            order = names[number % len(names) :] + names[: number % len(names)]
            measured = {f"{name}.batches_per_s": round(ways[name](), 2) for name in order}
            rounds.append(measured)
            say(f"round {number + 1} of {options.rounds}: {measured}")
    return rounds


def main(argv: list[str], folder: str = "", say: Callable[[str], None] = print) -> int:
    """Runs it. Returns the exit status."""
    options = _parser().parse_args(argv)
    host = result.machine()
    rounds = measure(options, say)
    result.conclude("samplers", argv, options, host, rounds, RATIOS, say, width=36)
    return 0
