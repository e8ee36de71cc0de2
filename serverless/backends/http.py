"""Functions behind HTTP: CloudEvents to a functions-framework service, as Knative and Cloud Run run it.

Without a URL the services are started here, on loopback, one a warm instance, and each runs one invocation at a time.
With one, the platform behind it starts and ends instances; what times out here goes on there to its own time limit.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import os
import secrets
import socket
import ssl
import threading
import time
import urllib.parse
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

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
from replay_server.serverless.backends.http_service import HOST, HttpService, ServiceDied
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
        self._connections: set[http.client.HTTPConnection] = set()
        self._closed = False

    def invoke(self, payload: bytes, timeout_s: float) -> bytes:
        """Runs the function once and returns its answer.

        Raises:
            FunctionTimeout: no whole answer in time; a service of ours is ended.
            FunctionLost: no connection, a broken one, a status of 429 or 5xx, or no event in the answer.
            FunctionError: the service refused the request (another status): trying again does not help.
        """
        deadline = time.monotonic() + timeout_s
        if self._remote is not None:
            self._check_open()
            try:
                return self._exchange(self._remote.connection(deadline), self._remote.path, payload, deadline)
            except TimeoutError:
                raise FunctionTimeout(f"no answer from {self._remote.url} within {timeout_s:.3g} s") from None
        service = self._take()
        keep = False
        try:
            if service is None:
                service = self._start(deadline)
            known = {"instance": service.instance, "cold": service.calls == 0}
            service.calls += 1
            connection = http.client.HTTPConnection(HOST, service.port, timeout=_left_s(deadline))
            try:
                answer = self._exchange(connection, "/", payload, deadline)
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
            for connection in self._connections:
                _hang_up(connection)
        for service in idle:
            service.end()
        with self._change:
            self._change.wait_for(lambda: not self._busy and not self._connections, timeout=CLOSE_S)

    def services(self) -> list[int]:
        """Process ids of the services of ours, idle ones first."""
        with self._change:
            return [service.pid for service in (*self._idle, *self._busy)]

    def __enter__(self) -> HttpPlatform:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- one request

    def _exchange(self, connection: http.client.HTTPConnection, path: str, payload: bytes, deadline: float) -> bytes:
        """Sends one event over a fresh connection and returns the data of that which answers. TimeoutError."""
        headers = {
            "ce-specversion": "1.0",
            "ce-id": uuid.uuid4().hex,
            "ce-source": "/replay-server/backend",
            "ce-type": REQUEST_TYPE,
            "Content-Type": CONTENT_TYPE,
            "Connection": "close",
        }
        if token := self._token():
            headers["Authorization"] = f"Bearer {token}"
        with self._change:
            self._check_open()
            self._connections.add(connection)
        try:
            connection.connect()
            stream = connection.sock
            assert stream is not None
            stream.settimeout(_left_s(deadline))
            connection.request("POST", path, payload, headers)
            response = http.client.HTTPResponse(stream, method="POST")
            with contextlib.closing(response):
                response.fp.close()
                response.fp = io.BufferedReader(_UntilDeadline(stream, deadline))
                response.begin()
                body = self._read(response)
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException) as error:
            if self._closed:
                raise FunctionLost("the platform was closed") from None
            raise FunctionLost(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()
            with self._change:
                self._connections.discard(connection)
                self._change.notify_all()
        return _checked(response, body)

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        """All of an answer's body; of one that is an error, its beginning."""
        body = bytearray()
        while not response.isclosed():
            if not (piece := response.read1(1 << 16)):
                break
            body += piece
            if response.status != 200 and len(body) >= TOLD_BYTES:
                return bytes(body)
            if len(body) > self._answer_bytes:
                raise FunctionError(f"expected an answer of at most {self._answer_bytes} bytes, got more")
        if response.length:
            raise FunctionLost(f"the answer broke off {response.length} bytes before its end")
        return bytes(body)

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
            connection = http.client.HTTPConnection(HOST, service.port, timeout=_left_s(deadline))
            service.calls += 1
            answer = self._exchange(connection, "/", payload, deadline)
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


class _UntilDeadline(io.RawIOBase):
    """What comes from a socket, all of it before a deadline (its own timeout is for each piece). TimeoutError."""

    def __init__(self, stream: socket.socket, deadline: float) -> None:
        self._stream, self._deadline = stream, deadline
        self._raw = stream.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._stream.settimeout(_left_s(self._deadline))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Remote:
    """A service elsewhere."""

    def __init__(self, url: str, ca_file: str | os.PathLike[str] | None) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"expected the URL of a service, https://host/path or http://host:port/path, got {url!r}")
        if parts.username or parts.password:
            raise ValueError(f"expected a URL without a password: the token comes from {TOKEN} or a file")
        self.url = url
        self.path = parts.path or "/"
        if parts.query:
            self.path += f"?{parts.query}"
        self._host, self._port = parts.hostname, parts.port
        self._tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None

    def connection(self, deadline: float) -> http.client.HTTPConnection:
        if self._tls is not None:
            return http.client.HTTPSConnection(self._host, self._port, timeout=_left_s(deadline), context=self._tls)
        return http.client.HTTPConnection(self._host, self._port, timeout=_left_s(deadline))


def _checked(response: http.client.HTTPResponse, body: bytes) -> bytes:
    """The data of the event that a service answered with. FunctionLost, FunctionError."""
    if response.status != 200:
        kind = FunctionLost if response.status >= 500 or response.status == 429 else FunctionError
        told = body[:TOLD_BYTES].decode(errors="replace").strip()
        raise kind(f"status {response.status} {response.reason}{': ' if told else ''}{told}")
    if (got := response.headers.get("ce-type")) != RESPONSE_TYPE:
        raise FunctionLost(f"expected an event of type {RESPONSE_TYPE}, got {got!r}: is the URL the function's?")
    return body


def _left_s(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _hang_up(connection: http.client.HTTPConnection) -> None:
    with contextlib.suppress(OSError):
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)
