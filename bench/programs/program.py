"""One side of a benchmark in a process of its own: ``python program.py NAME [FOLDER]``, by the interpreter that has
its packages.

It reads requests from its input, a line of JSON each, and answers each with one; nothing is pickled. It runs in the
environments of peers, where this project is not installed: so it and the ``peer_*.py`` beside it import each other by
plain name, and beyond that only NumPy and what the peer itself needs.

The module ``peer_NAME`` lies beside this file, or in FOLDER. It may offer
- ``Tree(leaves)``: ``dtype``, ``update(indices, priorities)``, ``sample(count) → indices, priorities``;
- ``Buffer(columns, capacity, batch_size, push_size)``: ``add(items, priorities)``, ``sample()`` which keeps the ids,
  ``update(priorities)`` of those ids; where the buffer is uniform, there is no ``update``;
- ``server(**options) → dict with url and pid``: a server that lives until this process ends;
- ``pusher(**options)``, ``learner(**options) → step(latencies)``: one push, one batch, of a load;
- ``train(**options) → dict``: a whole run of learning; ``evaluate(**options)``: games with what was learned, see
  `games.py`; ``learner(**options) → update(**options)``: updates, one a call;
- ``fill(**options)``, and ``experience(**options) → dict``: puts recorded frames in.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import itertools
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

BLOCKS = 8
"""Different blocks of random items that an adding side takes turns with."""
INDEX_BLOCKS = 512
"""Different blocks of indices that are written in turns: so many that the leaves do not stay in the caches."""

Columns = Mapping[str, tuple[str, tuple[int, ...]]]
Latencies = dict[str, list[float]]


def random_items(columns: Columns, count: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """`count` random items, column → array (count, ...)."""
    items = {}
    for name, (dtype, shape) in columns.items():
        size = (count, *shape)
        if np.issubdtype(dtype, np.integer):
            items[name] = generator.integers(0, min(np.iinfo(dtype).max, 255), size, dtype=dtype, endpoint=True)
        else:
            items[name] = generator.standard_normal(size, dtype=np.float32).astype(dtype, copy=False)
    return items


def timed(latencies: list[float], call: Callable[[], Any]) -> Any:
    """Calls, and appends the call's latency in microseconds."""
    begin = time.perf_counter_ns()
    result = call()
    latencies.append((time.perf_counter_ns() - begin) / 1e3)
    return result


def pushing(
    push: Callable[[Any, np.ndarray], Any],
    columns: Columns,
    size: int,
    seed: int,
    form: Callable[[dict[str, np.ndarray]], Any] = dict,
) -> Callable[[Latencies], None]:
    """A pusher's step: calls ``push(block, priorities)`` with blocks of random items in turns. `form` makes a block of
    items, before anything is timed."""
    generator = np.random.default_rng(seed)
    blocks = itertools.cycle([form(random_items(columns, size, generator)) for _ in range(BLOCKS)])
    priorities = generator.random(size) + 0.01

    def step(latencies: Latencies) -> None:
        block = next(blocks)
        timed(latencies["push"], lambda: push(block, priorities))

    return step


class TreeCalls:
    """A full tree of random priorities, and its calls with inputs made beforehand."""

    def __init__(self, tree: Any, leaves: int, batch_size: int, seed: int) -> None:
        generator = np.random.default_rng(seed)
        for begin in range(0, leaves, 100_000):
            indices = np.arange(begin, min(leaves, begin + 100_000))
            tree.update(indices, (generator.random(len(indices)) + 0.01).astype(tree.dtype))
        self._indices = [generator.integers(0, leaves, batch_size) for _ in range(INDEX_BLOCKS)]
        self._values = [(generator.random(batch_size) + 0.01).astype(tree.dtype) for _ in range(INDEX_BLOCKS)]
        self._tree, self._batch_size, self._turn = tree, batch_size, 0
        indices, priorities = tree.sample(batch_size)
        if len(indices) != batch_size or np.asarray(indices).max() >= leaves or np.asarray(priorities).min() <= 0:
            raise RuntimeError("the tree draws what it does not hold")

    def sample(self) -> None:
        self._tree.sample(self._batch_size)

    def update(self) -> None:
        self._turn = (self._turn + 1) % INDEX_BLOCKS
        self._tree.update(self._indices[self._turn], self._values[self._turn])


