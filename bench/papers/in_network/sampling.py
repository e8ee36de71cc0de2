"""Where batches are drawn: by the learner, which first pulls all experience, or in the server (REPLAY.SAMPLE).

Optimisation 1: actors push blobs onto a list, the learner pulls the whole list, adds what it holds to a prioritized
buffer of its own (`rs.Buffer`), and samples there; the buffer's part is timed apart, in Python, and added. Optimisation
2: actors push items into the server's table and the learner samples from it. Actors push at a steady pace meanwhile.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import replay_server as rs
from replay_server.bench import messages
from replay_server.bench.client import Role
from replay_server.bench.items import ItemKind
from replay_server.bench.papers.in_network.figure import (
    Measured,
    Options,
    Panel,
    Round,
    Say,
    changes,
    findings_by_side,
    name,
    panels_of,
    percent,
    ratios_between_sides,
    turned,
)
from replay_server.bench.server import fill
from replay_server.bench.sides import Host, start, usual

TITLE = "Optimisation 2: sampling in the server against sampling by the learner"
PAPER = "in-server sampling: access latency −11.7 % to −28.1 %, sampling latency −21.9 % to −29.8 % with F-Stack"
BATCHES = (32, 512)
PUSHES_PER_S = {"faithful": 1.0, "own": 10.0}
"""Of one actor."""
TABLE_ITEMS = {"faithful": 1600, "own": 4000}
WHATS = {
    "sample_32": "in-server sample of 32",
    "sample_512": "in-server sample of 512",
    "push": "actor push beside it",
    "pull_32": "pull and sample 32",
    "pull_512": "pull and sample 512",
}


def kind_of(sizes: str) -> ItemKind:
    return messages.FAITHFUL if sizes == "faithful" else messages.ATARI


def pushed(sizes: str, quick: bool) -> int:
    """Transitions of one push."""
    return 20 if quick else kind_of(sizes).push_size


class Learner:
    """The learner's own buffer, as full as the server's table is."""

    def __init__(self, sizes: str, quick: bool) -> None:
        kind = kind_of(sizes)
        self._buffer = rs.Buffer(kind.table(TABLE_ITEMS[sizes] // (10 if quick else 1)))
        self._block = kind.random(pushed(sizes, quick), np.random.default_rng(1))
        self._outs: dict[int, rs.Batch] = {}
        for _ in range(self._buffer.table.capacity // len(self._block["action"])):
            self._buffer.add(self._block)

    def latencies_us(self, actors: int) -> dict[int, float]:
        """Of adding what N actors have pushed and then drawing a batch, by batch; medians of three."""
        adding = self._median_us(lambda: [self._buffer.add(self._block) for _ in range(actors)])
        return {batch: adding + self._median_us(lambda b=batch: self._draw(b)) for batch in BATCHES}

    def _draw(self, batch: int) -> None:
        self._outs[batch] = self._buffer.sample(batch, out=self._outs.get(batch))

    @staticmethod
    def _median_us(call: Callable[[], Any]) -> float:
        taken = []
        for _ in range(3):
            begin = time.perf_counter()
            call()
            taken.append((time.perf_counter() - begin) * 1e6)
        return sorted(taken)[1]


def in_server(host: Host, sizes: str, actors: int, options: Options) -> Round:
    """Optimisation 2: one turn, of batches of both sizes one after the other."""
    items = pushed(sizes, options.quick)
    roles = [
        Role("learner", {f"sample_{batch}": messages.sample(batch) for batch in BATCHES}),
        Role("actor", {"push": messages.push(kind_of(sizes), items)}, actors, rate_per_s=actors * PUSHES_PER_S[sizes]),
    ]
    turn = host.turn(roles, options.seconds, warm_up_s=0.05)
    asked = [("learner", f"sample_{batch}") for batch in BATCHES] + [("actor", "push")]
    return {name(sizes, what, host.side.name, actors): turn.measured.latency_us(role, what) for role, what in asked}


def by_learner(host: Host, sizes: str, actors: int, local_us: dict[int, float], options: Options) -> Round:
    """Optimisation 1: one turn; `local_us` is what the learner's own buffer takes, by batch."""
    size = pushed(sizes, options.quick) * kind_of(sizes).item_bytes
    with host.awake():
        host.redis.delete(messages.EXPERIENCE)
        for _ in range(actors):
            host.redis.rpush(messages.EXPERIENCE, messages.random_bytes(size))
    roles = [
        Role("learner", {"pull": messages.pull_blobs()}),
        Role("actor", {"push": messages.push_blob(size, actors)}, actors, rate_per_s=actors * PUSHES_PER_S[sizes]),
    ]
    turn = host.turn(roles, options.seconds, warm_up_s=0.05)
    pulled_us = turn.measured.latency_us("learner", "pull")
    side = host.side.name
    return {name(sizes, f"pull_{batch}", side, actors): round(pulled_us + own, 1) for batch, own in local_us.items()}


