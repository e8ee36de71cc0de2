"""Four pushers and a learner at once: nothing is lost or torn, and memory stays where it was once the table is full.

The file is its own load: ``python test_load.py push|learn URL SECONDS SEED`` is one process of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import replay_server as rs

CAPACITY = 2_000
SHAPE = (2, 84, 84)
PUSH, BATCH = 50, 64
PUSHERS = 4


def table() -> rs.Table:
    return rs.Table(
        "load",
        capacity=CAPACITY,
        signature={
            "key": rs.Column("int64"),
            "frame": rs.Column("uint8", SHAPE),
            "next_frame": rs.Column("uint8", SHAPE),
        },
        sampler=rs.Prioritized(priority_exponent=0.6),
        remover=rs.Fifo(),
        rate_limiter=rs.MinSize(PUSH),
    )


def items(keys: np.ndarray) -> dict[str, np.ndarray]:
    """Items whose every byte follows from their key, so that a reader sees a torn or mixed-up one."""
    rows = (len(keys), *SHAPE)
    shade = (keys % 251).astype(np.uint8)[:, None, None, None]
    return {
        "key": keys,
        "frame": np.broadcast_to(shade, rows).copy(),
        "next_frame": np.broadcast_to(shade ^ 255, rows).copy(),
    }


def push(url: str, seconds: float, seed: int) -> dict[str, int]:
    client, generator = rs.Client(url), np.random.default_rng(seed)
    end, added = time.monotonic() + seconds, 0
    while client.redis.exists("go on") or time.monotonic() < end:
        keys = generator.integers(0, 2**62, PUSH)
        ids = client.add("load", items(keys), generator.random(PUSH) + 0.01, timeout=60)
        assert len(np.unique(ids)) == PUSH
        added += PUSH
    return {"added": added}


def learn(url: str, seconds: float, seed: int) -> dict[str, int]:
    client, generator = rs.Client(url), np.random.default_rng(seed)
    end = time.monotonic() + seconds
    counts = {"sampled": 0, "updated": 0, "torn": 0}
    batch = None
    while client.redis.exists("go on") or time.monotonic() < end:
        batch = client.sample("load", BATCH, timeout=60, out=batch)
        expected = items(batch.data["key"])
        whole = [
            (batch.data[name] == expected[name]).reshape(BATCH, -1).all(axis=1) for name in ("frame", "next_frame")
        ]
        counts["torn"] += int(BATCH - np.logical_and(*whole).sum())
        applied, stale = client.update_priorities("load", batch.ids, generator.random(BATCH) + 0.01)
        assert applied + stale == BATCH
        counts["sampled"] += BATCH
        counts["updated"] += applied
    return counts


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def replaced(client: rs.Client, eventually: Callable[..., None]) -> None:
    """Returns when every item has made room for a new one, and the learner has had some batches meanwhile."""
    before = client.info("load")
    eventually(lambda: client.info("load")["added"] >= before["added"] + CAPACITY, "the pushers replace all")
    eventually(lambda: client.info("load")["sampled"] >= before["sampled"] + 10 * BATCH, "the learner samples")


@pytest.mark.parametrize("seconds", [10, pytest.param(60, marks=pytest.mark.slow)])
def test_pushers_and_a_learner_lose_nothing_and_memory_stays(seconds: int, eventually: Callable[..., None]) -> None:
    """For so long, and at least until the table was replaced once more after buffers had got their size."""
    with rs.Server([table()], host="127.0.0.1", port=0) as server, rs.Client(server.url) as client:
        client.redis.set("go on", 1)
        filling = np.arange(CAPACITY)
        for begin in range(0, CAPACITY, PUSH):
            client.add("load", items(filling[begin : begin + PUSH]))
        roles = [("push", seed) for seed in range(PUSHERS)] + [("learn", PUSHERS)]
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, role, server.url, str(seconds), str(seed)], stdout=subprocess.PIPE, text=True
            )
            for role, seed in roles
        ]
        try:
            # Two connections each; once more, and their buffers have their size.
            eventually(lambda: client.redis.info("clients")["connected_clients"] > 2 * len(roles), "every process runs")
            replaced(client, eventually)
            early = resident_bytes(server.pid)
            replaced(client, eventually)
            client.redis.delete("go on")
            results = [json.loads(process.communicate(timeout=seconds + 100)[0]) for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
        late = resident_bytes(server.pid)
        info = client.info("load")

    added = sum(result.get("added", 0) for result in results)
    assert info["added"] == CAPACITY + added
    assert info["size"] == CAPACITY
    assert info["removed"] == added
    assert info["sampled"] == results[-1]["sampled"] > 0
    assert info["stale_updates"] == results[-1]["sampled"] - results[-1]["updated"]
    assert results[-1]["torn"] == 0
    assert added > CAPACITY
    # Spare slots that were never needed before may still be touched, no more than a push of each pusher.
    allowance = 8 * PUSHERS * PUSH * sum(array.nbytes for array in items(np.zeros(1, np.int64)).values())
    assert late - early < allowance, f"grew by {late - early} bytes after the table was full"


if __name__ == "__main__":
    role, address, duration, number = sys.argv[1:]
    print(json.dumps({"push": push, "learn": learn}[role](address, float(duration), int(number))))
