"""A small function for tests of backends and of the process platform: it does what its request's settings say.

Loaded by worker processes by its bare name; it imports nothing but the contract.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

from replay_server.rl.function_contract import Failure, Measured, Response, decode_request, encode_response

_calls = 0
_kept: list[Any] = []


def handle(payload: bytes) -> bytes:
    """Does each of the settings that are there; answers facts about the process."""
    global _calls
    _calls += 1
    started = time.time()
    request = decode_request(payload)
    settings = request.settings
    if "print" in settings:
        print(settings["print"], flush=True)
    if "sleep_s" in settings:
        time.sleep(settings["sleep_s"])
    if "child" in settings:  # one that outlives the invocation, if it is let
        _kept.append(subprocess.Popen(["sleep", str(settings["child"])]))
    if "fork" in settings and os.fork() == 0:
        time.sleep(settings["fork"])
        os._exit(0)
    for path in settings.get("write", ()):
        with open(path, "w") as file:
            file.write("x")
    if "allocate_mb" in settings:
        bytearray(settings["allocate_mb"] * 2**20)
    if "garbage" in settings:
        os.write(_pipe(), settings["garbage"])
    if "close" in settings:
        os.close(_pipe())
        time.sleep(60)
    if "exit" in settings:
        os._exit(settings["exit"])
    if "kill" in settings:
        os.kill(os.getpid(), signal.SIGKILL)
    if "raise" in settings:
        raise RuntimeError(settings["raise"])
    if "answer" in settings:
        return settings["answer"]
    measured = Measured(instance=str(os.getpid()), invocation=_calls, started=started, ended=time.time())
    if "fail" in settings:
        failure = Failure("ValueError", settings["fail"], "", retry=settings.get("retry", False))
        return encode_response(Response(request.request, measured, failure=failure))
    result = {
        "pid": os.getpid(),
        "calls": _calls,
        "children": [child.pid for child in _kept],
        "directory": os.getcwd(),
        "files": os.listdir("."),
        "environment": dict(os.environ),
        "open": {name: _target(name) for name in os.listdir("/proc/self/fd")},
        "loaded": sorted(sys.modules),
        "exist": {path: os.path.exists(path) for path in settings.get("look_for", ())},
        "processes": [int(name) for name in os.listdir("/proc") if name.isdigit()],
        "blob": bytes(settings.get("blob", 0)),
        "received": len(payload),
    }
    return encode_response(Response(request.request, measured, result={str(k): v for k, v in result.items()}))


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:  # the one that listed the directory
        return ""


def _pipe() -> int:
    """The worker's socket to its parent."""
    return next(
        int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2 and _target(name).startswith("socket:")
    )