def measure_size(sizes: str, options: Options, say: Say, rounds: list[Round]) -> dict[str, Any]:
    """All rounds of one kind of size, into `rounds`; what is to be said of the sides."""
    kind, capacity = kind_of(sizes), TABLE_ITEMS[sizes] // (10 if options.quick else 1)
    learner = Learner(sizes, options.quick)
    with contextlib.ExitStack() as stack:
        hosts, about = start(options.sides or usual(), stack, [kind.table(capacity)])
        for host in hosts:
            if host.client is not None:
                with host.awake():
                    fill(host.client.url, kind, capacity)
        for number in range(options.rounds):
            for actors in options.actors:
                local_us = learner.latencies_us(actors)
                for batch, own_us in local_us.items():
                    rounds[number][name(sizes, f"local_{batch}", "learner", actors)] = round(own_us, 1)
                for host in turned(hosts, number):
                    rounds[number] |= by_learner(host, sizes, actors, local_us, options)
                    if not host.side.is_redis:
                        rounds[number] |= in_server(host, sizes, actors, options)
            say(f"sampling, {sizes} sizes: round {number + 1}/{options.rounds}")
    return about


def ratios_of(names: list[str]) -> dict[str, tuple[str, str]]:
    """Between sides, and of sampling in the server over pulling all, on the same side and over Redis."""
    found = ratios_between_sides(names)
    for measured in names:
        sizes, what, side, actors, statistic = measured.split(".", 4)
        if not what.startswith("sample_"):
            continue
        pull = what.replace("sample", "pull")
        for other in (side, "redis"):
            below = f"{sizes}.{pull}.{other}.{actors}.{statistic}"
            if below in names:
                found[f"{sizes} {what} actors={actors} {side} / {pull} {other}"] = (measured, below)
    return found


def findings(rounds: list[Round], ratios: dict[str, tuple[str, str]]) -> list[str]:
    lines = findings_by_side(rounds, ratios, WHATS, PAPER)
    for sizes in ("faithful", "own"):
        for batch in BATCHES:
            begin, end = f"{sizes} sample_{batch} ", f"/ pull_{batch} kernel"
            change = changes(rounds, ratios, lambda of, b=begin, e=end: of.startswith(b) and of.endswith(e))
            if change is not None:
                lines.append(
                    f"{sizes} sizes, kernel: {batch} drawn in the server instead of pulling all: {percent(change)}"
                )
    return lines


def measure(options: Options, say: Say) -> Measured:
    rounds: list[Round] = [{} for _ in range(options.rounds)]
    settings: dict[str, Any] = {"pushes_per_s_of_an_actor": PUSHES_PER_S, "table_items": TABLE_ITEMS}
    for sizes in options.sizes:
        settings |= measure_size(sizes, options, say, rounds)
    names = list(rounds[0])
    ratios = ratios_of(names)
    panels: list[Panel] = panels_of((one for one in names if ".local_" not in one), WHATS)
    return Measured(rounds, ratios, panels, settings, findings(rounds, ratios))
