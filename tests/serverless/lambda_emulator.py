"""An emulator of AWS Lambda for tests: its Invoke API, and the Runtime API under which the real `awslambdaric` runs.

Real are the client, the runtime and the function's process with Lambda's environment variables. This stands for what
AWS has between them: one invocation at a time per instance, warm instances reused and frozen (SIGSTOP) in between,
a concurrency limit, timeouts, payload limits, and what Lambda answers when a function dies. It does not stand for the
CPU share of a memory size, its memory limit, the file system of which only /tmp can be written, images, networks and
rights: requests must be signed, but nobody checks by whom.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import uuid
from concurrent.futures import Future, TimeoutError
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

REGION = "eu-central-1"
PAYLOAD_LIMIT_BYTES = 6_291_456
RESPONSE_LIMIT_BYTES = 6_291_556
INIT_LIMIT_S = 120.0
"""AWS gives 10 s; a busy machine imports torch in more."""
HANDLER = "replay_server.serverless.entry_lambda.lambda_handler"
RUNTIME = "/2018-06-01/runtime"


@dataclass(frozen=True)
class Report:
    """What Lambda writes to a function's log after an invocation. Times are milliseconds."""

    request: str
    pid: int
    cold: bool
    init_ms: float
    """Of a cold start: until the runtime first asked for an invocation; else 0."""
    duration_ms: float
    error: str
    """errorType of what was answered, empty where the function answered."""


@dataclass
class Function:
    """A deployed function and its instances."""

    name: str
    memory_mb: int
    timeout_s: float
    concurrency: int
    handler: str
    environment: dict[str, str]
    readable: bool
    """Whether GetFunctionConfiguration is allowed."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    instances: list[Instance] = field(default_factory=list)
    idle: list[Instance] = field(default_factory=list)
    running: int = 0
    reports: list[Report] = field(default_factory=list)

    @property
    def arn(self) -> str:
        return f"arn:aws:lambda:{REGION}:123456789012:function:{self.name}"

    def pids(self, busy: bool = False) -> list[int]:
        """Processes of its instances, or of those that are at an invocation."""
        with self.changed:
            return [each.process.pid for each in self.instances if each.busy or not busy]


class FunctionFailure(Exception):
    """What is answered with the FunctionError header: type and message as Lambda words them."""

    def __init__(self, kind: str, message: str, body: bytes = b"") -> None:
        super().__init__(message)
        self.kind = kind
        self.body = body or json.dumps({"errorType": kind, "errorMessage": message}).encode()


class Refused(Exception):
    """What is answered with an HTTP error."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


class LambdaEmulator:
    """Functions behind an endpoint that botocore speaks to. Ends all processes when it is closed.

    Args:
        folder: for the functions' output, a file an instance; None = one of its own, removed at close.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._own = tempfile.mkdtemp(prefix="lambda-") if folder is None else None
        self.folder = Path(self._own or str(folder))
        self._functions: dict[str, Function] = {}
        self._deployed: list[Function] = []
        self._server = _serve(_InvokeApi, self)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> LambdaEmulator:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for function in self._deployed:
            with function.changed:
                instances = list(function.instances)
            for instance in instances:
                instance.end()
        if self._own:
            shutil.rmtree(self._own, ignore_errors=True)

    @property
    def connections(self) -> int:
        """How many clients have opened so far."""
        return self._server.connections

    def deploy(
        self,
        name: str,
        *,
        memory_mb: int = 1024,
        timeout_s: float = 60,
        concurrency: int = 16,
        handler: str = HANDLER,
        environment: dict[str, str] | None = None,
        readable: bool = True,
    ) -> Function:
        """A function by a name, in place of one that had it; `environment` is what is given beside Lambda's own."""
        function = Function(name, memory_mb, timeout_s, concurrency, handler, environment or {}, readable)
        self._functions[name] = function
        self._deployed.append(function)
        return function

    def function(self, name: str) -> Function:
        """By name, name:alias or ARN."""
        words = name.split(":")
        plain = words[6] if name.startswith("arn:") and len(words) > 6 else words[0]
        if plain not in self._functions:
            raise Refused(404, "ResourceNotFoundException", f"Function not found: {name}")
        return self._functions[plain]

    def invoke(self, function: Function, payload: bytes) -> bytes:
        """Runs a function on an idle instance, else on a new one. FunctionFailure, Refused."""
        if len(payload) > PAYLOAD_LIMIT_BYTES:
            message = f"Request must be smaller than {PAYLOAD_LIMIT_BYTES} bytes for the InvokeFunction operation"
            raise Refused(413, "RequestEntityTooLargeException", message)
        request = str(uuid.uuid4())
        with function.changed:
            if function.running >= function.concurrency:
                raise Refused(429, "TooManyRequestsException", "Rate Exceeded.")
            function.running += 1
        try:
            return self._invoke(function, payload, request)
        finally:
            with function.changed:
                function.running -= 1

    def _invoke(self, function: Function, payload: bytes, request: str) -> bytes:
        instance, cold = self._instance(function)
        began = time.monotonic()
        init_ms, kind = 0.0, ""
        try:
            if cold:
                instance.await_ready(request)
                init_ms = 1000 * (time.monotonic() - began)
                began = time.monotonic()
            return instance.run(payload, request)
        except FunctionFailure as failure:
            kind = failure.kind
            raise
        finally:
            duration_ms = 1000 * (time.monotonic() - began)
            with function.changed:
                function.reports.append(Report(request, instance.process.pid, cold, init_ms, duration_ms, kind))

    def _instance(self, function: Function) -> tuple[Instance, bool]:
        """An instance for one invocation, and whether it is a new one."""
        with function.changed:
            # One that has answered asks for the next invocation a moment later: it is taken rather than a new one.
            function.changed.wait_for(lambda: function.idle or len(function.instances) < function.running, 10)
            if function.idle:
                return function.idle.pop(), False
            instance = Instance(function, self.folder / f"{function.name}-{uuid.uuid4().hex[:8]}.log")
            function.instances.append(instance)
            return instance, True


