"""A line between two hosts: delay, bandwidth and faults, by replay-bench-relay, where the kernel has no netem.

Frames are carried, not bytes of a connection: each end keeps its own TCP, and sees the line's round trip.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

from replay_server.server import find_program

_END_SECONDS = 10.0


class Line:
    """A relay between two interfaces, running. A context manager.

    Args:
        command: what to put before a command that is to run on the relay's host.
        interfaces: the two that it joins.
        delay_us: one way.
        rate_mbit: each way, in Mb/s of a wire's bits; 0 = no bound.
        queue_bytes: that may wait for the line before frames are dropped; 0 = what it holds both ways.
        faults: as the setting "dpdk-faults": "loss=0.01,duplicate=0.01,reorder=0.01,seed=1".
        processor: it runs on that alone; None = any.
        spin_us: so long before a frame is due it waits awake.
        mtu: of IP, on the interfaces.

    Raises:
        RuntimeError: it did not start; the message holds what it said.
    """

    def __init__(
        self,
        command: Sequence[str],
        interfaces: tuple[str, str] = ("server", "client"),
        *,
        delay_us: float = 0.0,
        rate_mbit: float = 0.0,
        queue_bytes: int = 0,
        faults: str | None = None,
        processor: int | None = None,
        spin_us: float = 0.0,
        mtu: int = 1500,
    ) -> None:
        self._interfaces = interfaces
        arguments = [*command, str(find_program("replay-bench-relay")), "--between", *interfaces]
        arguments += ["--delay-us", f"{delay_us:g}", "--rate-mbit", f"{rate_mbit:g}", "--spin-us", f"{spin_us:g}"]
        arguments += ["--queue-bytes", str(queue_bytes)]
        arguments += ["--frame-bytes", str(mtu + 14)]
        if faults:
            arguments += ["--faults", faults]
        if processor is not None:
            arguments += ["--processor", str(processor)]
        self._process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            _, said = self._process.communicate(timeout=_END_SECONDS)
            raise RuntimeError(f"the relay did not start: {said.strip()}")

    def end(self) -> dict[str, Any]:
        """Stops it. What it carried and dropped from each interface ("from_NAME"), and late_us_p50 and so on: how long
        after it was due a frame was sent."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            said, complaint = self._process.communicate(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            said, complaint = self._process.communicate()
        if self._process.returncode != 0:
            raise RuntimeError(f"the relay failed: {complaint.strip()}")
        content = json.loads(said)
        oversize = sum(content[f"from_{name}"]["dropped_oversize"] for name in self._interfaces)
        if oversize:
            raise RuntimeError(f"{oversize} frames were larger than the mtu: segmentation offloads must be off")
        return content

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
