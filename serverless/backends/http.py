"""Functions behind HTTP: CloudEvents to a functions-framework service, as Knative and Cloud Run run it.

Without a URL the services are started here, on loopback, one a warm instance, and each runs one invocation at a time.
With one, the platform behind it starts and ends instances; what times out here goes on there to its own time limit.
Such invocations are waited for on one event loop, and their connections are used again: a handshake is made once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import ssl
import threading
import time
import urllib.parse
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from replay_server.rl.function_contract import WarmRequest, decode_response, encode_request
from replay_server.serverless.backends.backend import (
    WARM_S,
    Attempt,
    FunctionError,
    FunctionLost,
    FunctionTimeout,
    checked_warm,
    unrecorded,
)
from replay_server.serverless.backends.event_loop import EventLoop
from replay_server.serverless.backends.http_exchange import Answer, AnswerTooLong, ExchangeFailed, Exchanges
from replay_server.serverless.backends.http_service import HttpService, ServiceDied
from replay_server.serverless.cloud_event import CONTENT_TYPE, REQUEST_TYPE, RESPONSE_TYPE, TOKEN

WARM_HOLD_S = 1.0
"""How long each of them is kept busy, so that a platform elsewhere starts another one for the next."""
STARTS = 3
"""Times that a service is started that found its port taken."""
CLOSE_S = 5.0
TOLD_BYTES = 300
"""What is told of an answer that is an error."""


class HttpPlatform:
    """Functions as HTTP services.

    Args:
        url: of the service, ``https://…`` or ``http://…``; None = services are started here, on loopback.
        memory_mb: that an instance has, or is reckoned to have; this does not enforce it.
        token_file: the bearer token to bring is its first line, read again for every invocation since tokens expire;
            None = that of the environment variable REPLAY_FUNCTION_TOKEN, where there is one.
        ca_file: certificates to verify the service's with, instead of the system's.
        environment: variables for services started here, on top of those that worker processes get.
        answer_bytes: the longest answer that is taken.

    Raises:
        ValueError: the URL is none of those.
    """

    name = "http"

    def __init__(
        self,
        url: str | None = None,
        *,
        memory_mb: int = 1024,
        token_file: str | os.PathLike[str] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] | None = None,
        answer_bytes: int = 64 * 2**20,
    ) -> None:
        self.memory_mb = memory_mb
        self._remote = _Remote(url, ca_file) if url is not None else None
        self._token_file = Path(token_file) if token_file is not None else None
        self._own_token = secrets.token_hex(16)
        self._environment = dict(environment or {})
        self._answer_bytes = answer_bytes
        self._change = threading.Condition()
        self._idle: list[HttpService] = []
        self._busy: set[HttpService] = set()
        self._closed = False
        self._exchanges = Exchanges(self._remote.tls if self._remote is not None else None)
        self._running: set[asyncio.Task[object]] = set()
        """Tasks that are at an exchange."""
        self._loop = EventLoop("http")

    @property
    def loop(self) -> EventLoop | None:
        """Where `invoke_async` is awaited; None = the services are ours, of which each start takes a thread."""
        return self._loop if self._remote is not None else None

    def invoke(self, payload: bytes, timeout_s: float) -> bytes:
        """Runs the function once and returns its answer.

        Raises:
            FunctionTimeout: no whole answer in time; a service of ours is ended.
            FunctionLost: no connection, a broken one, a status of 429 or 5xx, or no event in the answer.
            FunctionError: the service refused the request (another status): trying again does not help.
        """
        if self._remote is not None:
            self._check_open()
            return self._loop.run(self.invoke_async(payload, timeout_s))
        deadline = time.monotonic() + timeout_s
        service = self._take()
        keep = False
        try:
            if service is None:
                service = self._start(deadline)
            known = {"instance": service.instance, "cold": service.calls == 0}
            service.calls += 1
            try:
                answer = self._loop.run(self._exchange(service.url, payload, deadline - time.monotonic()))
            except TimeoutError:
                message = f"service {service.pid} was ended: no answer within {timeout_s:.3g} s"
                raise FunctionTimeout(message, **known) from None
            except FunctionLost as error:
                raise FunctionLost(f"service {service.pid} was lost: {error}: {service.obituary()}", **known) from None
            keep = True
            return answer
        finally:
            if service is not None:
                self._give_back(service, keep)

    async def invoke_async(self, payload: bytes, timeout_s: float) -> bytes:
        """`invoke` of a service by URL, on `loop`."""
        assert self._remote is not None
        try:
            return await self._exchange(self._remote.url, payload, timeout_s)
        except TimeoutError:
            raise FunctionTimeout(f"no answer from {self._remote.url} within {timeout_s:.3g} s") from None

    def prewarm(self, count: int, attempt: Attempt = unrecorded) -> None:
        """Makes instances warm: they have imported an actor's work.

        Services of ours are started until there are `count`, busy ones included. Elsewhere `count` requests that take
        a while are sent at once, which has the platform start as many instances as it wants for them. FunctionError.
        """
        with self._change:
            here = len(self._idle) + len(self._busy)
        if self._remote is not None:
            payloads = [encode_request(WarmRequest(hold_s=WARM_HOLD_S))] * count
            call = self._call_warm
        else:
            payloads = [encode_request(WarmRequest())] * max(0, count - here)
            call = self._call_new
        if payloads:
            with ThreadPoolExecutor(len(payloads)) as threads:
                for answer in threads.map(lambda payload: attempt(payload, lambda: call(payload)), payloads):
                    checked_warm(answer)

    def close(self) -> None:
        """Ends every service of ours, and the wait for those elsewhere: what runs raises FunctionLost."""
        with self._change:
            self._closed = True
            idle, self._idle = self._idle, []
            for service in self._busy:
                service.kill()
        for service in idle:
            service.end()
        with contextlib.suppress(RuntimeError):  # It is closed already.
            self._loop.run(self._give_up())
        with self._change:
            self._change.wait_for(lambda: not self._busy, timeout=CLOSE_S)
        self._loop.close()

    def services(self) -> list[int]:
        """Process ids of the services of ours, idle ones first."""
        with self._change:
            return [service.pid for service in (*self._idle, *self._busy)]

    def __enter__(self) -> HttpPlatform:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- one request

    async def _exchange(self, url: str, payload: bytes, timeout_s: float) -> bytes:
        """Sends one event and returns the data of that which answers. TimeoutError, FunctionLost, FunctionError."""
        headers = {
            "ce-specversion": "1.0",
            "ce-id": uuid.uuid4().hex,
            "ce-source": "/replay-server/backend",
            "ce-type": REQUEST_TYPE,
            "Content-Type": CONTENT_TYPE,
        }
        if token := self._token():
            headers["Authorization"] = f"Bearer {token}"
        self._check_open()
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            answer = await self._exchanges.post(
                url,
                payload,
                headers,
                timeout_s=timeout_s,
                most_bytes=self._answer_bytes,
                error_bytes=TOLD_BYTES,
            )
        except asyncio.CancelledError:
            if self._closed:
                raise FunctionLost("the platform was closed") from None
            raise
        except AnswerTooLong as error:
            raise FunctionError(str(error)) from None
        except ExchangeFailed as error:
            raise FunctionLost("the platform was closed" if self._closed else str(error)) from error
        finally:
            self._running.discard(task)
        return _checked(answer)

    async def _give_up(self) -> None:
        """Ends the wait for what runs, and the connections."""
        for task in self._running:
            task.cancel()
        await self._exchanges.close()

    def _token(self) -> str | None:
        if self._remote is None:
            return self._own_token
        if self._token_file is not None:
            return (self._token_file.read_text().splitlines() or [""])[0].strip()
        return os.environ.get(TOKEN)

    # -- services of ours

    def _take(self) -> HttpService | None:
        """An idle one that lives, the last used; None = there is none."""
        while True:
            with self._change:
                self._check_open()
                if not self._idle:
                    return None
                service = self._idle.pop()
                self._busy.add(service)
            if service.alive:
                return service
            self._give_back(service, keep=False)

    def _start(self, deadline: float) -> HttpService:
        told = ""
        for _ in range(STARTS):
            service = HttpService(self._own_token, self._environment)
            known = {"instance": service.instance, "cold": True}
            with self._change:
                self._busy.add(service)
                closed = self._closed
            try:
                if closed:
                    raise FunctionLost("the platform was closed", **known)
                service.wait_ready(deadline)
                return service
            except TimeoutError:
                self._give_back(service, keep=False)
                raise FunctionTimeout("a new service did not answer in time", **known) from None
            except ServiceDied as error:
                self._give_back(service, keep=False)
                told = str(error)
                if self._closed:
                    raise FunctionLost("the platform was closed", **known) from None
            except BaseException:
                self._give_back(service, keep=False)
                raise
        raise FunctionLost(f"cannot start a service: {told}", cold=True)

    def _give_back(self, service: HttpService, keep: bool) -> None:
        with self._change:
            keep = keep and not self._closed
            if keep:
                self._busy.discard(service)
                self._idle.append(service)
        if not keep:
            service.end()
            with self._change:
                self._busy.discard(service)
                self._change.notify_all()

    def _call_new(self, payload: bytes) -> bytes:
        deadline = time.monotonic() + WARM_S
        service = self._start(deadline)
        keep = False
        try:
            service.calls += 1
            answer = self._loop.run(self._exchange(service.url, payload, deadline - time.monotonic()))
            keep = decode_response(answer).failure is None
            return answer
        except TimeoutError:
            message = f"a service was not warm within {WARM_S:g} s"
            raise FunctionTimeout(message, instance=service.instance, cold=True) from None
        finally:
            self._give_back(service, keep)

    def _call_warm(self, payload: bytes) -> bytes:
        return self.invoke(payload, WARM_S)

    def _check_open(self) -> None:
        if self._closed:
            raise FunctionLost("the platform is closed: make another one")


class _Remote:
    """A service elsewhere."""

    def __init__(self, url: str, ca_file: str | os.PathLike[str] | None) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"expected the URL of a service, https://host/path or http://host:port/path, got {url!r}")
        if parts.username or parts.password:
            raise ValueError(f"expected a URL without a password: the token comes from {TOKEN} or a file")
        self.url = url
        self.tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None


def _checked(answer: Answer) -> bytes:
    """The data of the event that a service answered with. FunctionLost, FunctionError."""
    if answer.status != 200:
        kind = FunctionLost if answer.status >= 500 or answer.status == 429 else FunctionError
        told = answer.body.decode(errors="replace").strip()
        raise kind(f"status {answer.status} {answer.reason}{': ' if told else ''}{told}")
    if (got := answer.headers.get("ce-type")) != RESPONSE_TYPE:
        raise FunctionLost(f"expected an event of type {RESPONSE_TYPE}, got {got!r}: is the URL the function's?")
    return answer.body
