"""A program in place of a server that takes long to start."""

from __future__ import annotations

import sys
from pathlib import Path

_PROGRAM = """#!{python} -S
import os, time
with open("{folder}/pids", "a") as file:
    print(os.getpid(), file=file)
until = time.monotonic() + {seconds}
with open("/dev/zero", "rb", buffering=0) as file:
    while time.monotonic() < until:
        file.read({count})
        time.sleep(0.1)
print(f"ready url=redis://127.0.0.1:1 unix= pid={{os.getpid()}}", flush=True)
time.sleep(600)
"""


def slow_server(folder: Path, seconds: float, reads: bool = True) -> Path:
    """Its path. It is ready after so long, in which it reads all the time, or nothing. It adds its process id to `pids`
    in the folder."""
    program = folder / "slow-server"
    program.write_text(_PROGRAM.format(python=sys.executable, folder=folder, seconds=seconds, count=1 if reads else 0))
    program.chmod(0o700)
    return program


def pids_in(folder: Path) -> list[int]:
    """Of the programs that were started."""
    file = folder / "pids"
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []
