"""An operation that blocks, done up to where it would wait for a reply: others go on while the server is at work.

What is begun keeps its connection, so nothing else can read its reply (`driver` tells of the steps of an operation).
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from .connection import Connection
from .driver import Operation, Step, after, run

T = TypeVar("T")


class Begun(Generic[T]):
    """A request that was sent, or a result that needed none. One that nobody refers to any more is given up.

    Raises what the operation raises before its request is sent.
    """

    def __init__(self, operation: Operation[T]) -> None:
        self._operation = operation
        self._step: Step = ()
        self._result: Any = None
        try:
            self._step = next(operation)
            while getattr(self._step[0], "__func__", None) is not Connection.receive:
                self._step = after(operation, self._step)
        except StopIteration as stop:
            self._step, self._result = (), stop.value
        except BaseException:
            operation.close()
            raise

    @property
    def is_done(self) -> bool:
        """Whether there is no reply to wait for, as where a table is in this process."""
        return not self._step

    def finish(self) -> T:
        """Waits for the reply; once only. Raises what the operation raises."""
        return run(self._operation, self._step) if self._step else self._result

    def close(self) -> None:
        """Gives the request up: its connection is closed."""
        self._operation.close()
