"""A connection that outlives a short outage of the server, with a bound on how long it tries."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, TypeVar

import redis.exceptions

import replay_server as rs
from replay_server.cluster_address import is_cluster_url

Result = TypeVar("Result")

LOST = (
    ConnectionError,
    rs.TableNotFound,
    rs.NotPrimary,
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.RedisClusterException,
)
"""What says that the server is away, came back without what was on it, or has become a replica."""

SILENT_S = 10.0
"""How long a server may be silent under a call where the URL names another one, which may be the primary by now."""


def part_timeouts(server_url: str) -> dict[str, Any]:
    """The timeouts of a part's client."""
    of_several = "," in server_url and not is_cluster_url(server_url)
    return {"connect_timeout": 2.0, **({"socket_timeout": SILENT_S} if of_several else {})}


class PersistentClient:
    """Runs operations on a `replay_server.Client`; one that meets a lost connection is repeated on a new one.

    An operation may therefore reach the server twice (a pushed batch can be stored twice around an outage), never
    zero times. `on_connect` runs on every new client first: what a restarted server has forgotten is set up there. A
    client that lost a connection meanwhile, even an idle one, makes room for a new one.
    """

    def __init__(
        self,
        server_url: str,
        *,
        patience_s: float = 30.0,
        stop: Callable[[], bool] = lambda: False,
        on_connect: Callable[[rs.Client], None] = lambda client: None,
        shared_memory: bool | None = None,
        reconnect_timeout: float = 0.5,
    ) -> None:
        """Connects; the client's own reconnecting is kept short, so that `stop` is looked at often.

        Raises ConnectionLost if the server did not answer for `patience_s` seconds (infinite: waits for ever), or
        `stop` says so.
        """
        self._server_url = server_url
        self._patience_s = patience_s
        self._stop = stop
        self._on_connect = on_connect
        self._options = {"shared_memory": shared_memory, "reconnect_timeout": reconnect_timeout}
        self._client: rs.Client | None = None
        self.reconnections = -1
        """How often a lost connection was replaced."""
        self.call(lambda client: None)

    def call(self, operation: Callable[[rs.Client], Result]) -> Result:
        """Returns operation(client). Raises ConnectionLost as the constructor does; other errors pass through."""
        gives_up_at: float | None = None
        delay_s = 0.05
        while True:
            try:
                return operation(self._connected())
            except LOST as error:
                self.close()
                now = time.monotonic()
                gives_up_at = gives_up_at or now + self._patience_s
                if now + delay_s > gives_up_at or self._stop():
                    raise rs.ConnectionLost(
                        f"no server for {self._patience_s:g} s: {error}; start it again, then this part of the run"
                    ) from error
                time.sleep(delay_s)
                delay_s = min(2 * delay_s, 1.0)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):  # The connection may be broken already.
                client.close()

    def _connected(self) -> rs.Client:
        if self._client is not None and self._client.lost_connections:
            self.close()
        if self._client is None:
            client = rs.Client(self._server_url, **part_timeouts(self._server_url), **self._options)
            try:
                self._on_connect(client)
            except BaseException:
                client.close()
                raise
            self._client = client
            self.reconnections += 1
        return self._client