class BufferCalls:
    """A full buffer of random items, and its calls with inputs made beforehand."""

    def __init__(
        self, buffer: Any, columns: Columns, capacity: int, batch_size: int, push_size: int, seed: int
    ) -> None:
        generator = np.random.default_rng(seed)
        self._blocks = [random_items(columns, push_size, generator) for _ in range(BLOCKS)]
        self._priorities = [generator.random(push_size) + 0.01 for _ in range(BLOCKS)]
        self._written = [generator.random(batch_size) + 0.01 for _ in range(BLOCKS)]
        self._buffer, self._turn = buffer, 0
        for _ in range(0, capacity, push_size):
            self.add()
        buffer.sample()

    def add(self) -> None:
        self._turn = (self._turn + 1) % BLOCKS
        self._buffer.add(self._blocks[self._turn], self._priorities[self._turn])

    def sample(self) -> None:
        self._buffer.sample()

    def update(self) -> None:
        self._turn = (self._turn + 1) % BLOCKS
        self._buffer.update(self._written[self._turn])

    def cycle(self) -> None:
        self.add()
        self.sample()
        if hasattr(self._buffer, "update"):
            self.update()


class Session:
    """What the requests act on."""

    def __init__(self, peer: Any) -> None:
        self._peer = peer
        self._subject: Any = None

    def versions(self) -> dict[str, str]:
        return {name: importlib.metadata.version(name) for name in self._peer.PACKAGES}

    def place(self) -> dict[str, Any]:
        """What this process has of the machine, and the processor seconds that it and its children have taken."""
        torch = sys.modules.get("torch")
        threads = None if torch is None else torch.get_num_threads()
        used_s = round(sum(os.times()[:4]), 1)
        return {"nice": os.nice(0), "cores": len(os.sched_getaffinity(0)), "torch_threads": threads, "cpu_s": used_s}

    def tree(self, leaves: int, batch_size: int, seed: int) -> None:
        self._subject = None
        self._subject = TreeCalls(self._peer.Tree(leaves), leaves, batch_size, seed)

    def buffer(self, columns: dict[str, Any], capacity: int, batch_size: int, push_size: int, seed: int) -> None:
        self._subject = None
        made = self._peer.Buffer(_columns(columns), capacity, batch_size, push_size)
        self._subject = BufferCalls(made, _columns(columns), capacity, batch_size, push_size, seed)

    def close(self) -> None:
        self._subject = None

    def repeat(self, step: str, seconds: float, warm_up: float) -> dict[str, float]:
        """Calls one of the subject's methods for so long; how often it went, by the clock and by processor time."""
        call = getattr(self._subject, step)
        end = time.perf_counter() + warm_up
        calls = 0
        while calls == 0 or time.perf_counter() < end:
            call()
            calls += 1
        # So many calls between two looks at the clock that looking costs nothing.
        chunk = max(1, int(calls / max(warm_up, 1e-3) * 1e-3))
        calls, begin, begin_cpu = 0, time.perf_counter(), time.process_time()
        while True:
            for _ in range(chunk):
                call()
            calls += chunk
            took = time.perf_counter() - begin
            if took >= seconds:
                return {"calls_per_s": calls / took, "calls_per_cpu_s": calls / (time.process_time() - begin_cpu)}

    def server(self, **options: Any) -> dict[str, Any]:
        return self._peer.server(**_with_columns(options))

    def fill(self, **options: Any) -> None:
        self._peer.fill(**_with_columns(options))

    def train(self, **options: Any) -> dict[str, Any]:
        return self._peer.train(**options)

    def evaluate(self, **options: Any) -> Any:
        return self._peer.evaluate(**options)

    def experience(self, **options: Any) -> dict[str, Any]:
        return self._peer.experience(**_with_columns(options))

    def role(self, role: str, **options: Any) -> None:
        self._subject = getattr(self._peer, role)(**_with_columns(options))

    def call(self, **options: Any) -> Any:
        """Calls the role."""
        return self._subject(**options)

    def load(self, seconds: float, warm_up: float) -> dict[str, Any]:
        """Takes steps of the role for so long; the latency of each call of each kind."""
        latencies: Latencies = {"push": [], "sample": [], "update": []}
        end = time.perf_counter() + warm_up
        while time.perf_counter() < end:
            self._subject(latencies)
        for values in latencies.values():
            values.clear()
        begin = time.perf_counter()
        while time.perf_counter() < begin + seconds:
            self._subject(latencies)
        took = time.perf_counter() - begin
        return {"seconds": took, "latencies_us": {k: [round(v, 1) for v in vs] for k, vs in latencies.items()}}


def _columns(given: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (dtype, tuple(shape)) for name, (dtype, shape) in given.items()}


def _with_columns(options: dict[str, Any]) -> dict[str, Any]:
    return {**options, "columns": _columns(options["columns"])} if "columns" in options else options


def resident_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(name: str, folder: str | None = None) -> int:
    if folder is not None:
        sys.path.insert(0, folder)
    # What a library prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    session = Session(importlib.import_module(f"peer_{name}"))
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"answer": getattr(session, request.pop("do"))(**request)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
