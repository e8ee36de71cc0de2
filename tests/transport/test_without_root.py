"""What stands in network namespaces needs no root: a user namespace will do, but for AF_XDP."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NOBODY = "65534"
SUITE = ["connections", "transfers", "lifecycle", "frames", "faults", "dpdk_offloads", "fstack"]


def test_the_suite_runs_in_a_user_namespace(repository: Path, tmp_path: Path) -> None:
    """As an ordinary user: all of it. As root, who has run it already: a part, as nobody."""
    unshare, setpriv = shutil.which("unshare"), shutil.which("setpriv")
    if unshare is None or setpriv is None:
        pytest.skip("needs the commands unshare and setpriv: apt-get install util-linux")
    as_user: list[str] = []
    chosen = "not af_xdp"
    if os.geteuid() == 0:
        as_user = [setpriv, "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]
        chosen = "two_hundred and (kernel or af_packet)"
        tmp_path.chmod(0o777)
        if subprocess.run([*as_user, sys.executable, "-c", "import replay_server"], cwd=repository).returncode != 0:
            pytest.skip(f"nobody cannot read {repository}: run the tests as an ordinary user for this one")
    namespace = [*as_user, unshare, "--user", "--map-root-user", "--net", "--mount"]
    if subprocess.run([*namespace, "true"], capture_output=True).returncode != 0:
        pytest.skip(
            "this system lets only root make user namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns)"
        )
    done = subprocess.run(
        [*namespace, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", "-k", chosen]
        + [f"tests/transport/test_{name}.py" for name in SUITE],
        cwd=repository,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 1, done.stdout
