"""A side of `replay-server bench transferqueue`: TransferQueue in a process of its own, with a storage."""

from __future__ import annotations

import argparse
import os
import time
from multiprocessing.connection import Connection
from typing import Any

SMALL_NUMBERS = 64


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


def run_side(pipe: Connection, options: argparse.Namespace, url: str | None) -> None:
    """Takes a turn for each number that comes through the pipe, and ends at None. `url`: of the server; None:
    SimpleStorage."""
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
