"""The writers of the asyncio client: those of the blocking client, with every call that may send run in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from .client import Client
from .errors import ReplayError
from .n_step_writer import NStepWriter, VectorNStepWriter
from .writer import VectorWriter, Writer

T = TypeVar("T")


class _Threaded:
    """Runs a writer's calls one after another in threads, so that a wait for the server never stops the loop."""

    def __init__(self, client: Client, writer: Any) -> None:
        self._client, self._writer = client, writer
        self._turn = asyncio.Lock()

    async def _run(self, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
        async with self._turn:
            try:
                return await asyncio.to_thread(call, *arguments, **named)
            except asyncio.CancelledError:
                # The thread may wait for the rate limiter: its connection is ended, and nothing later uses the writer.
                self._client.close()
                raise

    def _now(self, call: Callable[..., None], *arguments: Any, **named: Any) -> None:
        """Runs a call that sends nothing; beside one in a thread it would lose what that one is about to replace."""
        if self._turn.locked():
            raise ReplayError("an earlier call of this writer is still under way: await it first")
        call(*arguments, **named)

    @property
    def waiting(self) -> int:
        """Items that were made and not sent yet."""
        return self._writer.waiting

    async def flush(self, timeout: float | None = None) -> np.ndarray:
        """Sends what can be sent; the ids of all items sent since the last flush."""
        return await self._run(self._writer.flush, timeout)

    async def close(self, flush: bool = True) -> None:
        """Ends the episodes, sends what is left (unless told not to), and closes the connection."""
        try:
            await self._run(self._writer.close, flush)
        finally:
            self._client.close()

    async def __aexit__(self, kind: object, *exception: object) -> None:
        await self.close(flush=kind is None)


class AsyncVectorWriter(_Threaded):
    """`replay_server.writer.VectorWriter` for asyncio; a cancelled call ends it."""

    _writer: VectorWriter

    async def __aenter__(self) -> AsyncVectorWriter:
        return self

    async def append(self, step: Mapping[str, Any], *, mask: Any = None, final: Any = None) -> None:
        """See `VectorWriter.append`."""
        await self._run(self._writer.append, step, mask=mask, final=final)

    def create_items(
        self, priorities: Any = None, at: Any = -1, columns: Mapping[str, Any] | None = None, *, mask: Any = None
    ) -> None:
        """See `VectorWriter.create_items`; sends nothing."""
        self._now(self._writer.create_items, priorities, at, columns, mask=mask)

    def end_episode(self, mask: Any = None) -> None:
        """See `VectorWriter.end_episode`; sends nothing."""
        self._now(self._writer.end_episode, mask)


class AsyncWriter(_Threaded):
    """`replay_server.writer.Writer` for asyncio; a cancelled call ends it."""

    _writer: Writer

    async def __aenter__(self) -> AsyncWriter:
        return self

    async def append(self, step: Mapping[str, Any], *, final: bool | None = None) -> None:
        """See `Writer.append`."""
        await self._run(self._writer.append, step, final=final)

    def create_item(
        self, priority: float | None = None, at: int = -1, columns: Mapping[str, Any] | None = None
    ) -> None:
        """See `Writer.create_item`; sends nothing."""
        self._now(self._writer.create_item, priority, at, columns)

    def end_episode(self) -> None:
        """See `Writer.end_episode`; sends nothing."""
        self._now(self._writer.end_episode)


class AsyncVectorNStepWriter(_Threaded):
    """`replay_server.n_step_writer.VectorNStepWriter` for asyncio; a cancelled call ends it."""

    _writer: VectorNStepWriter

    async def __aenter__(self) -> AsyncVectorNStepWriter:
        return self

    async def append(
        self,
        step: Mapping[str, Any],
        *,
        terminated: Any = False,
        truncated: Any = False,
        action_value: Any = None,
        state_value: Any = None,
        mask: Any = None,
    ) -> None:
        """See `VectorNStepWriter.append`."""
        values = {"action_value": action_value, "state_value": state_value}
        await self._run(self._writer.append, step, terminated=terminated, truncated=truncated, mask=mask, **values)

    def end_episode(self, mask: Any = None) -> None:
        """See `VectorNStepWriter.end_episode`; sends nothing."""
        self._now(self._writer.end_episode, mask)


class AsyncNStepWriter(_Threaded):
    """`replay_server.n_step_writer.NStepWriter` for asyncio; a cancelled call ends it."""

    _writer: NStepWriter

    async def __aenter__(self) -> AsyncNStepWriter:
        return self

    async def append(
        self,
        step: Mapping[str, Any],
        *,
        terminated: bool = False,
        truncated: bool = False,
        action_value: float | None = None,
        state_value: float | None = None,
    ) -> None:
        """See `NStepWriter.append`."""
        values = {"action_value": action_value, "state_value": state_value}
        await self._run(self._writer.append, step, terminated=terminated, truncated=truncated, **values)

    def end_episode(self) -> None:
        """See `NStepWriter.end_episode`; sends nothing."""
        self._now(self._writer.end_episode)
