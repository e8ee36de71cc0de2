"""Trees and buffers in one process: every peer in its own, all filled, then short measurements in turns."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeVar

from replay_server.bench.items import KINDS
from replay_server.bench.load import KEEP_MEMORY, ONE_THREAD
from replay_server.bench.process import Program

T = TypeVar("T")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Peer:
    """One side of the comparison within a process."""

    name: str
    environment: str | None
    tree: bool = True
    prioritized: bool = True
    """Whether its buffer is; None of the others' updates are measured."""
    buffer: bool = True
    stacks: bool = False
    """Whether its buffer needs observations that are stacks of frames."""
    program: str | None = None
    """Of `programs/`; None: that of its name."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of its program."""

    def start(self) -> Program:
        """Its process."""
        return Program(self.program or self.name, self.environment, {**KEEP_MEMORY, **self.variables})


PEERS = (
    Peer("replay", None),
    Peer("replay_windows", None, tree=False, stacks=True),
    Peer("ceiling", None, tree=False, prioritized=False),
    Peer("cpprb", "cpprb"),
    Peer("tianshou", "tianshou"),
    Peer("stable_baselines3", "stable_baselines3", tree=False, prioritized=False),
    Peer("torchrl", "torchrl"),
    # By default torch's threads wait for each other by spinning, which costs more than they bring where cores are few.
    Peer("torchrl_one_thread", "torchrl", tree=False, program="torchrl", variables=ONE_THREAD),
    Peer("torchrl_f32", "torchrl", buffer=False),
)


def in_turn(sides: Sequence[T], number: int) -> list[T]:
    """All of them, another one first in each round."""
    first = number % len(sides)
    return [*sides[first:], *sides[:first]]


def measure_trees(options: argparse.Namespace, say: Say) -> list[dict[str, float]]:
    """Rounds of `tree.LEAVES.PEER.CALL_calls_per_s`."""
    rounds: list[dict[str, float]] = [{} for _ in range(options.rounds)]
    for leaves in options.leaves:
        with ExitStack() as stack:
            sides = [
                (peer.name, stack.enter_context(peer.start()))
                for peer in PEERS
                if peer.tree and peer.name in options.peer
            ]
            for _, side in sides:
                side.ask("tree", leaves=leaves, batch_size=options.batch, seed=1)
            for number, measured in enumerate(rounds):
                for call in ("sample", "update"):
                    for name, side in in_turn(sides, number):
                        found = side.ask("repeat", step=call, seconds=options.short_seconds, warm_up=0.1)
                        measured[f"tree.{leaves}.{name}.{call}_calls_per_s"] = round(found["calls_per_s"], 1)
                        what = f"{leaves:9,} {name:18} {call:7} {found['calls_per_s']:11,.0f}/s"
                        say(f"round {number + 1} tree {what}")
    return rounds


def measure_buffers(options: argparse.Namespace, say: Say) -> list[dict[str, float]]:
    """Rounds of `buffer.KIND.PEER.CALL_calls_per_s`."""
    rounds: list[dict[str, float]] = [{} for _ in range(options.rounds)]
    for kind in [KINDS[name] for name in options.item]:
        peers = [
            peer for peer in PEERS if peer.buffer and peer.name in options.peer and (kind.has_stacks or not peer.stacks)
        ]
        capacity = options.capacity or kind.capacity
        with ExitStack() as stack:
            sides = [(peer, stack.enter_context(peer.start())) for peer in peers]
            for _, side in sides:
                side.ask(
                    "buffer",
                    columns=kind.columns,
                    capacity=capacity,
                    batch_size=options.batch,
                    push_size=options.push,
                    seed=1,
                )
            for number, measured in enumerate(rounds):
                for call in ("add", "sample", "update", "cycle"):
                    for peer, side in in_turn(sides, number):
                        if call == "update" and not peer.prioritized:
                            continue
                        found = side.ask("repeat", step=call, seconds=options.short_seconds, warm_up=0.1)
                        name = f"buffer.{kind.name}.{peer.name}.{call}_calls_per_s"
                        measured[name] = round(found["calls_per_s"], 1)
                        what = f"{kind.name:7} {peer.name:18} {call:7} {found['calls_per_s']:11,.0f}/s"
                        say(f"round {number + 1} buffer {what}")
    return rounds


def versions(options: argparse.Namespace) -> dict[str, dict[str, str]]:
    """Peer → package → version."""
    found = {}
    for peer in PEERS:
        if peer.name in options.peer:
            with peer.start() as program:
                found[peer.name] = program.ask("versions")
    return found
