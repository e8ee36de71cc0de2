"""What a client does with gradients that wait on the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from . import gradients
from .commands import Command
from .driver import Operation, Written, operation
from .gradients import Gradients

T = TypeVar("T")


class GradientOperations(Written):
    """Gradients of many learners, for one that applies them.

    A learner pushes a gradient under a name and with the version of the weights that it was computed at. The one that
    applies them looks at the oldest, or takes their weighted sum; they go on waiting until it publishes the weights
    that it made of them, in one command, so that whoever dies in between has neither lost nor applied any twice.
    """

    def _answer(self, command: Command[T]) -> Operation[T]:
        raise NotImplementedError

    @operation
    def push_gradient(
        self, key: str, version: int, name: str, vector: Any, dtype: str | None = None
    ) -> Operation[bool]:
        """Adds a gradient at the end of those that wait.

        Args:
            key: of the queue, made with its first gradient. At most 1,024 wait under one, all of one dtype and length.
            version: of the weights that it was computed at.
            name: 1 to 128 bytes, its own among all of the key, such as learner, version and sequence: one that waits
                already, or is among the last 4,096 that were applied or dropped, is not added again.
            vector: float32 (N,), or a tensor of float32 or bfloat16.
            dtype: "float32" or "bfloat16", to which elements are rounded (to nearest, ties to even) before they are
                sent; None: as they are.

        Returns:
            Whether it was new. Where the connection is lost it is sent again, which the name makes safe.

        Raises:
            SchemaError: no such vector, or not like those that wait.
            LimitExceeded: too many wait, or there is no memory.
        """
        return self._answer(gradients.push(key, version, name, vector, dtype))

    @operation
    def take_gradients(
        self,
        key: str,
        count: int,
        *,
        until: tuple[int, float] | None = None,
        weights: Sequence[float] | np.ndarray | None = None,
        timeout: float | None = None,
    ) -> Operation[Gradients]:
        """The oldest gradients, once enough wait; they wait on.

        Args:
            key: of the queue; it need not be there yet.
            count: as many at most.
            until: (current version, β): waits until the mean of current version − a gradient's own over all that wait
                is at most β, or `count` wait. None: until any waits; with `weights`, until `count` do.
            weights: (count,), finite: the server returns Σ w_k x_k alone, summed in float64 and rounded once to the
                dtype of the gradients, so that one vector leaves it. Not with `until`: look first, with
                `gradient_headers`.
            timeout: seconds; None = for ever, 0 = not at all.

        Raises:
            Timeout: not enough wait; its `reason` says how many do.
        """
        return self._answer(gradients.take(key, count, until, weights, False, timeout))

    @operation
    def gradient_headers(
        self,
        key: str,
        count: int = gradients.MOST_WAITING,
        *,
        until: tuple[int, float] | None = None,
        timeout: float | None = None,
    ) -> Operation[Gradients]:
        """As `take_gradients`, without the vectors: names, versions, dtype and bytes, from which weights follow."""
        return self._answer(gradients.take(key, count, until, None, True, timeout))

    @operation
    def await_gradients(
        self, key: str, names: Sequence[str], most: int = 0, timeout: float | None = None
    ) -> Operation[int]:
        """Waits until at most `most` of these gradients wait, so that whoever computes them does not run far ahead.

        Args:
            key: of the queue.
            names: 1 to 1,024; one that is not known counts as not waiting.
            most: as many may still wait.
            timeout: seconds; None = for ever, 0 = not at all.

        Returns:
            How many do.

        Raises:
            Timeout: more do.
        """
        return self._answer(gradients.await_taken(key, names, most, timeout))

    @operation
    def publish_applied(
        self, key: str, names: Sequence[str], version: int, weights: Mapping[str, Mapping[str, Any]]
    ) -> Operation[int]:
        """Publishes weights and takes out the gradients that they were made of: all of it at once, or nothing.

        Args:
            key: of the queue.
            names: of gradients that wait under it, each once; none is fine (what a job begins with).
            version: of the weights, above that of each key.
            weights: key → named arrays, as for `publish_weights`; 1 to 16 keys, such as a policy and its optimiser.

        Returns:
            The version.

        Raises:
            StaleVersion: someone has published that version or a newer one: what was made is of no use. Begin again
                with what is published.
            GradientNotWaiting: a name was applied or dropped already, or is not known.
            ConnectionLost: whether it was done is not known; `fetch_weights` or `gradient_states` tells.
        """
        return self._answer(gradients.publish(key, names, version, weights))

    @operation
    def drop_gradients(self, key: str, names: Sequence[str]) -> Operation[int]:
        """Takes gradients out without applying them; returns how many of them waited."""
        return self._answer(gradients.drop(key, names))

    @operation
    def gradient_states(self, key: str, names: Sequence[str]) -> Operation[list[str | None]]:
        """Of each name: "waiting", "applied", "dropped", or None where it is not known (any more)."""
        return self._answer(gradients.states(key, names))

    @operation
    def gradient_info(self, key: str) -> Operation[dict[str, Any]]:
        """What waits under a key: waiting, bytes, vector_bytes, dtype, oldest_version and newest_version (-1: none
        waits); counters since the server began: pushed, duplicates, applied, dropped; remembered and forgotten names;
        takers, clients that wait. All 0 where there is no such key."""
        return self._answer(gradients.info(key))

    @operation
    def gradient_keys(self) -> Operation[list[str]]:
        """The keys under which gradients wait, or names are remembered."""
        return self._answer(gradients.keys())

    @operation
    def delete_gradients(self, *keys: str) -> Operation[int]:
        """Removes keys with all that waits and every name; returns how many there were."""
        return self._answer(gradients.delete(keys))
