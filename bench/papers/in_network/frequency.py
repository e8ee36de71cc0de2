"""How often actors get their pushes through, against how often they would if communication took no time.

An actor works for so long, pushes, pulls the parameters, and works again; ideally N actors push N times as often as its
work allows. Faithful: half a second of work for 200 transitions. Own: 50 transitions at the pace of ALE on one core.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from replay_server.bench import messages
from replay_server.bench.papers.in_network import access
from replay_server.bench.papers.in_network.figure import (
    Measured,
    Options,
    Panel,
    Round,
    Say,
    findings_by_side,
    name,
    panels_of,
    ratios_between_sides,
    turned,
)
from replay_server.bench.sides import Host, start, usual

TITLE = "Push frequency against ideal"
PAPER = "the gap to the ideal frequency grows with the number of actors (read from a diagram: no numbers are given)"
WHATS = {"actor_push": "pushes"}
STATISTIC = "pushes_per_s"
WORK_S = {"faithful": 0.5, "own": 0.02}


def values(host: Host, sizes: str, actors: int, seconds: float, push_bytes: int) -> Round:
    actor, _ = access.roles(sizes, actors, host.side.is_redis, push_bytes)
    turn = host.turn([replace(actor, pause_us=WORK_S[sizes] * 1e6)], seconds, warm_up_s=WORK_S[sizes] / 2)
    rate = turn.measured.rounds_per_s("actor")
    return {name(sizes, "actor_push", host.side.name, actors, STATISTIC): round(rate, 3)}


def measure(options: Options, say: Say) -> Measured:
    push_bytes = 4_000_000 if options.quick else messages.FAITHFUL_PUSH_BYTES
    rounds: list[Round] = []
    with contextlib.ExitStack() as stack:
        hosts, about = start(options.sides or usual(), stack, [messages.frames_table(access.FRAMES_CAPACITY)])
        for host in hosts:
            access.prepare(host)
        for number in range(options.rounds):
            found: Round = {}
            for sizes in options.sizes:
                for actors in options.actors:
                    found[name(sizes, "actor_push", "ideal", actors, STATISTIC)] = actors / WORK_S[sizes]
                    for host in turned(hosts, number):
                        seconds = max(options.seconds, 2 * WORK_S[sizes])
                        found |= values(host, sizes, actors, seconds, push_bytes)
            rounds.append(found)
            say(f"frequency: round {number + 1}/{options.rounds}")
    ratios = ratios_between_sides(rounds[0], STATISTIC)
    for measured in rounds[0]:
        sizes, what, side, actors, _ = measured.split(".", 4)
        if side != "ideal":
            ideal = name(sizes, what, "ideal", int(actors), STATISTIC)
            ratios[f"{sizes} {what} actors={actors} {side} / ideal"] = (measured, ideal)
    panels: list[Panel] = panels_of(rounds[0], WHATS, STATISTIC, "pushes a second", 1.0)
    settings = {**about, "push_bytes": push_bytes, "work_s": WORK_S}
    return Measured(rounds, ratios, panels, settings, findings_by_side(rounds, ratios, WHATS, PAPER))
