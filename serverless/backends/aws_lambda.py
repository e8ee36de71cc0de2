"""Functions on AWS Lambda, waited for on one event loop.

botocore finds credentials and endpoint, signs requests and reads errors; the requests themselves go over connections of
our own that are kept, since boto3 blocks a thread for each. Credentials are botocore's own matter: environment, shared
files, role of the machine. Nothing here reads or keeps them. What is deployed is `serverless/deploy/lambda`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import ssl
import threading
import urllib.parse
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from botocore import session as botocore_session
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest, HeadersDict
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError
from botocore.parsers import RestJSONParser

from replay_server.rl.function_contract import (
    WarmRequest,
    encode_request,
)
from replay_server.serverless.backends.backend import (
    Attempt,
    FunctionError,
    FunctionLost,
    FunctionTimeout,
    checked_warm,
    unrecorded,
    work_of,
)
from replay_server.serverless.backends.event_loop import EventLoop
from replay_server.serverless.backends.http_exchange import Answer, AnswerTooLong, ExchangeFailed, Exchanges
from replay_server.serverless.entry_lambda import PAYLOAD_LIMIT_BYTES, decode_event, encode_event

CONNECT_TIMEOUT_S = 5.0
READ_MARGIN_S = 30.0
"""How much longer than the function's own timeout its answer is waited for: cold starts come on top of it."""
ANSWER_BYTES = 16 * 2**20
"""Most that is read of an answer: more than Lambda returns."""
ERROR_BYTES = 1 << 16
"""What is read of an answer that is an error of the API."""
BACKOFF_S = (0.05, 2.0)
"""First and longest pause before an invocation that was throttled is tried again."""
WARM_HOLD_S = 0.2
"""How long instances stay at being made warm at first, so that as many start as are asked for."""
WARM_TIMEOUT_S = 60.0

_LATER = {
    "TooManyRequestsException", "ThrottlingException", "EC2ThrottledException", "ResourceConflictException",
    "ResourceNotReadyException", "SnapStartNotReadyException",
}  # fmt: skip
"""Codes of errors that say that the function was not started, and may be if it is asked for later."""
_LASTING = {
    "Runtime.ImportModuleError", "Runtime.HandlerNotFound", "Runtime.UserCodeSyntaxError", "Runtime.InvalidEntrypoint",
    "Runtime.MalformedHandlerName", "Function.ResponseSizeTooLarge",
}  # fmt: skip
"""Types of errors of the function that come again at every attempt."""


def _served_by(kind: str, named: Mapping[str, Any]) -> str:
    """The kind among those that have something of their own whose that is, for a request of a kind."""
    if kind not in named and kind in ("gradient", "parameter"):
        kind = "learner"
    return kind if kind in named else "actor"


