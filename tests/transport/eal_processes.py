"""Programs over `replay_server.dpdk`, each in a process of its own, for DPDK starts once in one, and off the machine's
network."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from replay_server import dpdk

PREAMBLE = """
import errno, os, subprocess, time
import numpy as np
from replay_server import dpdk

BASE = ["--no-huge", "-m", "64", "--no-pci", "--file-prefix", f"replay-test-{os.getpid()}"]

def ip(*arguments):
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout

def refused(error_number, words, use):
    try:
        use()
    except dpdk.DpdkError as error:
        assert error.errno == error_number and words in str(error), (error.errno, str(error))
    else:
        raise AssertionError(f"not refused: {words}")

def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError("not in time")

def in_use(eal, name):
    [pool] = [pool for pool in eal.memory_pools() if pool.name == name]
    return pool.in_use
"""


@functools.cache
def namespaces_are_allowed() -> bool:
    return subprocess.run(["unshare", "-rn", "true"], capture_output=True, timeout=60).returncode == 0


@contextlib.contextmanager
def shared_memory() -> Iterator[str]:
    """The prefix of processes that share memory on hugepages."""
    free = sum(pages.free for pages in dpdk.hugepages() if pages.size_bytes == 2 << 20)
    if free < 32 or not os.path.ismount("/dev/hugepages") or not os.access("/dev/hugepages", os.W_OK):
        pytest.skip("needs 32 free hugepages of 2 MB and write access to /dev/hugepages")
    prefix = f"replay-test-{os.getpid()}"
    try:
        yield prefix
    finally:
        for path in Path("/dev/hugepages").glob(f"{prefix}*"):
            path.unlink()


def run(code: str) -> str:
    """What the program prints."""
    return run_command("-c", PREAMBLE + textwrap.dedent(code))


def run_command(*arguments: str) -> str:
    """What Python prints with these arguments."""
    if not namespaces_are_allowed():
        pytest.skip("needs network namespaces (unshare -rn)")
    command = ["unshare", "-rn", sys.executable, *arguments]
    with tempfile.TemporaryDirectory(prefix="replay-test-") as folder:
        environment = {**os.environ, "RUNTIME_DIRECTORY": folder}
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert result.returncode == 0, f"exit status {result.returncode}\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}"
    return result.stdout
