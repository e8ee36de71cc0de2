"""Processes of a job that need torch, forked from one that has imported it.

The import takes seconds of a core and much of a part's memory; here a job pays for it once. The fork server has one
thread, no CUDA and no connection when it forks: what it imports must not change that. It ends with its job.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

UNKNOWN_EXIT = 255
"""What stands for the exit code of a process that the fork server did not outlive."""
_IMPORTED = (
    *("replay_server.learner.loop", "replay_server.actors.rollout", "replay_server.jobs.evaluation", "ale_py"),
    # Torch loads it, with 800 modules, for the first optimizer that a process makes.
    "torch._dynamo",
)
"""By most parts; what is not installed is left out."""
_ENVIRONMENT = {
    # The package that is installed, not a folder of that name where the job was started.
    "PYTHONSAFEPATH": "1",
    # Read once, by libraries that start threads when they are loaded. Each part sets torch's number itself.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_FORKS_S = 120.0
"""What a fork may take, with the imports before the first."""
_ENDS_S = 5.0
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LONGEST_REQUEST = 65536


class ForkedProcess:
    """Runs `main()` of a module, as `python -m` would, in a session of its own; its result is the exit code.

    Args:
        name: of the process, as `top` shows it.
        module: one whose `main` reads standard input, and no command line.
        log: file that standard error is appended to.
        output: of standard output; None: the log, too.

    Raises:
        OSError: no process could be made.
    """

    def __init__(self, name: str, module: str, log: Path, output: Path | None = None) -> None:
        paths = {"log": str(log.absolute()), "output": str((output or log).absolute())}
        self.pid, self._stdin, self._news = _fork({"name": name, "module": module, **paths})
        self._told = b""
        self._code: int | None = None

    def write(self, what: Any) -> None:
        """Writes a line of JSON to its standard input; nothing where it has died."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._stdin.sendall(json.dumps(what).encode() + b"\n")

    def hang_up(self) -> None:
        """Ends its standard input."""
        self._stdin.close()

    def wait(self, timeout_s: float | None) -> int | None:
        """Its exit code, once it has ended; negative: the signal that ended it. None: it runs on."""
        poll = select.poll()  # not select, whose descriptors end at 1,024
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while self._code is None:
            poll.register(self._news, select.POLLIN)
            left_s = max(0.0, deadline - time.monotonic())
            if not poll.poll(None if left_s == math.inf else math.ceil(1e3 * left_s)):
                break
            piece = self._news.recv(64)
            self._told += piece
            if not piece:  # neither the process nor the fork server has the other end any more
                self._code = int(self._told.split()[0]) if self._told else UNKNOWN_EXIT
                self._news.close()
                self._stdin.close()
        return self._code

    def kill(self) -> None:
        """Ends it at once; returns when it has ended."""
        if self.wait(0.0) is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.wait(_ENDS_S)


class ChildFailed(Exception):
    """The message says how it ended, and what it said last."""


def ask(name: str, module: str, question: Any, log: Path | None = None, timeout_s: float | None = None) -> Any:
    """What a `ForkedProcess` answers: JSON, as the last line of its output, to the question that it has by `asked`.

    It ends with its asker. `log`: of what it says beside; None: that goes once the answer is there.

    Raises:
        TimeoutError: it took longer than `timeout_s`, and was ended.
        ChildFailed: it has failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        log, output = log or Path(folder, "log"), Path(folder, "output")
        process = ForkedProcess(name, module, log, output)
        try:
            process.write(question)
            code = process.wait(timeout_s)
        finally:
            process.kill()
            process.hang_up()
        if code is None:
            raise TimeoutError(f"{name} took longer than {timeout_s:g} s")
        if code != 0:
            last = log.read_text(errors="replace").strip().rpartition("\n")[2] or "it said nothing"
            raise ChildFailed(f"failed with exit code {code}: {last}")
        return json.loads(output.read_text().splitlines()[-1])


def asked(at_end: Callable[[], object] = lambda: os._exit(1)) -> Any:
    """The line of JSON that this process was given on standard input; has a thread call `at_end` when that ends."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 65536)
        if not piece:
            raise EOFError("the job was gone before it could say what to do")
        line += piece

    def watch() -> None:
        while os.read(0, 4096):
            pass
        at_end()

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
    return json.loads(line)


