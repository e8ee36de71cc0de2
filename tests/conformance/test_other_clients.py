"""Clients in other languages work as they are: hiredis in C, Redis.pm in Perl; and against the real Redis, to show that
what they check is so there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent


@pytest.fixture(params=["ours", "redis"])
def peer(request: pytest.FixtureRequest, our_peer: Any, redis_peer: Any) -> Any:
    return our_peer if request.param == "ours" else redis_peer


@pytest.fixture(scope="module")
def hiredis_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None or not Path("/usr/include/hiredis/hiredis.h").exists():
        pytest.skip("needs a C compiler and hiredis: apt-get install gcc libhiredis-dev")
    program = tmp_path_factory.mktemp("hiredis") / "hiredis_client"
    command = [compiler, "-Wall", "-Werror", str(HERE / "hiredis_client.c"), "-lhiredis", "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert built.returncode == 0, built.stderr
    return program


def assert_fine(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (0, "fine\n"), result.stdout + result.stderr


def test_hiredis(hiredis_client: Path, peer: Any) -> None:
    assert_fine(str(hiredis_client), str(peer.unix_path))


def test_redis_pm(peer: Any) -> None:
    perl = shutil.which("perl")
    if perl is None or subprocess.run([perl, "-MRedis", "-e", "1"], capture_output=True, timeout=60).returncode != 0:
        pytest.skip("needs Perl and its client: apt-get install libredis-perl")
    assert_fine(perl, str(HERE / "perl_client.pl"), str(peer.unix_path))
