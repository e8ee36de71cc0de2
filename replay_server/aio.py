"""The asyncio twin of the client: the same methods, to be awaited; runs on uvloop as on asyncio's own loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from .aio_connection import AsyncPool
from .aio_sampler import AsyncSampler
from .aio_writer import AsyncNStepWriter, AsyncVectorNStepWriter, AsyncVectorWriter, AsyncWriter
from .batch import Batch
from .cluster_address import is_cluster_url
from .connection import Address
from .driver import Awaited, wait
from .operations import Operations, TableOperations
from .options import ClientOptions, SampleOptions, SamplerOptions, exponent
from .rollouts import AsyncRollouts as AsyncRollouts

if TYPE_CHECKING:
    import redis.asyncio

T = TypeVar("T")
C = TypeVar("C", bound="Client")


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on uvloop where it is installed, on asyncio's own loop where not."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


class Client(Operations, Awaited):
    """`replay_server.Client` for asyncio, an asynchronous context manager: arguments, results and errors are the same.

    Each running command has a connection of its own, so any number of tasks may share a client. A cancelled command
    closes its connection: whether a cancelled `add` was stored is not known. Memory is shared with a server on this
    host where `shared_memory` is True, and not with None.
    """

    def __new__(cls: type[C], *arguments: Any, **options: Any) -> C:
        if cls is Client and is_cluster_url(arguments[0] if arguments else options.get("url")):
            from .aio_cluster import AsyncClusterClient  # which stands on this module

            made: Any = object.__new__(AsyncClusterClient)
            return made
        return object.__new__(cls)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"aio.Client({str(self._address)!r})"

    def __getitem__(self, name: str) -> AsyncTableHandle:
        return AsyncTableHandle(self, name)

    @staticmethod
    def _new_pool(address: Address, options: ClientOptions) -> AsyncPool:
        return AsyncPool(address, options)

    @property
    def redis(self) -> redis.asyncio.Redis:
        """A redis-py asyncio client of the same server; of several hosts, of the one last found to be the primary."""
        if self._redis is None or self._redis_of is not self._pool.primary:
            import redis.asyncio

            self._redis_of = self._pool.primary
            self._redis = redis.asyncio.Redis.from_url(self._redis_of.url, **self._redis_options())
        return self._redis

    async def close(self) -> None:
        """Closes every connection; a command that waits in another task raises `ConnectionLost`."""
        self._pool.close()
        if self._redis is not None:
            await self._redis.aclose()

    @overload
    async def writer(self, name: str, *, n_step: None = None, discount: None = None, **options: Any) -> AsyncWriter: ...

    @overload
    async def writer(self, name: str, *, n_step: int, discount: float, **options: Any) -> AsyncNStepWriter: ...

    async def writer(
        self, name: str, *, n_step: int | None = None, discount: float | None = None, **options: Any
    ) -> AsyncWriter | AsyncNStepWriter:
        """See `replay_server.Client.writer`; `async with await client.writer("t") as writer: …`."""
        return await wait(self._written((AsyncWriter, AsyncNStepWriter), name, None, n_step, discount, options))

    @overload
    async def vector_writer(
        self, name: str, environments: int, *, n_step: None = None, discount: None = None, **options: Any
    ) -> AsyncVectorWriter: ...

    @overload
    async def vector_writer(
        self, name: str, environments: int, *, n_step: int, discount: float, **options: Any
    ) -> AsyncVectorNStepWriter: ...

    async def vector_writer(
        self, name: str, environments: int, *, n_step: int | None = None, discount: float | None = None, **options: Any
    ) -> AsyncVectorWriter | AsyncVectorNStepWriter:
        """See `replay_server.Client.vector_writer`; `async with await client.vector_writer("t", 8) as writer: …`."""
        kinds = (AsyncVectorWriter, AsyncVectorNStepWriter)
        return await wait(self._written(kinds, name, environments, n_step, discount, options))

    def sampler(
        self,
        name: str,
        batch_size: int,
        importance_sampling_exponent: float | None = None,
        prefetch: int = 2,
        timeout: float | None = None,
        columns: Sequence[str] | None = None,
        replace: bool = True,
        coded: bool | None = None,
        writable: bool = False,
        workers: int = 1,
        in_flight: int | None = None,
        *,
        beta: float | None = None,
        details: bool = False,
    ) -> AsyncSampler:
        """`async with client.sampler("t", 512) as batches: async for batch in batches: …`, sampled ahead by a task for
        each request in flight, and given in the order of their arrival. See `replay_server.Client.sampler`."""
        sample = SampleOptions(
            exponent(importance_sampling_exponent, beta), timeout, columns, replace, None, coded, details
        )
        shared = bool(self._options.shared_memory) and not coded and not writable
        self._check_open()

        def draw(wanted: SampleOptions) -> Coroutine[Any, Any, Batch]:
            return wait(self._sample(name, batch_size, None, shared, wanted))

        chosen = SamplerOptions(batch_size, prefetch, sample, writable, workers=workers, in_flight=in_flight)
        return AsyncSampler(draw, chosen)


Client.__new__.__signature__ = inspect.signature(Operations.__init__)  # type: ignore[attr-defined]


class AsyncTableHandle(TableOperations, Awaited):
    """One table of a server, `client["atari"]`: the methods of `replay_server.Buffer`, awaited."""

    _client: Client

    def __repr__(self) -> str:
        return f"{self._client!r}[{self.name!r}]"

    async def writer(self, **options: Any) -> Any:
        """See `Client.writer`."""
        return await self._client.writer(self.name, **options)

    async def vector_writer(self, environments: int, **options: Any) -> Any:
        """See `Client.vector_writer`."""
        return await self._client.vector_writer(self.name, environments, **options)

    def sampler(self, batch_size: int, *arguments: Any, **options: Any) -> AsyncSampler:
        """See `Client.sampler`."""
        return self._client.sampler(self.name, batch_size, *arguments, **options)
