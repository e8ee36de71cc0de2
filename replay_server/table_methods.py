"""How the holder of one table makes writers and samplers: a `Buffer`, and the handle of a server's table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np

from .batch import Allocate
from .n_step_writer import NStepWriter, VectorNStepWriter
from .options import SampleOptions, SamplerOptions, exponent
from .sampler import Sampler
from .table import Table
from .writer import VectorWriter, Writer


class TableMethods:
    """Makes writers to one table, and samplers of it."""

    def _written(self, kinds: tuple[type, type], environments: int | None, *options: Any) -> Any:
        """A writer of the first kind, or, with n_step, of the second; `options`: n_step, discount and the others."""
        raise NotImplementedError

    def _sampler(self, options: SamplerOptions) -> Sampler:
        raise NotImplementedError

    def _check_against_table(self, check: Callable[[Table], object]) -> None:
        """Calls a check with the table, which raises SchemaError where something does not fit it."""
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

    def sampler(
        self,
        batch_size: int,
        importance_sampling_exponent: float | None = None,
        prefetch: int = 2,
        timeout: float | None = None,
        columns: Sequence[str] | None = None,
        replace: bool = True,
        coded: bool | None = None,
        writable: bool = False,
        allocate: Allocate = np.empty,
        workers: int = 1,
        in_flight: int | None = None,
        *,
        beta: float | None = None,
        details: bool = False,
    ) -> Sampler:
        """An iterator over batches sampled ahead. See `replay_server.Client.sampler`, and of `coded`, `sample`."""
        sample = SampleOptions(
            exponent(importance_sampling_exponent, beta), timeout, columns, replace, None, coded, details
        )
        return self._sampler(SamplerOptions(batch_size, prefetch, sample, writable, allocate, workers, in_flight))


def checked_handle(handle: Any) -> TableMethods:
    """The handle, which holds one table.

    Raises:
        TypeError: it is neither a client's table nor a `Buffer`.
    """
    if not isinstance(handle, TableMethods):
        raise TypeError(f'expected a table, client["atari"] or an rs.Buffer, got {handle!r:.200}')
    return handle
