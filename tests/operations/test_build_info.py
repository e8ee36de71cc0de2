"""`replay-server --version`: what is installed, for people and for programs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

import replay_server as rs
from replay_server.build_info import build_info, describe, native_build, native_settings
from replay_server.errors import ServerError
from replay_server.server import find_executable

VERSION = [sys.executable, "-m", "replay_server", "--version"]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*VERSION, *arguments], capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )


def test_people_read_version_transports_vector_path_and_libraries() -> None:
    lines = run(REPLAY_SIMD="scalar").stdout.splitlines()
    assert lines[0] == f"replay-server {rs.__version__}"
    assert lines[1].startswith("transports: kernel")
    assert lines[2].startswith("simd: scalar (built with scalar")
    assert re.match(r"libraries: (no )?lz4", lines[3])


def test_programs_read_the_same_as_json() -> None:
    done = run("--json", REPLAY_SIMD="scalar")
    info = json.loads(done.stdout)
    assert done.returncode == 0
    assert set(info["transports"]) == {"kernel", "dpdk", "fstack"}
    kernel = info["transports"]["kernel"]
    assert kernel["version"] == info["version"] == rs.__version__
    assert kernel["simd"]["used"] == "scalar"
    assert set(kernel["libraries"]) == {"lz4", "zstd", "openssl", "lua"}
    assert info["packages"]["numpy"]


def test_libraries_are_those_that_the_server_uses() -> None:
    """What it says that it was built with is what it accepts."""
    libraries = native_build()["libraries"]
    with rs.Server() as server, rs.Client(server.url) as client:
        for codec in ("lz4", "zstd"):
            table = rs.Table(codec, capacity=8, signature={
                "frame": rs.Column("uint8", (256,), step_only=True), "obs": rs.Window("frame", length=2, offset=0),
            }, compression=codec)  # fmt: skip
            if libraries[codec] is None:
                with pytest.raises(rs.ReplayError):
                    client.create_table(table)
            else:
                client.create_table(table)
        told = client.redis.info("server")
    assert told["redis_version"] == native_build()["redis_version"]


def test_the_other_transports_name_their_libraries() -> None:
    transports = build_info()["transports"]
    for transport, name in (("dpdk", "lwip"), ("fstack", "dpdk")):
        if transports[transport] is not None:
            assert transports[transport]["libraries"][name]


def test_one_that_is_not_built_or_does_not_run_is_said_to_be() -> None:
    info = build_info()
    info["transports"] = {"kernel": {"error": "no such library"}, "dpdk": None, "fstack": None}
    assert "kernel: no such library" in describe(info).splitlines()
    assert "transports: kernel" in describe(info).splitlines()


def test_an_executable_that_cannot_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLAY_SERVER_EXECUTABLE", "/bin/false")
    with pytest.raises(ServerError, match="--build-info"):
        native_build()


def test_settings_come_with_kind_default_and_bounds() -> None:
    settings = {each["name"]: each for each in native_settings()}
    assert settings["maxclients"] == {
        "name": "maxclients", "kind": "number", "live": True, "effect": True, "default": "10000",
        "minimum": 1, "maximum": 1_000_000,
    }  # fmt: skip
    assert settings["appendfsync"]["choices"] == ["always", "everysec", "no"]
    assert "databases" not in settings, "what cannot be set is no setting"


def test_other_words_behind_it_are_refused() -> None:
    done = run("--yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--json" in done.stderr


def test_the_native_server_refuses_what_it_does_not_know() -> None:
    done = subprocess.run([find_executable(), "--build-infos"], capture_output=True, timeout=60)
    assert done.returncode == 2
