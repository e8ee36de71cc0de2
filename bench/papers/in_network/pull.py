"""Throughput of the learner's pulls: what N actors have pushed, 200 transitions of float32 each (43 MB × N)."""

from __future__ import annotations

import contextlib

from replay_server.bench import messages
from replay_server.bench.client import Role
from replay_server.bench.papers.in_network.figure import (
    Measured,
    Options,
    Round,
    Say,
    findings_by_side,
    name,
    panels_of,
    ratios_between_sides,
    turned,
)
from replay_server.bench.sides import Host, start, usual

TITLE = "Optimisation 1: throughput of replay pulls"
PAPER = "pull throughput +21.9 % to +31.9 %"
WHATS = {"learner_pull": "learner pull"}
STATISTIC = "experiences_per_s"


def prepare(host: Host, actors: int, push_bytes: int) -> None:
    """One push of every actor lies there."""
    with host.awake():
        host.redis.delete(messages.EXPERIENCE)
        for _ in range(actors):
            host.redis.rpush(messages.EXPERIENCE, messages.random_bytes(push_bytes))


def values(host: Host, actors: int, seconds: float, items: int) -> Round:
    turn = host.turn([Role("learner", {"pull": messages.pull_blobs()})], seconds, warm_up_s=0.05)
    rate = turn.measured.rounds_per_s("learner")
    side = host.side.name
    latency_us = turn.measured.latency_us("learner", "pull")
    return {
        name("faithful", "learner_pull", side, actors, STATISTIC): round(rate * actors * items, 2),
        name("faithful", "learner_pull", side, actors): latency_us,
    }


def measure(options: Options, say: Say) -> Measured:
    items = 20 if options.quick else messages.FAITHFUL.push_size
    push_bytes = items * messages.FAITHFUL.item_bytes
    rounds: list[Round] = []
    with contextlib.ExitStack() as stack:
        hosts, about = start(options.sides or usual(), stack)
        for number in range(options.rounds):
            found: Round = {}
            for actors in options.actors:
                for host in turned(hosts, number):
                    prepare(host, actors, push_bytes)
                    found |= values(host, actors, options.seconds, items)
            rounds.append(found)
            say(f"pull: round {number + 1}/{options.rounds}")
    ratios = ratios_between_sides(rounds[0], STATISTIC)
    panels = panels_of(rounds[0], WHATS, STATISTIC, "experiences a second", 1.0)
    settings = {**about, "push_bytes": push_bytes}
    return Measured(rounds, ratios, panels, settings, findings_by_side(rounds, ratios, WHATS, PAPER))
