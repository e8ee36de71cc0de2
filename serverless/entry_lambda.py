"""What AWS Lambda's Python runtime calls: ``replay_server.serverless.entry_lambda.lambda_handler``.

Lambda's events and answers are JSON, at most `PAYLOAD_LIMIT_BYTES` each; the bytes of a request and of a response
travel in them as base64 under "payload". Imports nothing of AWS: the runtime brings what it needs.

What the variable `IMPORTS` names is imported with this module, in Lambda's init phase: with provisioned concurrency
that is over before the first invocation comes.
"""

from __future__ import annotations

import base64
import contextlib
import os
import time
from collections.abc import Mapping
from typing import Any, Protocol

from replay_server.rl.function_contract import (
    Failure,
    Response,
    WarmRequest,
    bounded_request,
    decode_response,
    encode_request,
    encode_response,
)
from replay_server.serverless.function import handle, import_work

IMPORTS = "REPLAY_FUNCTION_IMPORTS"
"""Environment variable: kinds of requests whose work is imported at once, with spaces between them."""
INITIALIZATION = "AWS_LAMBDA_INITIALIZATION_TYPE"
"""Set by Lambda; on-demand = an invocation is waiting for this process."""

PAYLOAD_LIMIT_BYTES = 6 * 1024 * 1024
"""Of an event, and of an answer, where the caller waits for it (Lambda's quota, for the JSON text)."""
MARGIN_S = 0.25
"""How long before Lambda would end the function a request is given up, so that this can still be answered."""


class LambdaContext(Protocol):
    """What is used of the context that the runtime hands over."""

    def get_remaining_time_in_millis(self) -> int: ...


def encode_event(payload: bytes) -> bytes:
    """A request or a response as the JSON that Lambda carries."""
    return b'{"payload":"%b"}' % base64.b64encode(payload)


def decode_event(event: Any) -> bytes:
    """The bytes in a decoded event or answer. ValueError for anything that `encode_event` did not make."""
    if not isinstance(event, Mapping) or not isinstance(event.get("payload"), str):
        raise ValueError(f'expected a JSON object with base64 under "payload", got {str(event)[:200]}')
    return base64.b64decode(event["payload"], validate=True)


def lambda_handler(event: Any, context: LambdaContext) -> dict[str, str]:
    """Answers one invocation. The request's deadline is no later than Lambda's own end of it, less `MARGIN_S`.

    An event that is none of `encode_event` is answered like any other bad request: with a failure, as data.
    """
    ends = time.time() + context.get_remaining_time_in_millis() / 1000 - MARGIN_S
    try:
        payload = decode_event(event)
    except ValueError:
        payload = b""  # No request: the handler says so.
    answer = handle(bounded_request(payload, ends))
    if (size := len(encode_event(answer))) > PAYLOAD_LIMIT_BYTES:
        answer = _too_large(answer, size)
    return {"payload": base64.b64encode(answer).decode()}


def _too_large(answer: bytes, size_bytes: int) -> bytes:
    response = decode_response(answer)
    message = (
        f"the response takes {size_bytes} bytes as JSON, more than the {PAYLOAD_LIMIT_BYTES} that Lambda returns: "
        "let the result travel through the replay server"
    )
    return encode_response(Response(response.request, response.measured, failure=Failure("TooLarge", message, "")))


def _initialise() -> None:
    """What can be done before the first invocation. What fails here is told by an invocation that needs it."""
    kinds = tuple(os.environ.get(IMPORTS, "").split())
    with contextlib.suppress(Exception):
        if os.environ.get(INITIALIZATION, "on-demand") == "on-demand":
            import_work(kinds)
        else:  # Started ahead: no invocation has waited for it, so none of them is the cold one.
            handle(encode_request(WarmRequest(work=kinds)))


_initialise()
