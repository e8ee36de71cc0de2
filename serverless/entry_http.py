"""The function as an HTTP service, for functions-framework: requests and responses are CloudEvents.

``functions-framework --source entry_http.py --target handle --signature-type http``. The signature "cloudevent" would
not do: it answers with no content. An event is of type `REQUEST_TYPE` and its data is an encoded request; the answer is
an event of type `RESPONSE_TYPE` with the encoded response, in binary content mode. GET answers the instance's name.

Where the environment variable `TOKEN` is set, who asks must bring it as a bearer token. A service computes one
invocation at a time: THREADS=1 and WORKERS=1 in its environment, as `containerConcurrency: 1` has it done.
"""

from __future__ import annotations

import hmac
import os
import threading

import flask
from cloudevents.conversion import to_binary
from cloudevents.exceptions import GenericException
from cloudevents.http import CloudEvent
from cloudevents.http.conversion import from_http

from replay_server.serverless.backends.worker import end_with_parent, take_pipe
from replay_server.serverless.cloud_event import CONTENT_TYPE, LIFELINE, REQUEST_TYPE, RESPONSE_TYPE, TOKEN

REQUEST_BYTES = 16 << 20
"""The longest request that is taken."""

if os.environ.pop(LIFELINE, None):
    threading.Thread(target=end_with_parent, args=(take_pipe(),), name="lifeline", daemon=True).start()


def handle(request: flask.Request) -> flask.Response:
    """Answers one HTTP request: 200 with an event; 400, 401, 405, 413 with a sentence."""
    # Not before: the server's first process imports this file, and another one, forked from it, is the instance.
    from replay_server.serverless import function

    token = os.environ.get(TOKEN)
    if token and not hmac.compare_digest(request.headers.get("Authorization", "").encode(), f"Bearer {token}".encode()):
        return _refusal(401, f"expected the bearer token that the service has in {TOKEN}")
    if request.method == "GET":
        return flask.Response(function.instance_name(), mimetype="text/plain")
    if request.method != "POST":
        return _refusal(405, f"expected POST, got {request.method}")
    if (request.content_length or 0) > REQUEST_BYTES:
        return _refusal(413, f"expected at most {REQUEST_BYTES} bytes, got {request.content_length}")
    try:
        event = from_http(dict(request.headers), request.get_data(), lambda data: data)
    except (GenericException, ValueError) as error:
        return _refusal(400, f"expected a CloudEvent: {error}")
    data = event.get_data()
    if event["type"] != REQUEST_TYPE or not isinstance(data, bytes):
        return _refusal(400, f"expected an event of type {REQUEST_TYPE} with bytes, got one of type {event['type']}")
    attributes = {
        "type": RESPONSE_TYPE,
        "source": f"/replay-server/function/{function.instance_name()}",
        "id": event["id"],
        "datacontenttype": CONTENT_TYPE,
    }
    headers, body = to_binary(CloudEvent(attributes, function.handle(data)))
    return flask.Response(body, headers=headers)


def _refusal(status: int, message: str) -> flask.Response:
    return flask.Response(message + "\n", status=status, mimetype="text/plain")
