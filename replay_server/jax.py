"""Batches as JAX arrays. Needs jax, which is in no extra: `pip install jax`.

An array of a batch becomes one of JAX by DLPack. On the CPU it lies over the memory that was received or is shared
with the server, where JAX accepts its alignment (64 bytes) and NumPy hands out what is read-only (from 2.1 on); else it
is copied once. To another device it is copied.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .batch import Batch
from .ragged import Ragged
from .sampler import Annealed, Sampler
from .tree import leaves_of, mapped

jax: Any = importlib.import_module("jax")


@dataclass(eq=False)
class JaxBatch:
    """A `replay_server.Batch` of JAX arrays.

    Attributes:
        data: as in `Batch`, with JAX arrays (N, *column.shape); a ragged column is a `replay_server.Ragged` whose
            `values` and `offsets` are JAX arrays.
        weights: float32 (N,), a JAX array.
        ids: uint64 (N,), a NumPy array, to hand back to `update_priorities`; JAX has no 64 bits unless asked for.
        probabilities: float64 (N,), a NumPy array, for the same reason.
    """

    data: dict[str, Any]
    weights: Any
    ids: np.ndarray
    probabilities: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def columns(self) -> dict[str, Any]:
        """`data` by path, such as "obs/image"."""
        return leaves_of(self.data)


def to_jax(batch: Batch, device: Any = None) -> JaxBatch:
    """A batch as JAX arrays; `device`: one of `jax.devices()`, None for the default one.

    JAX turns columns of 64 bits into 32 unless `jax_enable_x64` is set.
    """

    def array(values: Any) -> Any:
        if isinstance(values, Ragged):
            return Ragged(array(values.values), array(values.offsets))
        return _array(values, device)

    return JaxBatch(mapped(batch.data, array), array(batch.weights), batch.ids, batch.probabilities)


def _array(values: np.ndarray, device: Any) -> Any:
    wide = values.dtype.itemsize > 4 and values.dtype.kind in "iuf"
    if wide and not jax.config.jax_enable_x64:
        return jax.device_put(values, device)
    try:
        made = jax.dlpack.from_dlpack(values)
    except (BufferError, TypeError, RuntimeError):  # read-only under an older NumPy, or a dtype that DLPack has not
        return jax.device_put(values, device)
    return made if device is None else jax.device_put(made, device)


class JaxSampler(Annealed):
    """An iterator over `JaxBatch`es; a context manager. Made by `sampler`. Ends and fails as a
    `replay_server.Sampler`, which it has."""

    def __init__(self, source: Sampler, device: Any) -> None:
        self._feed, self._device = source, device

    def __iter__(self) -> Iterator[JaxBatch]:
        return self

    def __next__(self) -> JaxBatch:
        return to_jax(next(self._feed), self._device)

    def close(self) -> None:
        """Ends the sampling."""
        self._feed.close()

    def __enter__(self) -> JaxSampler:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def sampler(
    handle: Any,
    batch_size: int,
    *,
    device: Any = None,
    prefetch: int = 3,
    beta: float = 0.4,
    timeout: float | None = None,
    columns: Sequence[str] | None = None,
    replace: bool = True,
    coded: bool | None = None,
    workers: int = 1,
    in_flight: int | None = None,
) -> JaxSampler:
    """Batches of JAX arrays, sampled ahead in the background.

    Args:
        handle: a table: `client["atari"]`, or a `replay_server.Buffer`.
        batch_size: items of each batch.
        device: where the arrays are to be; None: JAX's default.
        beta: importance-sampling exponent of the weights.
        prefetch, timeout, columns, replace, coded, workers, in_flight: see `replay_server.Client.sampler`.
    """
    source = handle.sampler(
        batch_size,
        importance_sampling_exponent=beta,
        prefetch=prefetch,
        timeout=timeout,
        columns=columns,
        replace=replace,
        coded=coded,
        workers=workers,
        in_flight=in_flight,
    )
    return JaxSampler(source, device)
