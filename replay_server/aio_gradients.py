"""What the asyncio client does with gradients that wait on the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from . import gradients
from .commands import Command
from .gradients import Gradients

T = TypeVar("T")


class AsyncGradientMethods:
    """The methods of `replay_server.client_gradients.GradientMethods`, to be awaited; see there."""

    async def _run(self, command: Command[T]) -> T:
        raise NotImplementedError

    async def push_gradient(self, key: str, version: int, name: str, vector: Any, dtype: str | None = None) -> bool:
        """See `replay_server.Client.push_gradient`."""
        return await self._run(gradients.push(key, version, name, vector, dtype))

    async def take_gradients(
        self,
        key: str,
        count: int,
        *,
        until: tuple[int, float] | None = None,
        weights: Sequence[float] | np.ndarray | None = None,
        timeout: float | None = None,
    ) -> Gradients:
        """See `replay_server.Client.take_gradients`."""
        return await self._run(gradients.take(key, count, until, weights, False, timeout))

    async def gradient_headers(
        self,
        key: str,
        count: int = gradients.MOST_WAITING,
        *,
        until: tuple[int, float] | None = None,
        timeout: float | None = None,
    ) -> Gradients:
        """See `replay_server.Client.gradient_headers`."""
        return await self._run(gradients.take(key, count, until, None, True, timeout))

    async def await_gradients(self, key: str, names: Sequence[str], most: int = 0, timeout: float | None = None) -> int:
        """See `replay_server.Client.await_gradients`."""
        return await self._run(gradients.await_taken(key, names, most, timeout))

    async def publish_applied(
        self, key: str, names: Sequence[str], version: int, weights: Mapping[str, Mapping[str, Any]]
    ) -> int:
        """See `replay_server.Client.publish_applied`."""
        return await self._run(gradients.publish(key, names, version, weights))

    async def drop_gradients(self, key: str, names: Sequence[str]) -> int:
        """See `replay_server.Client.drop_gradients`."""
        return await self._run(gradients.drop(key, names))

    async def gradient_states(self, key: str, names: Sequence[str]) -> list[str | None]:
        """See `replay_server.Client.gradient_states`."""
        return await self._run(gradients.states(key, names))

    async def gradient_info(self, key: str) -> dict[str, Any]:
        """See `replay_server.Client.gradient_info`."""
        return await self._run(gradients.info(key))

    async def gradient_keys(self) -> list[str]:
        """See `replay_server.Client.gradient_keys`."""
        return await self._run(gradients.keys())

    async def delete_gradients(self, *keys: str) -> int:
        """See `replay_server.Client.delete_gradients`."""
        return await self._run(gradients.delete(keys))
