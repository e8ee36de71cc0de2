"""The load client over DPDK as tests use it: it sends each request once, and keeps the replies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def command(
    program: Path, own: Sequence[str], connect: str, requests: Sequence[bytes], folder: Path, patience_s: int
) -> list[str]:
    """What to run: one connection sends the requests, one after another, and their replies come to `folder / "kept"`.

    Args:
        own: the client's device, its address with a mask, and its MTU.
        connect: the server's address and port.
    """
    arguments = ["--connect", connect, "--patience", str(patience_s), "--processor", str(max(os.sched_getaffinity(0)))]
    arguments += ["--keep", str(folder / "kept"), "--role", "client", "--rounds", "1"]
    for number, data in enumerate(requests):
        (folder / f"{number}").write_bytes(data)
        arguments += ["--request", str(folder / f"{number}")]
    return [str(program), *own, *arguments]
