"""How the holder of one table makes writers: a `Buffer`, and the handle of a server's table."""

from __future__ import annotations

from typing import Any, overload

from .n_step_writer import NStepWriter, VectorNStepWriter
from .writer import VectorWriter, Writer


class WriterMethods:
    """Makes writers to one table."""

    def _written(self, kinds: tuple[type, type], environments: int | None, *options: Any) -> Any:
        """A writer of the first kind, or, with n_step, of the second; `options`: n_step, discount and the others."""
        raise NotImplementedError

    @overload
    def writer(self, *, n_step: None = None, discount: None = None, **options: Any) -> Writer: ...

    @overload
    def writer(self, *, n_step: int, discount: float, **options: Any) -> NStepWriter: ...

    def writer(
        self, *, n_step: int | None = None, discount: float | None = None, **options: Any
    ) -> Writer | NStepWriter:
        """A writer of one environment's steps. See `replay_server.Client.writer`."""
        return self._written((Writer, NStepWriter), None, n_step, discount, options)

    @overload
    def vector_writer(
        self, environments: int, *, n_step: None = None, discount: None = None, **options: Any
    ) -> VectorWriter: ...

    @overload
    def vector_writer(
        self, environments: int, *, n_step: int, discount: float, **options: Any
    ) -> VectorNStepWriter: ...

    def vector_writer(
        self, environments: int, *, n_step: int | None = None, discount: float | None = None, **options: Any
    ) -> VectorWriter | VectorNStepWriter:
        """A writer of the steps of n environments. See `replay_server.Client.vector_writer`."""
        return self._written((VectorWriter, VectorNStepWriter), environments, n_step, discount, options)
