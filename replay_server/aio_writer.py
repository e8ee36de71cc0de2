"""The writers of the asyncio client: those of the blocking client, awaited."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from .driver import Awaited, Operation, wait
from .errors import ReplayError
from .n_step_writer import NStepWriting, VectorNStepWriting
from .step_sink import StepWriting
from .writer import VectorWriting, Writing

T = TypeVar("T")
W = TypeVar("W")


class AwaitedWriter(StepWriting, Awaited):
    """A writer whose calls that may send are awaited, and done one after another; an asynchronous context manager."""

    _turn: asyncio.Lock | None = None

    async def __aenter__(self: W) -> W:
        return self

    async def __aexit__(self, kind: object, *exception: object) -> None:
        await self.close(flush=kind is None)

    async def _awaited(self, operation: Operation[T]) -> T:
        if self._turn is None:
            self._turn = asyncio.Lock()
        async with self._turn:
            return await wait(operation)

    def _check_turn(self) -> None:
        if self._turn is not None and self._turn.locked():
            # Beside a call that sends it would lose what that one is about to replace.
            raise ReplayError("an earlier call of this writer is still under way: await it first")


class AsyncVectorWriter(VectorWriting, AwaitedWriter):
    """`replay_server.writer.VectorWriter` for asyncio."""


class AsyncWriter(Writing, AwaitedWriter):
    """`replay_server.writer.Writer` for asyncio."""


class AsyncVectorNStepWriter(VectorNStepWriting, AwaitedWriter):
    """`replay_server.n_step_writer.VectorNStepWriter` for asyncio."""


class AsyncNStepWriter(NStepWriting, AwaitedWriter):
    """`replay_server.n_step_writer.NStepWriter` for asyncio."""
