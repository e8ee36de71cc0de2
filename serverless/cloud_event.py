"""What both sides of functions behind HTTP call things by."""

from __future__ import annotations

REQUEST_TYPE = "replay-server.function.request.v1"
RESPONSE_TYPE = "replay-server.function.response.v1"
CONTENT_TYPE = "application/msgpack"
TOKEN = "REPLAY_FUNCTION_TOKEN"
"""Environment variable: the bearer token that a service asks for, and that who calls one elsewhere brings."""
LIFELINE = "REPLAY_FUNCTION_LIFELINE"
"""Environment variable, set where a service's standard input is a socket at whose end it and its group end."""
