"""A function process shares no memory and no file system with its caller: shown by taking both away.

The platform's command enters namespaces of its own (mounts, processes, System V and POSIX queues) and a root that holds
Python, what is installed, and this package's code, read-only. What works there has come over its pipe or over TCP.
"""

from __future__ import annotations

import dataclasses
import importlib
import multiprocessing.shared_memory
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("mujoco")

import replay_server as rs
from replay_server.learner.ppo import PpoSettings
from replay_server.rl.fragments import fragment_signature
from replay_server.rl.function_contract import (
    ActorRequest,
    Names,
    Response,
    decode_response,
    encode_request,
)
from replay_server.rl.policy_networks import make_policy_network
from replay_server.rl.policy_spec import policy_spec
from replay_server.rl.weights import module_arrays
from replay_server.serverless.backends.backend import Backend
from replay_server.serverless.backends.process import ProcessPlatform
from replay_server.serverless.function import handle

HERE = Path(__file__).resolve().parent
LIMIT_S = 120.0
PARTS = (
    "replay_server",
    "replay_server._native",
    "replay_server.actors",
    "replay_server.learner",
    "replay_server.serverless",
)


def unshare() -> list[str]:
    """The command that enters new namespaces, as root or by a user namespace; skips where the host allows neither."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    command = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child"]
    if os.geteuid() != 0:
        command += ["--user", "--map-root-user"]
    tried = subprocess.run([*command, "mount", "-t", "tmpfs", "tmpfs", "/tmp"], capture_output=True, timeout=60)
    if tried.returncode != 0:
        pytest.skip(f"no namespaces here: {tried.stderr.decode().strip()}")
    return command


def needed_folders() -> list[str]:
    """Where Python, the libraries and this package are, and nothing beside them."""
    folders = [*("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache"), sys.prefix, sys.base_prefix]
    folders += [*sysconfig.get_paths().values(), *(path for path in sys.path if path.endswith("-packages"))]
    package = [os.path.dirname(importlib.import_module(part).__file__ or "") for part in PARTS]
    folders += [*package, *map(os.path.realpath, package)]  # a checkout's parts are links, and what they lead to
    found: list[str] = []
    for folder in sorted({os.path.abspath(folder) for folder in folders}, key=len):
        if os.path.exists(folder) and not any(Path(folder).is_relative_to(above) for above in found):
            found.append(folder)
    return found


def isolated(**options: Any) -> ProcessPlatform:
    """A platform of isolated workers."""
    more = [str(HERE / "small_function.py")] if "handler" in options else []
    folders = [*needed_folders(), *more]
    command = [*unshare(), "/bin/sh", str(HERE / "enter_own_namespaces.sh"), *folders, "--"]
    environment = {"HOME": "/tmp", "TMPDIR": "/tmp", **({"PYTHONPATH": str(HERE)} if more else {})}
    return ProcessPlatform(command=command, environment=environment, **options)


def response(answer: bytes) -> Response:
    found = decode_response(answer)
    assert found.failure is None, found.failure.traceback
    return found


def request(**settings: Any) -> bytes:
    return encode_request(ActorRequest("r", "redis://127.0.0.1:1", "job", settings, "ppo", round=1, version=1))


def test_an_isolated_function_sees_nothing_of_its_caller(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    memory = multiprocessing.shared_memory.SharedMemory(create=True, size=64)
    try:
        hidden = [str(tmp_path), str(HERE.parent.parent / "README.md"), str(HERE / "test_process_isolation.py")]
        hidden += [f"/dev/shm/{memory.name.lstrip('/')}", f"/proc/{os.getpid()}", "/host"]
        assert os.path.exists(hidden[3])
        with isolated(handler="small_function:handle") as platform:
            answer = platform.invoke(request(look_for=hidden, write=["/tmp/left", "/dev/shm/left"]), LIMIT_S)
            result = response(answer).result
    finally:
        memory.close()
        memory.unlink()
    assert result is not None
    assert not any(result["exist"].values()), result["exist"]
    assert len(result["processes"]) <= 2
    assert result["pid"] in result["processes"]
    assert result["directory"] == "/tmp"
    assert not os.path.exists("/tmp/left")
    assert not os.path.exists("/dev/shm/left")
    opened = [target for target in result["open"].values() if target and not target.startswith(("socket:", "pipe:"))]
    assert all(target == "/dev/null" or target.endswith("/fd") for target in opened)


def test_an_isolated_actor_plays_the_same_fragments_as_one_in_this_process(server: rs.Server) -> None:
    settings = PpoSettings(env="Hopper-v5", steps=64, hidden=16, seed=5)
    spec = policy_spec(settings)
    with rs.Client(server.url) as client, isolated() as platform, Backend(platform, concurrency=1) as functions:
        answers = {}
        for job in ("isolated", "here"):
            names = Names(job)
            table = rs.Table(
                names.fragments, 10, fragment_signature(settings, spec), sampler=rs.Fifo(), remover=rs.Fifo()
            )
            client.create_table(table)
            client.publish_weights(names.policy, module_arrays(make_policy_network(settings, spec)), version=1)
            payload = encode_request(
                ActorRequest(
                    f"{job}-1", server.url, job, dataclasses.asdict(settings), "ppo", 1, 1, actor=1, environments=2
                )
            )
            answer = functions.submit(payload).result(LIMIT_S) if job == "isolated" else handle(payload)
            result = response(answer).result
            assert result is not None
            answers[job] = client.get(names.fragments, np.frombuffer(result["fragments"], "<u8")).data
            assert result["steps"] == 128
    for column, here in answers["here"].items():
        np.testing.assert_array_equal(answers["isolated"][column], here, err_msg=column)
