"""What a real transition costs: Breakout is recorded once, and each system is filled with the recording.

Memory is what the server's process grew by; bytes on the wire are those that its TCP sockets received, headers of TCP
and IP left out; processor time is that of the server's process.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Callable

import numpy as np

from replay_server.bench.items import KINDS
from replay_server.bench.load import cpu_seconds, resident_bytes
from replay_server.bench.peers.in_process import in_turn
from replay_server.bench.peers.systems import SYSTEMS, System
from replay_server.bench.process import Program
from replay_server.bench.programs.recorded import write
from replay_server.extras import how_to_install

ENVIRONMENTS = 20
LEFT_OUT = ("redis_list", "ray", "replay_shared", "replay_whole_shared")
"""Their memory lies in several processes, or is that of another system."""


def record(folder: str, items: int) -> None:
    """Leaves that many random steps of Breakout, as the Ape-X actors see it, in a folder.

    Raises RuntimeError where the emulator is not installed.
    """
    try:
        from replay_server.actors.envs import make_environments
        from replay_server.rl.settings import ApexSettings

        environments = make_environments(ApexSettings(env="ALE/Breakout-v5"), ENVIRONMENTS, np.random.SeedSequence(1))
    except ImportError as error:
        raise RuntimeError(f"recorded frames need {error.name}: {how_to_install(error.name)}") from None
    steps = -(-items // ENVIRONMENTS)
    generator = np.random.default_rng(1)
    frames = np.empty((steps, ENVIRONMENTS, 84, 84), np.uint8)
    actions = np.zeros((steps, ENVIRONMENTS), np.int64)
    rewards = np.zeros((steps, ENVIRONMENTS), np.float32)
    first = np.zeros((steps, ENVIRONMENTS), bool)
    observations = environments.reset()
    first[0] = True
    for step in range(steps):
        frames[step] = observations[:, -1]
        actions[step] = environments.forced(generator.integers(0, environments.num_actions, ENVIRONMENTS))
        answer = environments.step(actions[step])
        observations, rewards[step] = answer.observations, answer.rewards
        if step + 1 < steps:
            first[step + 1] = answer.ignored
    environments.close()
    write(folder, frames, actions, rewards, first)


def measure_experience(options: argparse.Namespace, say: Callable[[str], None], folder: str) -> list[dict[str, float]]:
    """Rounds of `experience.breakout.SYSTEM.WHAT`, per item."""
    rounds: list[dict[str, float]] = [{} for _ in range(options.rounds)]
    systems = [system for system in SYSTEMS if system.name in options.peer and system.name not in LEFT_OUT]
    items = options.capacity or KINDS["atari"].capacity
    record(folder, items)
    for number, measured in enumerate(rounds):
        for system in in_turn(systems, number):
            values = _filled(system, items, folder)
            measured |= {f"experience.breakout.{system.name}.{what}": value for what, value in values.items()}
            parts = ", ".join(f"{what} {value:,.1f}" for what, value in values.items())
            say(f"round {number + 1} breakout {system.name:15} {parts}")
    return rounds


def _filled(system: System, items: int, folder: str) -> dict[str, float]:
    kind = KINDS["atari"]
    with (
        system.start(system, kind, items + ENVIRONMENTS, folder) as target,
        Program(system.program, system.environment, system.variables) as program,
    ):
        program.ask("versions")  # by then all libraries are loaded
        memory, cpu = resident_bytes(target.pid), cpu_seconds(target.pid)
        made = program.ask("experience", url=target.url, columns=kind.columns, folder=folder)["items"]
        return {
            "memory_bytes_per_item": round((resident_bytes(target.pid) - memory) / made, 1),
            "server_cpu_us_per_item": round((cpu_seconds(target.pid) - cpu) / made * 1e6, 2),
            "wire_bytes_per_item": round(received_bytes(int(target.url.rpartition(":")[2])) / made, 1),
        }


def received_bytes(port: int) -> int:
    """Bytes that the open TCP connections to a port of this host have received. Needs `ss`, of iproute2."""
    command = ["ss", "-tinH", "state", "established", f"( sport = :{port} )"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sum(int(count) for count in re.findall(r"bytes_received:(\d+)", found))
