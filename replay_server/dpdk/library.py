"""The extension over DPDK: loading it, calling it from one thread at a time, and its statuses as exceptions."""

from __future__ import annotations

import errno
import importlib
import operator
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from ..errors import ReplayError

# DPDK's control functions may not run beside each other.
_lock = threading.RLock()
_started_in: int | None = None
"""The process that started the EAL; None before."""
_running = False
_Element = TypeVar("_Element")
_alive: list[Any] = []
"""What DPDK keeps pointers to."""


def _renew_lock() -> None:
    """In a forked child, which has no thread that would unlock it if another thread was in a call."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


class DpdkError(ReplayError):
    """DPDK refused something, or is not there.

    Attributes:
        errno: the error number, as in the module `errno`; ENOSYS where the extension was not built or does not load.
        text: what DPDK calls that number.
    """

    def __init__(self, message: str, error_number: int, text: str = "") -> None:
        self.errno = error_number
        self.text = text or os.strerror(error_number)
        super().__init__(message)


def _load() -> tuple[Any, Any]:
    try:
        module = importlib.import_module("replay_server._dpdk")
    except ModuleNotFoundError as error:
        raise DpdkError(
            "replay_server.dpdk needs DPDK 22.11 or later, and this installation was built without: "
            "apt-get install libdpdk-dev pkg-config, then install replay-server again from its source",
            errno.ENOSYS,
        ) from error
    except ImportError as error:
        raise DpdkError(
            f"replay_server.dpdk was built against a DPDK that is not here ({error}): install that version "
            "(apt-get install dpdk), or install replay-server again from its source",
            errno.ENOSYS,
        ) from error
    return module.ffi, module.lib


def binding() -> tuple[Any, Any]:
    """`ffi` and `lib` of the extension, whether the EAL runs or not.

    Raises:
        DpdkError: the extension was not built, or DPDK's libraries are not there.
    """
    with _lock:
        return _load()


def available() -> bool:
    """Whether the extension was built and DPDK's libraries are there."""
    try:
        binding()
    except DpdkError:
        return False
    return True


def version() -> str:
    """DPDK's name and version: "DPDK 22.11.11"."""
    ffi, lib = binding()
    return ffi.string(lib.dpdk_version()).decode()


def _check(status: int, doing: str, logged_before: int) -> int:
    """A status of the binding: the number where it is one, an exception where it is a negative errno."""
    if status >= 0:
        return status
    ffi, lib = binding()
    text = ffi.string(lib.dpdk_error_text(-status)).decode(errors="replace")
    message = f"{doing}: {text} ({errno.errorcode.get(-status, -status)})"
    new = lib.dpdk_logged_bytes() - logged_before
    lines = log()[-new:].splitlines() if new else []
    if lines:
        message += "; DPDK says: " + " | ".join(lines[-4:])
    raise DpdkError(message, -status, text)


def call(doing: str, function: Callable[[Any, Any], int]) -> int:
    """Calls `function(ffi, lib)` while the EAL runs, and checks the status that it returns."""
    with _lock:
        ffi, lib = binding()
        if not _running:
            state = "has not been started" if _started_in is None else "was stopped"
            raise DpdkError(f"{doing}: the EAL {state}; use it inside `with dpdk.Eal(…)`", errno.ESHUTDOWN)
        if _started_in != os.getpid():
            raise DpdkError(f"{doing}: the EAL runs in the parent of this process, not here", errno.ESHUTDOWN)
        before = lib.dpdk_logged_bytes()
        return _check(function(ffi, lib), doing, before)


def no_calls() -> AbstractContextManager[object]:
    """While it is entered no other thread is in a call."""
    return _lock


def start(arguments: list[str]) -> None:
    """Starts the EAL, which DPDK allows once in a process.

    Raises:
        DpdkError: it was started before (EALREADY), or DPDK refused; then with the last lines of its log.
    """
    global _started_in, _running
    with _lock:
        ffi, lib = binding()
        if _started_in is not None:
            state = "runs" if _running else "ran, or failed to start,"
            raise DpdkError(
                f"the EAL {state} in this process already, and DPDK starts it once in a process: use another process",
                errno.EALREADY,
            )
        texts = [ffi.new("char[]", argument.encode()) for argument in ["replay-server", *arguments]]
        vector = ffi.new("char *[]", [*texts, ffi.NULL])
        _alive.extend([texts, vector])
        before = lib.dpdk_logged_bytes()
        status = lib.dpdk_start(len(texts), vector)
        _started_in = os.getpid()
        _check(status, f"starting the EAL with {' '.join(arguments)}", before)
        _running = True


def bounded(name: str, value: int, least: int, most: int) -> int:
    """A whole number from `least` to `most`.

    Raises:
        DpdkError: it is another (EINVAL).
    """
    number = operator.index(value)
    if not least <= number <= most:
        raise DpdkError(f"expected {name} of {least} to {most}, got {number}", errno.EINVAL)
    return number


def running() -> bool:
    """Whether the EAL runs in this very process."""
    return _running and _started_in == os.getpid()


def stop() -> None:
    """Stops the EAL; nothing where it does not run."""
    global _running
    with _lock:
        if not running():
            return
        _, lib = binding()
        _running = False
        _check(lib.dpdk_stop(), "stopping the EAL", lib.dpdk_logged_bytes())


def log() -> str:
    """What DPDK logged in this process: at most the last 16 kB."""
    ffi, lib = binding()
    buffer = ffi.new("char[]", 16384)
    length = lib.dpdk_log(buffer, 16384)
    return bytes(ffi.buffer(buffer, length)).decode(errors="replace")


def text(field: Any) -> str:
    """A text of a struct."""
    ffi, _ = binding()
    return ffi.string(field).decode(errors="replace")


def listed(
    doing: str, kind: str, fill: Callable[[Any, Any, int], int], make: Callable[[Any], _Element]
) -> list[_Element]:
    """What `make` makes of each element that `fill(lib, array, capacity)` writes, which returns how many there are:
    maybe more than were written. Elements live as long as their array: `make` must copy."""
    with _lock:
        capacity = call(doing, lambda ffi, lib: fill(lib, ffi.NULL, 0))
        while capacity > 0:
            array, room = binding()[0].new(f"{kind}[]", capacity), capacity
            capacity = call(doing, lambda ffi, lib, array=array, room=room: fill(lib, array, room))
            if capacity <= room:
                return [make(array[place]) for place in range(capacity)]
    return []