class LambdaPlatform:
    """AWS Lambda functions that were deployed before.

    Args:
        function: name or ARN of the function, with ":alias" behind it where an alias is to be called (provisioned
            concurrency belongs to one). A mapping gives kinds of requests ("actor", "learner", "gradient", "parameter",
            "evaluation") functions of their own. Of kinds that it does not name those of asynchronous learners go to
            that of "learner", and the others to that of "actor".
        region: where the functions are; None = as botocore finds it.
        endpoint_url: another address of the API (a VPC endpoint, a local emulator).
        memory_mb: memory size of the functions, a mapping where it differs by kind; None = read from their
            configuration, which takes the right to `lambda:GetFunctionConfiguration`.
        function_timeout_s: the functions' own timeout (the longest); None = read likewise.

    Raises:
        FunctionError: the configuration is to be read and cannot be; the message tells what to give instead.
    """

    name = "lambda"

    def __init__(
        self,
        function: str | Mapping[str, str],
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        memory_mb: int | Mapping[str, int] | None = None,
        function_timeout_s: float | None = None,
    ) -> None:
        self._functions = {"actor": function} if isinstance(function, str) else dict(function)
        if "actor" not in self._functions:
            raise ValueError(f'expected a function for the kind "actor", got functions for {sorted(self._functions)}')
        self._session = botocore_session.get_session()
        client = self._session.create_client(
            "lambda", region_name=region, endpoint_url=endpoint_url, config=Config(connect_timeout=CONNECT_TIMEOUT_S)
        )
        with contextlib.closing(client):
            self._endpoint, self._region = client.meta.endpoint_url, client.meta.region_name
            if memory_mb is None or function_timeout_s is None:
                sizes, timeout_s = _configuration(client, self._functions)
                memory_mb = sizes if memory_mb is None else memory_mb
                function_timeout_s = timeout_s if function_timeout_s is None else function_timeout_s
        self._memory_mb = {"actor": memory_mb} if isinstance(memory_mb, int) else dict(memory_mb)
        self.memory_mb = self.memory_mb_of("actor")
        self._read_timeout_s = function_timeout_s + READ_MARGIN_S
        authorities = self._session.get_config_variable("ca_bundle")
        tls = ssl.create_default_context(cafile=authorities) if authorities else None
        self._exchanges = Exchanges(tls, connect_s=CONNECT_TIMEOUT_S, proxies=True)
        self._closed = threading.Event()
        self._running: set[asyncio.Task[object]] = set()
        self.loop = EventLoop("lambda")
        """Where `invoke_async` is awaited."""

    def memory_mb_of(self, kind: str) -> int:
        """Memory size of the function that requests of a kind go to."""
        return self._memory_mb[_served_by(kind, self._memory_mb)]

    def invoke(self, payload: bytes, timeout_s: float) -> bytes:
        """Calls the function and waits for its answer.

        An invocation that Lambda throttles is asked for again, with longer and longer pauses, until `timeout_s` is
        over. Lambda knows no way to end a running function: one that is given up runs on to its own timeout, and is
        billed.

        Raises:
            FunctionTimeout: Lambda ended the function at its timeout, or `timeout_s` is over.
            FunctionLost: its process died, it could not be started for now, or the connection broke.
            FunctionError: another attempt would do no better: no such function, no right to call it, too large a
                payload, a function that cannot be imported.
        """
        self._check_open("lambda")
        return self.loop.run(self.invoke_async(payload, timeout_s))

    async def invoke_async(self, payload: bytes, timeout_s: float) -> bytes:
        """`invoke`, on `loop`."""
        event = encode_event(payload)
        if len(event) > PAYLOAD_LIMIT_BYTES:
            raise FunctionError(
                f"the request takes {len(event)} bytes as JSON, more than the {PAYLOAD_LIMIT_BYTES} that Lambda takes: "
                "let what it holds travel through the replay server"
            )
        function = self._function(payload)
        self._check_open(function)
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            return await self._invoke(function, event, timeout_s)
        except asyncio.CancelledError:
            if self._closed.is_set():
                raise FunctionLost(f"{function}: the platform was closed") from None
            raise
        finally:
            self._running.discard(task)

    async def _invoke(self, function: str, event: bytes, timeout_s: float) -> bytes:
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout_s
        pause_s, longest_s = BACKOFF_S
        while True:
            try:
                return await self._call(function, event, ends - loop.time())
            except ClientError as error:
                message = f"{function}: {error}"
                if error.response["Error"]["Code"] not in _LATER:  # some of these have a status of 502
                    lost = error.response["ResponseMetadata"]["HTTPStatusCode"] >= 500
                    raise (FunctionLost if lost else FunctionError)(message) from None
                # Half of the pause is chance, so that what was throttled together does not come back together.
                wait_s = pause_s * random.uniform(0.5, 1.0)
                if loop.time() + wait_s >= ends:
                    advice = "raise the function's concurrency, or call fewer at a time"
                    raise FunctionLost(f"{message}, for {timeout_s:.1f} s: {advice}") from None
                await asyncio.sleep(wait_s)
                pause_s = min(2 * pause_s, longest_s)
            except (NoCredentialsError, PartialCredentialsError) as error:
                raise FunctionError(f"{function}: {error}") from None
            except (BotoCoreError, ExchangeFailed) as error:
                raise FunctionLost(f"{function}: {error}") from None

    def prewarm(self, count: int, attempt: Attempt = unrecorded, work: Sequence[str] = ("actor",)) -> None:
        """Has `count` instances of a function start and import what requests of the kinds in `work` need.

        Lambda starts an instance where no idle one is there, so that requests which overlap do it; they are invocations
        like others, and billed. What a concurrency limit leaves below `count` stays cold: it is not tried again after a
        time that brought no new instance. Raises as `invoke` does, and FunctionFailed where the import fails.
        """
        warm: set[str] = set()
        hold_s, before = WARM_HOLD_S, -1
        with ThreadPoolExecutor(max(1, count), "prewarm") as pool:
            while before < len(warm) < count:
                before = len(warm)
                warm.update(pool.map(self._warm, [WarmRequest(work=work, hold_s=hold_s)] * count, [attempt] * count))
                hold_s *= 2

    def close(self) -> None:
        """Gives up what is being waited for. Instances are Lambda's own to end, after minutes without a call."""
        self._closed.set()
        with contextlib.suppress(RuntimeError):  # It is closed already.
            self.loop.run(self._give_up())
        self.loop.close()

    async def _give_up(self) -> None:
        for task in self._running:
            task.cancel()
        await self._exchanges.close()

    def _check_open(self, function: str) -> None:
        if self._closed.is_set():
            raise FunctionLost(f"{function}: the platform is closed")

    def _warm(self, request: WarmRequest, attempt: Attempt) -> str:
        payload = encode_request(request)
        return checked_warm(attempt(payload, lambda: self.invoke(payload, WARM_TIMEOUT_S))).measured.instance

    def _function(self, payload: bytes) -> str:
        """What is called with a request; what is none fails there."""
        kind = work_of(payload) if len(self._functions) > 1 else "actor"
        return self._functions[_served_by(kind, self._functions)]

    async def _call(self, function: str, event: bytes, timeout_s: float) -> bytes:
        """One call: its answer's payload. ClientError for what Lambda says of it; BotoCoreError, ExchangeFailed."""
        # A name is one part of the path: colons in it, of an alias or an ARN, are written as botocore does.
        name = urllib.parse.quote(function, safe="-._~")
        url = f"{self._endpoint.rstrip('/')}/2015-03-31/functions/{name}/invocations"
        request = AWSRequest("POST", url, {"Content-Type": "application/octet-stream"}, event)
        SigV4Auth(await self._credentials(), "lambda", self._region).add_auth(request)
        try:
            answer = await self._exchanges.post(
                url,
                event,
                dict(request.headers.items()),
                timeout_s=min(timeout_s, self._read_timeout_s),
                most_bytes=ANSWER_BYTES,
                error_bytes=ERROR_BYTES,
            )
        except TimeoutError:
            raise FunctionTimeout(f"{function} gave no answer in time; it may still be running") from None
        except AnswerTooLong as error:
            raise FunctionError(f"{function}: {error}") from None
        if answer.status > 300:
            raise _client_error(answer)
        found = _parsed(answer.body, function)
        if "X-Amz-Function-Error" in answer.headers:
            raise _function_error(found, function)
        try:
            return decode_event(found)
        except ValueError as error:
            raise FunctionError(f"{function}: {error}: is it replay_server.serverless.entry_lambda?") from None

    async def _credentials(self) -> Any:
        """What to sign with; those of a role are fetched again in time, which takes a thread. None = there are none."""
        credentials: Any = self._session.get_credentials()
        if credentials is None:
            return None
        if getattr(credentials, "refresh_needed", bool)():
            return await asyncio.to_thread(credentials.get_frozen_credentials)
        return credentials.get_frozen_credentials()


