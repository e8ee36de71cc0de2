"""What an Ape-X actor sends, as bytes: recorded Breakout, each frame once, steps coded as the table wants them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

import replay_server as rs
from replay_server.bench.client import request
from replay_server.bench.peers.experience import ENVIRONMENTS, record
from replay_server.bench.programs.recorded import Recorded
from replay_server.client_streams import ClientStreams
from replay_server.commands import Command, ServedTable
from replay_server.driver import Operation, at_once
from replay_server.rl.environment_spec import EnvironmentSpec, environment_spec
from replay_server.rl.settings import ApexSettings
from replay_server.rl.tables import STEP_COLUMN, apex_table
from replay_server.writer import VectorWriter

PUSHES = 16
"""Different ones, sent in turns; then the environments begin new episodes."""
STEPS_A_PUSH = 3
"""Of each of the environments: 60 transitions, the fewest whole steps that make the 50 after which an actor pushes."""
STEPS = (PUSHES + 1) * STEPS_A_PUSH
"""Of each environment. The first push has steps for two, since transitions end three steps after they begin."""


class _Kept(ClientStreams):
    """Streams of a writer that has no server: what it would send is kept."""

    def __init__(self, served: ServedTable) -> None:
        super().__init__(cast(Any, None), served)
        self.sent = b""

    @at_once
    def open(self, streams: int, history: int) -> None:
        self._history = history

    @at_once
    def leaves(self, refused: bool = False) -> bool:
        return False

    def send_items(
        self,
        streams: np.ndarray,
        steps: np.ndarray,
        priorities: np.ndarray | None,
        columns: dict[str, np.ndarray],
        timeout: float | None,
        table: str | None = None,
    ) -> Operation[np.ndarray]:
        yield from super().send_items(streams, steps, priorities, columns, timeout, table)
        return np.arange(len(streams), dtype=np.uint64)

    @at_once
    def _answer(self, command: Command[Any], of: ServedTable | None = None) -> Any:
        self.sent += request(command.arguments)


@dataclass(frozen=True)
class Pushes:
    """What actors push, made for any server that has the table.

    Attributes:
        settings: of the Ape-X run that the table is made for.
        recorded: Breakout, STEPS steps of each environment.
    """

    settings: ApexSettings
    spec: EnvironmentSpec
    recorded: Recorded

    @classmethod
    def record(cls, folder: str, compression: Any) -> Pushes:
        """Plays Breakout by chance, and leaves what was played in a folder. RuntimeError without the emulator."""
        record(folder, ENVIRONMENTS * STEPS)
        settings = ApexSettings(compression=compression)
        return cls(settings, environment_spec(settings), Recorded(folder))

    @property
    def transitions(self) -> int:
        """In all of the pushes together."""
        return self.recorded.items

    def in_gigabytes(self, gigabytes: float) -> int:
        """How many transitions are so much, as they are pushed; at least all that were made."""
        pushed = sum(map(len, self._made(ServedTable(self.table(1000), 1), ENVIRONMENTS, STEPS)))
        return max(self.transitions, int(gigabytes * 1e9 / pushed * self.transitions))

    def table(self, capacity: int) -> rs.Table:
        """As `replay-server apex` makes it."""
        settings = replace(self.settings, capacity=capacity, min_size_to_sample=1)
        return apex_table(settings, self.spec)

    def requests(self, client: rs.Client) -> dict[str, bytes]:
        """The pushes for a server's table, by number; the last ends the streams that the first begins."""
        made = self._made(self._served(client), ENVIRONMENTS, STEPS)
        return {f"{number:02}": push for number, push in enumerate(made)}

    def single(self, client: rs.Client) -> bytes:
        """A push that stands alone: one step, and the transition that sees it."""
        return b"".join(self._made(self._served(client), 1, 1))

    def _served(self, client: rs.Client) -> ServedTable:
        return ServedTable(self.table(1000), client.info(self.settings.table)["incarnation"])

    def _made(self, served: ServedTable, environments: int, steps: int) -> list[bytes]:
        sink, recorded, made = _Kept(served), self.recorded, []
        priorities = np.random.default_rng(1).random((steps, environments)) + 0.01
        ones = np.ones(environments, np.float32)
        writer = VectorWriter(served.table, sink, environments, flush_steps=STEPS + 1)
        for step in range(steps):
            is_last = step + 1 == steps
            final = recorded.last[step, :environments] | is_last
            writer.append({STEP_COLUMN: np.array(recorded.frames[step, :environments])}, final=final)
            own = {"action": np.array(recorded.actions[step, :environments]), "reward": ones, "discount": ones}
            writer.create_items(priorities[step], columns=own)
            if is_last or (step >= STEPS_A_PUSH and (step + 1) % STEPS_A_PUSH == 0):
                writer.flush()
                made.append(sink.sent)
                sink.sent = b""
        streams = np.arange(environments, dtype=np.uint32)
        made[-1] += request(["REPLAY.CLOSE", served.table.name, streams.tobytes()])
        return made
