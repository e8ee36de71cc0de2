"""The handler of every function on every platform: ``handle(bytes) -> bytes``.

It never raises: what goes wrong comes back as a response with a failure in it. A request that was done before is not
done again: its response is kept on the server under the request's name for `DONE_S` seconds, and of several attempts at
the same time the first to say that it is done counts, while the others take back what they wrote.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import time
import traceback
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import replay_server as rs
from replay_server.rl.function_context import DeadlineOver, FunctionContext, StalePolicy
from replay_server.rl.function_contract import (
    Failure,
    Measured,
    Request,
    Response,
    WarmRequest,
    decode_request,
    decode_response,
    encode_response,
)

DONE_S = 3600
"""How long a response is kept for a request that comes again."""
INSTANCE = "REPLAY_FUNCTION_INSTANCE"
"""Environment variable in which a platform names the instance; without it the instance names itself."""
CONNECT_S = 5.0
"""Patience with a server that does not answer."""

Work = Callable[[Any, FunctionContext], Mapping[str, Any]]


class _Instance:
    """What a warm function keeps from one invocation to the next."""

    def __init__(self) -> None:
        self.name = os.environ.get(INSTANCE) or uuid.uuid4().hex
        self.invocations = 0
        self.clients: dict[str, rs.Client] = {}

    def client(self, url: str) -> rs.Client:
        if url not in self.clients:
            self.clients[url] = rs.Client(url, connect_timeout=CONNECT_S, reconnect_timeout=CONNECT_S)
        return self.clients[url]


_instance = _Instance()


def instance_name() -> str:
    """Of this process, as in its responses' measurements."""
    return _instance.name


def _work(kind: str) -> Work:
    """What does requests of a kind; imported when it is first asked for, so that an actor loads no learner."""
    if kind == "actor":
        from replay_server.actors.function import act

        return act
    if kind == "evaluation":
        from replay_server.actors.function import evaluate

        return evaluate
    from replay_server.learner.function import learn

    return learn


def handle(payload: bytes) -> bytes:
    """Does what the request in `payload` says, and answers with a response (`replay_server.rl.function_contract`)."""
    invocation = _Invocation(len(payload))
    try:
        request = decode_request(payload)
    except Exception as error:
        return encode_response(Response("", invocation.measured(), failure=_failure(error)))
    try:
        response = _respond(request, invocation)
    except Exception as error:
        if invocation.context is not None:
            invocation.context.discard()
        response = Response(request.request, invocation.measured(), failure=_failure(error))
    return encode_response(response)


def _warm(request: WarmRequest, invocation: _Invocation) -> Response:
    began = time.perf_counter()
    for kind in request.work:
        _work(kind)
    invocation.import_s = time.perf_counter() - began
    left_s = request.deadline - time.time() if request.deadline else request.hold_s
    time.sleep(max(0.0, min(request.hold_s, left_s)))
    return Response(request.request, invocation.measured(), result={})


def _respond(request: Request, invocation: _Invocation) -> Response:
    if isinstance(request, WarmRequest):
        return _warm(request, invocation)
    began = time.perf_counter()
    client = _instance.client(request.server_url)
    key = request.names.done(request.request)
    if (before := client.redis.get(key)) is not None:
        return _as_before(before, invocation)
    context = invocation.context = FunctionContext(request, client, invocation.number == 1)
    context.phases["connect"] = time.perf_counter() - began
    context.check_deadline()
    began = time.perf_counter()
    work = _work(request.kind)
    invocation.import_s = time.perf_counter() - began
    result = work(request, context)
    if not context.committed:
        context.check_deadline()
    response = Response(request.request, invocation.measured(), result=result)
    with context.phase("confirm"):
        first = client.redis.set(key, encode_response(response), nx=True, ex=DONE_S)
    if not first:
        context.discard()
        if (before := client.redis.get(key)) is not None:
            return _as_before(before, invocation)
    return dataclasses.replace(response, measured=invocation.measured())


def _as_before(before: Any, invocation: _Invocation) -> Response:
    kept = decode_response(bytes(before))
    return dataclasses.replace(kept, measured=invocation.measured(), replayed=True)


class _Invocation:
    """Measures one call of the handler."""

    def __init__(self, bytes_in: int) -> None:
        _instance.invocations += 1
        self.number = _instance.invocations
        self.context: FunctionContext | None = None
        self.import_s = 0.0
        self._bytes_in = bytes_in
        self._started = time.time()
        self._began = time.perf_counter()
        self._cpu_began_s = time.process_time()
        self._startup_s = _age_s() if self.number == 1 else 0.0

    def measured(self) -> Measured:
        context = self.context
        return Measured(
            instance=_instance.name,
            invocation=self.number,
            started=self._started,
            ended=self._started + time.perf_counter() - self._began,
            cpu_s=time.process_time() - self._cpu_began_s,
            startup_s=self._startup_s,
            import_s=self.import_s if self.number == 1 else 0.0,
            memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            bytes_in=self._bytes_in + (context.bytes_in if context else 0),
            bytes_out=context.bytes_out if context else 0,
            phases=context.phases if context else {},
        )


def _age_s() -> float:
    """Seconds since this process was started."""
    with open("/proc/self/stat") as file:
        started_ticks = int(file.read().rpartition(")")[2].split()[19])
    with open("/proc/uptime") as file:
        uptime_s = float(file.read().split()[0])
    return max(0.0, uptime_s - started_ticks / os.sysconf("SC_CLK_TCK"))


def _failure(error: Exception) -> Failure:
    again = isinstance(error, (rs.ConnectionLost, rs.Timeout, ConnectionError))
    if isinstance(error, (DeadlineOver, StalePolicy)):
        again = False
    return Failure(type(error).__name__, str(error), "".join(traceback.format_exception(error)), again)