def _client_error(answer: Answer) -> ClientError:
    """What the API answers in place of the function, as botocore reads it."""
    response = {"status_code": answer.status, "headers": HeadersDict(answer.headers), "body": answer.body}
    return ClientError(RestJSONParser().parse(response, None), "Invoke")


def _configuration(client: Any, functions: Mapping[str, str]) -> tuple[dict[str, int], float]:
    """Memory size in MB by kind, and the longest timeout in seconds."""
    found: dict[str, Any] = {}
    try:
        for name in set(functions.values()):
            found[name] = client.get_function_configuration(FunctionName=name)
    except (ClientError, BotoCoreError) as error:
        advice = "give memory_mb and function_timeout_s, or the right to read it"
        raise FunctionError(f"cannot read the configuration of {functions}: {advice} ({error})") from None
    sizes = {kind: int(found[name]["MemorySize"]) for kind, name in functions.items()}
    return sizes, max(float(each["Timeout"]) for each in found.values())


def _parsed(text: bytes, function: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise FunctionLost(f"{function}: expected JSON, got {text[:200]!r}") from None


def _function_error(answer: Any, function: str) -> FunctionError:
    """What Lambda answers in place of a function that brought nothing, by what its type and message say."""
    values = answer if isinstance(answer, dict) else {}
    kind, text = str(values.get("errorType", "")), str(values.get("errorMessage", answer))
    message = f"{function}: {kind + ': ' if kind else ''}{text}"
    if "Task timed out after" in text or kind == "Sandbox.Timedout":
        return FunctionTimeout(message)
    return FunctionError(message) if kind in _LASTING else FunctionLost(message)
