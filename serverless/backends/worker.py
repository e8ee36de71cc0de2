"""A worker process of the process platform: reads requests from its pipe, calls the handler, writes the answers.

``python -m replay_server.serverless.backends.worker --handler module:function [--memory-limit-mb N]``, started by
`replay_server.serverless.backends.process`. Standard input is the pipe, a stream socket, and its only tie to who
started it: at its end, whatever ended the other side, the worker and all that it started end, too.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import resource
import select
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

from replay_server.serverless.backends.pipe import HEADER, MARK, READY, header

DIRECTORY = "REPLAY_FUNCTION_DIRECTORY"
"""Environment variable: the worker's own directory, which it removes where its parent cannot any more."""
HANDLER = "replay_server.serverless.function:handle"


def take_pipe() -> socket.socket:
    """Moves the pipe away from standard input, where a function or its children might read it.

    What a function prints goes where its errors go.
    """
    pipe = socket.socket(fileno=os.dup(0))  # not inherited by programs that a function starts
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    os.register_at_fork(after_in_child=pipe.close)
    return pipe


def end_with_parent(pipe: socket.socket) -> None:
    """Waits until the other side of the pipe is gone; then ends this process and those that it started."""
    hangup = select.poll()
    hangup.register(pipe.fileno(), select.POLLRDHUP)
    # Looks again every second: where a function closed the pipe under us, a wait without end would keep it open.
    while not (found := hangup.poll(1000)):
        pass
    if found[0][1] & select.POLLNVAL:
        os.write(2, b"the function closed its worker's pipe\n")
    directory = os.environ.get(DIRECTORY)
    with contextlib.suppress(OSError):
        if directory and os.path.samefile(directory, "."):
            shutil.rmtree(directory, ignore_errors=True)
    # In a group of its own, which its parent makes; a hand-started one must not take its shell along.
    if os.getpgid(0) == os.getsid(0):
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _load(handler: str) -> Callable[[bytes], bytes]:
    module, _, name = handler.partition(":")
    return getattr(importlib.import_module(module), name)


def _read(pipe: socket.socket, size_bytes: int) -> bytearray:
    """Exactly so many bytes. EOFError at the pipe's end."""
    data = bytearray(size_bytes)
    rest = memoryview(data)
    while rest:
        count = pipe.recv_into(rest)
        if count == 0:
            raise EOFError
        rest = rest[count:]
    return data


def serve(pipe: socket.socket, handler: Callable[[bytes], bytes]) -> None:
    """Answers requests until the pipe ends. An error that the handler raises ends the worker."""
    while True:
        try:
            mark, number, size_bytes = HEADER.unpack(_read(pipe, HEADER.size))
            if mark != MARK:
                raise SystemExit("expected a frame in the pipe, got other bytes: something else wrote to it")
            payload = bytes(_read(pipe, size_bytes))
        except (EOFError, ConnectionError):
            return
        answer = handler(payload)
        pipe.sendall(header(number, len(answer)))
        pipe.sendall(answer)


def main() -> int:
    """Runs a worker until its pipe ends."""
    began = time.time()
    parser = argparse.ArgumentParser(prog="worker", description="A worker process of the process platform.")
    parser.add_argument("--handler", default=HANDLER)
    parser.add_argument("--memory-limit-mb", type=int, default=0)
    options = parser.parse_args()
    pipe = take_pipe()
    threading.Thread(target=end_with_parent, args=(pipe,), name="lifeline", daemon=True).start()
    if options.memory_limit_mb:
        limit = options.memory_limit_mb * 2**20
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    handler = _load(options.handler)
    ready = f"{began!r} {time.time()!r}".encode()
    pipe.sendall(header(READY, len(ready)) + ready)
    serve(pipe, handler)
    return 0


if __name__ == "__main__":
    sys.exit(main())
