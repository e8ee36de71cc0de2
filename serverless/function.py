"""The handler of every function on every platform: ``handle(bytes) -> bytes``.

What goes wrong comes back as a response with a failure in it, with the traceback; nothing is raised but an operator's
interrupt. A request that was done before is not done again: its response is kept on the server under the request's name
for `DONE_S` seconds, and of several attempts at the same time the first to say that it is done counts, while the others
take back what they wrote. An instance does one invocation at a time, as AWS Lambda's do: calls from further threads
wait, so that processor time and memory are of one invocation alone. See docs/functions.md.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import threading
import time
import traceback
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
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
WARM_CLIENTS = 4
"""Servers that a warm function stays connected to."""
MESSAGE_CHARACTERS = 4_000
"""Most of a failure's message; the middle of a longer one is left out."""
TRACEBACK_CHARACTERS = 20_000
"""Most of a failure's traceback, likewise."""

Work = Callable[[Any, FunctionContext], Mapping[str, Any]]


class _Instance:
    """What a warm function keeps from one invocation to the next."""

    def __init__(self) -> None:
        self.name = os.environ.get(INSTANCE) or uuid.uuid4().hex
        self.process = os.getpid()
        self.busy = threading.Lock()
        self.invocations = 0
        self._clients: OrderedDict[str, rs.Client] = OrderedDict()

    def client(self, url: str) -> rs.Client:
        """The client of a server: it connects anew by itself where the server was away in between."""
        if url not in self._clients:
            self._clients[url] = rs.Client(url, connect_timeout=CONNECT_S, reconnect_timeout=CONNECT_S)
        self._clients.move_to_end(url)
        while len(self._clients) > WARM_CLIENTS:
            self._clients.popitem(last=False)[1].close()
        return self._clients[url]


_instance = _Instance()


def instance_name() -> str:
    """Of this process, as in its responses' measurements."""
    return _instance.name


def _renew_in_forked_child() -> None:
    # Another process is another instance; and the lock may have been held by a thread that is not here.
    global _instance
    _instance = _Instance()
    if INSTANCE in os.environ:
        _instance.name = f"{_instance.name}-{_instance.process}"


os.register_at_fork(after_in_child=_renew_in_forked_child)


def _work(kind: str) -> Work:
    """What does requests of a kind; imported when it is first asked for, so that an actor loads no learner."""
    if kind == "actor":
        from replay_server.actors.function import act

        return act
    if kind == "evaluation":
        from replay_server.actors.function import evaluate

        return evaluate
    if kind == "gradient":
        from replay_server.learner.gradient_function import compute_gradients

        return compute_gradients
    if kind == "parameter":
        from replay_server.learner.parameter_function import apply_gradients

        return apply_gradients
    from replay_server.learner.function import learn

    return learn


def import_work(kinds: Iterable[str]) -> None:
    """Imports what requests of these kinds need: for a platform that starts processes before it has requests."""
    for kind in kinds:
        _work(kind)


def handle(payload: bytes, works: Mapping[str, Work] | None = None) -> bytes:
    """Does what the request in `payload` says, and answers with a response (`replay_server.rl.function_contract`).

    `works` do requests of their kinds in place of this project's own.

    Whatever the payload is, and whatever goes wrong, the answer is a response. KeyboardInterrupt alone, an operator's
    or a platform's wish to end, is raised again, after what was written has been taken back.
    """
    called = time.perf_counter()
    with _instance.busy:
        return _handle(payload, time.perf_counter() - called, works or {})


def _handle(payload: bytes, waited_s: float, works: Mapping[str, Work]) -> bytes:
    invocation = _Invocation(payload, waited_s)
    name = ""
    try:
        request = decode_request(payload)
        name = request.request
        return _answer(request, invocation, works)
    except BaseException as error:  # a library that calls sys.exit, too
        if invocation.context is not None:
            invocation.context.discard()
        if isinstance(error, KeyboardInterrupt):
            raise
        return encode_response(Response(name, invocation.measured(), failure=_failure(error)))


