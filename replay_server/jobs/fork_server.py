"""Processes of a job that need torch, forked from one that has imported it.

The import takes seconds of a core and much of a part's memory; here a job pays for it once. The fork server has one
thread, no CUDA and no connection when it forks: what it imports must not change that. It ends with its job.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import weakref
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

EXIT_UNKNOWN = 255
"""What stands for the exit code of a process that the fork server did not outlive."""
_IMPORTED = ("replay_server.learner.loop", "replay_server.actors.rollout", "replay_server.jobs.evaluation", "ale_py")
"""By most parts; what is not installed is left out."""
_ENVIRONMENT = {
    # The package that is installed, not a folder of that name where the job was started.
    "PYTHONSAFEPATH": "1",
    # Read once, by libraries that start threads when they are loaded. Each part sets torch's number itself.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LONGEST_REQUEST = 65536


class ForkedProcess:
    """Runs `main()` of a module, as `python -m` would, in a session of its own; its result is the exit code.

    Args:
        name: of the process, as `top` shows it.
        module: one whose `main` reads standard input, and no command line.
        log: file that standard error is appended to.
        output: of standard output; None: the log, too.
    """

    def __init__(self, name: str, module: str, log: Path, output: Path | None = None) -> None:
        paths = {"log": str(log.absolute()), "output": str((output or log).absolute())}
        self.pid, self._stdin, self._news = _fork({"name": name, "module": module, **paths})
        self._ended: IO[str] | int = self._news
        if sys.platform == "linux":
            # Where the fork server dies, its socket would tell of an end that has not come.
            with suppress(ProcessLookupError):
                self._ended = os.pidfd_open(self.pid)
                weakref.finalize(self, os.close, self._ended)
        self._code: int | None = None

    def write(self, what: bytes) -> None:
        """Writes to its standard input; nothing where it has died."""
        with suppress(BrokenPipeError), self._stdin.dup() as stream:
            stream.sendall(what)

    def hang_up(self) -> None:
        """Ends its standard input."""
        self._stdin.close()

    def wait(self, timeout_s: float | None) -> int | None:
        """Its exit code, once it has ended; negative: the signal that ended it. None: it runs on."""
        if self._code is None and select.select([self._ended], [], [], timeout_s)[0]:
            with self._news:
                self._code = int(self._news.readline() or EXIT_UNKNOWN)
        return self._code

    def kill(self) -> None:
        """Ends it at once; returns when it has ended."""
        if self.wait(0.0) is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait(None)


class ChildFailed(Exception):
    """The message says how it ended, and what it said last."""


def ask(name: str, module: str, question: Any, timeout_s: float | None = None) -> Any:
    """What a `ForkedProcess` answers: JSON, as the last line of its output, to JSON, which is its input.

    Raises:
        TimeoutError: it took longer than `timeout_s`, and was ended.
        ChildFailed: it has failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        log, output = Path(folder, "log"), Path(folder, "output")
        process = ForkedProcess(name, module, log, output)
        try:
            process.write(json.dumps(question).encode())
            process.hang_up()
            code = process.wait(timeout_s)
        finally:
            process.kill()
        if code is None:
            raise TimeoutError(f"{name} took longer than {timeout_s:g} s")
        if code != 0:
            last = log.read_text(errors="replace").strip().rpartition("\n")[2] or "it said nothing"
            raise ChildFailed(f"failed with exit code {code}: {last}")
        return json.loads(output.read_text().splitlines()[-1])


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

    def fork(self, request: dict[str, str]) -> tuple[int, socket.socket, IO[str]]:
        """The id of a new process, its standard input, and where its exit code comes, as a line.

        Raises:
            OSError: this server has died.
        """
        stdin, its_stdin = socket.socketpair()
        news, its_news = socket.socketpair()
        with its_stdin, its_news, news:
            socket.send_fds(self._requests, [json.dumps(request).encode()], [its_stdin.fileno(), its_news.fileno()])
            lines = news.makefile()
        if not (told := lines.readline()):
            raise BrokenPipeError(f"the process to fork from ended with exit code {self.process.wait()}")
        return int(told), stdin, lines

    def _end(self) -> None:
        self._requests.close()
        self.process.kill()
        self.process.wait()


_server: _ForkServer | None = None


def warm_up() -> None:
    """Has the fork server import what parts need, beside whatever the caller does next."""
    _running()


def _running() -> _ForkServer:
    global _server
    if _server is None or _server.process.poll() is not None:
        _server = _ForkServer()
    return _server


def _fork(request: dict[str, str]) -> tuple[int, socket.socket, IO[str]]:
    global _server
    try:
        return _running().fork(request)
    except OSError:
        _server = None  # it has just died
        return _running().fork(request)


# ---- the server itself -----------------------------------------------------------------------------------------------


def main() -> int:
    """Forks as it is asked, until nobody can ask any more."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":  # elsewhere torch's libraries are not to be used after a fork: each process loads them
        for name in _IMPORTED:
            with suppress(ImportError):
                importlib.import_module(name)
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
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for file in (requests, news, *living.values()):
                file.close()
            for number in (ended, wakes):
                os.close(number)
            _be(stdin, **json.loads(message))
        os.close(stdin)
        living[pid] = news
        with suppress(OSError):  # the job is gone
            news.sendall(b"%d\n" % pid)


def _tell_ends(living: dict[int, socket.socket]) -> None:
    while living:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with living.pop(pid) as news, suppress(OSError):
            news.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _be(stdin: int, name: str, module: str, log: str, output: str) -> None:
    """What the new process does, to its end."""
    code = 1
    try:
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
        if sys.platform == "linux":
            Path("/proc/self/comm").write_text(name)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()  # environments that draw from it would all draw the same
        code = importlib.import_module(module).main()
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        # A library's thread that does not end must not hold up the job's end.
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