# ---- the server, as its job sees it ----------------------------------------------------------------------------------


class _ForkServer:
    """A process with a socket as standard input: one message asks for one process."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "replay_server.jobs.fork_server"],
                stdin=theirs.fileno(),
                env={**os.environ, **_ENVIRONMENT},
                start_new_session=True,
            )
        atexit.register(self._end)

    def fork(self, request: dict[str, str]) -> tuple[int, socket.socket, socket.socket]:
        """The id of a new process, its standard input, and a socket that ends with it; its exit code comes before.

        Raises:
            OSError: this server has died, or has no process to give.
        """
        stdin, its_stdin = socket.socketpair()
        news, its_news = socket.socketpair()
        try:
            with its_stdin, its_news:
                socket.send_fds(self._requests, [json.dumps(request).encode()], [its_stdin.fileno(), its_news.fileno()])
                its_news.close()
                news.settimeout(_FORKS_S)
                pid = b""
                while not pid.endswith(b"\n"):
                    if not (piece := news.recv(1)):
                        raise BrokenPipeError("the process that parts are forked from has died, or cannot fork")
                    pid += piece
            news.settimeout(None)
        except BaseException:
            stdin.close()
            news.close()
            raise
        return int(pid), stdin, news

    def _end(self) -> None:
        self._requests.close()
        self.process.kill()
        self.process.wait()


_server: _ForkServer | None = None


def warm_up() -> _ForkServer:
    """Has the fork server import what parts need, beside whatever the caller does next."""
    global _server
    if _server is None or _server.process.poll() is not None:
        _server = _ForkServer()
    return _server


def _fork(request: dict[str, str]) -> tuple[int, socket.socket, socket.socket]:
    server = warm_up()
    try:
        return server.fork(request)
    except BrokenPipeError:
        with suppress(subprocess.TimeoutExpired):
            server.process.wait(1.0)
            return warm_up().fork(request)
        raise


# ---- the server itself -----------------------------------------------------------------------------------------------


def main() -> int:
    """Forks as it is asked, until nobody can ask any more."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":  # elsewhere torch's libraries are not to be used after a fork: each process loads them
        for name in _IMPORTED:
            with suppress(Exception):  # whatever needs it says so, in its own log
                importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a part's collector would write to what is imported, and so copy the memory that parts share
    ended, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    requests = socket.socket(fileno=os.dup(0))
    living: dict[int, socket.socket] = {}
    while True:
        ready = select.select([requests, ended], [], [])[0]
        if ended in ready:
            os.read(ended, 4096)
            _tell_ends(living)
        if requests not in ready:
            continue
        message, files, _, _ = socket.recv_fds(requests, _LONGEST_REQUEST, 2)
        if not message:
            return 0
        stdin, news = files[0], socket.socket(fileno=files[1])
        news.set_inheritable(False)  # what a part runs must not hold it open
        try:
            pid = os.fork()
        except OSError as error:
            print(f"no process could be forked: {error}", file=sys.stderr, flush=True)
            os.close(stdin)
            news.close()
            continue
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for file in (requests, *living.values()):
                file.close()
            for number in (ended, wakes):
                os.close(number)
            _be(stdin, news, **json.loads(message))
        os.close(stdin)
        living[pid] = news


def _tell_ends(living: dict[int, socket.socket]) -> None:
    while living:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with living.pop(pid) as news, suppress(OSError):
            news.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _be(stdin: int, news: socket.socket, name: str, module: str, log: str, output: str) -> None:
    """What the new process does, to its end."""
    code = 1
    try:
        news.sendall(b"%d\n" % os.getpid())
        os.setsid()
        for number in (*_IGNORED, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(stdin, 0)
        os.close(stdin)
        for path, stream in ((output, 1), (log, 2)):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            os.dup2(file, stream)
            os.close(file)
        with suppress(OSError):
            Path("/proc/self/comm").write_text(name)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()  # environments that draw from it would all draw the same
        code = importlib.import_module(module).main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        with suppress(OSError):
            news.sendall(b"%d\n" % code)  # the fork server may not live to tell it
        # A library's thread that does not end must not hold up the job's end.
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
