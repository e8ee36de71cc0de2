"""One worker process, seen from who started it: a fresh interpreter, its pipe, its own directory, its end."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence

from replay_server.serverless.backends.pipe import READY, FrameReader, PipeError, header
from replay_server.serverless.backends.worker import DIRECTORY
from replay_server.serverless.function import INSTANCE

TAIL_BYTES = 4096
"""What is kept of what a worker printed, for the error that tells of its end."""
LAST_WORDS_S = 1.0
"""How long a worker whose pipe has ended may take to die by itself, so that its exit status is its own."""

INHERITED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")
"""Environment variables of the caller that a worker gets; all others it does not see."""


_running: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()


def _let_go_in_forked_child() -> None:
    # A forked child must not hold pipes open that tell workers of their parent's end.
    for worker in list(_running):
        worker.let_go()
    _running.clear()


os.register_at_fork(after_in_child=_let_go_in_forked_child)


class WorkerTimeout(Exception):
    """The call took longer than it may."""


class WorkerDied(Exception):
    """The worker is gone, or cannot be talked to any more; the message tells why."""


def worker_environment(directory: str, instance: str, more: Mapping[str, str]) -> dict[str, str]:
    """All that a worker finds in its environment."""
    found = {name: os.environ[name] for name in INHERITED if name in os.environ}
    if "PYTHONPATH" in found:  # relative parts are the caller's; the worker starts elsewhere
        found["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, found["PYTHONPATH"].split(os.pathsep)))
    own = {"HOME": directory, "TMPDIR": directory, DIRECTORY: directory, INSTANCE: instance}
    # One invocation computes on one core: results do not depend on how many the host has.
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {"LANG": "C.UTF-8", **found, **threads, **own, **more}


class WorkerProcess:
    """A worker. Used by one thread at a time, but for `kill`.

    Args:
        command: what to run.
        environment: variables on top of those that every worker gets.
        limit_bytes: of one answer.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], limit_bytes: int) -> None:
        self.instance = uuid.uuid4().hex
        self.calls = 0
        self.kinds: set[str] = set()
        """Of the requests that it was given."""
        self.idle_since = 0.0
        self.ready: tuple[float, float] | None = None
        """When the worker's own code began, and when it was ready (seconds since 1970); None before it said so."""
        self.directory = tempfile.mkdtemp(prefix="replay-function-")
        self._frames = FrameReader(limit_bytes)
        self._tail = b""
        self._hung_up = False
        pipe, theirs = socket.socketpair()
        printed, theirs_printed = os.pipe()
        self.started = time.time()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=theirs_printed,
                stderr=theirs_printed,
                cwd=self.directory,
                env=worker_environment(self.directory, self.instance, environment),
                start_new_session=True,  # a group of its own: it is ended with all that it started
            )
        except BaseException:
            pipe.close()
            os.close(printed)
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        finally:
            theirs.close()
            os.close(theirs_printed)
        pipe.setblocking(False)
        os.set_blocking(printed, False)
        self._pipe = pipe
        self._printed = printed
        _running.add(self)
        try:
            self._exit = os.pidfd_open(self._process.pid)
        except OSError:  # a kernel without: its death is seen by the end of its pipe alone
            self._exit = -1

    @property
    def pid(self) -> int:
        """Process id, of the first process of the command."""
        return self._process.pid

    def fit(self) -> bool:
        """Whether an idle worker can be given a call: it lives, and has said nothing that nobody asked for."""
        watch = select.poll()
        watch.register(self._pipe, select.POLLIN)
        if self._exit >= 0:
            watch.register(self._exit, select.POLLIN)
        return not watch.poll(0)

    def call(self, payload: bytes, timeout_s: float) -> bytes:
        """Has the worker answer a payload. WorkerTimeout, WorkerDied: it must be ended then."""
        self.calls += 1
        deadline = time.monotonic() + timeout_s
        unsent = memoryview(header(self.calls, len(payload)) + payload)
        watch = select.poll()
        for descriptor in (self._printed, self._exit):
            if descriptor >= 0:
                watch.register(descriptor, select.POLLIN)
        watch.register(self._pipe, select.POLLIN | select.POLLOUT)
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise WorkerTimeout
            events = dict(watch.poll(left_s * 1000 + 1))
            if self._printed in events and not self._drain():
                watch.unregister(self._printed)
            if (found := events.get(self._pipe.fileno(), 0)) & select.POLLOUT and unsent:
                unsent = unsent[self._send(unsent) :]
                if not unsent:
                    watch.modify(self._pipe, select.POLLIN)
            more = bool(found & ~select.POLLOUT) and self._receive()
            answer = self._answer()
            # Also where it has died: the answer may have been its last act.
            while answer is None and more and self._exit in events:
                more = self._receive()
                answer = self._answer()
            if answer is not None:
                return answer
            if self._hung_up or self._exit in events:
                raise WorkerDied(self._obituary())

    def _answer(self) -> bytes | None:
        try:
            while (frame := self._frames.take()) is not None:
                number, content = frame
                if number == READY and self.ready is None:
                    began, ready = content.split()
                    self.ready = float(began), float(ready)
                elif number == self.calls:
                    return content
                else:
                    raise PipeError(f"expected the answer to call {self.calls}, got one to {number}")
        except (PipeError, ValueError) as error:
            raise WorkerDied(f"it wrote bytes that are no answer into its pipe: {error}{self._said()}") from None
        return None

    def _send(self, data: memoryview) -> int:
        try:
            return self._pipe.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            self._hung_up = True
            return 0

    def _receive(self) -> bool:
        """Reads a part of what came; whether there may be more."""
        try:
            data = self._pipe.recv(1 << 18)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self._hung_up = not data
        self._frames.feed(data)
        return bool(data)

    def _drain(self) -> bool:
        """Reads what it printed; False at the end."""
        for _ in range(64):  # a worker that prints without end must not keep us here
            try:
                data = os.read(self._printed, 1 << 16)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            self._tail = (self._tail + data)[-TAIL_BYTES:]
        return True

    def _said(self) -> str:
        self._drain()
        text = self._tail.decode(errors="replace").strip()
        return f"; it had printed last:\n{text}" if text else ""

    def _obituary(self) -> str:
        """How it ended: waits a little, for its status."""
        status = None
        if self._wait_exit(LAST_WORDS_S):
            # Its group dies before its number may be given to another: see `end`.
            self.kill()
            status = self._process.wait()
        if status is None:
            told = "it closed its pipe, but lives"
        elif status < 0:
            told = f"it was ended by {_signal_name(-status)}"
        else:
            told = f"it ended with exit status {status}"
        return told + self._said()

    def _wait_exit(self, timeout_s: float) -> bool:
        if self._exit >= 0:
            watch = select.poll()
            watch.register(self._exit, select.POLLIN)
            return bool(watch.poll(timeout_s * 1000))
        give_up = time.monotonic() + timeout_s
        while os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > give_up:
                return False
            time.sleep(0.005)
        return True

    def kill(self) -> None:
        """Ends it and what it started, at once, from any thread; `end` is still to be called."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def let_go(self) -> None:
        """Closes the pipe in a process that is not the worker's parent."""
        self._pipe.close()

    def end(self) -> None:
        """Ends it, waits for that, and removes its directory."""
        self.kill()
        self._process.wait()
        self._pipe.close()
        os.close(self._printed)
        if self._exit >= 0:
            os.close(self._exit)
        shutil.rmtree(self.directory, ignore_errors=True)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
