"""Scripts that run for long: a command that a client of its own waits for, and the server that says BUSY."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio


@contextlib.contextmanager
def running(server: Any, *command: str | bytes | int) -> Iterator[list[Exception]]:
    """A command that a client of its own waits for meanwhile; the errors that it ended with."""
    failures: list[Exception] = []

    def run() -> None:
        try:
            with redis.from_url(server.url, socket_timeout=60) as caller:
                caller.execute_command(*command)
        except (redis.RedisError, OSError) as failure:
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield failures
    finally:
        thread.join(60)
        assert not thread.is_alive()


def wait_until_busy(client: redis.Redis) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(redis.ResponseError):
            client.get("a")
            time.sleep(0.01)
            continue
        break
    with pytest.raises(redis.ResponseError, match="BUSY Redis is busy running a script"):
        client.get("a")