def _warm(request: WarmRequest, invocation: _Invocation) -> Response:
    began = time.perf_counter()
    for kind in request.work:
        _work(kind)
    invocation.import_s = time.perf_counter() - began
    left_s = request.deadline - time.time() if request.deadline else request.hold_s
    time.sleep(max(0.0, min(request.hold_s, left_s)))
    return Response(request.request, invocation.measured(), result={})


def _answer(request: Request, invocation: _Invocation, works: Mapping[str, Work]) -> bytes:
    if isinstance(request, WarmRequest):
        return encode_response(_warm(request, invocation))
    began = time.perf_counter()
    client = _instance.client(request.server_url)
    key = request.names.done(request.request)
    if (before := client.command("GET", key, repeatable=True)) is not None:
        return _as_before(before, invocation)
    context = invocation.context = FunctionContext(request, client, invocation.number == 1)
    context.phases["connect"] = time.perf_counter() - began
    context.check_deadline()
    began = time.perf_counter()
    work = works.get(request.kind) or _work(request.kind)
    invocation.import_s = time.perf_counter() - began
    result = work(request, context)
    if not context.committed:
        context.check_deadline()
    response = Response(request.request, invocation.measured(), result=result)
    encoded = encode_response(response)
    with context.phase("confirm"):
        kept = _kept(client, key, encoded, context)
    if kept == encoded:
        context.commit()
        return encode_response(dataclasses.replace(response, measured=invocation.measured()))
    context.discard()
    return _as_before(kept, invocation)


def _kept(client: rs.Client, key: str, encoded: bytes, context: FunctionContext) -> bytes:
    """The response that counts for the request: this one, unless another attempt's was there before.

    Where the connection breaks, nobody knows whether the response was kept until the server answers again: it is asked.
    If it does not answer, what this attempt wrote is left to its expiry and its table's bounds, since it may count.
    """
    try:
        while True:
            if client.command("SET", key, encoded, "NX", "EX", DONE_S, repeatable=True) is not None:
                return encoded
            # It may be ours in spite of that: the command is repeated where its answer was lost.
            if (kept := client.command("GET", key, repeatable=True)) is not None:
                return kept
    except _lost():
        context.commit()
        raise


def _as_before(before: bytes, invocation: _Invocation) -> bytes:
    kept = decode_response(before)
    return encode_response(dataclasses.replace(kept, measured=invocation.measured(), replayed=True))


class _Invocation:
    """Measures one call of the handler."""

    def __init__(self, payload: bytes, waited_s: float) -> None:
        _instance.invocations += 1
        self.number = _instance.invocations
        self.context: FunctionContext | None = None
        self.import_s = 0.0
        self._bytes_in = len(payload) if isinstance(payload, bytes | bytearray | memoryview) else 0
        self._waited_s = waited_s
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
            waited_s=self._waited_s,
        )


def _age_s() -> float:
    """Seconds since this process was started."""
    with open("/proc/self/stat") as file:
        started_ticks = int(file.read().rpartition(")")[2].split()[19])
    with open("/proc/uptime") as file:
        uptime_s = float(file.read().split()[0])
    return max(0.0, uptime_s - started_ticks / os.sysconf("SC_CLK_TCK"))


def _lost() -> tuple[type[BaseException], ...]:
    """What says that a server is away, just now."""
    import redis.exceptions

    return ConnectionError, TimeoutError, redis.exceptions.ConnectionError, redis.exceptions.TimeoutError


def _failure(error: BaseException) -> Failure:
    """The error as data."""
    crowded = isinstance(error, rs.LimitExceeded) and "number of clients" in str(error)
    again = (isinstance(error, _lost()) or crowded) and not isinstance(error, (DeadlineOver, StalePolicy))
    told = _text("".join(traceback.format_exception(error)), TRACEBACK_CHARACTERS)
    return Failure(type(error).__name__, _text(_message(error), MESSAGE_CHARACTERS), told, again)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as wrong:
        return f"({type(wrong).__name__} where the error was to be told)"


def _text(text: str, characters: int) -> str:
    """The text as it can be packed, in bounds: names of files may hold bytes that are no characters."""
    if len(text) > characters:
        text = f"{text[: characters // 2]} … {text[-characters // 2 :]}"
    return text.encode("utf-8", "backslashreplace").decode()
