"""Servers under load: all of them run, and within a round they are loaded in turns."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack

from replay_server.bench.items import KINDS
from replay_server.bench.load import Crew, Load, run
from replay_server.bench.peers.in_process import in_turn
from replay_server.bench.peers.systems import SYSTEMS
from replay_server.bench.server import line


def loads(options: argparse.Namespace, capacity: int) -> list[Load]:
    """The learner alone, then so many pushers beside it, then pushers alone."""

    def load(pushers: int, learner: bool) -> Load:
        return Load(pushers, learner, options.push, options.batch, options.seconds, capacity=capacity)

    return [load(0, True), *(load(n, True) for n in options.pushers), *(load(n, False) for n in options.alone)]


def measure_loads(options: argparse.Namespace, say: Callable[[str], None], folder: str) -> list[dict[str, float]]:
    """Rounds of `load.KIND.SYSTEM.pushers=N[,alone].WHAT`."""
    rounds: list[dict[str, float]] = [{} for _ in range(options.rounds)]
    for kind in [KINDS[name] for name in options.item]:
        capacity = options.capacity or kind.capacity
        systems = [
            system
            for system in SYSTEMS
            if system.name in options.peer and not system.recorded_only and (kind.has_stacks or not system.stacks)
        ]
        with ExitStack() as stack:
            targets, crews = {}, {}
            for system in systems:
                crews[system.name] = crew = stack.enter_context(
                    Crew(system.program, system.environment, system.variables, system.options)
                )
                targets[system.name] = target = stack.enter_context(system.start(system, kind, capacity, folder))
                crew.member(0).ask("fill", url=target.url, columns=kind.columns, capacity=capacity)
            for number, measured in enumerate(rounds):
                for load in loads(options, capacity):
                    for system in in_turn(systems, number):
                        if load.pushers == 0 and not system.learner_asks:
                            continue
                        values = run(crews[system.name], targets[system.name], kind, load, seed=1 + 100 * number)
                        prefix = f"load.{kind.name}.{system.name}.{load.name}"
                        measured |= {f"{prefix}.{what}": value for what, value in values.items()}
                        say(f"round {number + 1} {kind.name:7} {system.name:12} {load.name:16} {line(values)}")
    return rounds
