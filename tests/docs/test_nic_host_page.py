"""docs/nic-host.md against what its running text tells of: options, targets and files that it names are there.

Its command lines are held against their parsers in test_commands.py, its messages against the sources in
test_troubleshooting.py.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def document(repository: Path) -> str:
    return (repository / "docs/nic-host.md").read_text()


def test_every_option_of_the_set_up_that_is_named_exists(document: str, repository: Path) -> None:
    shown = subprocess.run(
        [repository / "setup_dpdk.sh", "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    known = set(re.findall(r"--[a-z][a-z-]*", shown.stdout))
    named = set(re.findall(r"`(--(?:take|no|via|name|yes|check|undo|memory|hugepages|page)[a-z-]*)", document))
    assert len(named) > 8
    assert named <= known


def test_files_of_the_system_that_are_named_are_those_that_the_script_writes(document: str, repository: Path) -> None:
    script = "".join(path.read_text() for path in (repository / "native/net/dpdk/setup").glob("*.sh"))
    for name in re.findall(r"`/etc/((?:tmpfiles|modprobe|modules-load)\.d/[a-z.-]+|dpdk/interfaces)`", document):
        assert f"$ETC/{name}" in script, name
    assert "/var/lib/replay-server/setup_dpdk.journal" in document
