"""The EAL, DPDK's life in a process: started once, stopped once, and what is there between."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from types import TracebackType

from . import library
from .library import DpdkError
from .memory import Heap, MemoryPool, MemoryZone, heaps, memory_pools, memory_zones
from .packets import Mempool, Ring
from .port import Port, all_ports

_PROCESSORS = ("-c", "-l", "--lcores", "--main-lcore")


class Eal:
    """DPDK in this process, from now to `stop`: a context manager. DPDK allows that once in a process.

    The calling thread keeps the processors that it may run on, and no other thread is bound to one, unless the
    arguments name processors (-l, -c, --lcores). What DPDK would print goes to `log`.

    Args:
        arguments: the EAL's, as on a DPDK program's command line: "--no-huge", "-m", "64", "--vdev", "net_null0".

    Raises:
        DpdkError: DPDK was not built in, the EAL ran in this process already (EALREADY), or it refused; the message
            then holds what DPDK said.
    """

    def __init__(self, *arguments: str) -> None:
        given = [str(argument) for argument in arguments]
        if not any(argument.startswith(_PROCESSORS) for argument in given):
            # One thread of DPDK's, this one, floating over the processors that it has.
            processors = ",".join(map(str, sorted(os.sched_getaffinity(0))))
            given = [f"--lcores=0@({processors})", *given]
        library.start(given)

    def __enter__(self) -> Eal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def is_primary(self) -> bool:
        """False in a process that joined another's memory (--proc-type=secondary)."""
        return bool(library.call("asking for the kind of process", lambda _, lib: lib.dpdk_is_primary()))

    def ports(self) -> list[Port]:
        """All ports."""
        return all_ports()

    def port(self, name: str) -> Port:
        """The port of that name.

        Raises:
            DpdkError: there is none (ENODEV); the message lists those that there are.
        """
        ports = all_ports()
        for port in ports:
            if port.name == name:
                return port
        names = ", ".join(port.name for port in ports) or "none at all"
        raise DpdkError(f"no port is called {name!r}; there are: {names}", errno.ENODEV)

    def attach(self, device: str) -> Port:
        """Adds a device while DPDK runs: "net_null0", "net_tap1,iface=t0", or a PCI address. Returns its first port."""
        encoded = device.encode()
        return Port(library.call(f"attaching {device}", lambda _, lib: lib.dpdk_attach(encoded)))

    def detach(self, port: Port) -> None:
        """Stops the port and takes its device away."""
        library.call(f"detaching {port.name}", lambda _, lib: lib.dpdk_detach(port.id))

    def mempool(self, frames: int, frame_bytes: int = 2048) -> Mempool:
        """A pool of `frames` buffers, each for a frame of up to `frame_bytes`. It lasts until `stop`."""
        return Mempool(frames, frame_bytes)

    def ring(self, name: str, size: int = 0) -> Ring:
        """A new ring for up to `size` frames; 0 = the one of that name, which another process may have made.

        Raises:
            DpdkError: it is there already (EEXIST), or is not (ENOENT); the name is longer than 21 bytes
                (ENAMETOOLONG).
        """
        return Ring(name, size)

    @contextlib.contextmanager
    def pinned(self, *processors: int) -> Iterator[None]:
        """Has the calling thread run on these processors alone, until the block ends: for a thread that polls.

        Raises:
            DpdkError: it may not run there (EINVAL).
        """
        before = os.sched_getaffinity(0)
        try:
            with contextlib.suppress(OSError, ValueError, OverflowError):
                os.sched_setaffinity(0, processors)
            if os.sched_getaffinity(0) != set(processors):
                message = f"expected some of the processors {sorted(before)}, got {list(processors)}"
                raise DpdkError(message, errno.EINVAL)
            yield
        finally:
            os.sched_setaffinity(0, before)

    def heaps(self) -> list[Heap]:
        """DPDK's heap on each memory node."""
        return heaps()

    def memory_zones(self) -> list[MemoryZone]:
        """Named pieces of memory."""
        return memory_zones()

    def memory_pools(self) -> list[MemoryPool]:
        """Pools of buffers."""
        return memory_pools()

    def log(self) -> str:
        """What DPDK logged in this process, at most the last 16 kB."""
        return library.log()

    def stop(self) -> None:
        """Takes all ports away, unless they are another process's, and stops DPDK. A second call does nothing.

        Bursts cannot be used any more. Arrays on frames can: as long as there are any, the memory stays.
        """
        if not library.running():
            return
        try:
            if self.is_primary:
                for port in all_ports():
                    self.detach(port)
        finally:
            library.stop()
