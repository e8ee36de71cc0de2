"""The tests of the protocol, as they are, against a server over each transport."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

SUITE = ["aio", "clients", "contract", "incarnation", "refusals", "resp", "sampler", "steps"]


def test_the_protocol_s_tests_pass_over_every_transport(site: Any, server: Any, repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
        + [f"tests/protocol/test_{name}.py" for name in SUITE],
        cwd=repository,
        env={**os.environ, "REPLAY_TEST_SERVER": server.url},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 200, done.stdout[-1000:]