class Instance:
    """One execution environment: the runtime's process, and the Runtime API that it alone speaks to."""

    def __init__(self, function: Function, output: Path) -> None:
        self.function = function
        self.output = output
        self.busy = False
        """Whether the runtime has an invocation that it has not answered."""
        self._asked = threading.Event()
        self._work: queue.SimpleQueue[tuple[str, bytes, float] | None] = queue.SimpleQueue()
        self._request = ""
        self._answer: Future[bytes] = Future()
        self._init_failure: bytes = b""
        self._server = _serve(_RuntimeApi, self)
        with open(output, "wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "awslambdaric", function.handler],
                env=self._environment(),
                cwd=output.parent,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        threading.Thread(target=self._watch, daemon=True).start()

    def _environment(self) -> dict[str, str]:
        """What Lambda sets for a function, and no more than that, so that it cannot lean on this shell's."""
        function = self.function
        return {
            "PATH": os.environ["PATH"],
            "LANG": "en_US.UTF-8",
            "TZ": ":UTC",
            "HOME": "/home/sbx_user1051",
            "_HANDLER": function.handler,
            "LAMBDA_TASK_ROOT": str(self.output.parent),
            "LAMBDA_RUNTIME_DIR": "/var/runtime",
            "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{self._server.server_port}",
            "AWS_LAMBDA_FUNCTION_NAME": function.name,
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(function.memory_mb),
            "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
            "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{function.name}",
            "AWS_LAMBDA_LOG_STREAM_NAME": self.output.stem,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": "emulated",
            "AWS_SECRET_ACCESS_KEY": "emulated",
            "AWS_SESSION_TOKEN": "emulated",
            **function.environment,
        }

    def await_ready(self, request: str) -> None:
        """Waits until the runtime has started. FunctionFailure where it does not."""
        if not self._asked.wait(INIT_LIMIT_S) or self._answer.done():
            self.end()
            if self._init_failure:
                raise FunctionFailure(json.loads(self._init_failure)["errorType"], "", self._init_failure)
            raise self._exit_failure(request) if self._answer.done() else _timeout(request, INIT_LIMIT_S)

    def run(self, payload: bytes, request: str) -> bytes:
        """One invocation."""
        limit_s = self.function.timeout_s
        self._request, self._answer = request, Future()
        if self.process.poll() is not None:  # It ended while it was idle.
            raise self._exit_failure(request)
        self._signal(signal.SIGCONT)
        self._work.put((request, payload, time.time() + limit_s))
        self.busy = True
        try:
            return self._answer.result(limit_s)
        except TimeoutError:
            self.end()
            raise _timeout(request, limit_s) from None
        except ChildProcessError:
            raise self._exit_failure(request) from None
        finally:
            self.busy = False

    def next(self) -> tuple[str, bytes, float] | None:
        """Blocks the runtime until there is something to do; None at the end."""
        if self._asked.is_set():
            with self.function.changed:
                self._signal(signal.SIGSTOP)
                self.function.idle.append(self)
                self.function.changed.notify_all()
        self._asked.set()
        return self._work.get()

    def answer(self, request: str, body: bytes) -> bool:
        """The function's answer, if it is to what it was asked."""
        if request != self._request or self._answer.done():
            return False
        if len(body) > RESPONSE_LIMIT_BYTES:
            message = f"Response payload size exceeded maximum allowed payload size ({RESPONSE_LIMIT_BYTES} bytes)."
            self._answer.set_exception(FunctionFailure("Function.ResponseSizeTooLarge", message))
            return False
        self._answer.set_result(body)
        return True

    def fail(self, request: str, body: bytes) -> None:
        """The runtime says that the handler raised, or, without a request, that there is no handler."""
        if not request:
            self._init_failure = body
        elif request == self._request and not self._answer.done():
            self._answer.set_exception(FunctionFailure(json.loads(body)["errorType"], "", body))

    def end(self) -> None:
        """Ends the process and waits until it is gone."""
        self._signal(signal.SIGKILL)
        self.process.wait(60)
        self._work.put(None)

    def _watch(self) -> None:
        self.process.wait()
        with self.function.changed:
            self.function.instances.remove(self)
            if self in self.function.idle:
                self.function.idle.remove(self)
            self.function.changed.notify_all()
        if not self._answer.done():
            self._answer.set_exception(ChildProcessError())
        self._asked.set()
        self._work.put(None)
        self._server.shutdown()
        self._server.server_close()

    def _signal(self, number: int) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def _exit_failure(self, request: str) -> FunctionFailure:
        code = self.process.wait(60)
        how = f"signal: {signal.Signals(-code).name.removeprefix('SIG').lower()}" if code < 0 else f"exit status {code}"
        return FunctionFailure("Runtime.ExitError", f"RequestId: {request} Error: Runtime exited with error: {how}")


def _timeout(request: str, limit_s: float) -> FunctionFailure:
    when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
    message = f"{when} {request} Task timed out after {limit_s:.2f} seconds"
    return FunctionFailure("Sandbox.Timedout", message, json.dumps({"errorMessage": message}).encode())


class _Api(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16

    def log_message(self, format: str, *values: Any) -> None:
        """Nothing: requests are told of by reports."""

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()


class _InvokeApi(_Api):
    """POST …/functions/NAME/invocations and GET …/functions/NAME/configuration."""

    def do_POST(self) -> None:
        self._reply_with(self._invoke)

    def do_GET(self) -> None:
        self._reply_with(self._configuration)

    def _reply_with(self, what: Any) -> None:
        body = self.body()
        try:
            if "AWS4-HMAC-SHA256" not in self.headers.get("Authorization", "") or not self.headers.get("X-Amz-Date"):
                raise Refused(403, "MissingAuthenticationTokenException", "Missing Authentication Token")
            root, version, functions, name, last = urllib.parse.unquote(self.path).split("?")[0].split("/")
            assert (root, version, functions) == ("", "2015-03-31", "functions")
            self.reply(200, *what(self.server.emulated.function(name), last, body))
        except Refused as refused:
            text = json.dumps({"Type": "User", "message": str(refused), "Message": str(refused)}).encode()
            self.reply(refused.status, text, {"x-amzn-ErrorType": refused.kind})

    def _invoke(self, function: Function, last: str, body: bytes) -> tuple[bytes, dict[str, str]]:
        assert last == "invocations"
        headers = {"X-Amz-Executed-Version": "$LATEST"}
        try:
            return self.server.emulated.invoke(function, body), headers
        except FunctionFailure as failure:
            return failure.body, {**headers, "X-Amz-Function-Error": "Unhandled"}

    def _configuration(self, function: Function, last: str, _: bytes) -> tuple[bytes, dict[str, str]]:
        assert last == "configuration"
        if not function.readable:
            message = "User is not authorized to perform: lambda:GetFunctionConfiguration"
            raise Refused(403, "AccessDeniedException", message)
        values = {
            "FunctionName": function.name,
            "FunctionArn": function.arn,
            "Handler": function.handler,
            "MemorySize": function.memory_mb,
            "Timeout": int(function.timeout_s),
            "State": "Active",
        }
        return json.dumps(values).encode(), {}


class _RuntimeApi(_Api):
    """What a runtime asks and tells: next, response, error, init/error."""

    def do_GET(self) -> None:
        assert self.path == f"{RUNTIME}/invocation/next"
        instance: Instance = self.server.emulated
        if (work := instance.next()) is None:
            self.close_connection = True
            return
        request, payload, ends = work
        headers = {
            "Lambda-Runtime-Aws-Request-Id": request,
            "Lambda-Runtime-Deadline-Ms": str(int(1000 * ends)),
            "Lambda-Runtime-Invoked-Function-Arn": instance.function.arn,
            "Lambda-Runtime-Trace-Id": "Root=1-00000000-000000000000000000000000;Sampled=0",
        }
        self.reply(200, payload, headers)

    def do_POST(self) -> None:
        instance: Instance = self.server.emulated
        body, words = self.body(), self.path.removeprefix(RUNTIME).split("/")
        accepted = True
        if words[1:] == ["init", "error"]:
            instance.fail("", body)
        elif words[1] == "invocation" and words[3] == "response":
            accepted = instance.answer(words[2], body)
        elif words[1] == "invocation" and words[3] == "error":
            instance.fail(words[2], body)
        status = 202 if accepted else 413
        self.reply(status, b'{"status":"OK"}' if accepted else b'{"errorType":"RequestEntityTooLarge"}', {})


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    emulated: Any
    connections = 0

    def get_request(self) -> Any:
        self.connections += 1
        return super().get_request()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is none; other errors are the emulator's own."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def _serve(api: type[_Api], emulated: Any) -> _Server:
    server = _Server(("127.0.0.1", 0), api)
    server.emulated = emulated
    threading.Thread(target=lambda: server.serve_forever(0.1), daemon=True).start()
    return server
