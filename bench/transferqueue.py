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
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import replay_server as rs
from replay_server.arguments import Parser
from replay_server.bench import result

SIDES = ("simple_storage", "memory", "everysec")
RATIOS = {
    f"{side}, {what} / SimpleStorage": (f"{side}.{what}", f"simple_storage.{what}")
    for side in SIDES[1:]
    for what in ("put_gb_per_s", "get_gb_per_s", "small_puts_per_s", "small_gets_per_s")
}
NEEDS = "TransferQueue is not installed beside replay-server: pip install TransferQueue==0.1.11"
SMALL_NUMBERS = 64


def _parser() -> Parser:
    parser = Parser("replay-server bench transferqueue", description=__doc__)
    parser.add_argument("--samples", type=int, default=256, metavar="N", help="of a batch (256)")
    parser.add_argument("--fields", type=int, default=4, metavar="N", help="of a sample (4)")
    parser.add_argument("--field-bytes", type=int, default=65536, metavar="N", help="of a field (65536)")
    parser.add_argument("--small", type=int, default=100, metavar="N", help="single puts and gets of a round (100)")
    parser.add_argument("--rounds", type=int, default=5, help="of every side, after one that warms up (5)")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    return parser


# ---- a side, in a process of its own ---------------------------------------------------------------------------------


def _settings(url: str | None) -> dict[str, Any]:
    if url is None:
        return {"storage_backend": "SimpleStorage"}
    return {"storage_backend": "ReplayServer", "ReplayServer": {"url": url}}


def _round(options: argparse.Namespace, number: int) -> dict[str, float]:
    """One turn: puts, gets, compares and clears.

    Raises ValueError where what was got is not what was put.
    """
    import torch
    import transfer_queue  # pyright: ignore[reportMissingImports]
    from tensordict import TensorDict  # pyright: ignore[reportMissingImports]

    generator = torch.Generator().manual_seed(number)
    fields = TensorDict(
        {
            f"field{place}": torch.randint(
                256, (options.samples, options.field_bytes), dtype=torch.uint8, generator=generator
            )
            for place in range(options.fields)
        },
        batch_size=options.samples,
    )
    partition = f"round{number}"
    keys = [f"sample{place}" for place in range(options.samples)]
    begun = time.perf_counter()
    transfer_queue.kv_batch_put(keys=keys, partition_id=partition, fields=fields, tags=[{} for _ in keys])
    put = time.perf_counter()
    found = transfer_queue.kv_batch_get(keys=keys, partition_id=partition)
    got = time.perf_counter()
    for name, values in fields.items():
        if not torch.equal(torch.stack(list(found[name].unbind())), values):
            raise ValueError(f"{name} of round {number} is not what was put")
    transfer_queue.kv_clear(keys=keys, partition_id=partition)
    gigabytes = options.samples * options.fields * options.field_bytes / 1e9
    measured = {"put_gb_per_s": gigabytes / (put - begun), "get_gb_per_s": gigabytes / (got - put)}

    small = [
        TensorDict({"numbers": torch.full((1, SMALL_NUMBERS), float(place))}, batch_size=1)
        for place in range(options.small)
    ]
    keys = [f"small{place}" for place in range(options.small)]
    begun = time.perf_counter()
    for key, sample in zip(keys, small, strict=True):
        transfer_queue.kv_batch_put(keys=[key], partition_id=partition, fields=sample, tags=[{}])
    put = time.perf_counter()
    back = [transfer_queue.kv_batch_get(keys=[key], partition_id=partition) for key in keys]
    got = time.perf_counter()
    for sample, one in zip(small, back, strict=True):
        if not torch.equal(torch.stack(list(one["numbers"].unbind())), sample["numbers"]):
            raise ValueError(f"a small sample of round {number} is not what was put")
    transfer_queue.kv_clear(keys=keys, partition_id=partition)
    measured["small_puts_per_s"] = options.small / (put - begun)
    measured["small_gets_per_s"] = options.small / (got - put)
    return measured


def _side(pipe: multiprocessing.connection.Connection, options: argparse.Namespace, url: str | None) -> None:
    import ray  # pyright: ignore[reportMissingImports]
    import transfer_queue  # pyright: ignore[reportMissingImports]
    from omegaconf import OmegaConf  # pyright: ignore[reportMissingImports]

    import replay_server.adapters.transfer_queue  # noqa: F401

    os.environ.pop("RAY_ADDRESS", None)
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        transfer_queue.init(OmegaConf.create({"backend": _settings(url)}))
        pipe.send("ready")
        while (number := pipe.recv()) is not None:
            pipe.send(_round(options, number))
        transfer_queue.close()
    finally:
        ray.shutdown()


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
        process = context.Process(target=_side, args=(theirs, options, url))
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
