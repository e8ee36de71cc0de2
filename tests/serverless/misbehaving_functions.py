"""Handlers for Lambda's runtime that do what no function should: for tests of what a platform makes of it."""

from __future__ import annotations

import os
import time
from typing import Any


def hang(event: Any, context: Any) -> None:
    """Takes longer than any timeout."""
    time.sleep(600)


def leave(event: Any, context: Any) -> None:
    """Ends its process."""
    os._exit(3)


def fail(event: Any, context: Any) -> None:
    """Raises what nobody catches."""
    raise LookupError("nothing here")


def answer_too_much(event: Any, context: Any) -> dict[str, str]:
    """More than Lambda returns."""
    return {"payload": "A" * 7_000_000}


def answer_something(event: Any, context: Any) -> str:
    """What another function than ours would."""
    return "hello"
