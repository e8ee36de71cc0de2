"""What all writers have in common: calls that may send, and where steps and items go."""

from __future__ import annotations

from typing import Protocol, TypeVar

import numpy as np

from .driver import Blocking, Operation, Written, operation
from .process_bound import Staying

W = TypeVar("W")


class StepSink(Protocol):
    """Where a writer's steps and items go. Streams are numbered from 0; their steps from 0 since `open`.

    Every operation may raise `ConnectionLost`: the streams are gone then, and `open` is called before anything else.
    """

    def open(self, streams: int, history: int) -> Operation[None]:
        """Opens that many empty streams, in place of those that are open."""
        ...

    def leaves(self, refused: bool = False) -> Operation[bool]:
        """Whether the streams should be opened anew before anything else is sent, since where they are is on its way
        out. `refused`: it has just refused what was sent."""
        ...

    def end_episodes(self, streams: np.ndarray) -> Operation[None]:
        """The newest steps of these streams, uint32 (n,), were the last of their episodes."""
        ...

    def send_steps(self, streams: np.ndarray, flags: np.ndarray, columns: dict[str, np.ndarray]) -> Operation[None]:
        """Appends step i to stream streams[i], uint32 (n,), with flags uint8 (n,), in order; all or none."""
        ...

    def send_items(
        self,
        streams: np.ndarray,
        steps: np.ndarray,
        priorities: np.ndarray | None,
        columns: dict[str, np.ndarray],
        timeout: float | None,
        table: str | None = None,
    ) -> Operation[np.ndarray]:
        """Makes item i at step steps[i], uint64 (n,), of stream streams[i]: as many of the first as the rate limiter
        admits at once, at least one. Their ids, uint64 (m,), 1 <= m <= n. `table`: one that shares the steps.

        Raises:
            Timeout: the rate limiter held all of them back; nothing was made.
        """
        ...

    def close(self) -> None:
        """Gives the streams back."""

    def abort(self) -> None:
        """From another thread: what is under way ends with `ConnectionLost`, and so does all that comes after it."""


class StepWriting(Written, Staying):
    """What every writer has; `BlockingWriter` and `aio_writer.AwaitedWriter` are drivers of it."""

    _send_instead = "send the client or its handle, and make a writer there"

    @operation
    def flush(self, timeout: float | None = None, wait: bool = True) -> Operation[np.ndarray]:
        raise NotImplementedError

    @operation
    def close(self, flush: bool = True) -> Operation[None]:
        raise NotImplementedError

    def _check_turn(self) -> None:
        """Before a call that sends nothing: whether one that sends is under way beside it."""


class BlockingWriter(StepWriting, Blocking):
    """A writer whose calls return when what they send is answered; a context manager."""

    def __enter__(self: W) -> W:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        self.close(flush=kind is None)
